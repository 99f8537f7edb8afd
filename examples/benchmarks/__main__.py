"""Ours side by side with what one would use instead.

    python -m examples.benchmarks [--quick] [--data FOLDER] [--only selection|pass] [--rounds 5] [--output FOLDER]

Everything is measured in this one run: the columns picked at equal k, what they explain and the time; the pass over the
rows, its time and its peak memory. RESULTS.md and results.json go to examples/benchmarks, those of ``--quick`` to a
temporary folder. ``pip install -e ".[bench]"`` installs the contenders; those that are absent are listed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from examples.benchmarks import passes, quality
from examples.benchmarks.machine import describe
from examples.benchmarks.tables import document

HERE = Path(__file__).parent
FULL = {"uint8": (300_000, 784), "float64": (150_000, 784)}
QUICK = {"uint8": (16_000, 64)}


def main() -> None:
    options = parsed()
    output = options.output or (Path(tempfile.mkdtemp(prefix="rgcss-benchmark-")) if options.quick else HERE)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "results.json"
    results: dict[str, Any] = {"mode": "quick" if options.quick else "full"}
    if (options.report or options.only or options.resume) and file.exists():
        results = json.loads(file.read_text())
    for part in () if options.report else (options.only,) if options.only else ("selection", "pass"):
        measure(part, options, results, file)
    text = document(results)
    (output / "RESULTS.md").write_text(text)
    print(f"\n{text}\nWrote {output / 'RESULTS.md'} and results.json.")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m examples.benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, one round: to see that it works")
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the real data sets")
    parser.add_argument("--only", choices=("selection", "pass"), help="one part; the other stays as it was written")
    parser.add_argument("--rounds", type=int, default=5, help="0: what columns explain, without times")
    parser.add_argument("--output", type=Path, help="folder for RESULTS.md and results.json")
    parser.add_argument("--resume", action="store_true", help="go on where an earlier run to this folder was stopped")
    parser.add_argument("--case", help="only this data set, or this dtype of the pass; with --resume the rest stays")
    parser.add_argument("--report", action="store_true", help="measure nothing: RESULTS.md again, from results.json")
    parser.add_argument("--lock", type=Path, help="file to lock while a round is timed, for whatever else uses it")
    return parser.parse_args()


def measure(part: str, options: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    """Run one part, and write the file whenever a data set or dtype is done."""
    rounds = 1 if options.quick else options.rounds
    folder = None if options.data is None else Path(options.data)
    if not (options.resume and part in results):
        command = "python -m examples.benchmarks" + (" --quick" if options.quick else "")
        left_out = quality.missing(folder, options.quick) if part == "selection" else passes.missing()
        results[part] = {"command": command, "rounds": rounds, "machine": describe(), "load": {}}
        results[part] |= {"results": [], "left_out": left_out}
    section = results[part]
    shapes = QUICK if options.quick else FULL

    def wanted(name: str) -> bool:
        return name not in section["load"] and options.case in (None, name)

    if part == "selection":
        found = quality.run(folder, rounds, options.quick, options.lock, wanted)
    else:
        found = passes.run(shapes, rounds, options.quick, options.lock, wanted)
    for name, rows in found:
        for row in rows:
            section["left_out" if "reason" in row else "results"].append(row)
        section["load"][name] = round(os.getloadavg()[0], 1)
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
