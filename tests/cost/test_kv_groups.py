"""Groups of layers of hybrid models: their rules, and the units that a sequence takes of the memory they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluator.catalog import load_hardware, load_model
from evaluator.catalog.model import LayerKind, Model, SoftmaxAttention
from evaluator.cost.kv_groups import KvGroup, grouped_layers, grouping_problem, is_hybrid
from evaluator.cost.memory import kv_units, memory_plan
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision

ONE = (Precision(), Parallel())


def model(*windows: tuple[int | None, int], **more: object) -> Model:
    """Layers of one attention, so many (count) of each window."""
    attention = SoftmaxAttention(heads=32, kv_heads=8, head_dim=128)
    kinds = tuple(LayerKind(count, replace(attention, window=window, **more), None) for window, count in windows)  # type: ignore[arg-type]
    return replace(load_model("gpt-oss-20b"), layers=kinds)


@pytest.mark.parametrize(
    ("windows", "groups", "layers"),
    [
        ([(None, 10), (1024, 52)], [None, *[1024] * 6], 10),  # the fewest of a kind; the last group is padded by 8
        ([(128, 12), (None, 13)], [128, None], 13),  # hardly more of one kind: one group each, padded to the larger
        ([(128, 12), (None, 18)], [128, None, None], 12),  # 1.5 times as many are too many for that
        ([(None, 4), (128, 4), (512, 8)], [None, 128, 512, 512], 4),
        ([(4096, 32)], [4096], 32),
    ],
)
def test_groups_have_the_same_number_of_layers(windows, groups, layers):
    found = grouped_layers(model(*windows), *ONE, 16)
    assert found is not None
    assert ([group.window for group in found.groups], found.layers) == (groups, layers)
    assert found.block_bytes == layers * 16 * 8 * 2 * 128 * 2


def test_layers_of_one_kind_are_one_bucket_whatever_follows_them():
    scout, maverick = (
        grouped_layers(load_model(name), *ONE, 16) for name in ("llama-4-scout-17b-16e", "llama-4-maverick-17b-128e")
    )
    assert scout == maverick
    assert scout is not None and scout.groups.count(KvGroup(8192, chunked=True)) == 3


def test_models_that_keep_every_token_have_no_groups():
    llama = load_model("llama-3.1-8b")
    assert not is_hybrid(llama) and grouping_problem(llama, *ONE) is None and grouped_layers(llama, *ONE, 16) is None


def test_what_cannot_be_grouped_is_said():
    mixed = replace(model((None, 4), (128, 4)), layers=(*model((None, 4)).layers, *model((128, 4), kv_heads=4).layers))
    assert "keep tokens of different sizes" in (grouping_problem(mixed, *ONE) or "")
    assert "attention is compressed" in (grouping_problem(load_model("deepseek-v4-flash"), *ONE) or "")
    assert "pipeline_parallel" in (grouping_problem(load_model("gpt-oss-20b"), Precision(), Parallel(1, 2)) or "")


@pytest.mark.parametrize(
    ("group", "passed", "most"),
    [
        (KvGroup(), [0, 0, 0, 0], None),
        (KvGroup(window=8), [0, 0, 1, 9], 6),  # 7 tokens and 13 under way in blocks of 4, of which the first is cut
        (KvGroup(window=8, chunked=True), [0, 0, 8, 16], 6),  # 8 and 13
        (KvGroup(state=True), [0, 0, 0, 0], None),
    ],
)
def test_what_no_token_to_come_attends_to_has_passed(group, passed, most):
    assert [group.passed_tokens(computed) for computed in (0, 7, 8, 16)] == passed
    assert group.most_blocks(13, 4) == most


@pytest.mark.parametrize("group", [{"chunked": True}, {"window": 1}, {"window": 8, "state": True}])
def test_a_group_that_cannot_be_is_refused(group):
    with pytest.raises(ValueError, match="window"):
        KvGroup(**group)


def planned(name: str, grouped: int, **more: object):
    return memory_plan(load_model(name), load_hardware("h100-sxm"), *ONE, grouped=grouped, **more).kv  # type: ignore[arg-type]


def test_a_sequence_takes_blocks_of_every_group():
    kv = planned("gpt-oss-20b", 1, max_num_batched_tokens=64)
    assert kv.groups == (KvGroup(128), KvGroup())
    # A block of full attention for 16 tokens each; of the window no more than 127 tokens and 64 under way: 13.
    assert kv_units(kv, [1, 16, 17, 160, 1600]).tolist() == [2, 2, 4, 20, 113]
    assert kv_units(planned("gpt-oss-20b", 2, max_num_batched_tokens=64), 1600).item() == 117  # two batches under way
    alone = planned("gpt-oss-20b", 0, max_num_batched_tokens=64)
    assert kv.unit_bytes == alone.unit_bytes / 2  # of 12 layers of 24
    assert kv.capacity_units in (2 * alone.capacity_units - 1, 2 * alone.capacity_units)  # one is vLLM's null block
    assert kv.capacity_tokens == kv.capacity_units // 2 * 16


def test_states_make_blocks_long():
    kv = planned("qwen3.5-35b-a3b", 1, memory_fraction=0.99)
    assert kv.block_tokens == 1056 and sum(group.state for group in kv.groups) == 3
    assert kv_units(kv, [1, 1056, 1057]).tolist() == [4, 4, 5]
