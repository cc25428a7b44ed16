"""A chunk of configurations on the vectorised engine: run its lanes and gather what they give."""

from __future__ import annotations

import numpy as np

from evaluator.metrics import Outcomes, WeightedGaps
from evaluator.plan.plan import Group, Member, Plan
from evaluator.simulation.gathered import Gathered, outcomes
from evaluator.simulation.lanes import run_slots
from evaluator.simulation.slots import Slot, slots
from evaluator.stations.engine import LaneResult
from evaluator.stations.engine.common import histogram


def run_iterations(plan: Plan, group: Group, members: list[Member]) -> Outcomes:
    """Run members of a group over all seeds and replicas. The rows of members that cannot run hold zeros."""
    shape = len(members), len(plan.seeds)
    gathered, bins = Gathered.empty(*shape, group.requests), np.zeros((*shape, histogram.BINS))
    lanes = slots(plan, members)
    for slot, result in zip(lanes, run_slots(plan, group, members, lanes), strict=True):
        _add(gathered, members[slot.position], slot, result)
        bins[slot.at] += result.itl_histogram
    return outcomes(plan, group, members, gathered, [[_weighted(one) for one in seeds] for seeds in bins])


def _add(gathered: Gathered, member: Member, slot: Slot, result: LaneResult) -> None:
    at, served, count = slot.at, slot.served, slot.count
    gathered.arrival_s[at][served] = _release_times(slot, result)
    gathered.scheduled_s[at][served] = result.scheduled_s[:count]
    gathered.first_token_s[at][served] = result.first_token_s[:count]
    gathered.last_token_s[at][served] = result.last_token_s[:count]
    gathered.replica[at][served] = slot.replica
    gathered.busy_s[at] += result.busy_s
    gathered.iterations[at] += result.iterations
    gathered.experts_touched[at] += result.experts_touched
    gathered.kv_units_max[at] = max(gathered.kv_units_max[at], result.kv_units_max)
    if result.peaks.size:
        gathered.peaks[at] = np.maximum(gathered.peaks[at], result.peaks)
    gathered.kv_unit_s[at] += result.kv_unit_s
    gathered.preemptions[at] += result.preemptions


def _release_times(slot: Slot, result: LaneResult) -> np.ndarray:
    """When each request is sent: at its timestamp, or in a closed loop when the request ``users`` before it is done."""
    if slot.users >= slot.count:
        return slot.load.arrival_s[slot.served]
    done = np.sort(result.last_token_s[: slot.count])
    return np.concatenate([np.zeros(slot.users), done[: slot.count - slot.users]])


def _weighted(bins: np.ndarray) -> WeightedGaps:
    there = np.flatnonzero(bins)
    return histogram.bin_middles()[there], bins[there]
