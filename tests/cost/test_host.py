"""What the host takes of an iteration: launches under those with prompts, and penalties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import read_calibration
from evaluator.catalog.launches import Launches
from evaluator.catalog.model import AS_PUBLISHED
from evaluator.catalog.served import with_host
from evaluator.catalog.what_if import read_changed_model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.fitted import iteration_cost, iteration_costs
from evaluator.cost.iteration import alike_steps, device_time, iteration_time, launched
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.steady import steady_state
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.replica import ReplicaSpec, build
from evaluator.replica.changes import Change, changed_calibration
from tests.cost.fixtures import DEEPSEEK_V3, H100, LLAMA_8B, QWEN3_235B

LAUNCHES = Launches(captured_tokens=512.0, attention_s=1.0, recurrent_s=10.0, state_space_s=20.0, sparse_s=100.0,
                    dense_s=0.1, experts_s=0.2, gathered_s=0.01, agreed_s=0.0, gathered_beyond_s=0.02)  # fmt: skip
SET = replace(load_calibration("h100-sxm-vllm", "h100-sxm"), launches=LAUNCHES)


def cost_of(model=LLAMA_8B, parallel=Parallel(), calibration=SET, rank=None):  # noqa: B008
    return iteration_cost(model, H100, calibration, Precision(), parallel, rank)


def floor_of(tokens, **of):
    return float(launched(cost_of(**of), prefill_batch(1.0, tokens, None)))


def test_layers_cost_their_kind_and_more_beyond_the_graphs():
    layers = sum(kind.count for kind in LLAMA_8B.layers)
    assert floor_of(512) == pytest.approx(layers * 1.0)
    assert floor_of(513) == pytest.approx(layers * 1.1)
    sparse = {"model": DEEPSEEK_V3}  # latent, dense attention: as attention; some layers without experts
    dense = sum(kind.count for kind in DEEPSEEK_V3.layers if not hasattr(kind.feed_forward, "experts"))
    routed = sum(kind.count for kind in DEEPSEEK_V3.layers) - dense
    assert floor_of(8192, **sparse) == pytest.approx(1.1 * dense + 1.2 * routed)
    among_ranks = floor_of(100, model=QWEN3_235B, parallel=Parallel(1, 1, 8, 8))
    assert among_ranks == pytest.approx(1.01 * sum(kind.count for kind in QWEN3_235B.layers))
    beyond = floor_of(513, model=QWEN3_235B, parallel=Parallel(1, 1, 8, 8))
    assert beyond == pytest.approx((1.01 + 0.2 + 0.02) * sum(kind.count for kind in QWEN3_235B.layers))


def test_the_device_waits_for_recurrent_layers_beyond_the_graphs_alone():
    hybrid, waiting = load_model("qwen3.5-35b-a3b"), replace(SET, launches=replace(LAUNCHES, prepared_s=0.5))

    def device_s(calibration, batch, model=hybrid, **of):
        return float(device_time(cost_of(model=model, calibration=calibration, **of), batch))

    alone, beside = prefill_batch(1.0, 513, None), together(prefill_batch(3.0, 200, None), decode_batch(8.0, 1e3, None))
    for batch, more_s in ((alone, 0.5), (beside, 0.5), (prefill_batch(1.0, 512, None), 0.0)):
        assert device_s(waiting, batch) - device_s(SET, batch) == pytest.approx(more_s)
    # Whatever part of the model a device has, and of no other: it is a part of what the host needs at least.
    split = {"parallel": Parallel(4)}
    assert device_s(waiting, alone, **split) - device_s(SET, alone, **split) == pytest.approx(0.5)
    for model in (LLAMA_8B, load_model("nemotron-h-56b")):
        assert device_s(waiting, alone, model) == device_s(SET, alone, model)
    assert floor_of(513, model=hybrid, calibration=waiting) == floor_of(513, model=hybrid)
    only_decodes = decode_batch(1024.0, 1e3, None)
    assert device_s(waiting, only_decodes) == device_s(SET, only_decodes)


def test_tensor_parallel_groups_that_are_ranks_launch_their_all_reduces_by_themselves():
    unjoined = replace(SET, launches=replace(LAUNCHES, unjoined_s=0.5))
    layers = sum(kind.count for kind in QWEN3_235B.layers)
    for parallel, more_s in ((Parallel(2, 1, 4, 2), 0.5), (Parallel(1, 1, 4, 4), 0.0), (Parallel(4, 1, 4), 0.0)):
        for tokens, beyond in ((512, False), (513, True)):
            more, plain = (
                floor_of(tokens, model=QWEN3_235B, parallel=parallel, calibration=known) for known in (unjoined, SET)
            )
            assert more - plain == pytest.approx(layers * more_s * beyond)
    # Ranks of a model without experts are servers that take no notice of each other.
    apart = Parallel(2, 1, 1, 4)
    assert floor_of(513, parallel=apart, calibration=unjoined) == floor_of(513, parallel=apart)


def test_mixers_have_their_own_figures():
    hybrid, sparse, compressed = map(load_model, ("qwen3.5-35b-a3b", "deepseek-v3.2", "deepseek-v4-flash"))
    assert floor_of(1, model=hybrid) == pytest.approx(30 * 10.0 + 10 * 1.0)
    nemotron = load_model("nemotron-h-56b")
    mixers = [(kind.count, type(kind.mixer).__name__) for kind in nemotron.layers if kind.mixer]
    expected = sum(count * {"StateSpace": 20.0, "SoftmaxAttention": 1.0}[mixer] for count, mixer in mixers)
    assert floor_of(1, model=nemotron) == pytest.approx(expected)
    for model in (sparse, compressed):
        assert floor_of(1, model=model) == pytest.approx(100.0 * sum(kind.count for kind in model.layers))


def test_only_iterations_with_prompts_and_only_where_the_host_is_slower():
    cost = cost_of(calibration=replace(SET, launches=replace(LAUNCHES, attention_s=1e-6, dense_s=0.0)))
    for batch in (decode_batch(64.0, 900.0, None), prefill_batch(1.0, 900, None)):
        assert float(iteration_time(cost, batch)) == float(device_time(cost, batch))
    slow, decodes = cost_of(), decode_batch(64.0, 900.0, None)
    assert float(iteration_time(slow, decodes)) == float(device_time(slow, decodes))
    both = together(decodes, prefill_batch(1.0, 100, None))
    assert float(iteration_time(slow, both)) == float(launched(slow, both)) == 32.0


def test_tokens_of_decodes_count_towards_the_graphs():
    cost, prompt = cost_of(), prefill_batch(1.0, 500, None)
    few, many = (together(decode_batch(count, 100.0, None), prompt) for count in (12.0, 13.0))
    assert float(launched(cost, few)) < float(launched(cost, many))
    assert float(launched(cost, few)) < float(launched(cost, few, queries=2.0))  # drafts are rows, too


def test_without_graphs_decodes_are_launched_layer_by_layer():
    """vLLM's --enforce-eager: the floor of large prompts holds for every iteration, and nothing is padded."""
    eager = replace(SET, graphs=False, graph_tokens=0.0)
    for parallel, rank, layers in ((Parallel(), None, 32), (Parallel(1, 4), 1, 8)):
        cost = cost_of(calibration=eager, parallel=parallel, rank=rank)
        for batch in (decode_batch(1.0, 900.0, None), prefill_batch(1.0, 8, None)):
            assert float(iteration_time(cost, batch)) == pytest.approx(layers * 1.1)
    quick = cost_of(calibration=replace(eager, launches=replace(LAUNCHES, attention_s=0.0, dense_s=0.0)))
    assert not isinstance(quick, Dispatched)  # nothing to wait for: the program of any other set


def test_decodes_without_graphs_grow_once_the_device_is_the_slower():
    """The engine sums a run of iterations in closed form: where the device overtakes its host is an end of one."""
    decodes = 64.0
    floor_s = float(device_time(cost_of(), decode_batch(decodes, 110.5, None)))
    eager = replace(SET, graphs=False, launches=replace(LAUNCHES, attention_s=floor_s / 32, dense_s=0.0))
    cost, batch = cost_of(calibration=eager), decode_batch(decodes, 100.0, None)
    steps = int(alike_steps(cost, batch))
    times = [float(iteration_time(cost, decode_batch(decodes, 100.0 + step, None))) for step in range(steps + 3)]
    assert steps == 11 and times[:steps] == pytest.approx([floor_s] * steps)
    assert times[steps] > times[steps - 1] and times[steps + 2] > times[steps + 1]


def test_a_set_that_says_nothing_of_launches_refuses_an_eager_engine():
    estimated = estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=500, output_tokens=100, eager=True)
    assert estimated.status == "ok" and estimated.decode.operators[-1].name == "host.launches"
    assert "no measured server had decodes without CUDA graphs" in estimated.model_error_basis
    with pytest.raises(InputError, match=r"eager with calibration datasheet, which does not say .* vllm\.serving"):
        estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=500, output_tokens=100, eager=True, calibration="datasheet")
    drafts = {"method": "ngram", "tokens": 3, "acceptance": 0.5}
    with pytest.raises(InputError, match="speculative with eager"):
        estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=500, output_tokens=100, eager=True, speculative=drafts)


def test_ranks_of_a_pipeline_launch_their_own_layers():
    split = Parallel(1, 4)
    ranks = [floor_of(600, parallel=split, rank=rank) for rank in range(4)]
    assert sum(ranks) == pytest.approx(floor_of(600)) and max(ranks) < 0.3 * sum(ranks)


def test_many_devices_at_once_have_the_floors_of_each():
    devices = [H100, replace(H100, memory_bandwidth=2 * H100.memory_bandwidth)]
    costs = iteration_costs(LLAMA_8B, devices, SET, Precision(), Parallel())
    assert costs.pieces_s.shape == costs.between_s.shape == costs.captured_tokens.shape == (2,)
    assert np.all(costs.pieces_s == cost_of().pieces_s)


def test_the_mean_batch_of_the_closed_form_waits_in_the_share_that_has_a_prompt():
    """Of iterations of which a few have prompts, all others are as fast as decodes."""
    rate = {"prompt_tokens": 100, "output_tokens": 100, "pipeline_ranks": 1, "max_sequences": 256,
            "max_num_batched_tokens": 2048, "window": None}  # fmt: skip
    host = replace(LAUNCHES, attention_s=3e-3, dense_s=0.0)
    waits, plain = (steady_state(cost_of(calibration=replace(SET, launches=of)), 1.0, **rate) for of in (host, None))
    assert plain.tpot_s < waits.tpot_s < 1.5 * plain.tpot_s
    assert waits.ttft_s > 32 * 3e-3


def test_sets_are_read_and_pass_their_host_on():
    found = load_calibration("h100-sxm-vllm.serving", "h100-sxm")
    assert found.launches is not None and found.launches.captured_tokens == 512.0
    kernels = load_calibration("b300-sxm-sglang", load_hardware("b300-sxm"))
    assert kernels.launches is None and with_host(kernels, found).launches == found.launches
    slower = changed_calibration(found, Change("host_overhead", 2.0)).launches
    assert slower.attention_s == 2 * found.launches.attention_s and slower.captured_tokens == 512.0


def test_a_section_without_a_figure_is_refused():
    import yaml

    from evaluator.catalog.store import find

    document = yaml.safe_load(find("calibrations", "vllm.serving").read_text())
    del document["launches"]["dense_s"]
    with pytest.raises(InputError, match=r"launches\.dense_s"):
        read_calibration(document, "mine.yaml")
    document["launches"] |= {"dense_s": -1.0}
    with pytest.raises(InputError, match=r"launches\.dense_s"):
        read_calibration(document, "mine.yaml")


def test_penalties_cost_by_sequence_and_by_the_vocabulary():
    known = replace(SET, launches=None, penalty_sequence_s=3e-5)
    asking = replace(LLAMA_8B, penalties=True)
    without, penalised = cost_of(calibration=known), cost_of(model=asking, calibration=known)
    few, many = decode_batch(8.0, 500.0, None), decode_batch(64.0, 500.0, None)
    for batch in (few, many):
        more_s = float(iteration_time(penalised, batch)) - float(iteration_time(without, batch))
        kernels = known.of("elementwise")
        device_s = 14 * kernels.launch_s
        logits_s = asking.vocabulary * 90 / (kernels.bandwidth_efficiency * H100.memory_bandwidth)
        assert more_s == pytest.approx(device_s + batch.decodes * (3e-5 + logits_s), rel=0.01)


def test_an_engine_that_counts_on_the_device_takes_nothing_of_the_host():
    hybrid, experts = load_model("qwen3.5-35b-a3b"), load_model("qwen3-30b-a3b")

    def counted(model, **of):
        asked = replace(model, penalties=True)
        return build(ReplicaSpec(asked, "h100-sxm", asked=AS_PUBLISHED, **of)).model.counts_said

    # The release from which vLLM's second model runner serves such a model by default.
    for model, before, since in ((LLAMA_8B, "0.24", "0.25"), (hybrid, "0.28", "0.29"), (experts, "0.28", "0.29")):
        assert [counted(model, engine_version=release) for release in ("0.11", before, since, None)] == [0, 0, 1, 1]
    assert counted(LLAMA_8B, engine="sglang") and counted(LLAMA_8B, engine="trtllm")
    assert not build(ReplicaSpec("llama-3.1-8b", "h100-sxm")).model.counts_said  # nobody asks for a penalty


def test_counts_cost_one_pass_over_the_logits():
    listing = replace(LLAMA_8B, penalties=True)
    known = replace(SET, launches=None, penalty_sequence_s=3e-5)
    without, listed, counted = (
        cost_of(model=model, calibration=known) for model in (LLAMA_8B, listing, replace(listing, counts_said=True))
    )
    batch = decode_batch(64.0, 500.0, None)
    base_s, listed_s, counted_s = (float(iteration_time(cost, batch)) for cost in (without, listed, counted))
    kernels = known.of("elementwise")
    pass_s = 64 * LLAMA_8B.vocabulary * 12 / (kernels.bandwidth_efficiency * H100.memory_bandwidth)
    assert counted_s - base_s == pytest.approx(kernels.launch_s + pass_s, rel=0.01)
    assert listed_s - counted_s > 64 * 3e-5


def test_only_the_last_rank_of_a_pipeline_samples():
    asking, known = replace(LLAMA_8B, penalties=True), replace(SET, launches=None, penalty_sequence_s=3e-5)
    first, last = (cost_of(model=asking, calibration=known, parallel=Parallel(1, 2), rank=rank) for rank in (0, 1))
    assert last.decode_s == pytest.approx(first.decode_s + 3e-5)


@pytest.mark.parametrize(
    ("key", "instead"), [("nucleus_sampling", r"\{top_p: 0\.95\}"), ("penalties", r"\{penalties: true\}")]
)
def test_what_requests_ask_is_no_key_of_a_model(key, instead):
    with pytest.raises(InputError, match=rf"here\.{key}: .*workload\.sampling: {instead}"):
        read_changed_model({"like": "llama-3.1-8b", key: True}, "here")


@pytest.mark.parametrize(
    ("model", "tensor", "host"),
    [
        (load_model("qwen3.5-35b-a3b"), 4, "host.launches"),
        (load_model("qwen3.5-35b-a3b"), 1, "host.prepared"),  # its device takes longer than to launch 800 tokens
        (replace(LLAMA_8B, penalties=True), 1, "host.penalties"),
    ],
)
def test_where_the_time_goes_adds_up_with_what_the_host_takes(model, tensor, host):
    asked = {"tensor_parallel": tensor, "engine_version": "0.15"}
    estimated = estimate(model, "h100-sxm", prompt_tokens=200, output_tokens=100, batch=4, **asked)
    for phase in (estimated.prefill, estimated.decode):
        assert sum(part.time_s for part in phase.operators) == pytest.approx(phase.time_s, rel=1e-9)
        assert sum(part.share for part in phase.operators) == pytest.approx(1.0)
    names = {part.name for phase in (estimated.prefill, estimated.decode) for part in phase.operators}
    assert {name for name in names if name.startswith("host.")} - {"host.step", "host.sequences"} == {host}


def test_ranks_that_share_experts_agree_on_every_iteration_and_those_of_dense_models_do_not():
    agreeing = replace(SET, launches=replace(LAUNCHES, agreed_s=0.5))
    for model, more_s in ((QWEN3_235B, 0.5), (LLAMA_8B, 0.0)):
        for parallel in (Parallel(1, 1, 8, 8) if model is QWEN3_235B else Parallel(1, 1, 1, 8), Parallel(8)):
            slower, plain = (cost_of(model=model, parallel=parallel, calibration=known) for known in (agreeing, SET))
            expected = more_s * (parallel.data > 1)
            assert slower.iteration_s - plain.iteration_s == pytest.approx(expected)
