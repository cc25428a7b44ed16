"""``slo``, ``budget`` and ``demand``: what a design has to keep to, what it may take, and what it has to serve."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    Table,
    count,
    flag,
    key,
    number,
    quantity,
    read_section,
    section,
    section_schema,
    shown,
)


@dataclass(frozen=True)
class Objective:
    """``metric`` (ttft, tpot, e2e, queue_wait, itl) at ``statistic`` (mean or p<percent>) at most ``bound_s``.

    ``relax`` is in the bound already: it is 1 + relax times what the file says. ``request_class``: of the requests of
    that class alone; of all requests where it is empty. ``confidence``: the chance with which it has to hold; None: it
    holds where the prediction is within the bound.
    """

    metric: str
    statistic: str
    bound_s: float
    relax: float = 0.0
    request_class: str = ""
    confidence: float | None = None


@dataclass(frozen=True)
class Budget:
    """What a design may take; None: as much as it likes. ``fill``: each gets as many replicas as the budget takes.
    ``layouts``: tensor, pipeline, data and expert parallelism are enumerated."""

    devices: int | None = key(count(), None, "Most devices of a design, all replicas and pools together.")
    usd_per_hour: float | None = key(quantity("USD/h", above=0), None, "Most dollars per hour of a design.")
    fill: bool = key(
        flag,
        False,
        "Whether each design gets as many replicas as the budget takes; pools get every split that fills it.",
    )
    layouts: bool = key(
        flag,
        False,
        "Whether every layout of a replica that fits is tried, for each pool that says none: tensor, pipeline, data "
        "and expert parallelism. What promises less than 0.4 of the best in closed form is left out.",
    )


def _check_budget(budget: Budget, place: Place) -> None:
    # Replicas are added until the budget is used up: without one there would be no last replica.
    if budget.fill and budget.devices is None and budget.usd_per_hour is None:
        raise place.key("fill").error("needs something to fill: add devices or usd_per_hour")
    # Layouts are products of degrees up to the number of devices, which nothing else bounds.
    if budget.layouts and budget.devices is None and budget.usd_per_hour is None:
        raise place.key("layouts").error("needs a bound on the devices: add devices or usd_per_hour")


budget_reader = section(Budget, _check_budget)


@dataclass(frozen=True)
class Demand:
    """The rate that a design has to serve within its objectives; None: as much as it can."""

    rate_rps: float | None = key(quantity("1/s", above=0), None, "Requests per second that a design has to serve.")


demand_reader = section(Demand)

LONGEST_BARE_BOUND = 600.0
"""Seconds. Nobody waits longer for an answer, so that a larger bare number was meant in milliseconds."""
_LONGEST_BARE = {"ttft": 60.0, "tpot": 5.0, "itl": 5.0}
"""Nor longer for the first token and the next one."""

_STATISTIC = re.compile(r"p([0-9]+(?:\.[0-9]+)?)")
_bound = quantity("s", above=0)


def _objectives(value: Any, place: Place) -> tuple[Objective, ...]:
    read = read_section(value, SLO, place)
    relax, confidence = read["relax"], read["confidence"]
    objectives = tuple(
        # Relaxed here and nowhere else: the search, the statistics and the page all read the bound that holds.
        Objective(metric, statistic, bound * (1.0 + relax), relax, confidence=confidence)
        for metric in value
        # `relax` and `confidence` are keys of the section too, and bound nothing themselves.
        if metric in METRICS
        for statistic, bound in read[metric]
    )
    if relax and not objectives:
        raise place.key("relax").error("relaxes bounds, and there is none; add one such as ttft: {p90: 1s}")
    if confidence is not None and not objectives:
        raise place.key("confidence").error("is asked of bounds, and there is none; add one such as ttft: {p90: 1s}")
    return objectives


def _statistics(value: Any, place: Place) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not value:
        raise place.error(f"expected bounds such as {{p90: 1.5s}}, got {shown(value)}")
    # All names before any bound: a statistic that is none is the likelier slip, and its message lists what
    # there is.
    for name in value:
        match = _STATISTIC.fullmatch(str(name))
        percent = float(match.group(1)) if match else math.nan
        if name != "mean" and not 0 < percent < 100:
            raise place.key(name).error("unknown statistic; allowed: mean, or a percentile such as p50, p90, p99.9")
    return tuple((str(name), _bound(bound, place.key(name))) for name, bound in value.items())


def check_bare_bound(value: Any, place: Place) -> None:
    """Refuses a bound as a file gives it, without a unit, that can only have been meant in milliseconds."""
    metric = next((name for name in _LONGEST_BARE if name in place.path.split(".")), "")
    longest = _LONGEST_BARE.get(metric, LONGEST_BARE_BOUND)
    if isinstance(value, int | float) and not isinstance(value, bool) and longest < value < math.inf:
        raise place.error(f"{value:g} is {value:,g} s; write '{value:g}s' if you mean it, or '{value:g}ms'")


def _statistics_schema() -> Schema:
    # An editor underlines a bare 1500 as the loader does.
    plain, text = _bound.schema["anyOf"]  # type: ignore[index]
    bound = {"anyOf": [{**plain, "maximum": LONGEST_BARE_BOUND}, text]}
    return {
        "type": "object",
        "properties": {"mean": bound},
        "patternProperties": {f"^{_STATISTIC.pattern}$": bound},
        "additionalProperties": False,
        "minProperties": 1,
    }


_SAYS = {
    "ttft": "Time to the first token, from the arrival.",
    "tpot": "Time per output token after the first.",
    "itl": "Gaps between successive tokens, pooled over all tokens.",
    "e2e": "Time to the last token, from the arrival.",
    "queue_wait": "Time until a request is first scheduled.",
}
METRICS = tuple(_SAYS)
_any_number = number()


def _confidence(value: Any, place: Place) -> float:
    confidence = _any_number(value, place)
    # A half is what a prediction within its bound has already; below it designs would meet bounds that they are
    # predicted to miss, which is what ``relax`` is for.
    if not 0.5 < confidence < 1.0:
        if 50.0 < confidence < 100.0:
            raise place.error(f"must be above 0.5 and below 1, got {shown(value)}; write {confidence / 100.0:g}")
        raise place.error(
            f"must be above 0.5 and below 1, got {shown(value)}; leave it out for objectives that hold where the "
            "prediction is within the bound, and use relax for bounds that may be missed"
        )
    return confidence


SLO: Table = {
    **{metric: Key(Reader(_statistics, _statistics_schema()), (), says) for metric, says in _SAYS.items()},
    "relax": Key(number(least=0, most=10), 0.0, "Every bound is taken 1 + relax times as large (BestServe: 0.1)."),
    "confidence": Key(
        Reader(_confidence, {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1}),
        None,
        "Chance with which each bound has to hold, given the expected error of the model and that of the run: 0.9 asks "
        "for a margin. Absent: a bound holds where the prediction is within it.",
    ),
}

read_slo = Reader(_objectives, lambda: section_schema(SLO))
"""{ttft: {p90: 1.5s}, e2e: {mean: 10s}} -> objectives, in the order written."""


def written_slo(slo: tuple[Objective, ...]) -> dict[str, Any]:
    """Objectives as the section they could have been read from."""
    tree: dict[str, Any] = {}
    for objective in slo:
        # The inverse of the reading, since a sweep that sets one bound reads the section again with the others
        # in it.
        tree.setdefault(objective.metric, {})[objective.statistic] = objective.bound_s / (1.0 + objective.relax)
        if objective.relax:
            tree["relax"] = objective.relax
        if objective.confidence is not None:
            tree["confidence"] = objective.confidence
    return tree
