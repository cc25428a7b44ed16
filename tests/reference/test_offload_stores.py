"""Storage behind host memory: what is found where, who waits how long, and what replicas share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from evaluator.reference import HostLimits, Limits, Request, simulate
from evaluator.reference.offload_stores import OffloadStore, StoredBlocks, StoreLimits
from evaluator.routing import SESSION
from evaluator.tiers import Popularity, TierSize, hit_rates
from evaluator.tiers.popularity import shares
from tests.reference.build import linear_cost, request

COST = linear_cost(iteration_s=1.0)


def limits(**given: Any) -> Limits:
    return Limits(**{
        "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_units": 8, "admission": "on_demand", "block_tokens": 4,
        "prefix_caching": True, "batch_queue": True, **given,
    })  # fmt: skip


def one_by_one(*contents: Sequence[int], gap_s: float = 100.0, more: int = 1) -> list[Request]:
    """Prompts of these blocks and so many tokens more, each long after the one before."""
    return [
        request(at, gap_s * at, 4 * len(content) + more, 1, content=tuple(content))
        for at, content in enumerate(contents)
    ]


def found(requests: Sequence[Request]) -> list[tuple[int, int, int, int]]:
    """Tokens by tier: device, host, a store of the replica's own, a shared one."""
    return [
        (each.hit_tokens, each.host_tokens - each.storage_tokens - each.shared_tokens, each.storage_tokens,
         each.shared_tokens)
        for each in requests
    ]  # fmt: skip


A, B, C = (1, 2, 3), (11, 12, 13, 14, 15, 16), (21, 22, 23, 24, 25, 26)


def test_what_host_memory_forgot_comes_from_a_store_and_is_waited_for():
    requests = one_by_one(A, B, C, A)
    disk = StoreLimits(100, block_s=2.0, latency_s=5.0)
    host = HostLimits(7, load_block_s=0.25, stores=(disk,))
    simulate(COST, "chunked", limits(host=host), requests)
    assert found(requests) == [(0, 0, 0, 0)] * 3 + [(0, 0, 12, 0)]
    # Latency and three blocks from the disk, then three to the device.
    assert requests[3].scheduled_s == 300.0 + 5.0 + 3 * 2.0 + 3 * 0.25


def test_stores_are_asked_in_order_and_others_run_meanwhile():
    requests = [*one_by_one(A, B, C, A), request(4, 302.0, 5, 2, content=(9,))]
    slow, fast = StoreLimits(100, block_s=10.0), StoreLimits(100, block_s=0.1, shared_by=2)
    simulate(COST, "chunked", limits(host=HostLimits(7, stores=(slow, fast))), requests)
    assert found(requests)[3] == (0, 0, 12, 0) and requests[3].scheduled_s == 330.0
    assert requests[4].first_token_s == 303.0


def test_a_promoted_block_is_in_host_memory_from_then_on():
    requests = one_by_one(A, B, C, A, C, A)
    simulate(COST, "chunked", limits(host=HostLimits(10, stores=(StoreLimits(100),))), requests)
    assert found(requests)[3] == (0, 0, 12, 0)
    assert found(requests)[5] == (4, 8, 0, 0)


def test_host_memory_that_is_too_small_for_what_comes_from_a_store_ends_in_a_wait_for_ever():
    """vLLM makes room for each block alone, so that those that have come go again, and are asked for anew."""
    requests = one_by_one((1, 2, 3, 4, 5, 6), B, C, (1, 2, 3, 4, 5, 6))
    host = HostLimits(4, stores=(StoreLimits(100),))
    simulate(COST, "chunked", limits(max_num_batched_tokens=8, host=host), requests)
    assert [each.last_token_s < np.inf for each in requests] == [True, True, True, False]


def two_replicas(stores: tuple[StoreLimits, ...], later_s: float = 400.0) -> list[Request]:
    """A prompt on one replica, and later on the other."""
    requests = [request(at, later_s * at, 13, 1, content=A) for at in range(2)]
    simulate(COST, "chunked", limits(host=HostLimits(100, stores=stores)), requests, replicas=2)
    assert [each.replica for each in requests] == [0, 1]
    return requests


@pytest.mark.parametrize(
    ("shared_by", "later_s", "tokens"),
    [
        pytest.param(2, 400.0, 12, id="shared"),
        pytest.param(1, 400.0, 0, id="of its own"),
        # Written from the second iteration on: its three blocks are there after 30 s, and not before.
        pytest.param(2, 20.0, 0, id="still being written"),
    ],
)
def test_replicas_find_in_a_shared_store_what_others_have_written(shared_by, later_s, tokens):
    requests = two_replicas((StoreLimits(100, block_s=10.0, shared_by=shared_by),), later_s)
    assert found(requests)[1] == (0, 0, 0, tokens)


def test_replicas_that_share_a_store_share_its_bandwidth():
    contents = [A, (1, 2, 4), A, (1, 2, 4)]
    requests = [request(at, 0.0 if at < 2 else 500.0, 13, 1, content=each) for at, each in enumerate(contents)]
    for each, session in zip(requests, (0, 1, 1, 0), strict=True):
        each.session = session  # to the replica that did not compute it
    store = StoreLimits(100, block_s=10.0, shared_by=2)
    simulate(COST, "chunked", limits(host=HostLimits(100, stores=(store,))), requests, replicas=2, router=SESSION.name)
    assert len({each.replica for each in requests[:2]}) == 2
    waits = sorted(each.scheduled_s - 500.0 for each in requests[2:])
    # Each has the two blocks that both computed: the third alone is asked for, and the one waits for the other.
    assert waits == [10.0, 20.0]


def test_answers_are_written_behind_host_memory_with_what_is_copied_there():
    def tokens(prompts_only: bool) -> int:
        requests = [request(0, 0.0, 8, 9, content=(1, 2, 3, 4)), *one_by_one(B, C)]
        requests += [request(3, 0.0, 20, 1, content=(1, 2, 3, 4, 5))]
        for at, each in enumerate(requests):
            each.index, each.arrival_s = at, 100.0 * at
        host = HostLimits(7, prompts_only, stores=(StoreLimits(100),))
        simulate(COST, "chunked", limits(host=host), requests)
        return requests[3].storage_tokens

    assert (tokens(True), tokens(False)) == (8, 16)


def test_selectively_a_block_is_written_when_a_second_request_has_it():
    def last(write: str, *contents: Sequence[int]) -> tuple[int, int, int, int]:
        requests = one_by_one(*contents)
        host = HostLimits(100, write=write)
        simulate(COST, "chunked", limits(host=host), requests)
        return found(requests)[-1]

    assert last("write_through", A, B, C, A)[1] == 12
    assert last("write_through_selective", A, B, C, A)[1] == 0
    assert last("write_through_selective", A, A, B, C, A)[1] == 12
    # The device forgot it in between, and computed it anew: that counts from the start.
    assert last("write_through_selective", A, B, C, A, B, C, A)[1] == 0


def test_on_eviction_the_batch_that_takes_the_blocks_waits_for_the_copy():
    requests = one_by_one(A, B, A)
    host = HostLimits(100, store_block_s=3.0, write="write_back")
    simulate(COST, "chunked", limits(host=host), requests)
    # Seven of eight blocks are taken, two of which hold what the first has computed.
    assert requests[1].scheduled_s == 100.0 + 2 * 3.0
    assert found(requests)[2] == (4, 8, 0, 0)
    alone = one_by_one(A, A)
    simulate(COST, "chunked", limits(host=host), alone)
    assert found(alone)[1] == (12, 0, 0, 0) and alone[1].scheduled_s == 100.0


def test_a_store_keeps_the_blocks_that_were_used_last_and_none_that_is_under_way():
    store = OffloadStore(StoreLimits(3, block_s=1.0))
    assert store.write("ab", 0.0) == 2.0 and not store.has("a", 1.5) and store.has("a", 2.0)
    assert store.write("ab", 3.0) == 3.0  # they are there
    store.touch("a", 4.0)
    store.hold("b")
    assert store.read("b", 4.0) == 5.0
    assert store.write("cd", 4.5) == 6.5  # the one place that was free, and that of the block which nobody reads
    assert [store.has(name, 6.5) for name in "abcd"] == [False, True, True, True]
    assert store.write("efgh", 7.0) == 10.0  # the first three
    assert [store.has(name, 10.0) for name in "efgh"] == [True, True, True, False]


@pytest.mark.parametrize(
    "given",
    [{"blocks": 0}, {"blocks": 1, "shared_by": 0}, {"blocks": 1, "block_s": -1.0}, {"blocks": 1, "latency_s": -1.0}],
)
def test_a_store_has_blocks_and_takes_time(given):
    with pytest.raises(ValueError, match="a store has blocks"):
        StoreLimits(**{"blocks": 1, **given})


def test_when_blocks_are_written_has_a_name():
    with pytest.raises(ValueError, match="write must be one of write_through, write_through_selective, write_back"):
        HostLimits(4, write="write_around")


# --- theory, and what must hold whatever is asked


def drawn(count: int, popularity: Popularity, seed: int = 0) -> list[Request]:
    """Requests for one block each and a token behind it, one after the other."""
    share, _ = shares(popularity.contexts, popularity.zipf)
    asked = np.random.default_rng(seed).choice(popularity.contexts, count, p=share / share.sum())
    return one_by_one(*((int(context),) for context in asked), gap_s=10.0)


def rates(requests: Sequence[Request], warm: int) -> np.ndarray:
    """The part of the requests that finds its block in each tier or one before it."""
    return np.cumsum(np.mean(np.array(found(requests[warm:])) / 4, axis=0))


def test_independent_draws_are_found_as_often_as_che_approximates():
    """All tiers hear of each use, so that one holds all that the smaller ones before it hold: each is an LRU by itself.

    The device keeps its blocks but two: one for the token behind the prompt's block, one that is taken for a miss
    before it is known to be one.
    """
    popularity = Popularity(400, 0.9)
    requests = drawn(6000, popularity)
    host = HostLimits(60, stores=(StoreLimits(150), StoreLimits(300, shared_by=2)))
    simulate(COST, "chunked", limits(kv_units=22, host=host), requests)
    expected = [hit_rates(popularity, (TierSize(blocks, 1),), 1)[0] for blocks in (20, 60, 150, 300)]
    np.testing.assert_allclose(rates(requests, 1500), expected, atol=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_more_room_never_finds_less(seed):
    """Of one replica whose copies take no time, block by block: what a small LRU has a larger one has, too."""
    rng = np.random.default_rng(seed)
    contents = [tuple((int(rng.zipf(1.3)) % 40,) * int(rng.integers(1, 6))) for _ in range(400)]
    before = np.zeros(len(contents))
    for disk in (0, 10, 30, 60, 1000):
        requests = one_by_one(*contents, gap_s=10.0)
        stores = (StoreLimits(disk),) if disk else ()
        simulate(COST, "chunked", limits(host=HostLimits(8, stores=stores)), requests)
        tokens = np.array([each.hit_tokens + each.host_tokens for each in requests])
        assert (tokens >= before).all() and (not disk or tokens.sum() > before.sum() or disk == 1000)
        before = tokens


def sessions(seed: int, rate: float = 0.3, count: int = 150) -> list[Request]:
    """Turns of sessions that overlap, on any replica."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    length = dict.fromkeys(range(12), 0)
    made = []
    for at, arrival in enumerate(arrivals.tolist()):
        session = int(rng.integers(12))
        length[session] = length[session] % 6 + int(rng.integers(1, 3))
        blocks = min(length[session], 7)
        made.append(request(at, arrival, 4 * blocks + 2, int(rng.integers(1, 4)), content=(session,) * blocks))
    return made


class Watched(OffloadStore):
    """A store that is checked: what is read was written and has not gone, within the bandwidth, and the room."""

    made: ClassVar[list[Watched]] = []

    def __init__(self, limits: StoreLimits) -> None:
        super().__init__(limits)
        self.there: set[Hashable] = set()  # written, and kept since
        self.moved = [0, 0]
        self.busy_until = [0.0, 0.0]
        self.made.append(self)

    def _begin(self, names: Sequence[Hashable], now: float, writes: bool) -> float:
        direction, took = 0 if writes else 1, len(names) * self._limits.block_s
        end_s = super()._begin(names, now, writes)
        assert end_s - took >= max(now + self._limits.latency_s, self.busy_until[direction]) - 1e-9
        self.busy_until[direction] = end_s
        self.moved[direction] += len(names)
        if not writes:
            assert self.there.issuperset(names)
        return end_s

    def _settle(self, now: float) -> None:
        due = [names for end_s, _, writes, names in self._under_way if end_s <= now and writes]
        super()._settle(now)
        self.there = {name for name in self.there | {each for names in due for each in names} if self._blocks.has(name)}
        assert len(self._blocks) <= self._limits.blocks


@pytest.mark.parametrize("write", ["write_through", "write_through_selective", "write_back"])
@pytest.mark.parametrize("ahead", [False, True], ids=["at once", "ahead"])
def test_what_is_found_was_stored_and_moved_within_the_bandwidth(monkeypatch, write, ahead):
    monkeypatch.setattr("evaluator.reference.offload_stores.OffloadStore", Watched)
    monkeypatch.setattr(Watched, "made", [])
    host = HostLimits(
        24, False, 0.02, 0.05, write, (StoreLimits(30, 0.4, 0.3), StoreLimits(200, 0.7, 1.0, shared_by=3))
    )
    requests = sessions(4)
    outcome = simulate(
        COST, "chunked", limits(kv_units=24, host=host, asynchronous=ahead), requests, replicas=3, tokens=True
    )
    assert all(each.last_token_s < np.inf for each in requests)
    disks, shared = Watched.made[0], [each for each in Watched.made if each.shared]
    assert len(Watched.made) >= 4 and disks.moved[0] > 0
    used = [each for each in Watched.made if each.moved[0]]
    assert len(used) == 4 and sum(each.shared for each in used) == 1 and shared
    end_s = max(each.last_token_s for each in requests)
    for each in used:
        for moved in each.moved:
            assert moved * each._limits.block_s <= max(end_s, *each.busy_until)
    if write == "write_through":
        assert sum(each.storage_tokens for each in requests) and sum(each.shared_tokens for each in requests)
    for each in requests:
        assert each.storage_tokens + each.shared_tokens <= each.host_tokens
        assert each.hit_tokens + each.host_tokens <= each.prompt_tokens
    assert isinstance(outcome.replicas[0].queues.host.blocks, StoredBlocks)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(2))
def test_a_shared_store_finds_at_least_what_each_finds_in_its_own(seed):
    tokens = []
    for shared_by in (1, 2):
        requests = sessions(seed, rate=0.05)
        host = HostLimits(10, stores=(StoreLimits(np.inf, shared_by=shared_by),))
        simulate(COST, "chunked", limits(kv_units=16, host=host), requests, replicas=2)
        tokens.append(np.array([each.hit_tokens + each.host_tokens for each in requests]))
    assert (tokens[1] >= tokens[0]).all() and tokens[1].sum() > 1.1 * tokens[0].sum()
