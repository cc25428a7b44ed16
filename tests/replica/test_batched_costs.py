"""Costs of many replicas at once: to the last digit those of each alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.lanes import RowCounts, common_counts, stack
from evaluator.cost.parallel import Parallel
from evaluator.replica import Change, ReplicaSpec, build, on_device
from evaluator.replica.batched_costs import costs_of, ideals_of
from evaluator.replica.replica_build import RunnableReplica

MODELS = ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v3")
RNG = np.random.default_rng(0)


def device(base: Hardware) -> Hardware:
    """One like it with figures of its own, all of them swept."""

    def more(value: float) -> float:
        return value * RNG.uniform(0.3, 4.0)

    peaks = {dtype: more(peak) for dtype, peak in base.peak_flops.items()}
    links = [replace(link, bandwidth=more(link.bandwidth), latency_s=more(link.latency_s)) for link in base.links]
    return replace(base, peak_flops=peaks, memory_bandwidth=more(base.memory_bandwidth), links=tuple(links))


def kin(replica: RunnableReplica, count: int) -> list[RunnableReplica]:
    """Replicas that share its costing."""
    return [replace(replica, hardware=device(replica.hardware)) for _ in range(count)]


def replica(model: str, parallel: Parallel, calibration: Calibration | str = "auto") -> RunnableReplica:
    spacious = replace(load_hardware("h200-sxm"), memory_bytes=1e12)
    return build(ReplicaSpec(model, spacious, calibration, parallel=parallel)).ready


def leaves(cost):
    return [leaf for part in cost for leaf in leaves(part)] if isinstance(cost, tuple) else [np.asarray(cost)]


def same(found, expected) -> None:
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("split", [Parallel(1), Parallel(2, 2), Parallel(8)], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_many_devices_take_what_each_takes_alone(model, split):
    several = kin(replica(model, split), 5)
    counts = common_counts([cost for one in several for cost in one.pipeline_ranks])
    found = costs_of(several, counts)
    assert len(found) == split.pipeline
    for rank, cost in enumerate(found):
        same(cost, stack([one.pipeline_ranks[rank] for one in several], counts))
    assert ideals_of(several) == [one.ideals for one in several]


def test_replicas_of_several_costings_keep_their_places():
    one, other = (replica(model, Parallel(2)) for model in MODELS[:2])
    mixed = [one, *kin(other, 2), *kin(one, 2), other, replica(MODELS[0], Parallel(4)), *kin(other, 1)]
    counts = common_counts([each.cost for each in mixed])
    same(costs_of(mixed, counts)[0], stack([each.cost for each in mixed], counts))
    assert ideals_of(mixed) == [each.ideals for each in mixed]


def test_a_host_that_runs_ahead_is_the_same_for_all_devices():
    """A cost that is no roofline alone has no rows to fill up."""
    known = replace(load_calibration("datasheet", "h200-sxm"), dispatch_s=0.01)
    several = kin(replica(MODELS[0], Parallel(1), known), 3)
    same(costs_of(several, common_counts([]))[0], stack([one.cost for one in several]))


def test_a_device_in_the_place_of_another_takes_over_nothing_that_was_found():
    """The costs of the first are asked for before the second is made of it."""
    first = build(ReplicaSpec("llama-3.1-8b", WhatIf.of({"like": "h100-sxm", "power_w": 600})))
    faster = WhatIf.of({"like": "h100-sxm", "memory_bandwidth": "6.7TB/s"})
    assert first.ready.cost.context_s > 0 and first.ready.memory.context_s > 0
    second = on_device(first, faster)
    alone = build(ReplicaSpec("llama-3.1-8b", faster))
    assert second.ready.costing is first.ready.costing
    assert str(second.ready.pipeline_ranks) == str(alone.ready.pipeline_ranks)
    assert second.ready.ideals == alone.ready.ideals
    assert (second.spec, second.hardware, second.memory, second.status) == (
        alone.spec, alone.hardware, alone.memory, alone.status
    )  # fmt: skip


def test_designs_with_other_memory_or_another_input_share_their_costings():
    """They are planned one by one; their costs are folded together all the same."""
    small, large = (
        build(ReplicaSpec("llama-3.1-8b", WhatIf.of({"like": "h100-sxm", "memory_bytes": size}))).ready
        for size in ("60GB", "90GB")
    )
    assert small.costing is large.costing and small.kv != large.kv
    for change in (Change("memory_bandwidth", 1.1), Change("host_overhead", 1.1)):
        one, other = (
            build(ReplicaSpec("llama-3.1-8b", name, change=change)).ready for name in ("h100-sxm", "h100-sxm")
        )
        assert one is not other and one.costing is other.costing
    assert build(ReplicaSpec("llama-3.1-8b", "h100-sxm")).ready.costing is not small.costing  # measured, not like it


def test_rows_are_those_that_are_asked_for():
    several = kin(replica(MODELS[1], Parallel(1)), 2)
    (found,) = costs_of(several, RowCounts(*(count + 1 for count in common_counts([several[0].cost]))))
    assert found.expert_rows.flop.shape[0] == several[0].cost.expert_rows.flop.shape[0] + 1
    assert not found.expert_rows.flop[-1].any()
