"""Slots -> the engine's arrays, and the engine's calls."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from evaluator.cost.iteration import IterationCost
from evaluator.cost.lanes import stack
from evaluator.plan.plan import Group, Member, Plan
from evaluator.plan.traffics import held_units
from evaluator.simulation.slots import Slot
from evaluator.stations.engine import POLICIES, Lane, LaneResult, Policy, Requests, Structure, run_lanes

LANES_PER_CALL = 32
"""Few enough to share two cores evenly, enough to hide the cost of a call."""
REQUESTS_PER_CALL = 1 << 20
"""Slots of all lanes of a call, some 100 bytes each: long traces go in calls of fewer lanes."""


def run_slots(plan: Plan, group: Group, members: list[Member], slots: list[Slot]) -> Iterator[LaneResult]:
    """The results of all lanes in NumPy, from calls of one shape; the last is filled up with lanes without requests."""
    structure = Structure(group.ring, group.windowed)
    vectorise = jax.default_backend() != "cpu"
    size = max(1, min(LANES_PER_CALL, REQUESTS_PER_CALL // group.lane_requests))
    for start in range(0, len(slots), size):
        part = slots[start : start + size]
        given = _lanes(plan, group, members, part), _requests(group, members, part)
        inputs = jax.tree.map(lambda values: _filled(values, size), given)
        found = jax.tree.map(np.asarray, run_lanes(*inputs, structure, vectorise))
        for lane in range(len(part)):
            yield LaneResult(*(field[lane] for field in found))


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    missing = size - len(values)
    if missing == 0:
        return values
    return np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])


def _requests(group: Group, members: list[Member], slots: list[Slot]) -> Requests:
    width = group.lane_requests + 1
    arrival = np.full((len(slots), width), np.inf)
    tokens = np.zeros((4, len(slots), width), dtype=np.int32)
    for lane, slot in enumerate(slots):
        demand = slot.load.demand
        units = held_units(demand, members[slot.position].design.ready.kv)
        arrival[lane, : slot.count] = slot.load.arrival_s[slot.served]
        lengths = demand.tokens.prompt_tokens, demand.tokens.output_tokens
        for row, values in enumerate((demand.compute_tokens, *lengths, units)):
            tokens[row, lane, : slot.count] = values[slot.served]
    return Requests(arrival, *tokens)


def _lanes(plan: Plan, group: Group, members: list[Member], slots: list[Slot]) -> Lane:
    deployments = [plan.grid.points[members[slot.position].config][1] for slot in slots]
    served_by = [members[slot.position] for slot in slots]
    kvs = [member.design.ready.kv for member in served_by]
    policies = [POLICIES[deployment.batching.policy] for deployment in deployments]
    return Lane(
        cost=_costs(group, served_by),
        policy=Policy(*(np.array(column, dtype=bool) for column in zip(*policies, strict=True))),
        prompts_resident=np.array([deployment.role == "decode" for deployment in deployments]),
        max_num_seqs=np.array([deployment.batching.max_num_seqs for deployment in deployments], dtype=float),
        max_num_batched_tokens=np.array([member.max_num_batched_tokens for member in served_by], dtype=float),
        kv_units=np.array([kv.capacity_units for kv in kvs], dtype=float),
        window=np.array([kv.window or 0 for kv in kvs], dtype=float),
        users=np.array([slot.users for slot in slots], dtype=np.int32),
        requests=np.array([slot.count for slot in slots], dtype=np.int32),
        measured_from=np.array([slot.warmup(group.warmup_requests) for slot in slots], dtype=np.int32),
    )


def _costs(group: Group, members: list[Member]) -> IterationCost:
    stacked = stack([member.design.ready.cost for member in members], group.rows)
    return jax.tree.map(lambda values: np.ascontiguousarray(np.moveaxis(values, -1, 0)), stacked)
