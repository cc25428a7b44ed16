"""Encoders: attention in both directions, no KV, no head; and decoders that are used as embedders."""

from dataclasses import replace

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.model import Model, SoftmaxAttention
from evaluator.catalog.read_model import read_model
from evaluator.cost import Parallel, fold, iteration_time, kv_units, memory_plan, operators, weight_bytes
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.coefficients import coefficients
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation.estimate import estimate
from evaluator.plan import plan
from evaluator.yaml import loads_yaml
from tests.scenario.build import scenario

BF16 = Precision(weights="bf16")
ENCODERS = ("e5-base", "bge-reranker-v2-m3")


def flops(name: str, tokens: int) -> float:
    """FLOPs of one text."""
    known = coefficients(operators(load_model(name), BF16, Parallel()), ())
    batch = prefill_batch(1.0, tokens, None)
    statistic = {"tokens": tokens, "prefill": float(batch.prefill_area)}
    return sum(float(known.flops[known.scaling[scaling]].sum()) * size for scaling, size in statistic.items())


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("tokens", [64, 512])
def test_flops_of_a_text_by_hand(name, tokens):
    """24 h^2 + 4 h n per token and layer: four projections and a feed-forward of 4 h; scores and values of n tokens."""
    model = load_model(name)
    layers, hidden = model.layers[0].count, model.hidden
    whole = layers * tokens * (24 * hidden**2 + 4 * hidden * tokens)
    pairs = layers * tokens * 4 * hidden  # the pairs of causal areas are n (n + 1) / 2 each
    assert flops(name, tokens) == pytest.approx(whole + pairs, rel=1e-12)


def causal(name: str) -> Model:
    """The model with a mask."""
    model = load_model(name)
    (kind,) = model.layers
    assert isinstance(kind.mixer, SoftmaxAttention)
    return replace(model, layers=(replace(kind, mixer=replace(kind.mixer, bidirectional=False)),))


def test_both_ways_cost_twice_the_causal_attention():
    two, one = (
        next(each for each in operators(which, BF16, Parallel()) if each.name == "attention.prefill")
        for which in (load_model("e5-base"), causal("e5-base"))
    )
    assert two.flops == 2 * one.flops
    assert not [each for each in operators(load_model("e5-base"), BF16, Parallel()) if each.name == "attention.decode"]


def test_figures_of_kernels_without_a_mask():
    """The exponentials of a score are doubled with the pairs, and no row attends in vain beyond a diagonal."""
    hardware, calibration = load_hardware("h100-sxm"), load_calibration("h100-sxm-vllm", "h100-sxm")
    two, one = (
        fold(operators(which, BF16, Parallel()), hardware, calibration).prefill_rows
        for which in (load_model("e5-base"), causal("e5-base"))
    )
    np.testing.assert_allclose(two.flop, 2 * one.flop, rtol=1e-12)
    figures = calibration.efficiencies["attention_prefill"]
    lost_s = figures.diagonal * one.flop * 128 / 64  # heads of 64, stated for 128
    assert figures.diagonal > 0
    np.testing.assert_allclose(one.edge_s - two.edge_s, lost_s, rtol=1e-12)
    for name in ("knee", "tile", "fill"):
        np.testing.assert_array_equal(getattr(two, name), getattr(one, name))


@pytest.mark.parametrize("name", [*ENCODERS, "e5-mistral-7b"])
def test_there_is_no_head(name):
    model = load_model(name)
    names = {each.name for each in operators(model, BF16, Parallel())}
    assert "pooling" in names and not names & {"head", "sampling"}
    published = model.published_parameters
    assert published is not None
    assert weight_bytes(model, BF16, Parallel()) == pytest.approx(2 * published, rel=0.01)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_keeps_nothing(name):
    kv = memory_plan(load_model(name), load_hardware("l4"), BF16, Parallel()).kv
    assert kv.capacity_units > 0 and np.isinf(kv.capacity_tokens)
    np.testing.assert_array_equal(kv_units(kv, [1, 512, 4096]), 0)


def test_an_embedder_of_a_decoder_is_that_decoder_without_its_head():
    """Mistral-7B against Qwen's and Llama's family: 2 FLOPs per parameter in matrices and token."""
    per_token = flops("e5-mistral-7b", 1)
    assert per_token == pytest.approx(2 * 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336), rel=1e-3)


@pytest.mark.parametrize("hardware", ["cpu-sapphire-rapids", "cpu-grace", "a100-sxm"])
def test_runs_on_any_hardware(hardware):
    """A text of 512 tokens on the base encoder, 96 GFLOP: milliseconds, and a large batch is bound by FLOPs."""
    device = load_hardware(hardware)
    cost = fold(operators(load_model("e5-base"), BF16, Parallel()), device, load_calibration("datasheet", hardware))
    one, many = (float(iteration_time(cost, prefill_batch(count, 512, None))) for count in (1.0, 256.0))
    assert 1e-4 < one < 0.05
    assert many >= 256 * 0.9e11 / device.peak_flops["bf16"]


def test_what_an_encoder_cannot_do():
    lengths = "workload.lengths={source: fixed, prompt_tokens: 200, output_tokens: 1}"
    (mixed,) = plan(scenario("deployment.model=e5-base", "deployment.hardware=l4", lengths)).configurations
    assert "e5-base gives a vector and no tokens; use it in a stage of the pipeline" in mixed.status
    pool = "model: e5-base, hardware: l4, batching: {policy: chunked}"
    pools = f"deployment.pools={{prefill: {{role: prefill, {pool}}}, decode: {{role: decode, {pool}}}}}"
    (chunked,) = plan(scenario(pools, lengths)).configurations
    assert "policy chunked cuts prompts into chunks, and e5-base attends to later tokens" in chunked.status
    with pytest.raises(InputError, match="model: e5-base gives a vector and no tokens"):
        estimate("e5-base", "l4", prompt_tokens=100, output_tokens=2)


SMALL = """
name: small
source: 'nowhere'
hidden: 64
vocabulary: 100
max_positions: 128
{output}
layers:
  - count: 2
    softmax_attention: {{heads: 4, kv_heads: 2, head_dim: 16, bidirectional: true}}
    dense: {{intermediate: 256}}
"""


def test_files_of_encoders():
    assert not read_model(loads_yaml(SMALL.format(output="output: vector")), "small.yaml").gives_tokens
    with pytest.raises(InputError, match=r"small.yaml: output: a model with bidirectional attention gives no tokens"):
        read_model(loads_yaml(SMALL.format(output="")), "small.yaml")
    with pytest.raises(InputError, match=r"small.yaml: output: 'score' is unknown"):
        read_model(loads_yaml(SMALL.format(output="output: score")), "small.yaml")


def test_decodes_of_no_decoder_take_no_attention():
    cost = fold(operators(load_model("e5-base"), BF16, Parallel()), load_hardware("l4"),
                load_calibration("datasheet", "l4"))  # fmt: skip
    few, far = (float(iteration_time(cost, decode_batch(1.0, context, None))) for context in (1.0, 1e4))
    assert few == far
