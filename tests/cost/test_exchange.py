"""What data-parallel ranks send one another around experts, and what kernels do with it."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.catalog.model import MoeFeedForward
from evaluator.cost import operators
from evaluator.cost.activations import activation_bytes
from evaluator.cost.collectives import Spread, collective_terms
from evaluator.cost.exchange import rows_kept
from evaluator.cost.parallel import ALL_TO_ALL, Parallel
from evaluator.cost.precision import Precision
from tests.cost.fixtures import DEEPSEEK_V3, QWEN3_235B

NODE = (8, None)


def operator(name, model, parallel):
    """Of one layer."""
    found = next(each for each in operators(model, Precision(), parallel) if each.name == name)
    return found.times(1.0 / found.layers)


def experts_of(model):
    return next(kind.feed_forward for kind in model.layers if isinstance(kind.feed_forward, MoeFeedForward))


def draws(visits, parts, shards, inside, rng):
    """Tokens' experts drawn at random: groups of ``inside`` of the devices that a token visits, mean."""
    of_token = rng.integers(0, parts, (20000, visits))
    devices = (of_token[:, :, None] * shards + np.arange(shards)).reshape(len(of_token), -1)
    return np.mean([len(set(row)) for row in (devices // inside).tolist()])


@pytest.mark.parametrize(
    ("visits", "parts", "shards", "inside"), [(8, 32, 1, 1), (8, 32, 1, 8), (4, 8, 2, 1), (4, 8, 2, 8), (2, 4, 4, 2)]
)
def test_groups_visited_are_those_of_draws(visits, parts, shards, inside):
    found = Spread(visits, parts).groups(parts * shards / inside)
    assert found == pytest.approx(draws(visits, parts, shards, inside, np.random.default_rng(3)), rel=0.01)


def test_an_all_to_all_inside_a_node_sends_to_each_visited_device_once():
    """DeepSeek-V3 over eight devices: 8 (1 - (7/8)^8) of them, seven in eight of which are others."""
    parallel = Parallel(1, 1, 8, 8, exchange=ALL_TO_ALL)
    dispatch, combine = (operator(f"experts.{side}", DEEPSEEK_V3, parallel) for side in ("dispatch", "combine"))
    visited = 8 * (1 - (7 / 8) ** 8)
    assert dispatch.message_bytes == pytest.approx(visited * DEEPSEEK_V3.hidden * 1.0)  # in fp8
    assert combine.message_bytes == pytest.approx(2.0 * dispatch.message_bytes)
    terms = collective_terms("all_to_all", range(8), NODE, (), dispatch.spread)
    assert terms.share == pytest.approx((7 / 8, 0.0)) and terms.steps == (1.0, 0.0)


def test_what_several_devices_of_a_node_want_is_sent_there_once():
    """Four nodes of eight: to the others go 3 (1 - (3/4)^8) copies of a token, inside 7/8 of all that are visited."""
    spread = Spread(8, 32)
    near, far = collective_terms("all_to_all", range(32), NODE, (), spread).share
    sent = 32 * (1 - (31 / 32) ** 8)
    assert far * sent == pytest.approx(3 * (1 - (3 / 4) ** 8))
    assert near == pytest.approx(7 / 8)
    plain = collective_terms("all_to_all", range(32), NODE).share
    assert far < 0.6 * plain[1]


def test_devices_of_a_rank_send_a_slice_of_its_tokens_each():
    one, four = (operator("experts.combine", DEEPSEEK_V3, Parallel(tensor, 1, 8, 8 // tensor, exchange=ALL_TO_ALL))
                 for tensor in (1, 4))  # fmt: skip
    assert four.message_bytes == pytest.approx(one.message_bytes / 4)


def test_a_map_of_experts_keeps_the_rows_of_other_devices():
    """16 bits: of 8 visits of each of 4 tokens 3 in 4 are elsewhere; their rows are put at 0 twice, and activated."""
    moe, hidden = experts_of(QWEN3_235B), QWEN3_235B.hidden
    inside, bytes_ = moe.intermediate, 2.0
    whole, parted = (operator("experts.routing", QWEN3_235B, each) for each in (Parallel(), Parallel(1, 1, 4, 4)))
    assert whole.activation_bytes == pytest.approx(bytes_ * (8 * 3 * inside + 9 * hidden))
    emptied = 24 * (2 * inside + hidden)
    assert parted.activation_bytes == pytest.approx(bytes_ * (32 * 3 * inside + emptied + 36 * hidden))


def test_kernels_of_8_bits_keep_their_own_rows_only():
    moe, hidden = experts_of(DEEPSEEK_V3), DEEPSEEK_V3.hidden
    parted = operator("experts.routing", DEEPSEEK_V3, Parallel(1, 1, 8, 8))
    assert parted.activation_bytes == pytest.approx(2.0 * (8 * 3 * moe.intermediate + 16 * hidden))
    unpacked = Precision("int4")  # Marlin keeps all
    assert [rows_kept(DEEPSEEK_V3, moe, each, Parallel(1, 1, 8, 8)) for each in (Precision(), unpacked)] == [8.0, 64.0]


def test_rows_of_other_devices_take_memory():
    gathered, sent = (
        activation_bytes(QWEN3_235B, Precision(), Parallel(1, 1, 8, 8, exchange=each), 2048, 1)
        for each in ("gather", ALL_TO_ALL)
    )
    moe = experts_of(QWEN3_235B)
    rows = 64 - 8
    assert gathered - sent == pytest.approx(2048 * 2.0 * rows * (3 * moe.intermediate + QWEN3_235B.hidden))
