"""What a set says of the one server that it was fitted to: which design, at which loads, and how far off it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.fields import Fields

OWN_SERVER = "own_server"
"""What a set rests on that was fitted to its user's server."""
OTHERWISE = (
    "runs", "other_devices", "kernels_and_host", "kernels", "transferred", "sheet_and_runs", "datasheet",
)  # fmt: skip
"""What sets with efficiencies rest on that know nothing of such a server."""
SAME_LOAD = 1.1
"""Loads within this ratio of one another are one load: leaving out one of them would tell nothing."""


@dataclass(frozen=True)
class ServedLoad:
    """What a replica of a run had to do: requests at a time, and their mean lengths."""

    concurrency: float
    prompt_tokens: float
    output_tokens: float

    def distance(self, others: Sequence[ServedLoad]) -> float:
        """The distance to the nearest of ``others``: the largest log ratio of their figures; 0 without any."""
        return min((self._to(other) for other in others), default=0.0)

    def _to(self, other: ServedLoad) -> float:
        ratios = (
            self.concurrency / other.concurrency,
            self.prompt_tokens / other.prompt_tokens,
            self.output_tokens / other.output_tokens,
        )
        return max(abs(math.log(ratio)) for ratio in ratios)


@dataclass(frozen=True)
class OwnServer:
    """The server that a set was fitted to.

    ``design`` is what must be the same for its errors to hold (``accuracy.basis.served_design``). ``errors``: by metric
    (ttft, itl, e2e), relative, of loads that were left out, whose next one was ``spacing`` away. ``otherwise`` is the
    case of ``evaluator.accuracy`` of every other design. ``release`` of its engine; None where nobody said it.
    """

    design: tuple[tuple[str, str], ...]
    runs: tuple[ServedLoad, ...]
    errors: tuple[tuple[str, float], ...]
    spacing: float
    otherwise: str
    release: str | None = None

    def document(self) -> dict[str, Any]:
        """The section of a file that reads back as this."""
        return {
            "design": dict(self.design),
            "runs": [vars(run) for run in self.runs],
            "errors": dict(self.errors),
            "spacing": self.spacing,
            "otherwise": self.otherwise,
            **({} if self.release is None else {"release": self.release}),
        }

    def growth(self, load: ServedLoad) -> float:
        """By how much the errors are larger at a load: in proportion to its distance, from that of the left-out ones.

        What leaving out a load has shown holds as far as the next measured load was; a log-linear growth beyond is an
        assumption, as nothing there was measured.
        """
        return max(1.0, load.distance(self.runs) / self.spacing)


def read_own_server(given: Fields) -> OwnServer | None:
    """The section ``own_server`` of a set; None where it has none."""
    if given.raw("own_server", None) is None:
        return None
    inner = given.inner("own_server")
    design, errors = inner.inner("design").values, inner.inner("errors")
    runs = [Fields(run, f"{inner.place('runs')}[{number}]") for number, run in enumerate(inner.sequence("runs"))]
    server = OwnServer(
        design=tuple((str(key), str(value)) for key, value in design.items()),
        runs=tuple(
            ServedLoad(*(run.number(name, low=1e-6) for name in ("concurrency", "prompt_tokens", "output_tokens")))
            for run in runs
        ),
        errors=tuple((str(metric), errors.number(metric)) for metric in errors.values),
        spacing=inner.number("spacing", low=1e-6),
        otherwise=inner.choice("otherwise", OTHERWISE),
        release=None if inner.raw("release", None) is None else str(inner.raw("release", None)),
    )
    inner.finish()
    return server
