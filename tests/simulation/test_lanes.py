"""Lanes that run short of what their program has room for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evaluator.plan import StationGroup
from evaluator.plan.simulators import CompileKey
from evaluator.simulation import lanes


class Told(NamedTuple):
    """What the tests need of a result."""

    lane: np.ndarray
    ran_short: np.ndarray


def test_lanes_with_more_to_hear_than_there_is_room_for_run_again_with_more(monkeypatch):
    """Of six lanes in calls of four; the events that a router is to hear of in each, in what the first calls have."""
    needed, rooms = [1, 3, 1, 20, 4, 1], []

    def run_once(group: Any, pools: Any, some: list[int], most: int, room: int) -> Any:
        rooms.append((room, list(some)))
        for first in range(0, len(some), most):
            call = slice(first, min(first + most, len(some)))
            short = [needed[number] > room for number in some[call]]
            yield call, Told(np.array(some[call]), np.array(short))

    monkeypatch.setattr(lanes, "_run_once", run_once)
    rows: Any = None
    group = StationGroup(CompileKey(preemptive=True, late=True), 256, rows, 8)
    jobs: Any = list(range(len(needed)))
    calls = list(lanes.run_calls(group, [], jobs, most=4))
    assert rooms == [(1, jobs), (4, [1, 3, 4]), (16, [3]), (64, [3])]
    for call in calls:
        result: Any = call.result
        assert result.lane.tolist() == call.numbers.tolist()
        assert not result.ran_short.any()
    assert sorted(number for call in calls for number in call.numbers.tolist()) == jobs
