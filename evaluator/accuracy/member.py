"""The expected errors of the configurations of a plan, by what their pools rest on."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from evaluator.accuracy.basis import Basis, design_basis
from evaluator.accuracy.cases import Errors, load_errors
from evaluator.plan.engines import REQUEST

if TYPE_CHECKING:
    from evaluator.plan import Member


def basis_of(member: Member) -> Basis:
    """What the prediction of a configuration rests on, over all its pools."""
    first, *others = member.stations
    found = design_basis(first.design)
    for station in others:
        found = found.joined(design_basis(station.design))
    return found.joined(Basis((), _unmeasured(member)))


def _unmeasured(member: Member) -> tuple[str, ...]:
    """What no measured server did, beside what its replicas are."""
    found = {
        "prefill and decode apart": any(station.role.first_token_only for station in member.answering),
        "stages beside the model": member.pipeline is not None,
        "engine request": member.engine == REQUEST,
    }
    return tuple(name for name, there in found.items() if there)


@cache
def _told(basis: Basis, errors: Errors) -> tuple[tuple[float, ...], str]:
    """Once for all configurations that rest on the same."""
    return basis.bands(errors), basis.text(errors)


def expected(member: Member) -> tuple[tuple[float, ...], str]:
    """The expected relative errors of TTFT, ITL and E2E (``basis.METRICS``), and what they rest on in words."""
    return _told(basis_of(member), load_errors())
