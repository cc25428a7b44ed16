"""KV on demand in a sweep: the fast program where KV is ample, the general one for the lanes that ran short of it."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.plan import plan
from evaluator.simulation import lanes as simulation_lanes
from tests.scenario.build import scenario
from tests.simulation.engines import Designs, both_engines

ON_DEMAND = "deployment.kv.admission=on_demand"
AMPLE = {
    "ample": (ON_DEMAND,),
    "SGLang's blocks of a token": (ON_DEMAND, "deployment.kv.block_tokens=1"),
    "two replicas, two seeds": (ON_DEMAND, "deployment.replicas=2", "workload.seeds=[0, 1]"),
    "vLLM v0": (ON_DEMAND, "deployment.batching.policy=continuous", "deployment.kv.watermark=0.01"),
}
SHORT = {
    "short": (ON_DEMAND, "deployment.kv.capacity_tokens=6400", "workload.arrivals.rate_rps=40"),
    "short only beside the watermark": (
        ON_DEMAND, "deployment.kv={capacity_tokens: 12000, watermark: 0.4}", "workload.arrivals.rate_rps=20",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def designs():
    return Designs(AMPLE | SHORT)


@pytest.fixture
def lanes_by_program(monkeypatch):
    """How many lanes ran in the fast and in the general program."""
    count, run_once = {False: 0, True: 0}, simulation_lanes._run_once

    def counted(group, pools, slots, *more):
        count[group.key.preemptive] += len(slots)
        return run_once(group, pools, slots, *more)

    monkeypatch.setattr(simulation_lanes, "_run_once", counted)
    return count


def test_designs_with_and_without_enough_kv_share_a_program(designs, lanes_by_program):
    (group,) = designs.groups
    assert group.stations[0].key.on_demand and not group.stations[0].key.preemptive
    for name in AMPLE | SHORT:
        pair = designs.both(name)
        preemptions = pair.summed("preemptions")[0].sum()
        assert name in SHORT or preemptions == 0
    assert designs.both("short").summed("preemptions")[0].sum() > 0
    assert lanes_by_program[True] == len(SHORT)


def test_the_use_of_kv_grows_with_its_tokens(designs):
    """On demand a request holds what it has, not what it will have: less than where all of it is reserved."""
    reserved = Designs({"": ()}).both("")
    on_demand = designs.both("ample")
    np.testing.assert_array_less(on_demand.summed("kv_unit_s")[0], reserved.summed("kv_unit_s")[0])
    np.testing.assert_allclose(on_demand.column("last_token_s")[0], reserved.column("last_token_s")[0], rtol=1e-12)


def test_the_program_of_replicas_whose_kv_nobody_sees_is_the_one_that_users_compile(as_users_compile):
    replicas = ("deployment.replicas=2", "deployment.router=least_outstanding")
    (group,) = plan(scenario(*replicas, *SHORT["short"]), simulator="iteration").groups
    keys = [station.key for station in group.stations]
    assert [(key.kv_seen, key.frontend, key.admits_first) for key in keys] == [(False, False, False)]
    assert both_engines(*replicas, *SHORT["short"]).summed("preemptions")[0].all()


def test_lanes_that_run_short_run_again_in_a_program_with_the_moves_of_their_policy(as_users_compile):
    """vLLM v0 admits before its decodes take a step, in the program of the lanes that run again, too."""
    both = both_engines("deployment.batching.policy=continuous", *SHORT["short"])
    assert both.summed("preemptions")[0].all()
