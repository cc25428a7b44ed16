"""The request-level engine over a batch of lanes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from evaluator.stations.request_level.collocated import collocated
from evaluator.stations.request_level.decode import decode
from evaluator.stations.request_level.lane import Departures, RequestLane, RequestLevelStructure, ServedRequests
from evaluator.stations.request_level.prefill import prefill


def _over_lanes(run: Callable[[Any], Departures], lanes: Any, vectorise: bool) -> Departures:
    return jax.vmap(run)(lanes) if vectorise else lax.map(run, lanes)


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_collocated(
    lanes: RequestLane, requests: ServedRequests, structure: RequestLevelStructure, vectorise: bool = False
) -> Departures:
    """Instances that do both. ``lanes`` and ``requests`` have a leading ``lane`` axis, and so has the result.

    ``vectorise`` runs all lanes in step (for accelerators) instead of one after another; the numbers are the same.
    """
    return _over_lanes(lambda given: collocated(given[0], given[1], structure), (lanes, requests), vectorise)


@functools.partial(jax.jit, static_argnames=("structure", "vectorise"))
def run_disaggregated(
    lanes: tuple[RequestLane, RequestLane],
    requests: ServedRequests,
    structure: tuple[RequestLevelStructure, RequestLevelStructure],
    vectorise: bool = False,
) -> Departures:
    """Prefill instances and decode instances, two queues in tandem: a pair of lanes, and one of structures.

    The KV cache moves in no time, as in the paper (3.4.3). See ``run_collocated``.
    """

    def run(given: tuple[RequestLane, RequestLane, ServedRequests]) -> Departures:
        prefills, decodes, served = given
        scheduled_s, first_token_s = prefill(prefills, served, structure[0])
        order = jnp.argsort(first_token_s, stable=True)  # instances finish out of order
        behind = ServedRequests(*(field[order] for field in served._replace(arrival_s=first_token_s)))
        last_token_s = decode(decodes, behind, structure[1])
        return Departures(scheduled_s, first_token_s, last_token_s.at[order].set(last_token_s))

    return _over_lanes(run, (*lanes, requests), vectorise)
