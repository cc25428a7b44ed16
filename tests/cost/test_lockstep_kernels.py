"""An iteration of data-parallel ranks beside the sum of kernels that were measured on their device.

Qwen3-30B-A3B on RTX PRO 6000: each kernel of a layer, attention calls of many decodes, and the experts' call by tokens
and experts touched (profiles of LLMServingSim). Of two ranks that share the experts each device computes half of them
for the tokens of both, which is as many visits as the call has for one rank's tokens and half of the experts.
"""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import operators
from evaluator.cost.batch import decode_batch
from evaluator.cost.breakdown import breakdown
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision

LAYERS = 48
KERNELS = {"qkv_proj": 1, "o_proj": 1, "layernorm": 2, "qk_norm": 1, "rotary_emb": 1}  # so many in a layer
EXCHANGED = ("experts.dispatch", "experts.combine")


@pytest.fixture(scope="module")
def measured(data_folder):
    """Microseconds of a layer: of so many decodes, each on a context, with so many experts touched."""
    pandas = pytest.importorskip("pandas")
    layers = pandas.read_csv(data_folder / "lls_layer_profiles.csv")
    attention = pandas.read_parquet(data_folder / "lls_attention_profiles.parquet")
    experts = pandas.read_csv(data_folder / "lls_moe_profiles.csv")
    layers, attention = (
        each[each["model"].str.contains("30B") & (each["tensor_parallel_size"] == 1)] for each in (layers, attention)
    )

    def at(rows, tokens, column):
        rows = rows.sort_values(column)
        return float(np.interp(tokens, rows[column], rows["latency_us"]))

    def layer_us(decodes, context, touched):
        call = attention[
            (attention["prefill_chunk_tokens"] == 0)
            & (attention["num_decode_seqs"] == decodes)
            & (attention["decode_kv_tokens_per_seq"] == context)
        ]
        kernels = sum(
            count * at(layers[layers["layer"] == name], decodes, "num_tokens") for name, count in KERNELS.items()
        )
        routed = at(experts[experts["activated_experts"] == touched], decodes, "tokens")
        return kernels + float(call["latency_us"].iloc[0]) + routed

    return layer_us


@pytest.mark.parametrize(("parallel", "touched"), [(Parallel(), 128), (Parallel(1, 1, 2, 2), 64)])
@pytest.mark.parametrize(("decodes", "context"), [(64, 1024), (128, 1024), (128, 2048)])
def test_a_layer_takes_as_long_as_its_kernels(measured, parallel, touched, decodes, context):
    model, hardware = load_model("qwen3-30b-a3b"), load_hardware("rtx-pro-6000")
    calibration = load_calibration("rtx-pro-6000-vllm", "rtx-pro-6000")
    batch = decode_batch(float(decodes), float(context), None)
    parts = breakdown(operators(model, Precision(), parallel), hardware, calibration, batch)
    inside = [each for each in parts if each.name.startswith(("attention.", "experts.")) and each.name not in EXCHANGED]
    found_us = 1e6 / LAYERS * sum(each.time_s for each in inside)
    assert found_us == pytest.approx(measured(decodes, context, touched), rel=0.03)
