"""``deployment.failures``: replicas of a pool that fail, and what becomes of the requests that they have."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evaluator.keys import Place, Reader, choice, count, key, quantity, schema_of, section, shown

LOST, RESENT = "lost", "resent"


@dataclass(frozen=True)
class Outage:
    """A replica, from 0 on, that is down for a while, whatever else happens."""

    at_s: float = key(quantity("s", least=0), says="When it fails, from the start of the run.")
    for_s: float = key(quantity("s", above=0), says="Until it is repaired.")
    replica: int = key(count(least=0), 0, "Which of the replicas, from 0 on.")

    def __str__(self) -> str:
        return f"replica {self.replica} down at {self.at_s:g} s for {self.for_s:g} s"


_outage = section(Outage)


def _outages(value: Any, place: Place) -> tuple[Outage, ...]:
    if not isinstance(value, list | tuple):
        raise place.error(f"expected a list such as [{{replica: 0, at_s: 10min, for_s: 5min}}], got {shown(value)}")
    outages = [_outage(entry, place.item(index)) for index, entry in enumerate(value)]
    in_turn = sorted(range(len(outages)), key=lambda index: (outages[index].replica, outages[index].at_s))
    for earlier, later in pairwise(in_turn):
        before, outage = outages[earlier], outages[later]
        if before.replica == outage.replica and outage.at_s < before.at_s + before.for_s:
            raise place.item(later).error(
                f"replica {outage.replica} is down from {before.at_s:g} to {before.at_s + before.for_s:g} s already; "
                "make one outage of both"
            )
    return tuple(outages[index] for index in in_turn)


@dataclass(frozen=True)
class Failures:
    """Times until a replica fails and until it is repaired are exponential, or ``outages`` says them.

    A repaired replica serves after ``start_up_s``, with empty caches. Until ``noticed_after_s`` the router takes a
    failed one for any other: what it has, and what it is sent meanwhile, is answered by nobody, and is ``lost`` or sent
    again when the failure is noticed.
    """

    mtbf_s: float | None = key(
        quantity("s", above=0),
        None,
        "Mean time that a replica serves until it fails, exponential by seed; none fails by chance where absent.",
    )
    mttr_s: float | None = key(
        quantity("s", above=0), None, "Mean time until a failed replica is repaired, exponential; beside mtbf_s."
    )
    outages: tuple[Outage, ...] = key(
        Reader(_outages, lambda: {"type": "array", "items": schema_of(_outage)}),
        (),
        "Outages that are known: [{replica: 0, at_s: 10min, for_s: 5min}]; in place of mtbf_s.",
    )
    start_up_s: float = key(
        quantity("s", least=0), 0.0, "From the repair until the replica serves: loading weights, compiling, warming up."
    )
    noticed_after_s: float = key(
        quantity("s", least=0),
        0.0,
        "From a failure until the router knows of it: the interval of its health checks times those that must fail.",
    )
    requests: str = key(
        choice(LOST, RESENT),
        LOST,
        "What becomes of requests at a replica that has failed. lost: their users get an error. resent: the router "
        "sends them again, from the start, and keeps those that come while no replica serves.",
    )
    max_tries: int = key(
        count(most=1000),
        2,
        "resent: how often a request is sent at most, after which it is lost; 2 is Envoy's num_retries 1.",
    )

    def __str__(self) -> str:
        """As a row of a table has it: when replicas fail, and what else is said of it."""
        if self.mtbf_s is None:
            parts = [", ".join(str(outage) for outage in self.outages)]
        else:
            parts = [f"every {self.mtbf_s:g} s for {self.mttr_s:g} s"]
        # What is left at its default is not said: a column of a table has no room for it.
        parts += [f"{self.start_up_s:g} s of start-up"] if self.start_up_s else []
        parts += [f"noticed after {self.noticed_after_s:g} s"] if self.noticed_after_s else []
        parts += [f"{RESENT} up to {self.max_tries} tries"] if self.requests == RESENT else []
        return "; ".join(parts)


def _check(failures: Failures, place: Place) -> None:
    if failures.outages and (failures.mtbf_s is not None or failures.mttr_s is not None):
        raise place.key("outages").error(
            "excludes mtbf_s and mttr_s: failures are known, or they are drawn; set mtbf_s: null and mttr_s: null "
            "beside it, or leave outages out"
        )
    if failures.mtbf_s is not None and failures.mttr_s is None:
        raise place.key("mttr_s").error("is required beside mtbf_s; use 10min, say")
    if failures.mtbf_s is None and not failures.outages:
        raise place.error("says of no failure; use {mtbf_s: 720h, mttr_s: 10min}, or outages")


_section = section(Failures, _check)
# No section whose keys are merged: a pool that says nothing has what stands beside the pools, or none, as a whole.
failures_reader = Reader(_section.read, lambda: schema_of(_section))
