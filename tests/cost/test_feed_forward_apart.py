"""Attention and feed-forwards on devices of their own: the pipeline of micro-batches, both sides, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog.read_model import load_model
from evaluator.cost.batch import decode_batch
from evaluator.cost.feed_forward_apart import Apart, feed_forward_bytes, sides
from evaluator.cost.iteration import BatchStatistics, device_time, launched
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.weights import weight_bytes
from evaluator.deploy import deploy
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.replica import ReplicaSpec, build
from evaluator.replica.changes import Change
from evaluator.run import sweep
from tests.scenario.build import scenario
from tests.simulation.engines import both_engines

EXPERTS = "qwen3-30b-a3b"
APART = Apart(devices=4, ranks=2, micro_batches=3, bandwidth=50e9, latency_s=2e-6)
DESIGN = ["deployment.model=qwen3-30b-a3b", "deployment.calibration=datasheet"]
KEY = "deployment.feed_forward_apart={devices: 4, attention_ranks: 2}"


def cost_of(apart=APART):
    return build(ReplicaSpec(EXPERTS, "h100-sxm", "datasheet", apart=apart)).ready.costing.typical[0]


def last_leaves(attention, feed_forward, way, parts, layers):
    """When the last micro-batch leaves, by a clock: two sides and a link each way that serve one at a time."""
    free, at = dict.fromkeys(("attention", "there", "feed_forward", "back"), 0.0), [0.0] * parts
    for _ in range(layers):
        for name, takes in (("attention", attention), ("there", way), ("feed_forward", feed_forward), ("back", way)):
            for number in range(parts):
                at[number] = free[name] = max(at[number], free[name]) + takes
    return at[-1]


@pytest.mark.parametrize("times", [(3.0, 2.0, 1.0), (2.0, 3.0, 1.0), (1.0, 1.0, 3.0), (4.0, 4.0, 0.1)])
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_micro_batches_in_turn_are_those_of_a_clock(times, parts, monkeypatch):
    cost = cost_of()._replace(micro_batches=float(parts), layers=5.0)
    monkeypatch.setattr(type(cost), "_stages", lambda self, batch: times)
    batch = decode_batch(12.0, 100.0, None)
    ends_s = float(device_time(cost.ends, decode_batch(6.0, 100.0, None)))  # of a rank's six
    assert float(cost.time(batch)) - ends_s == pytest.approx(last_leaves(*times, parts, 5), rel=1e-6)


@pytest.mark.parametrize("sequences", [4.0, 64.0, 600.0])
def test_an_iteration_grows_as_it_says_for_as_long_as_it_says(sequences):
    cost = cost_of()
    first = decode_batch(sequences, 3000.0, None)
    steps, grows_s, first_s = float(cost.steps(first)), float(cost.growth(first, 0.0)), float(cost.time(first))
    for ahead in (1.0, min(steps - 1.0, 5000.0)):
        later = first._replace(decode_context=first.decode_context + ahead * sequences)
        assert float(cost.time(later)) == pytest.approx(first_s + ahead * grows_s, rel=1e-9)


def test_a_decode_is_in_one_micro_batch():
    # More micro-batches than a rank has decodes are as many as it has: no part of a sequence goes ahead of the rest.
    one, two = (
        [float(cost_of(replace(APART, micro_batches=parts)).time(decode_batch(sequences, 1000.0, None)))
         for parts in (1, 2, 3, 6)]
        for sequences in (2.0, 4.0)  # of which each of two ranks has one, or two
    )  # fmt: skip
    assert one == [one[0]] * 4
    assert two[1:] == [two[1]] * 3 and two[1] != two[0]


PROMPT = BatchStatistics(*map(np.float64, (0, 0, 0, 2000, 1, 2000 * 2001 / 2, 0, 2000, 0)))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_host_launches_the_layers_of_every_micro_batch(parts):
    # Beside a link that takes no time: no iteration with prompts is shorter than what its micro-batches take the host,
    # of which one has as much to launch as all feed-forwards beside attention.
    spec = ReplicaSpec(EXPERTS, "b200-sxm", "auto", parallel=Parallel(tensor=2), max_num_batched_tokens=8192)
    apart = build(replace(spec, apart=Apart(4, 1, parts, float("inf"), 0.0))).ready.costing.typical[0]
    micro_batch = BatchStatistics(*(statistic / parts for statistic in PROMPT))
    least_s = float(launched(build(spec).ready.costing.typical[0], micro_batch))
    assert least_s > 0.0
    assert float(apart.time(PROMPT)) == pytest.approx(parts * least_s, rel=1e-12)


def test_the_release_decides_on_the_gated_delta_rule():
    spec = ReplicaSpec("qwen3.5-35b-a3b", "b300-sxm", "auto", max_num_batched_tokens=8192)
    rows, times = [], []
    for release in ("0.16", "0.33"):
        beside = build(replace(spec, engine_version=release)).ready.costing.typical[0]
        apart = build(replace(spec, engine_version=release, apart=APART)).ready.costing.typical[0]
        assert apart.attention.delta_rule_rows == beside.delta_rule_rows
        rows.append(apart.attention.delta_rule_rows.walk_s[0])
        times.append(float(device_time(apart.attention, PROMPT)))
    assert rows[0] != rows[1] and times[0] != times[1]


def test_each_rank_keeps_its_share_of_the_watermark_free():
    many = "deployment.feed_forward_apart={devices: 4, attention_ranks: 128}"
    on_demand = ["deployment.kv.watermark=0.01", "deployment.kv.admission=on_demand"]
    (configuration,) = plan(scenario(*DESIGN, many, *on_demand), simulator="token").configurations
    assert configuration.status == "ok"


def test_each_side_holds_and_computes_its_part():
    model, precision = load_model(EXPERTS), Precision()
    attention, feed_forward, ends = (
        {operator.name for operator in side} for side in sides(model, precision, Parallel(), APART)
    )
    assert "attention.prefill" in attention and "experts.gate_up" not in attention
    assert "experts.gate_up" in feed_forward
    assert {"experts.dispatch", "experts.combine", "attention.prefill", "head"}.isdisjoint(feed_forward)
    assert "head" in ends and "embedding" in ends
    built = build(ReplicaSpec(EXPERTS, "h100-sxm", "datasheet", apart=APART))
    assert built.devices == 6
    # All weights are somewhere: experts once, attention on each rank, dense parts of a layer on each device.
    whole = weight_bytes(model, precision, Parallel())
    held = built.memory.weight_bytes + 4 * feed_forward_bytes(model, precision, APART)
    assert whole < held < 1.02 * whole
    one = build(replace(built.spec, apart=replace(APART, ranks=1)))
    assert built.memory.kv.capacity_units == 2 * one.memory.kv.capacity_units


def test_more_micro_batches_fill_the_pipeline_and_read_the_weights_more_often():
    times = [float(cost_of(replace(APART, micro_batches=parts)).time(decode_batch(4096.0, 1000.0, None)))
             for parts in (1, 2, 3, 32)]  # fmt: skip
    assert times[0] > times[1] and min(times[1:3]) < times[3]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["deployment.model=llama-3.1-8b"], "unsupported: feed_forward_apart on llama-3.1-8b, which has no experts"),
        (["deployment.pipeline_parallel=2"], "unsupported: feed_forward_apart beside pipeline_parallel 2; use tensor"),
        (["deployment.feed_forward_apart.devices=5"], "infeasible: feed_forward_apart.devices 5 does not divide the"),
        (["deployment.speculative={method: ngram, tokens: 2, acceptance: 0.5}"], "with deployment.speculative; leave"),
        (["deployment.feed_forward_apart.devices=1", "deployment.hardware=l40s"],
         "58.0 GB of weights of feed-forwards and 0.9 GB of activations exceed the 44.4 GB usable of l40s; use more"),
        (["deployment.kv.capacity_tokens=200"], "KV cache of 96 tokens on each of the 2 ranks of feed_forward_apart"),
        (["deployment.feed_forward_apart.devices=3"],
         "infeasible: feed_forward_apart.devices 3 does not divide the 128 experts of qwen3-30b-a3b; use 2 or 4"),
        (["deployment.feed_forward_apart.devices=200"], "the 128 experts of qwen3-30b-a3b; use 128"),
        # Of a model without its feed-forwards, which attention is divided of, they would say that it has no experts.
        (["deployment.expert_parallel=2"], "unsupported: feed_forward_apart beside expert_parallel 2; use tensor"),
        (["deployment.expert_exchange=deepep"],
         "unsupported: feed_forward_apart beside expert_exchange deepep; leave out expert_exchange"),
        (["deployment.redundant_experts=8"],
         "unsupported: feed_forward_apart beside redundant_experts 8; leave out redundant_experts"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(overrides, reason):
    (configuration,) = plan(scenario(*DESIGN, KEY, *overrides), simulator="token").configurations
    assert reason in configuration.status


def test_no_server_is_started_for_it():
    ds = sweep(scenario(*DESIGN, KEY, "workload.requests=20", "workload.warmup_requests=0"), simulator="token")
    with pytest.raises(InputError, match=r"feed_forward_apart of 4 of the 6 devices of a replica.*--select"):
        deploy(ds)


def test_a_replica_starts_with_the_weights_of_both_sides():
    beside = build(ReplicaSpec(EXPERTS, "h100-sxm", "datasheet")).ready
    apart = build(ReplicaSpec(EXPERTS, "h100-sxm", "datasheet", apart=APART)).ready
    assert beside.replica_weight_bytes == beside.weight_bytes
    assert beside.replica_weight_bytes < apart.replica_weight_bytes < 1.1 * beside.replica_weight_bytes


def test_the_link_between_both_sides_is_an_input():
    # A slow link, which everything waits for: a hundredth more of it makes iterations a hundredth shorter.
    spec = ReplicaSpec(EXPERTS, "h100-sxm", "datasheet", apart=replace(APART, bandwidth=1e9, latency_s=0.0))
    slow = build(spec).ready.cost
    faster = build(replace(spec, change=Change("link_bandwidth", 1.01))).ready.cost
    batch = decode_batch(256.0, 1000.0, None)
    assert float(faster.time(batch)) / float(slow.time(batch)) == pytest.approx(1.0 / 1.01, abs=1e-3)
    waits = replace(spec, apart=replace(APART, latency_s=1e-3))
    later = build(replace(waits, change=Change("link_latency", 1.01))).ready.cost
    assert float(later.time(batch)) / float(build(waits).ready.cost.time(batch)) == pytest.approx(1.01, abs=1e-3)


def test_both_simulators_compute_it():
    pair = both_engines(*DESIGN, KEY, "workload.arrivals.rate_rps=20")
    assert pair.told("devices") == 6
