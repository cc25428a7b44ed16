"""The expected errors of the configurations of a plan, by what their pools rest on."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from evaluator.accuracy.basis import Basis, design_basis
from evaluator.accuracy.cases import Errors
from evaluator.plan.engines import REQUEST

if TYPE_CHECKING:
    from evaluator.plan import Design, Member


def expected(member: Member, errors: Errors) -> tuple[tuple[float, ...], str]:
    """The expected relative errors of TTFT, ITL and E2E (``basis.METRICS``), and what they rest on in words."""
    return _told(basis_of(member), errors)


def basis_of(member: Member) -> Basis:
    """What the prediction of a configuration rests on, over all its pools."""
    found = _of_design(member.stations[0].design)
    for station in member.stations[1:]:
        found = found.joined(_of_design(station.design))
    unmeasured = _unmeasured(member)
    return found.joined(Basis((), unmeasured)) if unmeasured else found


def _unmeasured(member: Member) -> tuple[str, ...]:
    """What no measured server did, beside what its replicas are."""
    found = ["stages beside the model"] if member.pipeline is not None else []
    if any(station.role.first_token_only for station in member.answering):
        found.append("prefill and decode apart")
    if member.engine == REQUEST:
        found.append("an approximate engine (request)")
    return tuple(found)


@lru_cache(maxsize=1024)
def _of_design(built: Design) -> Basis:
    """Once for the configurations that share a design, which are the rates of a sweep."""
    return design_basis(built)


@cache
def _told(basis: Basis, errors: Errors) -> tuple[tuple[float, ...], str]:
    """Once for all configurations that rest on the same."""
    return basis.bands(errors), basis.text(errors)
