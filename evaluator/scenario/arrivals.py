"""``workload.arrivals``: when requests are sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evaluator.keys import (
    REQUIRED,
    Place,
    Reader,
    Table,
    choice,
    count,
    file_there,
    key,
    many,
    no_key,
    number,
    quantity,
    shown,
    table_of,
    variant,
    written,
)
from evaluator.records import with_fields

LOWEST_RPS = 1e-6
"""Requests per second. A clock that counts the years between them would lose the milliseconds that they take."""
HIGHEST_RPS = 1e9
"""Gaps of less than a nanosecond are none: all requests would come at once, and a short run of them would say of any
rate that it meets the objectives."""
_above_zero = quantity("1/s", above=0)


def _rate(value: Any, place: Place) -> float:
    rate = _above_zero(value, place)
    if rate < LOWEST_RPS:
        raise place.error(f"{shown(value)} is too low for the clock of a run; use at least {LOWEST_RPS:g} requests/s")
    if rate > HIGHEST_RPS:
        raise place.error(
            f"{shown(value)} is too high for the clock of a run; use at most {HIGHEST_RPS:g} requests/s, or "
            "process: all_at_once"
        )
    return rate


_WITH_RATE = ("poisson", "gamma", "uniform", "normal", "burst", "varying")

LINEAR, STEPS = "linear", "steps"
_time, _factor = quantity("s", least=0), number(least=0)


def _corner(value: Any, place: Place) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise place.error(f"expected a time and a factor such as [8h, 1.5], got {shown(value)}")
    return _time(value[0], place.item(0)), _factor(value[1], place.item(1))


_corners = many(
    Reader(
        _corner,
        {"type": "array", "prefixItems": [_time.schema, _factor.schema], "minItems": 2, "maxItems": 2},
    )
)


@dataclass(frozen=True)
class Arrivals:
    """When requests are sent. ``process`` says which of the other fields mean something.

    Of a burst ``factor`` times the rate comes for ``on_s``, and for ``off_s`` what is left, so that the mean stays.
    Of ``varying`` arrivals the rate at a time is ``rate_rps`` times what ``profile``, (corner, (time, factor)), says
    there, over its mean: ``rate_rps`` is the mean of a ``period_s``, after which the profile begins anew.
    """

    process: str = no_key()
    rate_rps: float | None = key(
        Reader(_rate, _above_zero.schema),
        None,
        "Mean rate of the arrivals, requests per second.",
        absent=REQUIRED,
        kinds=_WITH_RATE,
    )
    cv: float | None = key(
        number(above=0), None, "Coefficient of variation of the gaps; 1 is Poisson.", absent=REQUIRED, kinds=("gamma",)
    )
    std_s: float | None = key(
        quantity("s", least=0), None, "Standard deviation of the gaps.", absent=REQUIRED, kinds=("normal",)
    )
    on_s: float | None = key(quantity("s", above=0), None, "How long a burst lasts.", absent=REQUIRED, kinds=("burst",))
    off_s: float | None = key(
        quantity("s", above=0),
        None,
        "How long it is quieter between two bursts.",
        absent=REQUIRED,
        kinds=("burst",),
    )
    factor: float | None = key(
        number(above=0),
        None,
        "The rate in a burst over rate_rps, which stays the mean.",
        absent=REQUIRED,
        kinds=("burst",),
    )
    profile: tuple[tuple[float, float], ...] | None = key(
        _corners,
        None,
        "Times since the start with the rate there: [[0h, 1], [8h, 5], [20h, 3]]. Only the ratios of rates count.",
        absent=REQUIRED,
        kinds=("varying",),
    )
    period_s: float | None = key(
        quantity("s", above=0), None, "After how long the profile begins anew.", absent=REQUIRED, kinds=("varying",)
    )
    between: str = key(
        choice(LINEAR, STEPS),
        LINEAR,
        "linear: the rate goes straight from one time of the profile to the next, at the end back to the first. steps: "
        "it stays until the next time.",
        kinds=("varying",),
    )
    users: int | None = key(
        count(most=10**6),
        None,
        "How many send their next request when the one before is answered.",
        absent=REQUIRED,
        kinds=("closed_loop",),
    )
    scale: float = key(number(above=0), 1.0, "More than 1 sends the trace that many times as fast.", kinds=("trace",))
    file: str | None = key(
        file_there,
        None,
        "CSV, Parquet or JSONL with arrival_s, prompt_tokens, output_tokens.",
        absent=REQUIRED,
        kinds=("trace",),
    )

    def written(self) -> dict[str, Any]:
        """The section it could have been read from: its process, and the keys that this has."""
        return {"process": self.process, **{name: written(getattr(self, name)) for name in PROCESSES[self.process]}}


def arrivals_with(read: Arrivals, several: Iterable[Mapping[str, float]]) -> Iterator[Arrivals]:
    """The arrivals with other rates, one after the other, which are known to be such as a rate may be."""
    # No check of ``_arrivals`` looks at the rate.
    return (with_fields(read, **rate) for rate in several)


# One record for all processes: a sweep may go from one to another, and a key that both have keeps its value.
PROCESSES: dict[str, Table] = {
    process: table_of(Arrivals, process) for process in (*_WITH_RATE, "all_at_once", "closed_loop", "trace")
}
"""The keys of each arrival process, beside ``process``."""


def _arrivals(process: str, values: dict[str, Any], place: Place) -> Arrivals:
    arrivals = Arrivals(process, **values)
    if process == "burst":
        # In a burst the rate is factor x rate_rps, between bursts what is left of the mean; a share above 1 leaves
        # less than nothing. 1e-12 lets pass the exact limit, which decimals miss by a rounding error.
        share = values["factor"] * values["on_s"] / (values["on_s"] + values["off_s"])
        if share > 1 + 1e-12:
            most = (values["on_s"] + values["off_s"]) / values["on_s"]
            raise place.key("factor").error(
                f"the bursts alone would exceed rate_rps: must be at most (on_s + off_s) / on_s = {most:g}, "
                f"got {values['factor']:g}"
            )
    if process == "varying":
        times = [time for time, _ in values["profile"]]
        # At 0 so that the rate is said from the start on: before a first corner there is nothing to go on from.
        if times[0] != 0.0:
            raise place.key("profile").error(f"must begin at time 0, and begins at {times[0]:g} s")
        for index, (before, after) in enumerate(pairwise(times), 1):
            if after <= before:
                raise (
                    place.key("profile").item(index).error(f"its time of {after:g} s does not come after {before:g} s")
                )
        # The way from the last corner back to the first takes the rest of the period: with nothing left the rate would
        # have two values at one time.
        if times[-1] >= values["period_s"]:
            raise place.key("period_s").error(
                f"must be after the last time of the profile, {times[-1]:g} s, got {values['period_s']:g} s"
            )
        # Rates are over the mean of the profile, which must not be 0.
        if not any(factor for _, factor in values["profile"]):
            raise place.key("profile").error("has no factor above 0: nothing would ever be sent")
    return arrivals


arrivals_reader = variant(
    "process",
    PROCESSES,
    _arrivals,
    "How requests are sent: by a random process, by users in a closed loop, or at a trace's times.",
)
