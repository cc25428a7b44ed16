"""The measures of a dataset as columns of a page: in units that people read, with their errors and what they mean."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.results.texts import distinct

if TYPE_CHECKING:
    import xarray as xr

VALUE_DIGITS, ERROR_DIGITS = 5, 3

_SHORT = {
    "queue_wait_s": "queue wait",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "end to end",
    "session_s": "session",
    "slo_attainment": "within SLO",
    "slo_chance": "chance of SLO",
    "ahead_of_first": "ahead of #1",
    "objective_chance": "chance of",
    "objective_headroom": "headroom of",
    "objective_ratio": "part of bound,",
    "objective_growth": "growth of",
    "tok_per_s_per_gpu": "output per GPU",
    "tok_per_s_per_user": "speed per user",
    "output_tok_per_s": "output",
    "throughput_rps": "throughput",
    "usd_per_mtok": "cost",
    "joule_per_tok": "energy",
    "mfu": "MFU",
    "mbu": "MBU",
    "kv_used_mean": "KV used",
    "kv_used_max": "KV used, highest",
    "goodput_rps": "goodput",
    "goodput_rps_per_gpu": "goodput per GPU",
    "goodput_per_usd": "requests per USD",
    "tok_per_joule": "output per joule",
    "usd_per_hour": "price",
    "stage_wait_s": "wait at",
    "stage_service_s": "service of",
    "stage_utilisation": "utilisation of",
    "stage_share": "share of requests at",
    "class_ttft_s": "TTFT of",
    "class_tpot_s": "TPOT of",
    "class_e2e_s": "E2E of",
    "class_queue_wait_s": "wait of",
    "attained_rps": "within SLO",
    "class_share": "share of requests of",
    "class_refused_share": "refused of",
    "class_lost_share": "lost of",
    "class_slo_attainment": "SLO attainment of",
    "class_throughput_rps": "throughput of",
    "class_output_tok_per_s": "output of",
}
# Unit in the dataset -> (unit on the page, factor); a latency per token is read in ms, a share in percent.
_UNITS = {
    "byte": ("GB", 1e-9),
    "USD": ("USD/Mtok", 1.0),
    "J": ("J/token", 1.0),
    "token/s": ("tokens/s", 1.0),
    "token/J": ("tokens/J", 1.0),
    "1/s": ("requests/s", 1.0),
    "1/USD": ("requests/USD", 1.0),
}
_IN_MS = ("tpot_s", "itl_s", "class_tpot_s")
_IN_PERCENT = (
    "slo_attainment", "slo_chance", "ahead_of_first", "objective_chance", "objective_ratio",
    "utilisation", "mfu", "mbu", "kv_used_mean", "kv_used_max", "stage_utilisation", "stage_share",
    "class_share", "class_slo_attainment", "refused_share", "class_refused_share", "lost_share",
    "class_lost_share", "availability",
)  # fmt: skip
_LOWER = ("usd_per_hour", "_s", "usd_per_mtok", "joule_per_tok", "preemptions", "devices", "weights_bytes")
_HIGHER = (
    "slo_attainment",
    "slo_chance",
    "objective_chance",
    "objective_headroom",
    "goodput",
    "throughput_rps",
    "tok_per_s",
    "mfu",
    "mbu",
    "kv_capacity",
    "per_usd",
    "availability",
)
# The upper end of what was searched for by bisection, shown with it and not by itself.
_UPPER = {"goodput_rps": "goodput_high_rps"}


@dataclass(frozen=True)
class ColumnPart:
    """One statistic of a measure: values and Monte-Carlo standard errors (row,), NaN where unknown.

    ``high`` is the upper end of the bracket where ``values`` are the lower ends of a search.
    """

    name: str
    values: np.ndarray
    stderr: np.ndarray | None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class Measure:
    """A variable of the dataset: ``better`` is low, high or empty where neither is better."""

    key: str
    label: str
    short: str
    unit: str
    about: str
    better: str
    parts: tuple[ColumnPart, ...]


def short_of(key: str) -> str:
    """What a variable is called where there is little room."""
    return _SHORT.get(key, key.replace("_", " "))


def scale_of(key: str, unit: str) -> tuple[str, float]:
    """The unit in which the page shows a variable, and the factor to it."""
    if key.removesuffix("_mean") in _IN_MS:
        return "ms", 1e3
    if key in _IN_PERCENT:
        return "%", 100.0
    shown, factor = _UNITS.get(unit, (unit, 1.0))
    return ("" if shown == "1" else shown), factor


def measures_of(ds: xr.Dataset, rows: np.ndarray, keys: Collection[str] | None = None) -> list[Measure]:
    """Every numeric variable, or every one of ``keys``, that is known for any of ``rows``, positions along ``config``;
    quantiles are its parts."""
    measures = []
    for key in map(str, ds.data_vars):
        if keys is not None and key not in keys:
            continue
        variable = ds.variables[key]
        # What belongs to a measure is shown with it: errors, elasticities, upper ends.
        skip = key.endswith(("_stderr", "_step_error", "_elasticity", "_model_error", "_mean_error", "_confidence"))
        skip |= key in _UPPER.values()
        if skip or variable.dims[:1] != ("config",) or variable.dtype.kind not in "iuf":
            continue
        # It is a part of the measure whose quantiles these are.
        if key.endswith("_mean") and key.removesuffix("_mean") in ds:
            continue
        if parts := tuple(_parts(ds, key, rows)):
            measures.append(_measure(ds, key, parts))
    return measures


def _measure(ds: xr.Dataset, key: str, parts: tuple[ColumnPart, ...]) -> Measure:
    attrs = ds.variables[key].attrs
    label = str(attrs.get("long_name", key.replace("_", " ")))
    unit, _ = scale_of(key, str(attrs.get("units", "1")))
    return Measure(key, label, _SHORT.get(key, label), unit, str(attrs.get("description", "")), better_of(key), parts)


def better_of(key: str) -> str:
    """Which values of a variable are the better ones: high, low, or empty where neither is."""
    # By the name, so that a metric added later has an arrow without being listed here; ``_HIGHER`` goes first, as
    # ``tok_per_s`` ends in ``_s``.
    return "high" if any(word in key for word in _HIGHER) else "low" if key.endswith(_LOWER) else ""


def _parts(ds: xr.Dataset, key: str, rows: np.ndarray) -> Iterator[ColumnPart]:
    """The statistics of a variable that are known for any row: a value, or every quantile and the mean."""
    dims, mean = ds.variables[key].dims, f"{key}_mean" in ds
    if len(dims) == 1:
        yield from _part(ds, key, "", rows, ())
    elif "stage" in dims and mean:  # a latency at each stage: its mean
        for position, stage in enumerate(ds.variables["stage"].values.tolist()):
            yield from _part(ds, f"{key}_mean", stage, rows, (position,))
    elif "class" in dims and mean:  # a latency of each class: its quantiles and its mean
        for position, of_class in enumerate(ds.variables["class"].values.tolist()):
            for number, level in enumerate(ds.variables["quantile"].values.tolist()):
                yield from _part(ds, key, f"{of_class} p{100 * level:g}", rows, (position, number))
            yield from _part(ds, f"{key}_mean", f"{of_class} mean", rows, (position,))
    elif len(dims) == 2:
        along = dims[1]
        levels = ds.variables[along].values.tolist() if along in ds.coords else range(ds.sizes[along])
        for position, level in enumerate(levels):
            yield from _part(ds, key, f"p{100 * level:g}" if along == "quantile" else str(level), rows, (position,))
    if mean:
        yield from _part(ds, f"{key}_mean", "mean", rows, ())


def _part(ds: xr.Dataset, key: str, name: str, rows: np.ndarray, position: tuple[int, ...]) -> Iterator[ColumnPart]:
    _, factor = scale_of(key, str(ds.variables[key].attrs.get("units", "1")))

    def column(other: str) -> np.ndarray | None:
        if other not in ds or ds.variables[other].ndim != 1 + len(position):
            return None
        # Errors are in the unit of their value, so that one factor does for both.
        values = ds.variables[other].values[(rows, *position)].astype(float) * factor
        # A column without a number is no column: of one seed there are no standard errors at all.
        return values if np.isfinite(values).any() else None

    values = column(key)
    if values is not None:
        yield ColumnPart(name, values, column(f"{key}_stderr"), column(_UPPER.get(key, "")))


def part_of(measures: Sequence[Measure], key: str, name: str) -> ColumnPart | None:
    """The statistic ``name`` of the measure ``key``; the nearest percentile where it was not kept; None without any."""
    measure = next((candidate for candidate in measures if candidate.key == key), None)
    if measure is None:
        return None
    exact = next((part for part in measure.parts if part.name == name), None)
    percentiles = [part for part in measure.parts if part.name.startswith("p")]
    if exact is not None or not percentiles or not name.startswith("p"):
        return exact
    return min(percentiles, key=lambda part: abs(float(part.name[1:]) - float(name[1:])))


def numbers(values: np.ndarray | None, digits: int = VALUE_DIGITS) -> str:
    """Numbers as JSON with so many significant digits, null where they are not finite."""
    if values is None:
        return "null"
    # By hand: json.dumps writes 17 digits, and NaN, which is no JSON. Five digits halve the file.
    return f"[{','.join('null' if not -1e308 < v < 1e308 else f'{v:.{digits}g}' for v in values.tolist())}]"


def levels(values: np.ndarray) -> str:
    """Repeated texts as JSON: the distinct ones, and for each row which."""
    # Reasons repeat in thousands of rows: each text once, and a number per row.
    texts, places = distinct(values)
    return f'{{"levels":{json.dumps(texts.tolist())},"at":{json.dumps(places.tolist(), separators=(",", ":"))}}}'


def measure_json(measure: Measure) -> str:
    """A measure as JSON."""
    head: dict[str, Any] = {
        name: getattr(measure, name) for name in ("key", "label", "short", "unit", "about", "better")
    }
    parts = ",".join(
        f'{{"name":{json.dumps(part.name)},"values":{numbers(part.values)},'
        f'"stderr":{numbers(part.stderr, ERROR_DIGITS)},"high":{numbers(part.high)}}}'
        for part in measure.parts
    )
    return f'{json.dumps(head)[:-1]},"parts":[{parts}]}}'
