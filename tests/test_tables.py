"""Tables as people have them: which columns are taken, how text is read, and what is said of what cannot be."""

import datetime
import decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.conversion import text
from rgcss_dask.conversion.asked import unique
from rgcss_dask.io import matrix_writer as writer

NAN = np.nan


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def converted(content, name="x.csv", *, written="utf-8", **options):
    """Write a text table, convert it, and return names and values."""
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode(written))
    return stored(name, **options)


def stored(source, **options):
    rg.convert(source, "out.zarr", **options)
    array = zarr.open_array("out.zarr", mode="r")
    return array.attrs.get("column_names"), array[:]


def check(found, names, values):
    assert found[0] == names
    np.testing.assert_array_equal(found[1], values)


@pytest.mark.parametrize(
    ("content", "names", "values", "options"),
    [
        ("a;b\n1;2\n3;4\n", ["a", "b"], [[1, 2], [3, 4]], {}),
        ("a\tb\n1\t2\n", ["a", "b"], [[1, 2]], {}),
        ("a|b\n1|2\n", ["a", "b"], [[1, 2]], {}),
        (" a   b\n  1  2\n10   4", ["a", "b"], [[1, 2], [10, 4]], {}),
        ("a:b\n1:2\n", ["a", "b"], [[1, 2]], {"sep": ":"}),
        ("a;b\n1,5;-2\n3;4,25e1\n", ["a", "b"], [[1.5, -2], [3, 42.5]], {"decimal": ","}),
        ('"a,b","c;d"\n"1","2"\n', ["a,b", "c;d"], [[1, 2]], {}),
        ('"a\nb",c\n"1",2\n', ["a\nb", "c"], [[1, 2]], {}),
        ('"say ""a""",b\n1,2\n', ['say "a"', "b"], [[1, 2]], {}),
        (" a , b\n 1 , 2\n", ["a", "b"], [[1, 2]], {}),
        ("a,b\r\n1,2\r\n", ["a", "b"], [[1, 2]], {}),
        ("\n\na,b\n\n1,2\n\n", ["a", "b"], [[1, 2]], {}),
        ("a\n1\n\n3\n", ["a"], [[1], [NAN], [3]], {}),  # an empty line of one column is a row
        ("\ufeffa,b\n1,2\n", ["a", "b"], [[1, 2]], {}),
        ('\ufeff"a","b"\n1,2\n', ["a", "b"], [[1, 2]], {}),
        ("größe,<b>x</b>\n1,2\n", ["größe", "<b>x</b>"], [[1, 2]], {}),
        ("1,2\n3,4\n", ["c0", "c1"], [[1, 2], [3, 4]], {"no_header": True}),
        ("1,2,x\n3,4,y\n", ["c1"], [[2], [4]], {"no_header": True, "drop": ["c2", "c0"]}),
        ("a,b,c\n1, ?,\n2,NA,-999.0\n3,4,5\n", ["a", "b", "c"], [[1, NAN, NAN], [2, NAN, NAN], [3, 4, 5]], "?"),
        ("a,b\nTrue,1\nfalse,2\n,3\n", ["a", "b"], [[1, 1], [0, 2], [NAN, 3]], {}),
        ("a,a,b,a.1\n1,2,3,4\n", ["a", "a.2", "b", "a.1"], [[1, 2, 3, 4]], {}),
        ("a,a,b\n1,2,3\n", ["b"], [[3]], {"drop": "a"}),
        (",a,\n1,2,\n2,3,\n", ["a"], [[2], [3]], {"drop": ""}),
    ],
)
def test_text_tables_are_read_as_they_are_meant(content, names, values, options):
    check(converted(content, **({"na": ["?", "-999"]} if options == "?" else options)), names, values)


@pytest.mark.parametrize(("encoding", "said"), [("latin-1", "latin-1"), ("cp1252", "cp1252"), ("utf-16", None)])
def test_encodings(encoding, said):
    check(converted("größe,b\n1,2\n", written=encoding, encoding=said), ["größe", "b"], [[1, 2]])


def test_numbers_are_read_to_their_last_digit():
    values = np.random.default_rng(0).normal(size=500) * 10.0 ** np.arange(-250, 250)
    assert np.array_equal(converted("a\n" + "\n".join(map(repr, values.tolist())))[1][:, 0], values)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"columns": ["p1", "p2"]}, ["p1", "p2"]),
        ({"columns": "p2,p1"}, ["p1", "p2"]),  # in the order of the file
        ({"columns": "p*"}, ["p1", "p2"]),
        ({"columns": ["p*", "x [m]"], "drop": "p2"}, ["p1", "x [m]"]),
        ({"drop": ["p?", "it's, so"]}, ["x [m]", "*"]),
        ({"drop": "it's, so"}, ["p1", "p2", "x [m]", "*"]),
        ({"columns": "*"}, ["*"]),  # a name that is there counts as it is
        ({"columns": "x [m]"}, ["x [m]"]),
        ({"columns": ['"it\'s, so",p1']}, ["p1", "it's, so"]),
    ],
)
def test_columns_are_named_whole_or_by_patterns(options, names):
    found = converted('p1,p2,x [m],"it\'s, so",*\n1,2,3,4,5\n', **options)
    assert found[0] == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"drop": ["alhpa", "zz"]},
            r"names in drop must be columns of x\.csv; it has no 'alhpa', 'zz'\. Similar names: 'alpha'",
        ),
        ({"columns": "zz*"}, r"names in columns .* it has no 'zz\*'\. Its columns: 'alpha', 'beta'"),
        ({"indicators": "zz"}, r"names in indicators .* it has no 'zz'"),
        ({"drop": "*"}, r"a matrix must have columns; of the 2 columns of x\.csv, none is left"),
        ({"sep": ";;"}, "sep must be one character, such as ';', or a tab; got ';;'"),
        ({"decimal": "'"}, "decimal must be '.' or ','; got \"'\""),
        ({"decimal": ",", "sep": ","}, "sep and decimal must differ; both are ','"),
        ({"encoding": "klingon"}, "encoding must be known to Python.*got 'klingon'"),
        ({"encoding": "utf-16"}, r"x\.csv is not utf-16: .*[Ss]tream does not start with BOM.*--encoding"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        converted("alpha,beta\n1,2\n3,4\n", **options)
    assert not Path("out.zarr").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a,b\n1,2\n3\n",
            r"as the first; line 3 of x\.csv has 1, the first 2, with ',' between them.*--sep",
        ),
        ('a,b\n"1\n",2\n\n3,4,5\n', r"line 5 of x\.csv has 3, the first 2"),
        ("a  b\n1  2\n3 4 5\n", r"line 3 of x\.csv has 3, the first 2, with ' ' between"),
        ("a,b\n1,2\n3,é\n".encode("latin-1"), r"x\.csv is not UTF-8: line 3 has the byte 0xe9.*--encoding.*latin-1"),
        ("é,b\n1,2\n".encode("latin-1"), r"x\.csv is not UTF-8: line 1 has the byte 0xe9"),
        ("", r"a table must have lines; x\.csv is empty"),
        ("a,b\n", r"a matrix must have rows; x\.csv has none"),
        ("1,2\n3,4\n", r"begins with numbers \(1, 2\)\. Insert a line of names, or give --no-header"),
        (",a\n1,2\n", r"field 1 of the first line of x\.csv is empty.*row numbers.*--drop ''"),
    ],
)
def test_tables_that_cannot_be_read_are_said_by_line(content, message):
    with pytest.raises(ValueError, match=message):
        converted(content)
    assert not list(Path().glob("out.zarr*"))


def test_a_table_that_is_packed_wrongly_is_named():
    with pytest.raises(ValueError, match=r"x\.csv\.gz must be complete, and compressed as its name says"):
        converted(b"abc", "x.csv.gz")


def test_all_unusable_columns_are_named_at_once_with_the_way_out():
    """Also what shows only at the end of the file."""
    rows = "".join(f"{i},2024-01-0{i % 9 + 1},1;2,{i}\n" for i in range(2000))
    content = f"n,when,it's,late,none,huge\n{rows}".replace("\n", ",,1\n").replace("huge,,1", "huge") + "1,,a,x,,2\n"
    content += "1,2024-01-01,b,2,,12345678901234567\n"
    with pytest.raises(TypeError) as refused:
        converted(content)
    said = str(refused.value)
    for one in (
        "'when' (dates or times, such as '2024-01-01' in row 1)",
        "\"it's\" (text, such as '1;2' in row 1)",
        "'late' (text, such as 'x' in row 2,001)",
        "'none' (no value at all)",
        "'huge' (whole numbers beyond 2^53, which float64 cannot hold, such as '12345678901234567' in row 2,002)",
        """--drop when --drop 'it'"'"'s' --drop late --drop none --drop huge""",
        "--numeric-only",
        "write dates as numbers first",
        "--na x",
        """--indicators 'it'"'"'s'""",
    ):
        assert one in said, said
    assert "'n'" not in said
    left = []
    assert stored("x.csv", numeric_only=True, say=left.append)[0] == ["n"]
    assert left == ["left out 5 of 6 columns that hold no numbers: 'when', \"it's\", 'late', 'none', 'huge'."]


@pytest.mark.parametrize(
    ("content", "hint", "options"),
    [
        ("a;b\n1,5;2\n", "; read decimal commas with --decimal ,", {}),
        ("a,b\n1,2\n?,3\n", r"words as missing values with --na '\?'", {}),
        ("a,b\nx,2\ny,3\n", "0/1 columns of categories with --indicators a", {}),
        ("a,b\nTrue,2\n0,3\n", r"'a' \(text, such as 'True' in row 1\)", {}),
        ("a;b\n1.234,5;2\n", r"'a' \(text, such as '1\.234,5' in row 1\)", {"decimal": ","}),  # thousands
        ('a,b\n"1,234",2\n', r"'a' \(text, such as '1,234' in row 1\)", {}),
        ("a,b\n12:30,2\n", r"'a' \(dates or times, such as '12:30' in row 1\)", {}),
    ],
)
def test_what_is_no_number_brings_the_hint_that_helps(content, hint, options):
    with pytest.raises(TypeError, match=hint):
        converted(content, **options)


def test_true_and_numbers_do_not_mix_though_they_are_read_apart(monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 16)
    with pytest.raises(TypeError, match=r"'a' \(numbers, and true or false: 'true' in row 1\)"):
        converted("a,b\n" + "true,1\n" * 4 + "5,1\n" * 10)  # the blocks end with the words


def test_so_many_unusable_columns_that_not_all_are_told():
    names = ",".join(f"t{i}" for i in range(200))
    with pytest.raises(TypeError, match=r"'t49' .* and 150 more.* Leave them out, or all such columns with --numeric-"):
        converted(f"a,{names}\n1,{','.join(['x'] * 200)}\n")


CITIES = "n,city,class\n1,Rome,2\n2,,1\n3, Oslo,10\n4,Rome,1\n"


def test_categories_become_indicators():
    """A pattern means text, a name any column; no value is NaN in each; values are counted as people do."""
    names = ["n", "city=Oslo", "city=Rome", "class=1", "class=2", "class=10"]
    values = [[1, 0, 1, 0, 1, 0], [2, NAN, NAN, 1, 0, 0], [3, 1, 0, 0, 0, 1], [4, 0, 1, 1, 0, 0]]
    check(converted(CITIES, indicators=["*", "class"]), names, values)


def test_categories_of_all_files_are_known_before_any_is_written(monkeypatch):
    """And a conversion that is gone on with has the same columns."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 5 * 8 * 10)
    monkeypatch.setattr(text, "BLOCK", 64)
    words = np.random.default_rng(0).choice(["x", "y", "zé"], 90)
    words[:30][words[:30] == "zé"] = "x"
    for i in range(3):
        rows = [f"{w},{j}\n" if i != 1 else f"{j},{w}\n" for j, w in enumerate(words[30 * i : 30 * i + 30])]
        Path(f"day-{i}.csv").write_text(("w,n\n" if i != 1 else "n,w\n") + "".join(rows))
    seen = []

    def interrupt(rows):
        seen.append(rows)
        if sum(seen) >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.convert("day-*.csv", "out.zarr", indicators="w", told=interrupt)
    again, looked = [], []
    found = stored("day-*.csv", indicators="w", told=again.append, looked=looked.append)
    assert again[0] == sum(seen)
    assert sum(looked) == 90
    expected = np.column_stack([words == "x", words == "y", words == "zé", np.arange(90) % 30])
    check(found, ["w=x", "w=y", "w=zé", "n"], expected)


def test_other_options_begin_anew(monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 16)
    Path("x.csv").write_text("a,b\n" + "1,?\n2,3\n" * 10)

    def interrupt(rows):
        if rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.convert("x.csv", "out.zarr", na=["?", "1"], told=interrupt)
    check(stored("x.csv", na="?"), ["a", "b"], [[1, NAN], [2, 3]] * 10)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n" + "".join(f"v{i},1\n" for i in range(1001)), {"indicators": "a"}, "more than 1,000 different values"),
        ("a,a=x\nx,1\n", {"indicators": "a"}, "two would be called 'a=x'"),
        ("a,b\n,1\n", {"indicators": "a"}, r"'a' \(no value at all\)"),
    ],
)
def test_indicators_that_cannot_be(content, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        converted(content, **options)


def test_files_whose_columns_are_in_another_order_are_put_in_order():
    Path("day-1.csv").write_text("a,b\n1,2\n")
    Path("day-2.csv").write_text("b;a\n20;10\n")
    pq.write_table(pa.table({"b": [200], "a": [100]}), "day-3.parquet")
    check(stored(["day-*.csv", "day-3.parquet"]), ["a", "b"], [[1, 2], [10, 20], [100, 200]])


def test_files_that_differ_in_a_column_that_is_left_out_are_alike():
    Path("day-1.csv").write_text("a,b,x\n1,2,3\n")
    Path("day-2.csv").write_text("b,a\n20,10\n")
    with pytest.raises(ValueError, match=r"order; day-1\.csv has 3 \(differing: 'x'\) and day-2\.csv has 2\..*--drop"):
        stored("day-*.csv")
    check(stored("day-*.csv", columns=["a", "b"]), ["a", "b"], [[1, 2], [10, 20]])


def test_a_column_that_is_text_in_one_file_is_named_with_the_file():
    Path("day-1.csv").write_text("a,b\n1,2\n")
    Path("day-2.csv").write_text("a,b\n1,x\n")
    with pytest.raises(TypeError, match=r"of day-1\.csv and 1 more .* 'b' \(text, such as 'x' in row 1 of day-2"):
        stored("day-*.csv")


PARQUET = {
    "id": pa.array([1, 2, 3]),
    "cat": pa.array(["x", None, "y"]).dictionary_encode(),
    "when": pa.array([datetime.date(2024, 1, 1)] * 3),
    "list": pa.array([[1], [2], [3]]),
    "none": pa.nulls(3),
    "empty": pa.array([None] * 3, pa.float64()),
    "exact": pa.array([decimal.Decimal("1.5")] * 3),
    "flag": pa.array([True, None, False]),
}


def test_columns_of_parquet():
    pq.write_table(pa.table(PARQUET), "x.parquet")
    with pytest.raises(TypeError) as refused:
        stored("x.parquet")
    for one in (
        "'cat' (text, of type dictionary",
        "'when' (dates or times, of type date32[day])",
        "'list' (neither numbers nor text, of type list",
        "'none' (no value at all)",
        "'empty' (no value at all)",
        "--drop cat --drop when --drop list --drop none --drop empty",
    ):
        assert one in str(refused.value)
    expected = [[1, 1, 0, 1.5, 1], [2, NAN, NAN, 1.5, NAN], [3, 0, 1, 1.5, 0]]
    check(stored("x.parquet", indicators="*", numeric_only=True), ["id", "cat=x", "cat=y", "exact", "flag"], expected)


def test_indicators_of_parquet_are_small_integers():
    pq.write_table(pa.table({"id": [2, 1, 10], "s": ["a", "b", "a"]}), "x.parquet")
    names, values = stored("x.parquet", indicators=["id", "s"])
    assert values.dtype == np.uint8
    assert names == ["id=1", "id=2", "id=10", "s=a", "s=b"]
    assert np.array_equal(values, [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 0, 1, 1, 0]])
    pq.write_table(pa.table({"l": [[1]], "b": [1]}), "l.parquet")
    with pytest.raises(TypeError, match=r"'l' \(neither numbers nor text"):
        rg.convert("l.parquet", "other.zarr", indicators="l")


def test_names_of_parquet_that_are_double_or_have_points():
    pq.write_table(pa.table({"a.b": [1, 2], "a": [3.0, 4.0], "c": [{"d": 1}, {"d": 2}]}), "x.parquet")
    check(stored("x.parquet", columns=["a.b", "a"]), ["a.b", "a"], [[1, 3], [2, 4]])
    pq.write_table(pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"]), "y.parquet")
    rg.convert("y.parquet", "y.zarr")
    assert rg.scan("y.zarr").names == ("a", "b", "a.1")


def test_ids_that_float64_cannot_hold_are_refused():
    pq.write_table(pa.table({"id": [2**60 + 1], "x": [1.0]}), "x.parquet")
    with pytest.raises(ValueError, match=r"'id' of x\.parquet holds whole numbers beyond 2\^53.*--drop"):
        stored("x.parquet")


def test_unique_names_are_those_of_pandas():
    for names in (["a", "a", "a.1", "a"], ["a", "b"], ["a.1", "a", "a"], ["", "", "x"]):
        assert len(set(unique(names))) == len(names)
    assert unique(["a", "a", "a"]) == ("a", "a.1", "a.2")


def test_what_arrays_take():
    np.save("x.npy", np.arange(6.0).reshape(2, 3))
    check(stored("x.npy", drop="c1"), ["c0", "c2"], [[0, 2], [3, 5]])
    with pytest.raises(ValueError, match="indicators can be made only from columns of tables"):
        rg.convert("x.npy", "y.zarr", indicators="c0")
    with pytest.raises(ValueError, match="sep, na can be given for text tables only"):
        rg.convert("x.npy", "y.zarr", na="?", sep=";")


def images(kind):
    values = np.arange(24).reshape(4, 2, 3)
    if kind == "npy":
        np.save("x.npy", values)
    elif kind == "npz":
        np.savez("x.npz", images=values, digits=np.arange(4))
    elif kind == "h5":
        with pytest.importorskip("h5py").File("x.h5", "w") as file:
            file["images"] = values
    else:
        zarr.create_array("x.zarr", data=values, chunks=(3, 2, 2))
    return f"x.{kind}"


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "zarr"])
def test_images_of_every_kind_become_rows_of_pixels(kind, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 8)
    names, values = stored(images(kind))
    assert names is None
    assert np.array_equal(values, np.arange(24).reshape(4, 6))


def test_thousands_of_columns():
    A = np.random.default_rng(0).integers(-99, 99, (30, 3000))
    names = [f"g{i}" for i in range(3000)]
    lines = [",".join([*map(str, row), "text"]) for row in A.tolist()]
    found = converted("\n".join([",".join([*names, "note"]), *lines]), drop="note")
    check(found, names, A)


def test_so_many_columns_as_only_a_damaged_file_has_are_refused():
    """And not named one by one, which would take all memory."""
    Path("x-ubyte").write_bytes(bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4) for n in (5, 2**31, 2**20)))
    with pytest.raises(ValueError, match="up to 1,048,576 columns; by its header, the file has 2,251,799,813,685,248"):
        stored("x-ubyte")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_whose_values_nearly_all_differ_is_not_proposed_as_categories(kind):
    names = [f"user-{i}" for i in range(40)]
    frame = pd.DataFrame({"name": names, "town": ["Rome", "Oslo"] * 20, "n": range(40)})
    frame.to_csv("x.csv", index=False)
    frame.to_parquet("x.parquet", index=False)
    with pytest.raises(TypeError, match=r"0/1 columns of categories with --indicators town\."):
        rg.convert(f"x.{kind}", "y.zarr")
    with pytest.raises(TypeError) as found:
        rg.convert(f"x.{kind}", "y.zarr", drop="town")
    assert "--drop name" in str(found.value)
    assert "--indicators" not in str(found.value)
