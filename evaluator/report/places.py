"""Which designs change places within the errors: how likely each is to be ahead of the one that is ranked first.

The errors of a design are drawn: that of its service from the model's expected error, what is of its latencies alone
from the rest of it and the standard errors of the run. In each draw objectives hold or not, and measures that follow
from the service are as much lower or higher; a design that meets its objectives is then ahead of one that misses them,
and of two others the one with the better measure.

Designs of one model by one set of efficiencies err together for a part, and only what differs between them changes
their places: half of the variance of the service's error is drawn for all of them at once. In the table of errors
(``calibration/errors/serving.csv``) two values of one server, at other loads or in other layouts, have 0.6 of the
variance of the time between tokens in common, and 0.3 of that of TTFT, on the mean over the cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.chance import OF_AN_OBJECTIVE, spread
from evaluator.metrics.outcomes import OK
from evaluator.report.ranking import ranking_measure
from evaluator.report.search import GOODPUT, RANKS, question_of
from evaluator.results.schema import objectives_of

if TYPE_CHECKING:
    import xarray as xr

IN_COMMON = 0.5
"""Part of the variance of the service's error that designs of one model by one set have in common."""
LEAST = 0.16
"""Chance to be ahead from which two designs are said to change places: as of a difference of one standard deviation."""
DRAWS = 4096


@dataclass(frozen=True)
class Score:
    """What designs are ranked by, the less the better: logarithms, (row,).

    ``service``: how much a service whose logarithm is longer by 1 adds, in the unit of its expected error (a standard
    deviation); ``own``: standard error of the run. ``by_objectives``: those that meet their objectives come first, as
    in a sweep, and not where each is at its goodput.
    """

    values: np.ndarray
    service: np.ndarray
    own: np.ndarray
    by_objectives: bool


def ahead_of_first(ds: xr.Dataset, rows: np.ndarray, by: str | None = None) -> np.ndarray:
    """The chance that each of the designs at ``rows``, the best first, is ahead of the first of them, (row,).

    ``by``: what a search is ranked by, of ``report.search.RANKS``; None: as it was asked for. NaN where the model's
    error is not known, of that design or of the first; 0 for the first itself.
    """
    score = (
        _of_search(ds, rows, by or str(ds.attrs.get("ranked_by", GOODPUT)))
        if "search" in ds.attrs
        else _of_sweep(ds, rows)
    )
    service, own = _draws(ds, rows)
    drawn = score.values[:, None] + score.service[:, None] * service + score.own[:, None] * own
    unknown = np.isnan(score.service)
    if score.by_objectives and "objective_headroom" in ds:
        met, unsure = _meets(ds, rows, service, own)
        unknown |= unsure
        drawn = np.where(met, drawn, drawn + _BEHIND)
    with np.errstate(invalid="ignore"):
        ahead = (drawn < drawn[:1]).mean(axis=1)
    ahead[unknown | unknown[:1]] = np.nan
    ahead[:1] = 0.0
    return ahead


_BEHIND = 1e6
"""Beyond all differences of scores."""


def _of_sweep(ds: xr.Dataset, rows: np.ndarray) -> Score:
    zero = np.zeros(rows.size)
    name, sign = ranking_measure(ds, np.flatnonzero(ds["status"].values == OK))
    # Where no design meets its objectives, they are ranked by the share of requests within them. The error of that
    # share is not known, so that only a design which meets them all in a draw changes its place.
    if name is None or (objectives_of(ds) and not ds["slo_met"].values[rows].any()):
        return Score(np.arange(float(rows.size)), zero, zero, True)
    error = ds["output_tok_per_s_model_error"].values[rows] if "output_tok_per_s_model_error" in ds else zero
    values = sign * np.log(ds[name].values[rows]) + np.where(ds["saturated"].values[rows], _BEHIND / 10.0, 0.0)
    # A slower service makes tokens dearer where the throughput follows from it. Chance is left out: designs are
    # simulated on the same requests.
    return Score(values, np.log1p(error), zero, True)


def _of_search(ds: xr.Dataset, rows: np.ndarray, by: str) -> Score:
    zero, rate = np.zeros(rows.size), question_of(ds)["rate_rps"]
    if rate is not None or by == "joule":
        return Score(np.arange(float(rows.size)), zero, zero, rate is not None)
    goodput = ds["goodput_rps"].values[rows]
    values = ds[RANKS[by][0]].values[rows]
    # Designs without a goodput stay without one, however far they are off.
    error = np.where(goodput > 0.0, np.log1p(ds["goodput_rps_model_error"].values[rows]), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Score(-np.log(values), error, np.nan_to_num(ds["goodput_rps_stderr"].values[rows] / goodput), False)


def with_places(ds: xr.Dataset, rows: np.ndarray) -> xr.Dataset:
    """The dataset with ``ahead_of_first`` of the designs at ``rows``, the best first, and NaN of all others; as it is
    where it has no chances, as that of a version before."""
    if "slo_chance" not in ds or not rows.size:
        return ds
    ahead = np.full(ds.sizes["config"], np.nan)
    ahead[rows] = ahead_of_first(ds, rows)
    about = "chance that the design is ahead of the first one within the errors of both; not known of all but the best"
    attrs = {"units": "1", "long_name": "chance to be ahead of the first", "description": about}
    return ds.assign(ahead_of_first=("config", ahead, attrs))


def in_words(ahead: np.ndarray, among: str = "these") -> str:
    """``within the errors #1 changes places with #2 to #4``: those that are ahead of it with a chance of LEAST or more,
    ``among`` whom."""
    if ahead.size < 2:
        return ""
    if np.isnan(ahead).all() or np.isnan(ahead[1:]).all():
        return "whether designs change places is not known, as the model's error is not"
    places = (np.flatnonzero(ahead >= LEAST) + 1).tolist()
    often = f"a chance of {100 * LEAST:.0f} % or more"
    if not places:
        return f"within the errors no other of {among} is ahead of #1 with {often}"
    return f"within the errors #1 changes places with {_ranges(places)}: each is ahead of it with {often}"


def confidence_asked(ds: xr.Dataset) -> str:
    """The chance with which objectives have to hold, of all that ask for one; empty where none does."""
    if "objective_confidence" not in ds:
        return ""
    asked = ds["objective_confidence"].values
    levels = np.unique(asked[np.isfinite(asked)])
    return " to ".join(f"{level:g}" for level in (*levels[:1], *levels[1:][-1:]))


def how_sure(ds: xr.Dataset) -> str:
    """With what chance designs have to meet the SLO, where a confidence is asked for."""
    asked = confidence_asked(ds)
    return f" with a chance of {asked}" if asked else ""


def chance_in_words(chance: float) -> str:
    """Whole percents; never 0 or 100, which no error leaves, and ``?`` where the model's error is not known."""
    if np.isnan(chance):
        return "?"
    return "<1%" if chance < 0.005 else ">99%" if chance >= 0.995 else f"{100 * chance:.0f}%"


def _ranges(places: Sequence[int]) -> str:
    """``#2 to #4 and #7``."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = [
        text
        for run in runs
        for text in ([f"#{run[0]} to #{run[-1]}"] if len(run) > 2 else [f"#{place}" for place in run])
    ]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _draws(ds: xr.Dataset, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal numbers of the service and of the latencies of each design, (row, draw)."""
    names = [np.broadcast_to(ds[name].values, ds.sizes["config"])[rows].astype(str) for name in _BASIS if name in ds]
    bases = ["\n".join(parts) for parts in zip(*names, strict=True)]
    places = {basis: place for place, basis in enumerate(dict.fromkeys(bases))}
    # The same for the first rows however many follow: tables of ten and pages of more say the same of them.
    common, alone, own = (
        np.random.default_rng(seed).standard_normal((count, DRAWS))
        for seed, count in enumerate((len(places), rows.size, rows.size))
    )
    shared = common[[places[basis] for basis in bases]]
    return IN_COMMON**0.5 * shared + (1.0 - IN_COMMON) ** 0.5 * alone, own


_BASIS = ("calibration_set", "model")


def _meets(ds: xr.Dataset, rows: np.ndarray, service: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether all objectives of a design hold in a draw, (row, draw), and of which designs it is not known, (row,)."""
    told = [ds[name].values[rows] for name in OF_AN_OBJECTIVE]
    of_service, whole = np.log1p(told[0]), spread(*told)
    of_latency = np.sqrt(np.maximum(whole**2 - of_service**2, 0.0))
    log_headroom = np.log(ds["objective_headroom"].values[rows])
    # What has no such objective, or no such latency, misses none.
    bounded = ~np.isnan(ds["objective_ratio"].values[rows]) & ~np.isposinf(log_headroom)
    met = np.ones(service.shape, dtype=bool)
    for place in range(bounded.shape[1]):
        slower = of_service[:, place, None] * service + of_latency[:, place, None] * own
        met &= (slower <= log_headroom[:, place, None]) | ~bounded[:, place, None]
    return met, (bounded & np.isnan(whole)).any(axis=1)
