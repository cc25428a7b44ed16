"""Seconds of an array of batches, the public way: against the times of phases, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import evaluator
from evaluator.cost.precision import Precision
from evaluator.errors import InputError

LLAMA = ("llama-3.1-8b", "h100-sxm")


def test_prompts_and_decodes_are_those_of_the_estimate():
    told = evaluator.estimate(*LLAMA, prompt_tokens=2048, output_tokens=256, batch=4, tensor_parallel=2)
    found = evaluator.iteration_time(
        *LLAMA, prompts=[4, 0], prompt_tokens=[2048, 0], decodes=[0, 4], context_tokens=2048 + 128, tensor_parallel=2
    )
    np.testing.assert_allclose(found, [told.prefill.time_s, told.decode.time_s], rtol=1e-15)


def test_the_columns_have_a_common_shape():
    found = evaluator.iteration_time(*LLAMA, decodes=np.array([[1], [64]]), context_tokens=[100, 1000, 10_000])
    assert found.shape == (2, 3) and found.dtype == np.float64
    assert (np.diff(found, axis=0) > 0).all() and (np.diff(found, axis=1) > 0).all()


def test_history_is_read_and_not_computed():
    fresh, behind, whole = evaluator.iteration_time(*LLAMA, prompt_tokens=[512, 512, 4608], history_tokens=[0, 4096, 0])
    assert fresh < behind < whole


def test_decodes_beside_a_prompt_take_time():
    alone, beside = evaluator.iteration_time(*LLAMA, prompt_tokens=512, decodes=[0, 32], context_tokens=2000)
    assert alone < beside


def test_times_are_affine_in_how_unequal_contexts_are():
    """Where the set knows what the longest context costs (B200, and with it B300); elsewhere it is all the same."""
    batch = {"decodes": [1, 32], "context_tokens": 4000}
    for device in ("b200-sxm", "b300-sxm"):
        equal, once, twice, chat = (
            evaluator.iteration_time("qwen3-32b", device, **batch, unequal=longer) for longer in (0.0, 1.0, 2.0, None)
        )
        np.testing.assert_allclose(twice - once, once - equal, rtol=1e-9)
        # 32 decodes of 8 KV heads more than fill the device: 64 layers wait for 4,000 tokens of one of them.
        assert (once - equal)[1] == pytest.approx(64 * 4000 * 4.16e-9) and (chat > twice).all()
    one, other = (evaluator.iteration_time("qwen3-32b", "h100-sxm", **batch, unequal=longer) for longer in (0.0, 2.0))
    assert (one == other).all()


def test_experts_of_earlier_releases_have_their_default_tiles():
    """Qwen3-30B-A3B on two H100 holds 64 experts a device, of a width that no table of vLLM's has."""
    layout, batch = {"tensor_parallel": 2, "expert_parallel": 2}, {"decodes": [64, 65], "context_tokens": 500}
    now, named, early = (
        evaluator.iteration_time("qwen3-30b-a3b", "h100-sxm", **layout, **batch, engine_version=release)
        for release in (None, "0.24", "0.11")
    )
    assert (now == named).all() and early[0] == now[0] and early[1] > 1.1 * now[1]
    tuned, before = (
        evaluator.iteration_time("mixtral-8x7b", "h100-sxm", tensor_parallel=4, **batch, engine_version=release)
        for release in ("0.24", "0.11")
    )
    assert (tuned == before).all()
    # The A100's set has no experts in 8 bits: those in 16 stand in for them, and the default tiles are of these alone.
    for device, dtype, same in (("a100-sxm", "bf16", False), ("a100-sxm", "fp8", True), ("mi300x", "bf16", True)):
        late, early = (
            evaluator.iteration_time("qwen3-30b-a3b", device, decodes=200, context_tokens=500, engine_version=release,
                                     precision=Precision(weights=dtype))
            for release in ("0.20", "0.17")
        )  # fmt: skip
        assert (late == early) == same and early >= late
    with pytest.raises(InputError, match="is not in the table of its defaults"):
        evaluator.iteration_time(*LLAMA, decodes=1, context_tokens=9, engine_version="0.1")


@pytest.mark.parametrize(
    "columns, told",
    [
        ({"decodes": 1, "unequal": -0.1}, "unequal: must be finite and not negative, not -0.1"),
        ({"decodes": 1, "unequal": float("inf")}, "unequal: must be finite and not negative, not inf"),
        ({}, "prompt_tokens, decodes: a batch needs prompt tokens or decodes"),
        ({"decodes": [1, -1]}, "decodes: must be finite and not negative"),
        ({"decodes": float("nan")}, "decodes: must be finite and not negative"),
        ({"decodes": [1, 2], "context_tokens": [1, 2, 3]}, "numbers or arrays of one shape are needed"),
        ({"decodes": 1, "expert_exchange": "pigeon"}, "expert_exchange: must be one of"),
        ({"decodes": 1, "tensor_parallel": 7}, "7"),
        ({"decodes": 1, "tensor_parallel": 0}, "tensor_parallel: must be a whole number of at least 1, not 0"),
        ({"decodes": 1, "prefill_context_parallel": None}, "prefill_context_parallel: must be a whole number of at "),
        ({"decodes": 1, "prefill_context_parallel": "2"}, "least 1, not '2'"),
        ({"decodes": 1, "expert_parallel": 2.5}, "expert_parallel: must be a whole number of at least 1, not 2.5"),
    ],
)
def test_what_is_no_batch_is_refused(columns, told):
    with pytest.raises(InputError, match=told):
        evaluator.iteration_time(*LLAMA, **columns)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("odd", [{"like": "h100-sxm"}, None, 3])
def test_what_is_no_model_and_no_device_is_refused(at, odd):
    given = [*LLAMA[:at], odd, *LLAMA[at + 1 :]]
    with pytest.raises(InputError, match="expected a name of the catalog, or what its readers return"):
        evaluator.iteration_time(*given, decodes=1, context_tokens=9)
