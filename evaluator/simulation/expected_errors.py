"""The expected errors of the configurations of a plan, by what their pools rest on."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from evaluator.accuracy.basis import Basis, design_basis
from evaluator.accuracy.cases import Errors
from evaluator.plan.simulators import REQUEST

if TYPE_CHECKING:
    from evaluator.plan import Configuration, ReplicaBuild


def expected(configuration: Configuration, errors: Errors) -> tuple[tuple[float, ...], str]:
    """The expected relative errors of TTFT, ITL and E2E (``basis.METRICS``), and what they rest on in words."""
    return _told(basis_of(configuration), errors)


def basis_of(configuration: Configuration) -> Basis:
    """What the prediction of a configuration rests on, over all its pools."""
    found = _of_design(configuration.stations[0].design)
    for station in configuration.stations[1:]:
        found = found.joined(_of_design(station.design))
    unmeasured = _unmeasured(configuration)
    return found.joined(Basis((), unmeasured)) if unmeasured else found


def _unmeasured(configuration: Configuration) -> tuple[str, ...]:
    """What no measured server did, beside what its replicas are."""
    found = ["stages beside the model"] if configuration.pipeline is not None else []
    if any(station.role.first_token_only for station in configuration.answering):
        found.append("prefill and decode apart")
    if configuration.simulator == REQUEST:
        found.append("an approximate engine (request)")
    return tuple(found)


@lru_cache(maxsize=1024)
def _of_design(built: ReplicaBuild) -> Basis:
    """Once for the configurations that share a design, which are the rates of a sweep."""
    return design_basis(built)


@cache
def _told(basis: Basis, errors: Errors) -> tuple[tuple[float, ...], str]:
    """Once for all configurations that rest on the same."""
    return basis.bands(errors), basis.text(errors)
