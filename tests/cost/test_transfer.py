"""What is sent of a sequence, against sizes by hand and those that SimAI's table gives."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog import load_link, load_model
from evaluator.cost.memory import kv_bytes_per_token
from evaluator.cost.transfer import sequence_bytes


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [
        ("llama-3.1-70b", 320),  # 2 x 80 layers x 8 heads x 128 x 2 bytes; the hidden size would give 8 times as much
        ("llama-3.1-405b", 504),
        ("qwen3-235b-a22b", 188),
    ],
)
def test_kv_of_a_token_is_that_of_simais_table(name, kilobytes):
    model = load_model(name)
    assert sequence_bytes(model, "bf16", "bf16").of(1) == kilobytes * 1024 == kv_bytes_per_token(model, "bf16")


@pytest.mark.parametrize(
    ("link", "milliseconds"),
    [("nvlink", 0.7), ("pcie-gen5-x16", 10.5), ("rdma-400g", 13.4), ("ethernet-100g", 53.7), ("ethernet-25g", 224)],
)
def test_times_of_simais_links_with_the_formula_set_right(link, milliseconds):
    """2,048 tokens of Llama-70B are 640 MiB, as SimAI's text says; its table of times is of 512 MiB, a fifth less."""
    size, found = sequence_bytes(load_model("llama-3.1-70b"), "bf16", "bf16").of(2048), load_link(link)
    assert size == 640 * 2**20
    assert 1e3 * (size / found.bandwidth + found.latency_s) == pytest.approx(milliseconds, rel=0.07)


def test_the_dtype_counts():
    model = load_model("llama-3.1-70b")
    assert sequence_bytes(model, "fp8", "bf16").of(7) == sequence_bytes(model, "bf16", "bf16").of(7) / 2


def test_mla_is_sent_once():
    """DeepSeek-V3 keeps 512 + 64 numbers of each token and layer, whatever the tensor parallelism."""
    found = sequence_bytes(load_model("deepseek-v3"), "bf16", "bf16")
    assert found.of(1000) == 61 * (512 + 64) * 2 * 1000 and found.layers == 61


def test_windowed_layers_send_their_window():
    """Half of the 24 layers of gpt-oss-20b keep 128 tokens: 2 x 8 heads x 64 x 2 bytes each."""
    found = sequence_bytes(load_model("gpt-oss-20b"), "bf16", "bf16")
    tokens = np.array([100, 128, 1000])
    np.testing.assert_array_equal(found.of(tokens), 2048 * 12 * (tokens + np.minimum(tokens, 128)))


def test_states_are_sent_whatever_the_length():
    found = sequence_bytes(load_model("nemotron-h-56b"), "bf16", "bf16")
    assert found.states > 0 and found.of(0) == found.states
    assert found.of(2) - found.of(1) == kv_bytes_per_token(load_model("nemotron-h-56b"), "bf16")
    assert found.layers < sum(kind.count for kind in load_model("nemotron-h-56b").layers)  # some are only MLPs
