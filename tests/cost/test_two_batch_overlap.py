"""Two halves of a batch that overlap: how long they take, when a batch is split, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import iteration_time, launched
from evaluator.cost.lockstep import rank_cost, steps_together, tokens_brought
from evaluator.cost.parallel import Parallel, TwoBatches
from evaluator.cost.two_batch_overlap import Halves
from evaluator.estimation import estimate
from evaluator.estimation import iteration_time as iteration_times
from evaluator.plan import plan
from evaluator.replica import ReplicaSpec, build
from evaluator.run import sweep
from tests.cost.test_lockstep import ranks_of
from tests.scenario.build import scenario
from tests.simulation.test_lockstep import assert_equal

RANKS = Parallel(data=4, expert=4, exchange="deepep_low_latency", overlap=TwoBatches(32, 512))
SPEC = ReplicaSpec("qwen3-30b-a3b", "h100-sxm", parallel=RANKS)
DESIGN = ["deployment.model=qwen3-30b-a3b", "deployment.data_parallel=2", "deployment.expert_parallel=2",
          "deployment.expert_exchange=deepep_low_latency", "deployment.two_batch_overlap=true"]  # fmt: skip
MIXED = together(prefill_batch(1.0, 900, None), decode_batch(60.0, 2000.0, None))


def costs(calibration="auto", exchange=RANKS.exchange):
    """With two halves, and without."""
    given = replace(SPEC, calibration=calibration)
    overlaps = RANKS.overlap, None
    return [
        build(replace(given, parallel=replace(RANKS, exchange=exchange, overlap=overlap))).ready.costing.typical[0]
        for overlap in overlaps
    ]


def last_ends(computing, exchanging, layers):
    """When both halves are through, by a clock: two machines that serve one half at a time."""
    free, at = [0.0, 0.0], [0.0, 0.0]
    for _ in range(2 * layers):
        for machine, takes in enumerate((computing, exchanging)):
            for half in (0, 1):
                at[half] = free[machine] = max(at[half], free[machine]) + takes
    return max(at)


@pytest.mark.parametrize("visit", [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 0.0), (0.0, 2.0)])
@pytest.mark.parametrize("layers", [1, 5])
def test_halves_in_turn_are_those_of_a_clock(visit, layers):
    computing, exchanging = visit  # seconds of a half, of which a layer has two of each
    halves = Halves(4.0 * layers * computing, 4.0 * layers * exchanging, 4.0 * layers)
    assert float(halves.time_s) == pytest.approx(last_ends(computing, exchanging, layers), rel=1e-12)
    assert float(halves.time_s) >= max(halves.computing_s, halves.exchanging_s)


@pytest.mark.parametrize("calibration", ["auto", "datasheet"])
@pytest.mark.parametrize("exchange", ["all_to_all", "deepep"])
@pytest.mark.parametrize("batch", [decode_batch(31.0, 900.0, None), prefill_batch(1.0, 511, None)])
def test_small_batches_take_as_long_as_without(calibration, exchange, batch):
    two, plain = costs(calibration, exchange)
    assert float(two.time(batch)) == pytest.approx(float(iteration_time(plain, batch)), rel=1e-12)
    assert float(two.growth(batch, 0.0)) == pytest.approx(float(two.device.context_s * batch.decodes), rel=0.1)
    assert float(two.steps(batch)) == float("inf")


def test_without_exchange_and_weights_nothing_is_gained_or_lost():
    two, _ = costs("datasheet")
    rows = {name: getattr(two.device, name) for name in ("token_rows", "expert_rows")}
    free = {
        name: table._replace(weight=0.0 * table.weight, tile_pass_s=0.0 * table.tile_pass_s)
        for name, table in rows.items()
    }
    nothing = two.exchange.expert_rows._replace(activation=0.0 * two.exchange.expert_rows.activation)
    two = two._replace(
        device=two.device._replace(**free),
        exchange=two.exchange._replace(iteration_s=0.0, expert_rows=nothing),
        starts_s=0.0,
    )
    whole = two._replace(decode_tokens=np.inf, prompt_tokens=np.inf)
    for batch in (decode_batch(64.0, 900.0, None), MIXED):
        assert float(two.time(batch)) == pytest.approx(float(whole.time(batch)), rel=1e-9)


@pytest.mark.parametrize("batch", [decode_batch(64.0, 900.0, None), decode_batch(256.0, 900.0, None), MIXED])
def test_a_split_batch_reads_weights_twice_and_hides_the_exchange(batch):
    two, _ = costs()
    split, halves, whole_s = two._of_equal_ranks(batch)
    assert split
    exchanged_s = float(two.exchange_s(batch.decodes + batch.prefill_tokens, 1.0))
    assert float(halves.computing_s) > float(whole_s) - exchanged_s
    assert float(halves.exchanging_s) > exchanged_s > 0.0  # latency twice
    longest_s = max(float(halves.computing_s), float(halves.exchanging_s))
    assert longest_s < float(halves.time_s) < longest_s * (1.0 + 1.0 / 4.0 / 48.0)
    assert float(two.time(batch)) == max(float(halves.time_s), 2.0 * float(launched(two.device, batch)))


def test_large_batches_gain():
    two, plain = costs()
    prompt = prefill_batch(1.0, 16384, None)
    assert float(two.time(prompt)) < 0.9 * float(iteration_time(plain, prompt))
    few = decode_batch(32.0, 900.0, None)  # bound by weights
    assert float(two.time(few)) > float(iteration_time(plain, few))


@pytest.mark.parametrize("slower", [1.0, 20.0])
def test_an_iteration_grows_as_it_says_for_as_long_as_it_says(slower):
    two, _ = costs()
    rows = two.exchange.expert_rows
    two = two._replace(exchange=two.exchange._replace(expert_rows=rows._replace(activation=slower * rows.activation)))
    first = decode_batch(200.0, 1000.0, None)
    halves = two._of_equal_ranks(first)[1]
    assert (halves.exchanging_s > halves.computing_s) == (slower > 1.0)
    steps, grows_s, first_s = float(two.steps(first)), float(two.growth(first, 0.0)), float(two.time(first))
    assert (steps == np.inf) == (slower == 1.0)
    for ahead in (1.0, min(steps - 1.0, 5000.0)):
        later = first._replace(decode_context=first.decode_context + ahead * first.decodes)
        assert float(two.time(later)) == pytest.approx(first_s + ahead * grows_s, rel=1e-9)


def first_s(cost, batches):
    brought = min(float(tokens_brought(cost, batch)) for batch in batches)
    ranks = ranks_of(rank_cost(cost), batches)._replace(brought=brought)
    return float(steps_together(cost, ranks, 256).first_s)


@pytest.mark.parametrize("batch", [decode_batch(8.0, 900.0, None), decode_batch(64.0, 900.0, None), MIXED])
def test_ranks_with_equal_batches_take_as_long_as_one_among_them(batch):
    two, _ = costs()
    assert first_s(two, [batch] * 4) == pytest.approx(float(two.time(batch)), rel=1e-12)


@pytest.mark.parametrize("fewest", [31.0, 40.0])
def test_no_batch_is_split_where_a_rank_has_too_few_tokens(fewest):
    """Too few for the threshold, or for a second half once all are padded to the largest."""
    two, plain = costs()
    busy, few = decode_batch(100.0, 900.0, None), decode_batch(fewest, 900.0, None)
    assert first_s(two, [busy] * 3 + [few]) == pytest.approx(first_s(plain, [busy] * 3 + [few]), rel=1e-12)
    enough = decode_batch(60.0, 900.0, None)
    assert first_s(two, [busy] * 3 + [enough]) != pytest.approx(first_s(plain, [busy] * 3 + [enough]), rel=1e-3)


def test_both_engines_agree():
    """With iterations bound by either side, and batches that are split and that are not."""
    axes = {
        "workload__arrivals__rate_rps": [20.0, 400.0],
        "deployment__two_batch_overlap": [True, False],
        "deployment__hardware__memory_bandwidth": ["3.35TB/s", "300TB/s"],
    }
    given = scenario(*DESIGN[:-1], "deployment.batching.max_num_seqs=64", "workload.requests=90", **axes)
    fast, exact = (sweep(given, simulator=simulator) for simulator in ("iteration", "token"))
    assert set(fast["status"].values) == {"ok"} and set(fast["engine"].values) == {"iteration"}
    assert_equal(fast, exact, 1e-9)
    tpot_s = fast["tpot_s_mean"].values.reshape(2, 2, 2)
    assert not np.isclose(tpot_s[:, 0], tpot_s[:, 1], rtol=1e-3).all()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["deployment.expert_exchange=gather"],
         "infeasible: two_batch_overlap with expert_exchange gather: nothing is sent to experts of other ranks while"),
        (["deployment.data_parallel=1", "deployment.expert_exchange=gather"],
         "two_batch_overlap with data_parallel 1: nothing is sent to experts of other ranks while a half computes"),
        (["deployment.model=llama-3.1-8b", "deployment.expert_parallel=1", "deployment.expert_exchange=gather"],
         "infeasible: two_batch_overlap true on llama-3.1-8b, which has no experts"),
        (["deployment.expert_exchange=nvlink", "deployment.hardware=b200-sxm"],
         "infeasible: two_batch_overlap with expert_exchange nvlink, which vLLM refuses; use deepep"),
        (["deployment.engine=trtllm"], "unsupported: two_batch_overlap with engine trtllm, of which nobody read how"),
        (["deployment.pipeline_parallel=2"], "two_batch_overlap with pipeline_parallel; use tensor_parallel"),
        (["deployment.eager=true"], "unsupported: two_batch_overlap with deployment.eager; leave out eager"),
        (["deployment.speculative={method: ngram, tokens: 2, acceptance: 0.5}"],
         "unsupported: two_batch_overlap with deployment.speculative; leave out speculative"),
        (["deployment.lora={max_loras: 2}"], "unsupported: two_batch_overlap with deployment.lora; leave out lora"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with(overrides, reason):
    (configuration,) = plan(scenario(*DESIGN, *overrides), simulator="token").configurations
    assert reason in configuration.status


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_split_from_their_own_thresholds(engine):
    (configuration,) = plan(scenario(*DESIGN, f"deployment.engine={engine}"), simulator="token").configurations
    thresholds = configuration.stations[0].design.spec.parallel.overlap
    # SGLang computes prompts whole under low latency.
    assert thresholds == {"vllm": TwoBatches(32, 512), "sglang": TwoBatches(2, np.inf)}[engine]


def test_iterations_and_estimates_know_it():
    layout = {"data_parallel": 4, "expert_parallel": 4, "expert_exchange": RANKS.exchange, "two_batch_overlap": True}
    (time_s,) = iteration_times(SPEC.model, SPEC.hardware, decodes=[64], context_tokens=900, **layout)
    assert time_s == pytest.approx(float(costs()[0].time(decode_batch(64.0, 900.0, None))), rel=1e-12)
    result = estimate(SPEC.model, SPEC.hardware, prompt_tokens=900, output_tokens=2, batch=64, **layout)
    assert result.tpot_s == pytest.approx(time_s, rel=1e-3)
    # Operators that overlap do not add up.
    assert not result.decode.operators
