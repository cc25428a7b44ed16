"""Images through the encoder of a multimodal model, as a stage before the prompt is computed."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_link, load_model
from evaluator.cost import Parallel, breakdown, operators, prefill_batch
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from evaluator.simulation import simulate_configurations
from evaluator.stages import KINDS, Pass, StageRequests
from evaluator.stages.encode import Encode
from evaluator.stages.steps import Shipped

PROMPT = np.array([100, 2000, 7])
VISIT = StageRequests(
    "encode", PROMPT, PROMPT, np.zeros_like(PROMPT), 3, load_model("qwen3.5-35b-a3b"), Precision(), pool=None
)


def test_every_image_is_a_sequence_of_patches_and_adds_its_tokens():
    work = KINDS["encode"].work(
        Encode("qwen3.5-vision", patches=4096, tokens=1024, images=3, link="pcie-gen4-x4"), VISIT
    )
    encode, sent = work.steps
    assert isinstance(encode, Pass) and isinstance(sent, Shipped)
    assert (encode.sequences, encode.tokens.tolist()) == (3, [4096] * 3) and work.adds_tokens == 3 * 1024
    # A vector of the model's width in 16 bits for each token that the model gets.
    assert sent.bytes == 3 * 1024 * 2048 * 2 and sent.bandwidth == load_link("pcie-gen4-x4").bandwidth
    assert len(KINDS["encode"].work(Encode("qwen3.5-vision", patches=4, tokens=1), VISIT).steps) == 1


def test_the_tower_of_qwen3_5_has_the_parameters_of_the_models_encoder():
    """Its matrices, the first one without its two frames, and the merger: what the 397B model's file counts."""
    tower, model = load_model("qwen3.5-vision"), load_model("qwen3.5-397b-a17b")
    layer = 4 * 1152 * 1152 + 2 * 1152 * tower.layers[0].feed_forward.intermediate
    merged = 4 * 1152  # of two by two patches
    assert (
        tower.layers[0].count * layer + 3 * 16**2 * 1152 + merged**2 + merged * model.hidden == model.encoder_parameters
    )


def test_attention_without_a_mask_does_the_pairs_of_all_patches():
    """4 x heads x head size FLOPs for each of n^2 pairs (within 1/n): no half is masked out."""
    ops, h100 = operators(load_model("qwen3.5-vision"), Precision(), Parallel()), load_hardware("h100-sxm")
    batch = prefill_batch(2.0, 4096.0, None)
    (attention,) = [
        part for part in breakdown(ops, h100, load_calibration("auto", h100), batch) if part.name == "attention.prefill"
    ]
    assert attention.flops == pytest.approx(27 * 2 * 4 * 16 * 72 * 4096**2, rel=1e-3)


def tree(**encode):
    stage = {"stage": "encode", "pool": "vision", "model": "qwen3.5-vision", "patches": 1024, "tokens": 256} | encode
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 200, "output_tokens": 20},
            "requests": 60,
        },
        "deployment": {
            "model": "llama-3.1-8b",
            "hardware": "h100-sxm",
            "kv": {"admission": "reserve"},
            "pools": {"llm": {"role": "mixed"}, "vision": {"role": "stage", "hardware": "l40s"}},
        },
        "pipeline": [stage, "prefill", "decode"],
    }


def outcome(simulator, **encode):
    whole = plan(load_scenario(tree(**encode)), simulator=simulator)
    assert [each.status for each in whole.configurations] == ["ok"]
    return simulate_configurations(whole, whole.configurations)


def test_both_engines_agree_and_images_take_time():
    fast, exact = outcome("iteration", images=2), outcome("token", images=2)
    for name in ("first_token_s", "last_token_s"):
        assert getattr(fast.times, name) == pytest.approx(getattr(exact.times, name), rel=1e-9)
    single = outcome("token", images=1)
    assert np.mean(single.times.first_token_s) < np.mean(exact.times.first_token_s)


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        ({"tokens": 2000}, r"encode\.tokens: 2,000 of an image .* more than its 1,024 patches"),
        ({"patches": 70_000}, r"encode\.patches: 70,000 exceed the 65,535 that qwen3\.5-vision takes; tile the image"),
        ({"model": "llama-3.1-8b"}, r"encode\.model: llama-3\.1-8b is no encoder; use one such as qwen3\.5-vision"),
        ({"model": "e5-mistral-7b"}, r"encode\.model: e5-mistral-7b is no encoder"),
        ({"images": 0}, r"encode\.images: must be an integer from 1 to 1024"),
        ({"link": "string"}, r"encode\.link: unknown link 'string'"),
        ({"frames": 3}, r"encode\.frames: unknown key"),
    ],
)
def test_bad_keys_say_what_to_do(encode, message):
    with pytest.raises(InputError, match=message):
        load_scenario(tree(**encode))


def test_an_encoder_needs_a_pool():
    without = tree()
    del without["pipeline"][0]["pool"]
    with pytest.raises(InputError, match="pool"):
        load_scenario(without)
