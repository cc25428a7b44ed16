"""The request-level engine over a batch of lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from evaluator.stations.request_level.collocated import collocated
from evaluator.stations.request_level.decode import decode
from evaluator.stations.request_level.lane import Departures, RequestLane, RequestLevelStructure, ServedRequests
from evaluator.stations.request_level.prefill import prefill


def _over_lanes(serve: Callable[[RequestLane, ServedRequests, RequestLevelStructure], Departures]) -> Any:
    """``serve`` of one lane, compiled for a batch of them."""

    @functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
    def run(
        lanes: RequestLane, requests: ServedRequests, structure: RequestLevelStructure, vectorise: bool = False
    ) -> Departures:
        """``lanes`` and ``requests`` have a leading ``lane`` axis, and so has the result.

        ``vectorise`` runs all lanes in step (for accelerators) instead of one after another; the numbers are the same.
        """

        def one(given: tuple[RequestLane, ServedRequests]) -> Departures:
            return serve(*given, structure)

        return jax.vmap(one)((lanes, requests)) if vectorise else lax.map(one, (lanes, requests))

    return run


run_collocated = _over_lanes(collocated)
"""Instances that compute prompts and decode."""
run_prefill = _over_lanes(prefill)
"""The prefill side of a disaggregated deployment."""
run_decode = _over_lanes(decode)
"""Its decode side; requests must be in the order in which they come there."""
