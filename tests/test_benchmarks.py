"""The benchmark against others: what its figures are made to say, and a quick run of all of it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle
import pytest

from examples.benchmarks import headline, passes, splits
from examples.benchmarks.contenders import GREEDY, REFINED, SELECTORS, Selector, explicit_greedy
from examples.benchmarks.datasets import Case, prepared
from examples.benchmarks.measure import Spread, figure, in_turns, ratios, spread
from examples.benchmarks.quality import explained, measure, picks, shares_of
from examples.benchmarks.statements import (
    against_ours,
    compare,
    pass_place,
    pass_statements,
    selection_statements,
    standings,
)
from examples.benchmarks.tables import document

ROOT = Path(__file__).parent.parent


def rows_of(m=60, n=9, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, 4)) @ rng.standard_normal((4, n)) + 0.3 * rng.standard_normal((m, n))


def picked_by(contender, share, held_out, data="one", k=4, seconds=(1.0,)):
    about = {"data": data, "rows": 10, "held_out_rows": 5, "columns": 8, "k": k, "contender": contender}
    return about | {"train": share, "held_out": held_out, "seconds": list(seconds)}


def passed_by(contender, seconds, dtype="uint8"):
    figures = {"peak_mb": [100.0], "above_mb": [1.0], "error": [0.0]}
    return {"dtype": dtype, "rows": 10, "columns": 8, "contender": contender, "seconds": list(seconds)} | figures


def left_by(contender, left, seconds=1.0, k=4):
    about = {"data": "one", "columns": 8, "k": k, "contender": contender, "seconds": [seconds] * len(left)}
    return about | {"left": list(left), "left_of_used": [1.0 - share for share in left]}


def made_up_splits():
    rows = [left_by(GREEDY, [0.30, 0.34]), left_by(REFINED, [0.29, 0.31]), left_by("fastcan", [0.25, 0.26])]
    rows += [left_by(splits.TUNED, [0.30, 0.33]), left_by(headline.EXPLICIT, [0.30, 0.34], seconds=0.4)]
    machine = {"processor": "p", "cores": 2, "python": "3", "blas": "b", "versions": {"numpy": "2"}}
    return {"splits": 2, "machine": machine, "rows": rows}


def made_up():
    selection = [picked_by(GREEDY, 0.80, 0.70), picked_by(REFINED, 0.85, 0.71), picked_by("fastcan", 0.82, 0.75)]
    selection.append(picked_by(headline.EXPLICIT, 0.80, 0.70, seconds=(3.0,)))
    taken = [
        passed_by(passes.OURS, [1, 2, 4]),
        passed_by(passes.LOOP, [0.5, 1, 2]),
        passed_by(passes.PRODUCT, [2, 4, 8]),
    ]
    about = {
        "command": "x",
        "rounds": 3,
        "load": {"one": 0.5},
        "left_out": [{"contender": "cubed", "reason": "broken"}],
    }
    about["machine"] = {"processor": "p", "cores": 2, "memory_gb": 8.0, "system": "s", "python": "3", "blas": "b"}
    about["machine"]["versions"] = {"numpy": "2"}
    picked = {"selection": about | {"results": selection}, "splits": made_up_splits()}
    return {"mode": "full", "pass": about | {"results": taken}} | picked


def test_ratios_are_within_rounds():
    assert ratios([2, 4, 8], [1, 2, 4]) == [2, 2, 2]
    assert ratios([9], [3, 100, 100]) == [3]
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(("value", "text"), [(0.0123, "0.012"), (1.234, "1.23"), (45.67, "45.7"), (1234.5, "1,234")])
def test_figures_have_three_digits_or_so(value, text):
    assert figure(value) == text


def test_the_slow_have_one_turn_and_the_others_all():
    order = []
    ways = {"fast": lambda: order.append("fast") or 0.1, "slow": lambda: order.append("slow") or 9.0}
    assert in_turns(ways, 3, slow=5.0) == {"fast": [0.1, 0.1, 0.1], "slow": [9.0]}
    assert order == ["fast", "slow", "fast", "fast"]


@pytest.mark.parametrize(
    ("ours", "other", "place"), [(0.10, 0.20, "first"), (0.20, 0.10, "behind"), (0.1005, 0.10, "tied"), (0, 0, "tied")]
)
def test_places_by_what_is_left(ours, other, place):
    assert compare(ours, other) == place


def test_ours_do_not_compete_with_each_other():
    rows = made_up()["selection"]["results"]
    (train,), (held_out,) = standings(rows, REFINED, "train"), standings(rows, REFINED, "held_out")
    assert (train.place, train.best) == ("first", "fastcan")
    assert (held_out.place, held_out.best, held_out.best_explained) == ("behind", "fastcan", 0.75)


def test_a_case_in_which_ours_is_behind_is_told():
    said = list(selection_statements(made_up()["selection"]["results"]))
    assert f"{REFINED}, on the rows used: first in 1, tied in 0, behind in 0 of 1 cases." in said
    behind = [sentence for sentence in said if sentence.startswith("Behind")]
    assert behind == [f"Behind on held-out rows, one, k = 4: fastcan explains 75.00%, {REFINED} 71.00%."]


def test_a_pass_is_ahead_when_it_is_in_most_rounds():
    assert pass_place(Spread(1.1, 1.2, 1.3)) == "ahead"
    assert pass_place(Spread(0.9, 1.2, 1.3)) == "tied"
    assert pass_place(Spread(0.7, 0.8, 0.9)) == "behind"


def test_passes_that_ours_is_not_ahead_of_and_targets_are_told():
    rows = made_up()["pass"]["results"]
    assert against_ours(rows, "uint8")[passes.LOOP] == Spread(0.5, 0.5, 0.5)
    said = list(pass_statements(rows))
    assert "uint8: our pass is ahead in 1, tied in 0, behind in 1 of 2 cases." in said
    assert "uint8: not ahead of five-line loop, which takes 0.50 (0.50 to 0.50) times as long as ours." in said
    assert "uint8: Dask X.T @ X to take 1.50 times as long as ours or more: met, 2.00 (2.00 to 2.00)." in said
    slower = [row | {"seconds": [1.0, 2.0, 4.0]} if row["contender"] == passes.PRODUCT else row for row in rows]
    assert any("or more: not met, 1.00" in sentence for sentence in pass_statements(slower))


def test_the_page_tells_what_was_left_out():
    page = document(made_up())
    assert "- Left out: cubed: broken" in page
    assert "| fastcan | 82.00 |" in page
    assert "| ours, cross-validated, swaps | **85.00** |" in page


def test_what_was_not_measured_is_left_out_of_page_and_table():
    results = made_up()
    for row in results["selection"]["results"]:
        del row["seconds"]
    del results["pass"]
    assert "Not measured in this run." in document(results)
    made = headline.table(results)
    assert "The time and memory of the pass beside others have not been measured yet." in made
    assert "not been measured" not in headline.table(made_up())


def test_the_comparison_says_where_ours_is_behind():
    text = headline.with_table(f"a\n{headline.BEGIN}old\n{headline.END}b\n", headline.table(made_up()))
    assert text.startswith("a\n")
    assert text.endswith("b\n")
    assert "old" not in text
    assert "better in 0, no clear difference in 0, worse in 1 of 1 cases" in text
    assert "one, k = 4, on held-out rows: ours leaves 17.6% ± 2.0% more unexplained than fastcan." in text
    assert "one, k = 4: a fit takes 1,000 ms of the processor, the loop of explicit greedy 400 ms." in text
    assert "five-line loop takes 0.50 (0.50 to 0.50) times as long as ours (behind)." in text


def test_the_readme_says_in_how_many_cases_ours_is_behind():
    made = headline.short(made_up())
    assert made.count("\n| ") == 1 + headline.FEW
    assert "Where it is not ahead, in 3 cases, is listed in the [full comparison](https://" in made


@pytest.mark.parametrize(
    ("ours", "word"),
    [([0.1, 0.2, 0.3], "better"), ([0.3, 0.4, 0.5], "worse"), ([0.1, 0.3, 0.5], "no clear difference")],
)
def test_a_verdict_needs_two_standard_errors(ours, word):
    assert splits.verdict(np.array(ours), np.array([0.2, 0.31, 0.39]))[0] == word


def test_what_failed_or_took_too_long_is_not_compared():
    rows = made_up_splits()["rows"]
    rows += [left_by("slow", [0.01]), left_by("broken", [float("nan"), 0.01])]
    (found,) = splits.compared(rows, REFINED)
    assert (found.best, found.word) == ("fastcan", "worse")
    page = splits.document(made_up_splits() | {"rows": rows})
    assert "| broken | failed |" in page
    assert "| slow | 1.00 (1 split) |" in page


def test_splits_are_measured_on_the_other_half():
    case = Case("made up", rows_of(40), rows_of(20, seed=1), (2, 3))
    rows = splits.measured(case, 2)
    assert {len(row["left"]) for row in rows} == {2}
    A, B = splits.halves(case, 1)
    (found,) = (row for row in rows if (row["contender"], row["k"]) == (headline.EXPLICIT, 3))
    shares = shares_of(A, B, explicit_greedy(A, 3))
    assert (1 - found["left_of_used"][1], 1 - found["left"][1]) == pytest.approx(shares, rel=1e-5)


def test_the_tables_of_documents_are_current():
    for place, made in headline.documents(headline.measured()).items():
        text = (ROOT / place).read_text()
        assert headline.with_table(text, made) == text, place


def test_the_page_of_splits_is_current():
    made = splits.document(json.loads(splits.FILE.read_text()))
    assert (splits.FILE.parent / "SPLITS.md").read_text() == made


def test_the_page_of_results_is_current():
    if not headline.RESULTS.exists():
        pytest.skip("there are no results yet")
    made = document(json.loads(headline.RESULTS.read_text()))
    assert (headline.RESULTS.parent / "RESULTS.md").read_text() == made


def test_explicit_greedy_is_greedy():
    A = rows_of()
    assert explicit_greedy(A, 4) == oracle.select(A, 4, 0.0)


def test_shares_are_those_of_least_squares():
    A, B = rows_of(), rows_of(30, seed=1)
    S = np.array([1, 5])
    W = np.linalg.pinv(A[:, S]) @ A
    expected = [1 - np.linalg.norm(M - M[:, S] @ W) ** 2 / np.linalg.norm(M) ** 2 for M in (A, B)]
    assert shares_of(A, B, S) == pytest.approx(expected)


@pytest.mark.parametrize("selector", [s for s in SELECTORS if s.needs == "numpy"], ids=lambda s: s.name)
def test_contenders_pick_k_columns_and_those_called_nested_are(selector):
    A = rows_of(80, 12)
    more = picks(selector, A - A.mean(axis=0), 5)
    assert len(set(more)) == 5
    if selector.nested:
        assert list(picks(selector, A - A.mean(axis=0), 3)) == list(more[:3])


def test_a_contender_that_fails_is_listed_with_its_reason(monkeypatch):
    def broken(A, k):
        raise OSError("no luck")

    twice = Selector("twice", lambda A, k: [0] * k)
    monkeypatch.setattr("examples.benchmarks.quality.SELECTORS", (SELECTORS[0], Selector("broken", broken), twice))
    found = list(measure(prepared("made up", rows_of(), rows_of(20, seed=1), (2, 3)), 1))
    reasons = {row["contender"]: row["reason"] for row in found if "reason" in row}
    assert reasons["broken"] == "OSError: no luck"
    assert "3 different columns were asked for" in reasons["twice"] or "2 different" in reasons["twice"]
    assert [row["k"] for row in found if row["contender"] == GREEDY] == [2, 3]


def test_random_columns_are_averaged():
    case = prepared("made up", rows_of(), rows_of(20, seed=1), (2,))
    (row,) = explained(SELECTORS[-1], case)
    assert row["contender"] == "random"
    assert row["held_out_sd"] > 0


@pytest.mark.integration
def test_quick_runs_end_to_end(tmp_path):
    command = [sys.executable, "-m", "examples.benchmarks", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert document(results) == (tmp_path / "RESULTS.md").read_text()
    assert results["mode"] == "quick"
    shares = {row["contender"]: row["train"] for row in results["selection"]["results"] if row["k"] == 16}
    assert shares[REFINED] > shares["random"]
    errors = {row["contender"]: row["error"] for row in results["pass"]["results"]}
    assert errors == {passes.OURS: [0.0], passes.LOOP: [0.0], passes.PRODUCT: [0.0]}
