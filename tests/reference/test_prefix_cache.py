"""The cache of blocks by their content against vLLM v1's block pool, said as plainly as can be."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.reference import Limits, Request, simulate
from evaluator.reference.network import Follows
from evaluator.reference.prefix_cache import PrefixCache
from tests.reference.build import SECOND, request

BLOCK = 4


class BlockPool:
    """``BlockPool`` of vllm/v1/core/block_pool.py with whole prefixes for hashes, and lists for its queues.

    Free blocks are taken from the front and forget what they hold; freed ones go to the back, a request's last first,
    or where they hold nothing to the front.
    """

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks))
        self.users = dict.fromkeys(self.free, 0)
        self.holds: dict[int, tuple] = {}  # the whole prefix up to the end of a block, in the order of caching

    def hits(self, content: tuple, most: int) -> list[int]:
        found = []
        for end in range(1, most + 1):
            having = [block for block, held in self.holds.items() if held == content[:end]]
            if not having:
                break
            found.append(having[0])
        return found

    def admit(self, content: tuple, most_hits: int, units: int) -> list[int] | None:
        shared = self.hits(content, most_hits)
        if units - len(shared) > len([block for block in self.free if block not in shared]):
            return None
        for block in shared:
            self.users[block] += 1
            self.free = [other for other in self.free if other != block]
        return shared + self.take(units - len(shared))

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.holds.pop(block, None)
            self.users[block] = 1
        return taken

    def cache(self, blocks: list[int], content: tuple) -> None:
        for end, block in enumerate(blocks[: len(content)], 1):
            self.holds.setdefault(block, content[:end])

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
        unused = [block for block in reversed(blocks) if not self.users[block]]
        empty = [block for block in unused if block not in self.holds]
        self.free = empty + self.free + [block for block in unused if block in self.holds]


def limits(blocks: int) -> Limits:
    return Limits(8, 64, blocks, "on_demand", BLOCK, prefix_caching=True)


contents = st.lists(st.integers(0, 1), min_size=0, max_size=4).map(tuple)
moves = st.lists(st.tuples(contents, st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=300)
@given(moves, st.integers(3, 9))
def test_random_moves_are_those_of_the_block_pool(steps, blocks):
    """A step admits a request and computes it all; then it releases the ``leaving``-th of those that are there."""
    cache, pool = PrefixCache(limits(blocks)), BlockPool(blocks)
    here: list[tuple[Request, list[int]]] = []
    for number, (content, more, leaving) in enumerate(steps):
        tokens = len(content) * BLOCK + more + 1
        one, units = request(number, 0.0, tokens, 1, content=content), -(-tokens // BLOCK)
        most = (tokens - 1) // BLOCK
        # What is beyond the content is like nothing else.
        whole = (*content, *((number, place) for place in range(len(content), tokens // BLOCK)))
        hit = cache.lookup(one)
        assert hit == len(pool.hits(whole, most)) * BLOCK
        taken = pool.admit(whole, most, units)
        assert cache.admit(one, units, hit, 0) == (taken is not None)
        if taken is not None:
            assert one.blocks == taken
            cache.register(one, tokens)
            pool.cache(taken, whole)
            here.append((one, taken))
        if leaving < len(here):
            gone, theirs = here.pop(leaving)
            cache.release(gone)
            pool.release(theirs)
        assert list(cache.pool.free_blocks) == pool.free and cache.free == len(pool.free)
        assert [cache.users(block) for block in range(blocks)] == [pool.users[block] for block in range(blocks)]


def test_a_worked_example_of_eviction():
    """Six blocks: A takes three, B two; when C needs three, A's last block goes before its first, and B's stay."""
    cache = PrefixCache(limits(6))
    a, b, c = (request(number, 0.0, 4 * size, 1, content=content) for number, size, content in
               ((0, 3, (1, 2, 3)), (1, 2, (5, 6)), (2, 3, (7, 8, 9))))  # fmt: skip
    for one in (a, b):
        assert cache.admit(one, one.prompt_tokens // BLOCK, 0, 0)
        cache.register(one, one.prompt_tokens)
    cache.release(a)  # free: block 5, which was never used, then A's third, second and first
    cache.release(b)  # and B's second and first
    assert list(cache.pool.free_blocks) == [5, 2, 1, 0, 4, 3]
    assert cache.admit(c, 3, 0, 0) and c.blocks == [5, 2, 1]
    again = request(3, 0.0, 13, 1, content=(1, 2, 3))
    assert cache.lookup(again) == 4
    assert cache.lookup(request(4, 0.0, 9, 1, content=(5, 6))) == 8


def test_a_session_with_room_enough_finds_all_but_the_block_that_was_not_full():
    """The closed form: turn n finds the whole blocks of what was computed before, and computes one token at least."""
    turns, prompt = [], 0
    for number, (new, output) in enumerate(((9, 5), (1, 1), (3, 8), (30, 2), (2, 2))):
        prompt += new
        content = (7,) * ((prompt + output) // BLOCK)
        turns.append(request(number, 0.0, prompt, output, content=content))
        prompt += output
    follows = Follows([[], [0], [1], [2], [3]], [10.0] * 5, [0.0] * 5)
    found = simulate(SECOND, "chunked", limits(100), turns, follows=follows).requests
    computed = 0
    for one in found:
        assert one.hit_tokens == min(computed, one.prompt_tokens - 1) // BLOCK * BLOCK
        computed = one.prompt_tokens + one.output_tokens - 1
    for before, after in pairwise(found):
        assert after.arrival_s == before.last_token_s + 10.0


@pytest.mark.parametrize("packing", ["fcfs", "priority"])
def test_a_block_that_the_first_step_after_a_transfer_fills_is_found_with_it(packing):
    """Seven tokens came from a prefill side; the one that came with them fills the second block of four."""
    both = [Request(0, 0.0, 0, 7, 6, 4, (1, 2)), Request(1, 0.0, 0, 9, 2, 3, (1, 2))]
    of_decodes = Limits(8, 64, 100, "reserve", BLOCK, prefix_caching=True, packing=packing)
    done = simulate(SECOND, "chunked", of_decodes, both)
    assert [one.hit_tokens for one in done.requests] == [0, 8]
    assert [one.last_token_s for one in done.requests] == [6.0, 2.0]
    assert done.kv_unit_s == 4 * 6 + 1 * 2  # the second shares two of its three


def test_conversations_beside_each_other_are_sent_in_the_order_of_their_times():
    both = [request(0, 0.0, 4, 3), request(1, 0.5, 4, 1), request(2, 0.0, 4, 1), request(3, 0.0, 4, 1)]
    simulate(SECOND, "chunked", limits(100), both, follows=Follows([[], [], [1], [0]], [0.0, 0.0, 4.0, 2.0], [9.0] * 4))
    assert [one.arrival_s for one in both] == [0.0, 0.5, 6.0, 5.0]
    assert [one.last_token_s for one in both] == [3.0, 2.0, 7.0, 6.0]
