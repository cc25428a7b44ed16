"""Host memory under the prefix cache: what is stored and found there, who waits, and what a copy takes."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.reference import HostLimits, Limits, simulate
from evaluator.reference.offload_stores import StoredBlocks
from tests.reference.build import linear_cost, request

COST = linear_cost(iteration_s=1.0)


def limits(**given: Any) -> Limits:
    return Limits(**{
        "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_units": 8, "admission": "on_demand", "block_tokens": 4,
        "prefix_caching": True, "batch_queue": True, **given,
    })  # fmt: skip


def three(later_s: float = 200.0, contents: tuple[tuple[int, ...], ...] = ((1, 2, 3), (7,) * 7, (1, 2, 3))):
    """A prompt, another that takes the whole device, and the first one again."""
    arrivals = (0.0, 100.0, later_s)
    return [
        request(i, arrivals[i], 4 * len(content), 1, content=content) for i, content in enumerate(contents)
    ]  # fmt: skip


def test_what_the_device_forgot_comes_from_the_host_and_is_waited_for():
    alone, kept = three(), three()
    simulate(COST, "chunked", limits(), alone)
    simulate(COST, "chunked", limits(host=HostLimits(100, store_block_s=0.5, load_block_s=2.0)), kept)
    assert [(each.hit_tokens, each.host_tokens) for each in alone] == [(0, 0), (0, 0), (4, 0)]
    # The host may give all of a prompt, the device all but the block of the last token.
    assert [(each.hit_tokens, each.host_tokens) for each in kept] == [(0, 0), (0, 0), (4, 8)]
    assert kept[2].scheduled_s == 200.0 + 2 * 2.0  # as long as two blocks take


def test_others_run_while_one_waits_for_its_blocks():
    requests = three()
    requests.append(request(3, 201.0, 4, 3, content=(9,)))
    simulate(COST, "chunked", limits(host=HostLimits(100, load_block_s=2.0)), requests)
    # The load ends at 204: an iteration that begins then tells it, and the next one takes the request in.
    assert requests[3].first_token_s == 202.0
    assert requests[2].scheduled_s == 204.0


def test_blocks_of_a_request_that_is_gone_are_stored_before_they_are_written_again():
    requests = three(contents=((1, 2, 3), (7,) * 8, (1, 2, 3)))
    requests[1].arrival_s = 1.0
    simulate(COST, "chunked", limits(host=HostLimits(100, store_block_s=10.0)), requests)
    # The blocks of the first are copied from 1 s on, one after the other; the second needs all of them.
    assert requests[1].scheduled_s == 31.0


def test_who_looks_for_blocks_on_their_way_waits_for_them():
    requests = three(later_s=102.0)
    requests[1].arrival_s = 1.0
    simulate(COST, "chunked", limits(kv_units=20, host=HostLimits(100, store_block_s=500.0)), requests)
    assert requests[2].hit_tokens == 8
    assert requests[2].scheduled_s > 1000.0  # its third block is of the host alone, and not there yet


def test_several_arrivals_at_once_end_the_wait_for_a_copy_once():
    requests = three(later_s=200.0)
    requests += [request(index, 203.0, 4, 1, content=(index,)) for index in (3, 4)]  # while nothing but a load goes on
    simulate(COST, "chunked", limits(host=HostLimits(100, load_block_s=10.0)), requests)
    assert [each.scheduled_s for each in requests[2:]] == [220.0, 203.0, 203.0]


def test_answers_are_stored_if_that_is_asked_for():
    def found(prompts_only: bool) -> int:
        turns = [request(0, 0.0, 8, 9, content=(1, 2, 3, 4)), request(1, 50.0, 32, 1, content=(7,) * 8),
                 request(2, 100.0, 20, 1, content=(1, 2, 3, 4, 5))]  # fmt: skip
        simulate(COST, "chunked", limits(host=HostLimits(100, prompts_only)), turns)
        return turns[2].hit_tokens + turns[2].host_tokens

    assert (found(True), found(False)) == (8, 16)


def test_the_block_that_was_used_the_longest_ago_goes_and_none_that_is_under_way():
    host = StoredBlocks(3)
    assert host.make_room(["a", "b", "c"]) == ["a", "b", "c"]
    assert host.make_room(["d"]) is None  # all are on their way
    assert host.has("a") is None
    host.stored(["a", "b", "c"])
    host.touch(["a"])
    host.hold(["b"])
    assert host.make_room(["a", "d"]) == ["d"]
    assert [host.has(name) for name in "abcd"] == [True, True, False, None]
    host.let_go(["b"])
    host.stored(["d"])
    assert host.make_room(["e", "f"]) == ["e", "f"] and [host.has(name) for name in "abd"] == [False, False, True]
    assert host.make_room(["g", "h", "i", "j"]) is None and len(host) == 3


@pytest.mark.parametrize(
    "given",
    [{"prefix_caching": False}, {"admission": "reserve"}, {"packing": "priority"}, {"drafts": 2}],
)
def test_host_memory_needs_a_cache_by_content_on_demand(given):
    with pytest.raises(ValueError, match=r"^host "):
        limits(host=HostLimits(4), **given)


def test_host_memory_has_blocks():
    with pytest.raises(ValueError, match="host memory has blocks"):
        HostLimits(0)
