"""``workload.classes``: kinds of requests (interactive, batch) with objectives and a priority of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evaluator.keys import Place, Reader, count, key, schema_of, written
from evaluator.scenario.lengths import Lengths, lengths_reader, share_reader, shares_reader
from evaluator.scenario.objectives import Objective, read_slo, written_slo

if TYPE_CHECKING:
    from evaluator.scenario.workload import Workload

HIGHEST_PRIORITY = 10**6
"""The largest priority, of either sign: the programs keep it as a 32-bit integer, and add to it."""


def _class_objectives(value: Any, place: Place) -> tuple[Objective, ...]:
    objectives = read_slo(value, place)
    for objective in objectives:
        # Gaps between tokens are pooled over all sequences of a batch, so that nobody knows whose they were.
        if objective.metric == "itl":
            raise place.key("itl").error("gaps between tokens are not known by class; use tpot")
    return objectives


@dataclass(frozen=True)
class RequestClass:
    """A class of requests: ``share`` of all requests, relative to the other classes.

    ``slo`` holds for the requests of the class alone, beside what the scenario asks of all. ``lengths`` None: as those
    of the workload. What is None a trace says, or the default.
    """

    share: float | None = key(
        share_reader, None, "Of all requests, relative to the shares of the other classes; a trace may say it instead."
    )
    lengths: Lengths | None = key(lengths_reader, None, "Of this class's requests; as those of the workload if absent.")
    slo: tuple[Objective, ...] = key(
        Reader(_class_objectives, lambda: schema_of(read_slo)),
        (),
        "Objectives of this class's requests, as in slo, beside those of the scenario.",
    )
    priority: int | None = key(
        count(least=-HIGHEST_PRIORITY, most=HIGHEST_PRIORITY),
        None,
        "The smaller goes first under batching.packing priority, as in vLLM; 0 where absent and no trace says it.",
    )

    def written(self) -> dict[str, Any]:
        """The section it could have been read from."""
        plain = {name: written(getattr(self, name)) for name in ("share", "lengths", "priority")}
        return {**plain, "slo": written_slo(self.slo) or None}


def _named(classes: dict[str, RequestClass]) -> dict[str, RequestClass]:
    """The classes, whose objectives know whose they are."""
    return {
        name: replace(entry, slo=tuple(replace(objective, request_class=name) for objective in entry.slo))
        for name, entry in classes.items()
    }


_shares = shares_reader("class", "interactive", RequestClass)
classes_reader = Reader(lambda value, place: _named(_shares(value, place)), lambda: schema_of(_shares))
"""Reads {NAME: 0.7, NAME: {share: 0.3, lengths: {...}, slo: {...}, priority: 1}}."""


def all_objectives(workload: Workload, slo: tuple[Objective, ...]) -> tuple[Objective, ...]:
    """The objectives of a point: those of all requests, then those of classes."""
    # The same object without classes: points are told apart by the identity of their parts.
    of_classes = [objective for entry in workload.classes.values() for objective in entry.slo]
    return (*slo, *of_classes) if of_classes else slo


def check_classes(classes: Mapping[str, RequestClass], names: tuple[str, ...], trace: Any, place: Place) -> None:
    """Refuses shares and priorities that a ``trace`` says, too, and no share without one. Errors: InputError.

    ``names`` are those of the trace's column, none without one.
    """
    for name, entry in classes.items():
        here = place.key(name)
        if names and name not in names:
            raise here.error(f"no request of the trace is of this class; its column class has {', '.join(names)}")
        if names and (entry.share is not None or entry.lengths is not None):
            what = "share" if entry.share is not None else "lengths"
            raise here.key(what).error(
                "the trace has a column class, which says it already; leave out the one or the other"
            )
        if not names and entry.share is None:
            raise here.key("share").error("is required, as no trace with a column class says which requests are of it")
        if entry.priority is not None and trace is not None and trace.priority is not None:
            raise here.key("priority").error(
                "the trace has a column priority, which says it already; leave out the one or the other"
            )
