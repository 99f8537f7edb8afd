"""Results as self-contained JSON files."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.exact import Certificate
from rgcss_dask.core.objective import objective_named
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.result import Result, Trust, Tuning
from rgcss_dask.core.selection import Selection
from rgcss_dask.io.files import Folder, place_of
from rgcss_dask.io.outputs import refuse_others
from rgcss_dask.io.own_files import RESULT, refuse_wrong
from rgcss_dask.io.safe_text import kept, without_secrets

FORMAT = 3  # may hold only the leading eigenvalues, without the paper's bound
WHOLE = 2  # with a checksum, which format 1 lacks; written if all eigenvalues are known
OLDEST = 1
RULES = "include", "exclude"  # stored with the selection


def save_result(result: Result, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a result as JSON, atomically.

    An existing result is replaced; any other file only with ``overwrite``.
    """
    folder, name = result_place(path, overwrite=overwrite)
    picked, problem = replace(result.selection, problem=None), result.selection.problem or Problem()
    plain = asdict(replace(result, selection=picked, provenance=kept(result.provenance)))
    content = {**_encoded(plain), "sentence": result.sentence}
    del content["selection"]["all_names"], content["selection"]["problem"]  # stored with the result
    for rule in RULES:
        if len(getattr(problem, rule)):  # left out if empty: earlier versions do not know it
            content["selection"][rule] = _encoded(np.asarray(getattr(problem, rule), dtype=np.int64))
    if carried := _encoded(_carried(problem.aims)):
        content["selection"]["aims"] = carried
    for field, default in (
        ("mu_rest", None),
        ("among", None),
        ("error", None),
        ("spent", False),
        ("certificate", None),
    ):  # left out if default: earlier versions do not know them
        if getattr(result.selection, field) is default:
            del content["selection"][field]
    if result.tuning is not None and result.tuning.swapped is None:
        del content["tuning"]["swapped"], content["tuning"]["swapped_error"]
    found = WHOLE if len(result.spectrum) == result.n else FORMAT
    content = {"kind": RESULT, "format": found, "crc32": _crc(content), **content}
    folder.write(name, json.dumps(content, indent=1).encode())


def _carried(aims: Aims) -> dict[str, Any]:
    """Return the aims that were set."""
    found = {name: getattr(aims, name) for name in Aims.__dataclass_fields__ if name != "target_share"}
    return {
        name: value
        for name, value in found.items()
        if value is not None and (not hasattr(value, "__len__") or len(value))
    }


def result_place(path: str | Path, *, overwrite: bool = False) -> tuple[Folder, str]:
    """Return the place of a result, or raise an error if it cannot be written there."""
    return refuse_others(path, f'"kind": "{RESULT}"'.encode(), "a result", overwrite=overwrite)


def load_result(path: str | Path) -> Result:
    """Read a result; a damaged file, or a file of another kind, raises an error.

    Parameters
    ----------
    path : str or Path
        Path or URL of a file that ``save`` of a selection or ``rgcss select -o`` wrote.

    Returns
    -------
    Result
        The selection with its weights, bounds and losses of columns, for `report`; see ``selection``, ``weights``,
        ``column_explained`` and ``sentence``.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> rg.select(load_wine(as_frame=True).data, 3, center=True, scale="std").save("picked.json")
    >>> result = rg.load_result("picked.json")
    >>> result.selection.names
    ('flavanoids', 'color_intensity', 'alcalinity_of_ash')
    >>> result.weights.shape
    (3, 13)
    """
    refuse_wrong(path, "a result")
    folder, name = place_of(path)
    where, text = without_secrets(path), folder.read(name)
    if text is None:
        raise FileNotFoundError(f"there is no result at {where}. Create one with `rgcss select ... -o {where}`.")
    try:
        content = dict(json.loads(text))
        kind, found = content.pop("kind"), content.pop("format")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f"{where} is not a result of `rgcss select`, or it is damaged. Create one with `rgcss select -o`."
        ) from None
    if kind != RESULT or found not in range(OLDEST, FORMAT + 1):
        raise ValueError(
            f"a result must have kind {RESULT!r} and format {OLDEST} to {FORMAT}; {where} has kind {kind!r} and format "
            f"{found}. Use the version of rgcss_dask that wrote it."
        )
    try:
        if found > OLDEST and content.pop("crc32") != _crc(content):
            raise ValueError("its checksum is wrong")
        del content["sentence"]
        return _checked(_result(_decoded(content)))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zlib.error) as error:
        raise ValueError(f"the result {where} is damaged: {error}. Create it again with `rgcss select`.") from None


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _result(content: dict[str, Any]) -> Result:
    content = _tupled(content)
    picked = _tupled(content["selection"])
    rules = {name: picked.pop(name, np.empty(0, dtype=np.int64)) for name in RULES}
    asked = picked.pop("aims", {})
    aims = Aims(**asked, target_share=None if "targets" in asked else 1.0)  # None: included in the weights
    problem = Problem(picked["objective"], picked["lam"], **rules, aims=aims, is_settled=True)
    picked["certificate"] = picked.get("certificate") and Certificate(**picked["certificate"])
    content["selection"] = Selection(**picked, all_names=content["names"], problem=problem)
    content["condition"] = evaluate.Condition(**content["condition"])
    content["tuning"] = content["tuning"] and Tuning(**content["tuning"])
    content["trust"] = content["trust"] and Trust(**content["trust"])
    return Result(**content)


def _checked(result: Result) -> Result:
    """Refuse inconsistent content: shapes that do not fit, columns out of range."""
    picked, tuning = result.selection, result.tuning
    columns, n, k = picked.columns, picked.n, len(picked.columns)
    lams, most = (0, 0) if tuning is None else (len(tuning.lams), tuning.mean.shape[1])
    if columns.dtype.kind not in "iu" or columns.ndim != 1 or len(np.unique(columns)) != k:
        raise ValueError("its columns must be different whole numbers")
    if type(n) is not int or n < 1 or np.any((columns < 0) | (columns >= n)):
        raise ValueError(f"its columns must be between 0 and {n} - 1")
    targets = np.asarray(picked.aims.targets)
    if len(targets) and (targets.dtype.kind not in "iu" or np.any((targets < 0) | (targets >= n))):
        raise ValueError(f"its targets must be between 0 and {n} - 1")
    for owner, shape, names in (
        (picked, (k,), ("loss", "bound", "rounding", "error")),
        (picked, (n,), ("mu", "sigma", "mu_rest")),
        (picked.aims, (n,), ("column_weights", "penalties", "noise")),
        (result, (n,), ("mean", "spread", "column_norm", "column_loss")),
        (result, (n if len(result.spectrum) == n else max(k, 1),), ("spectrum",)),
        (result, (k,), ("paper_bound",)),
        (result, (k, n), ("weights",)),
        (result.trust, (n,), ("frequency",)),
        (tuning, (lams,), ("lams",)),
        (tuning, (lams, most), ("mean", "error")),
    ):
        for name in names:
            _check_array(name, getattr(owner, name, None), shape)
    for what, entries, count in (("names", result.names, n), ("names of picks", picked.names, k)):
        if entries is not None and (len(entries) != count or not all(isinstance(entry, str) for entry in entries)):
            raise ValueError(f"it must have {count} {what}")
    _check_rules(picked)
    _check_number("lam", picked.lam)
    _check_number("start", picked.start)
    _check_number("rows", result.rows)
    _check_number("weight", result.weight)
    objective_named(picked.objective)
    return result


def _check_rules(picked: Selection) -> None:
    for name in RULES:
        given = getattr(picked.problem, name)
        if given.dtype.kind not in "iu" or given.ndim != 1 or np.any((given < 0) | (given >= picked.n)):
            raise ValueError(f"its columns to {name} must be between 0 and {picked.n} - 1")


def _check_array(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Refuse an array of another shape, or with values that are not finite; None is accepted."""
    if values is None:
        return
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.shape != shape:
        raise ValueError(f"its {name} must have shape {shape}")
    if name != "rounding" and not np.all(np.isfinite(values)):  # the effect of rounding may be unbounded
        raise ValueError(f"its {name} must be finite")


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < np.inf:
        raise ValueError(f"its {name} must be a number of 0 or more; it is {value!r}")


def _tupled(content: dict[str, Any]) -> dict[str, Any]:
    names = content["names"]
    return {**content, "names": None if names is None else tuple(names)}


def _encoded(value: Any) -> Any:
    """Convert arrays to JSON without loss: short ones as readable numbers, long ones packed."""
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.size <= 4096 and value.ndim == 1:
            return {"array": value.tolist(), "dtype": value.dtype.str}
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes(), 6)).decode()
        return {"packed": packed, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return value.item()
    return [_encoded(item) for item in value] if isinstance(value, tuple | list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "dtype"}:
        return np.array(value["array"], dtype=_numbers(value["dtype"]))
    if value.keys() == {"packed", "dtype", "shape"}:
        dtype, shape = _numbers(value["dtype"]), tuple(int(size) for size in value["shape"])
        wanted = math.prod(shape) * dtype.itemsize
        # At most the size of the shape: a few bytes may decompress to gigabytes.
        data = zlib.decompressobj().decompress(base64.b64decode(value["packed"], validate=True), wanted + 1)
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    return {key: _decoded(item) for key, item in value.items()}


def _numbers(code: Any) -> np.dtype[Any]:
    dtype = np.dtype(code)
    if dtype.kind not in "iuf":
        raise ValueError(f"its arrays must hold numbers; one has dtype {dtype}")
    return dtype
