"""The tree of SGLang's prefix cache: what is found, what is kept twice, and what goes first."""

from __future__ import annotations

from evaluator.reference import Limits, Request
from evaluator.reference.radix_cache import RadixCache


def tree(pages: int, page: int = 4) -> RadixCache:
    return RadixCache(Limits(8, 512, pages, block_tokens=page))


def request(index: int, tokens: int, content: tuple[int, ...]) -> Request:
    made = Request(index, 0.0, tokens, tokens, 2, 0, content)
    made.target = tokens
    return made


def compute(cache: RadixCache, one: Request) -> int:
    """Admit a request with all of its prompt in one batch; tokens that it found."""
    found = cache.find(one)
    assert cache.admit(one, cache.units(one.target), found, 0)
    cache.settle(one.target - found)
    return found


def test_a_prompt_is_found_once_its_batch_has_ended():
    cache, first, second = tree(20), request(0, 13, (1, 2, 3)), request(1, 13, (1, 2, 4))
    assert compute(cache, first) == 0
    assert cache.lookup(second) == 0
    cache.checkpoint(first, 13)
    assert cache.known == 3  # the last page is not whole
    assert cache.lookup(second) == compute(cache, second) == 8
    assert cache.free == 20 - 4 - 2


def test_one_token_is_left_to_compute():
    cache, first, again = tree(20), request(0, 12, (1, 2, 3)), request(1, 12, (1, 2, 3))
    compute(cache, first)
    cache.checkpoint(first, 12)
    assert cache.lookup(again) == 8


def test_pages_that_two_requests_computed_side_by_side_are_kept_once():
    cache = tree(20)
    pair = [request(index, 12, (1, 2, 3)) for index in range(2)]
    for one in pair:
        assert compute(cache, one) == 0
    assert cache.free == 20 - 6
    for one in pair:
        cache.checkpoint(one, 12)
    assert (cache.free, cache.known) == (20 - 3, 3)


def test_unlocked_leaves_go_as_a_whole_the_least_recently_used_first():
    cache = tree(10)
    old, new = request(0, 17, (1, 2, 3, 4)), request(1, 17, (5, 6, 7, 8))
    for one in (old, new):
        compute(cache, one)
        cache.checkpoint(one, 17)
        cache.drop(one)
    assert (cache.free, cache.known) == (10, 8)
    cache.touch(old)
    assert cache.make_room(12)  # two pages are unused, one more is wanted: all four of a leaf go
    assert cache.known == 4
    assert (cache.lookup(old), cache.lookup(new)) == (16, 0)


def test_a_locked_beginning_stays_while_what_comes_behind_it_goes():
    cache = tree(6)
    long, short = request(0, 17, (1, 2, 3, 4)), request(1, 9, (1, 2))
    compute(cache, long)
    cache.checkpoint(long, 17)
    cache.drop(long)
    assert cache.find(short) == 8  # which cuts the node there
    assert cache.free == 4
    assert not cache.make_room(20)
    assert cache.make_room(16)
    assert (cache.known, cache.lookup(short)) == (2, 8)
    cache.unlock(short)
    assert cache.free == 6
