"""KV of hybrid models: groups of layers on one pool of blocks (``reference.grouped_kv``)."""

from __future__ import annotations

import pytest

from evaluator.reference import Iteration, Limits, Request, simulate
from evaluator.reference.grouped_kv import GroupedKv, KvGroup
from tests.reference.build import linear_cost

COST = linear_cost(iteration_s=1.0, token_s=1 / 64)
FULL, WINDOW, STATE = KvGroup(), KvGroup(window=6), KvGroup(state=True)


def limits(blocks: int = 60, *groups: KvGroup, **more: object) -> Limits:
    given = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_tokens": 4, **more}
    return Limits(kv_units=blocks, admission="on_demand", kv_groups=groups, **given)  # type: ignore[arg-type]


def request(index: int, prompt: int, output: int, *content: int, at: float = 0.0) -> Request:
    return Request(index, at, prompt, prompt, output, -(-(prompt + output - 1) // 4), content)


def blocks_of(limits: Limits, *requests: Request) -> list[int]:
    """Blocks in use once each iteration is planned."""
    seen: list[Iteration] = []
    simulate(COST, "chunked", limits, requests, observe=seen.append)
    return [iteration.planned_units for iteration in seen]


@pytest.mark.parametrize("caching", [False, True])
def test_one_group_of_full_attention_is_the_ordinary_cache(caching):
    def served(*groups: KvGroup) -> list[tuple[float, ...]]:
        asked = [request(at, 5 + 7 * at % 23, 9 + 5 * at % 17, *[at % 3] * 3, at=float(at)) for at in range(20)]
        short = limits(14, *groups, prefix_caching=caching)
        found = simulate(COST, "chunked", short, asked)
        assert found.preemptions > 0
        return [(each.scheduled_s, each.first_token_s, each.last_token_s, each.hit_tokens) for each in found.requests]

    assert served(FULL) == served()


def test_a_window_keeps_what_it_spans_and_the_chunk_that_is_computed():
    # 20 tokens in one chunk are 5 blocks. The next attends to 6 tokens, from the 16th on, so that 3 blocks have
    # passed; the one after it to none of the 4th, and the 25th opens a block.
    assert blocks_of(limits(60, WINDOW), request(0, 20, 12)) == [5, 3, 2, 2, 2, 3, 2, 2, 2, 3, 2, 2]


def test_groups_add_up_and_a_state_is_one_block():
    alone = [blocks_of(limits(60, group), request(0, 20, 12)) for group in (FULL, WINDOW, STATE)]
    assert alone[2] == [1] * 12
    assert blocks_of(limits(60, WINDOW, FULL, STATE), request(0, 20, 12)) == [
        sum(each) for each in zip(*alone, strict=True)
    ]


def test_the_whole_prompt_counts_no_more_than_a_window_holds():
    # 200 tokens are 50 blocks; in chunks of 8 a window of 6 never holds more than 13 tokens, in 5 blocks.
    tight = {"max_num_batched_tokens": 8, "full_prompt": True}
    assert max(blocks_of(limits(5, WINDOW, **tight), request(0, 200, 2))) <= 5
    assert blocks_of(limits(54, FULL, WINDOW, **tight), request(0, 200, 2)) == []
    assert len(blocks_of(limits(55, FULL, WINDOW, **tight), request(0, 200, 2))) == 26


def test_a_prefix_is_found_where_every_group_has_it():
    cache = GroupedKv(limits(60, FULL, WINDOW, prefix_caching=True))
    first, second = request(0, 24, 1, *[7] * 6), request(1, 24, 1, *[7] * 6)
    assert cache.admit(first, 24, 0, 0)
    cache.register(first, 24)
    first.computed = 24
    assert cache.lookup(second) == 20  # a token is left to compute
    assert cache.extend(first, 25)  # the first four blocks of the window have passed, and can still be found
    assert cache.capacity - cache.free == 7 + 3
    assert cache.admit(second, 24, 20, 0)
    # It shares the 5 full blocks and the two that its window spans, and takes one of each for the last tokens.
    assert cache.capacity - cache.free == 10 + 2 + 1
    cache.release(first)
    cache.release(second)
    assert cache.free == 60 and cache.known == 12


def test_a_prefix_without_the_end_of_its_window_is_not_found():
    cache = GroupedKv(limits(12, FULL, WINDOW, prefix_caching=True))
    first, second, third = request(0, 16, 1, *[7] * 4), request(1, 16, 1, *[8] * 4), request(2, 20, 1, *[7] * 4)
    assert cache.admit(first, 16, 0, 0)
    cache.register(first, 16)
    cache.release(first)
    # The next 8 blocks take the 4 that held nothing, and the ends of the full attention's first.
    assert cache.admit(second, 16, 0, 0)
    assert cache.lookup(third) == 0  # the window's blocks are there, but hardly any of full attention


@pytest.mark.parametrize(
    "more",
    [{"preemption": "swap"}, {"units_of_blocks": int}, {"prefix_caching": True}],
    ids=["swap", "units", "states"],
)
def test_what_does_not_go_with_groups_is_refused(more):
    with pytest.raises(ValueError, match="kv_groups"):
        limits(60, FULL, STATE, **more)


@pytest.mark.parametrize("group", [{"window": 1}, {"window": 8, "state": True}])
def test_a_group_that_cannot_be_is_refused(group):
    with pytest.raises(ValueError, match="window"):
        KvGroup(**group)
