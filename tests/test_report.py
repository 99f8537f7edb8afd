"""The report: whole, self-contained, safe against names, and right for odd results."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from jinja2 import nodes

import rgcss_dask
from rgcss_dask import select
from rgcss_dask.archive.result_file import load_result, save_result
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.result import Trust, Tuning, make_result
from rgcss_dask.reporting import write_report
from rgcss_dask.reporting.layout import grid_layout, image_layout
from rgcss_dask.reporting.redundancy import redundancy
from rgcss_dask.reporting.rendering import TEMPLATES
from rgcss_dask.reporting.samples import sample
from rgcss_dask.sources.registry import open_source

VOID = {"meta", "link", "img", "br", "wbr"}


class Page(HTMLParser):
    """Tags and text of a page; every tag must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.ids = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def rows_of(n=24, m=300, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, 5)) @ rng.normal(size=(5, n)) + 0.3 * rng.normal(size=(m, n)) + 2.0


def result_of(X=None, k=5, names=None, lam=1.0, objective="unselected", **more):
    moments = Moments.of(rows_of() if X is None else X, names=names)
    picked = select(moments, k, lam=lam, objective=objective, center=True)
    return make_result(moments, picked, **more)


def tuned(lams=7, k=5):
    rng = np.random.default_rng(1)
    mean = np.linspace(0.9, 0.1, k) * np.linspace(1, 1.5, lams)[:, None] + 0.01 * rng.random((lams, k))
    return Tuning(np.logspace(-3, 3, lams), mean, 0.02 + 0 * mean, 5, 10.0 ** (-3 if lams == 1 else 0), k, "A choice.")


def trust(n=24):
    return Trust(np.linspace(1, 0, n), 0.7, 0.1, 20, "Most columns return.")


@pytest.fixture
def write(tmp_path):
    def written(result, **options):
        path = tmp_path / "report.html"
        write_report(result, path, **options)
        assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
        return Page(path.read_text("utf-8"))

    return written


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The text of a report with everything in it."""
    path = tmp_path_factory.mktemp("whole") / "report.html"
    asked = {"source": "data.zarr", "options": {"folds": 5}}
    result = result_of(tuning=tuned(), trust=trust(), provenance=asked)
    write_report(result, path, rows=rows_of(seed=2), image_shape=(4, 6))
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    return path.read_text("utf-8")


def test_the_held_out_share_is_that_of_swapped_picks_if_the_picks_were_swapped(tmp_path):
    moments = rgcss_dask.scan(rows_of(), folds=5)
    found = [rgcss_dask.cross_validate(moments, 5, fixed_k=True, refine=swaps) for swaps in (False, True)]
    for tuning, words in zip(found, (", cross-validated", ", cross-validated with swaps in every fold"), strict=True):
        rgcss_dask.report(tuning, tmp_path / "report.html", overwrite=True)
        page = Page((tmp_path / "report.html").read_text("utf-8"))
        kept = float(tuning.kept_words.split(" keep ")[1].split(" %")[0])
        assert f"{kept:.1f} %" in page.text.replace("\u2009", " ").replace("\u202f", " ").replace("\xa0", " ")
        assert words in page.text
    assert found[0].kept_words != found[1].kept_words


def test_the_page_tells_the_story(whole):
    page = Page(whole)
    assert "5 of 24 columns keep" in page.text
    for words in ("data.zarr", "folds", "A choice.", "Most columns return.", "condition number", "row 0, column"):
        assert words in page.text
    assert len(page.all("svg")) == 9
    assert len(page.all("img")) == 18


def test_the_page_says_where_the_selection_ended_and_where_rounding_shows(write):
    result = result_of()
    rounding = np.where(np.arange(5) < 3, 0.0, 1e-6 * result.selection.start)
    page = write(replace(result, selection=replace(result.selection, exhausted=True, rounding=rounding)))
    assert "no other column could add anything" in page.text
    assert "From pick 4 on, the losses are affected by rounding" in page.text
    assert "affected by rounding" not in write(result).text


def test_nothing_comes_from_outside_and_every_picture_is_described(whole):
    page = Page(whole)
    for tag, attributes in page.tags:
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "data:").startswith(("data:", "#")), (tag, attributes)
    assert all(svg["aria-label"] and svg["role"] == "img" for svg in page.all("svg"))
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.ids) == len(set(page.ids))


def test_colours_are_left_to_the_page(whole):
    drawings = "".join(re.findall(r"<svg.*?</svg>", whole, flags=re.DOTALL))
    colours = set(re.findall(r"(?:fill|stroke): (#\w+)", drawings))
    assert colours <= {"#ffffff"}, "a fixed colour does not follow dark and light"
    assert "var(--accent)" in drawings


NASTY = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a&b &lt; c",
    'it\'s "quoted"',
    "very long " * 400,
    "x" * 5000,
    "温度 ℃ ñ 🙂",
    "right \u202eto left",
    "$\\frac{1}{2}$ {braces} %s",
    "",
)


def test_names_are_escaped_everywhere(write, tmp_path):
    names = tuple(NASTY[i % len(NASTY)] + (str(i) if i >= len(NASTY) else "") for i in range(24))
    provenance = {"source": NASTY[0], NASTY[1]: [NASTY[0], {"deep": NASTY[1]}]}
    awkward = replace(tuned(), words=NASTY[0]), replace(trust(), words=NASTY[1])
    result = result_of(k=12, names=names, provenance=provenance, tuning=awkward[0], trust=awkward[1])
    result = replace(result, versions={NASTY[0]: NASTY[1]}, created=NASTY[0])
    page = write(result, rows=rows_of(), grid={NASTY[0]: np.arange(24.0), NASTY[8] + "温": np.arange(24.0)})
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert NASTY[0] in page.text
    assert "温度 ℃ ñ 🙂" in page.text
    assert max(len(words) for words in page.words) < 1500  # a long name is cut where it is shown


HOSTILE = "<b id=x>\"'"


def test_templates_escape_whatever_they_are_given():
    """Neither an environment nor a template may turn escaping off."""
    assert TEMPLATES.autoescape is True
    for name in TEMPLATES.list_templates():
        tree = TEMPLATES.parse(TEMPLATES.loader.get_source(TEMPLATES, name)[0])
        assert not {node.name for node in tree.find_all(nodes.Filter)} & {"safe", "tojson", "xmlattr", "urlize"}, name
        assert not list(tree.find_all(nodes.EvalContextModifier)), f"{name} changes autoescape"
    for expression in ("it", "it|shown", "it ~ 1", "[it]|join", "it[:5]", "{it: 1}", "it|replace('b', 'i')"):
        written = TEMPLATES.from_string(f"{{{{ {expression} }}}}").render(it=HOSTILE)
        assert not set(written) & set("<>\"'"), expression


def test_variables_stand_between_tags_or_in_quotes():
    """Escaping protects there, and not in a script, a style sheet, or a value without quotes."""
    for name in TEMPLATES.list_templates():
        text = TEMPLATES.loader.get_source(TEMPLATES, name)[0]
        assert not re.search(r"=\{\{", text), f"{name}: an attribute without quotes"
        assert not re.search(r"""<[^>{]*\son\w+=|javascript:""", text), name
        for inside in re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, flags=re.DOTALL):
            assert re.fullmatch(r'\{% include "report\.(css|js)" %\}', inside), name
        assert name.endswith(".html") or "{{" not in text


def test_only_drawings_of_our_own_are_html():
    """Nothing else may say of itself that it needs no escaping."""
    used = {
        path.name: len(re.findall(r"\bMarkup\(", path.read_text()))
        for path in Path(rgcss_dask.__file__).parent.rglob("*.py")
        if "Markup(" in path.read_text() or "__html__(" in path.read_text()
    }
    assert used == {"drawing.py": 1}


def test_a_name_that_looks_like_a_template_is_a_name(write):
    names = ["{{ 703 * 709 }}", "{% raw %}", "{# gone #}", *map(str, range(21))]
    page = write(result_of(names=names, k=24, provenance={"{{ result }}": "{{ 6 * 7 }}"}))
    assert all(name in page.text for name in (*names, "{{ result }}", "{{ 6 * 7 }}"))
    assert "498427" not in page.text


def test_the_only_script_is_the_one_the_policy_allows(whole):
    page = Page(whole)
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", policy)


def test_a_name_that_utf8_cannot_hold_is_replaced(write):
    assert "bad?" in write(result_of(names=["bad\ud800", *map(str, range(23))], k=24)).text


def test_the_table_has_the_picks_in_order_and_what_they_sort_by(write):
    result = result_of(names=[f"name {i}" for i in range(24)])
    page = write(result)
    first = page.tags.index(("table", {"class": "sortable"}))
    cells = [attributes for tag, attributes in page.tags[first:] if tag == "td"][: 7 * result.k]
    assert [cell["data-value"] for cell in cells[1::7]] == [result.label(j) for j in result.selection.columns]
    assert [float(cell["data-value"]) for cell in cells[3::7]] == result.selection.explained.tolist()


@pytest.mark.parametrize(
    ("k", "lam", "objective"), [(1, 0.0, "all"), (1, 1e6, "unselected"), (24, 0.0, "unselected"), (24, 1e6, "all")]
)
def test_odd_selections_have_a_report(write, objective, lam, k):
    result = result_of(k=k, lam=lam, objective=objective)
    assert result.sentence in write(result, rows=rows_of()).text


@pytest.mark.filterwarnings("ignore:picked 0 columns")
def test_no_pick_at_all_has_a_report(write):
    X = np.ones((50, 24))
    assert "No column of 24 was picked." in write(result_of(X, lam=0.0), image_shape=(4, 6), rows=X).text


def test_constant_data_have_a_report(write):
    X = np.ones((50, 24))
    result = result_of(X, k=3)
    assert "columns" in write(result, image_shape=(4, 6), rows=X).text


def test_constant_columns_are_counted_apart(write):
    X = rows_of()
    X[:, [3, 7]] = 5.0
    result = result_of(X)
    assert redundancy(result).constant.tolist() == [3, 7]
    assert "2 are constant after preparation" in write(result, image_shape=(4, 6)).text


@pytest.mark.parametrize(("lams", "k", "charts"), [(1, 5, 1), (7, 1, 1), (7, 5, 3), (1, 1, 0)])
def test_a_choice_is_drawn_as_far_as_there_was_one(write, lams, k, charts):
    page = write(result_of(tuning=tuned(lams, k)))
    assert sum("held-out rows" in svg["aria-label"] for svg in page.all("svg")) == charts


def test_a_result_that_was_saved_gives_the_same_report(tmp_path):
    result = result_of(tuning=tuned(), trust=trust())
    save_result(result, tmp_path / "result.json")
    for which, name in ((result, "a.html"), (load_result(tmp_path / "result.json"), "b.html")):
        write_report(which, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_duplicate_is_said_to_be_explained_by_its_twin():
    X = rows_of()
    result = result_of(X, k=5, lam=0.0)
    twin = int(result.selection.columns[0])
    X = np.column_stack([X, -3 * X[:, twin]])
    result = result_of(X, k=5, lam=0.0)
    column = int(np.setdiff1d([twin, 24], result.selection.columns)[0])
    found = redundancy(result)
    place, weight = found.strongest(column)[0]
    assert result.selection.columns[place] in (twin, 24)
    assert weight == pytest.approx(-1.0, abs=1e-6)
    assert column in found.stands_for()[place]
    assert found.best(result.column_norm, 1)[0] == column


def test_rows_are_rebuilt_from_their_picks_alone():
    X = rows_of()
    result = result_of(X, k=8)
    found = sample(result, X, 6)
    S = result.selection.columns
    assert np.array_equal(found.original, X[found.rows])
    assert np.array_equal(found.rebuilt[:, S], X[found.rows][:, S])
    expected = (X[found.rows] - X.mean(axis=0))[:, S] @ result.weights + X.mean(axis=0)
    free = np.setdiff1d(np.arange(24), S)
    assert found.rebuilt[:, free] == pytest.approx(expected[:, free], rel=1e-9)


def test_only_a_few_rows_are_read():
    X = rows_of(m=1000)
    source = open_source(X)
    asked = []
    source.read = lambda start, stop: asked.append((start, stop)) or X[start:stop]
    found = sample(result_of(X), source, 6)
    assert [stop - start for start, stop in asked] == [1] * 6
    assert found.rows.tolist() == [start for start, _ in asked]
    assert sample(result_of(X), X[:2], 6).rows.tolist() == [0, 1]


def test_gaps_in_the_rows_are_drawn_as_gaps(write):
    X = rows_of()
    result = result_of(X)
    X[:, ::5] = np.nan
    X[X > 3] = np.inf
    assert np.isfinite(sample(result, X, 6).rebuilt).all()
    write(result, rows=X)
    X[200:] = np.nan
    write(result, rows=X, image_shape=(4, 6))


def test_coordinates_come_as_places_or_as_axes():
    lat, lon = np.array([10.0, 20.0]), np.array([1.0, 2.0, 3.0])
    axes = grid_layout({"latitude": lat, "longitude": lon}, 6)
    assert axes.on_the_globe
    assert axes.x.tolist() == [1, 2, 3, 1, 2, 3]
    assert axes.y.tolist() == [10, 10, 10, 20, 20, 20]
    assert axes.place(4) == "longitude 2, latitude 20"
    places = grid_layout((axes.x, axes.y), 6)
    assert places.axes is None
    assert places.x.tolist() == axes.x.tolist()


@pytest.mark.parametrize("grid", [(np.zeros(24), np.zeros(24)), (np.arange(24) % 5, -(np.arange(24.0) ** 3))])
def test_places_of_any_kind_have_a_map(write, grid):
    assert "picked places" in write(result_of(), grid=grid, rows=rows_of()).text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_shape": (5, 5)}, "as many pixels as there are columns, 24; got 5 x 5"),
        ({"image_shape": (24,)}, "image_shape must have"),
        ({"grid": (np.arange(3), np.arange(3))}, "got 3 x and 3 y"),
        ({"grid": np.arange(24)}, "grid must be a pair"),
        ({"grid": {"x": np.arange(24)}}, "grid must be a pair"),
        ({"grid": (np.full(24, np.nan), np.arange(24))}, "finite numbers in one dimension; x is not"),
        ({"grid": (np.arange(24), np.arange(24)), "image_shape": (4, 6)}, "give image_shape or grid"),
        ({"rows": np.zeros((3, 2))}, "rows must have the 24 columns of the result; memory has 2"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        write_report(result_of(), tmp_path / "report.html", **options)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("page", "figures"):
        monkeypatch.delitem(sys.modules, f"rgcss_dask.reporting.{name}", raising=False)
        monkeypatch.delattr(rgcss_dask.reporting, name, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape("rgcss-dask[report]")):
        write_report(result_of(), tmp_path / "report.html")


def test_the_report_does_not_change_how_the_user_draws(write):
    import matplotlib  # noqa: PLC0415

    with matplotlib.rc_context({"lines.color": "red", "axes.facecolor": "black", "font.size": 30}):
        before = dict(matplotlib.rcParams)
        write(result_of())
        assert dict(matplotlib.rcParams) == before


@pytest.mark.integration
def test_no_window_system_is_touched(tmp_path):
    save_result(result_of(), tmp_path / "result.json")
    code = (
        "import sys; from rgcss_dask.reporting import write_report; "
        "from rgcss_dask.archive.result_file import load_result; "
        f"write_report(load_result({str(tmp_path / 'result.json')!r}), {str(tmp_path / 'report.html')!r}); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_image_is_laid_out_row_by_row():
    layout = image_layout((2, 3), 6)
    assert layout.place(4) == "row 1, column 1"
