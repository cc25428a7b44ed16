"""Back-pressure from a decode to a prefill side, by hand: an iteration takes a second, a transfer half of one."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator.reference import Limits, Request
from evaluator.reference.network import run
from evaluator.reference.packing import Fcfs, ReservedFirst
from evaluator.reference.queues import Queues
from evaluator.reference.replica import Replica
from evaluator.reference.stations.phase import PhaseStation
from evaluator.reference.stations.pool import PoolStation
from evaluator.reference.stations.transfers import Sending, Transfers
from tests.reference.build import SECOND

PROMPT = 2


def system(
    outputs: list[int],
    *,
    prefill_units: int,
    decode_units: int,
    admission: str = "reserve",
    backpressure: bool = True,
    ahead: float = 0.0,
    service_s: float = 0.5,
) -> tuple[PhaseStation, Transfers, PhaseStation]:
    """One replica a side, which computes one prompt at a time; all requests of two prompt tokens are there at 0."""
    first = {i: Request(i, 0.0, PROMPT, PROMPT, 1, PROMPT) for i in range(len(outputs))}
    later = {i: Request(i, 0.0, 0, PROMPT, n - 1, PROMPT + n - 1) for i, n in enumerate(outputs) if n > 1}
    shared: dict[str, Any] = {"max_num_batched_tokens": 64, "block_tokens": 1}
    prefill = phase(first, Limits(1, kv_units=prefill_units, **shared))
    decode = phase(later, Limits(8, kv_units=decode_units, admission=admission, kv_reserved=backpressure, **shared))
    links = Transfers(
        prefill, decode, lambda index, sender, receiver: Sending(service_s, ahead), latency_s=0.0, one_by_one=True,
        by_layer=ahead > 0, backpressure=backpressure, choose=decode.choose if backpressure else None, groups=None,
    )  # fmt: skip
    run([prefill, links, decode], list(first.values()))
    return prefill, links, decode


def phase(parts: dict[int, Request], limits: Limits) -> PhaseStation:
    (replica,) = replicas = [Replica(0, [SECOND], "continuous", limits)]

    def choose(request: Request, now: float, group: int | None = None) -> Replica:
        return replica

    return PhaseStation(PoolStation(replicas, choose), parts, choose)


def times(of: PhaseStation, name: str) -> list[float]:
    return [getattr(part, name) for part in of.parts.values()]


def starts(links: Transfers) -> list[float]:
    return [links.done[index].started_s for index in sorted(links.done)]


@pytest.mark.parametrize(
    ("backpressure", "prefill_units", "first_token_s", "started_s", "last_token_s"),
    [
        (False, 2, [1, 2, 3], [1, 2, 3], [3.5, 5.5, 7.5]),  # the decode side serves one after the other
        (True, 6, [1, 2, 3], [1, 3.5, 6], [3.5, 6, 8.5]),  # each is sent when the one before has left
        (True, 2, [1, 2.5, 5], [1, 3.5, 6], [3.5, 6, 8.5]),
    ],
)
def test_room_for_one_request_at_a_time(backpressure, prefill_units, first_token_s, started_s, last_token_s):
    prefill, links, decode = system([3, 3, 3], prefill_units=prefill_units, decode_units=4, backpressure=backpressure)
    assert times(prefill, "first_token_s") == first_token_s
    assert starts(links) == started_s
    assert times(decode, "last_token_s") == last_token_s


def test_a_request_of_one_token_holds_nothing():
    prefill, links, _ = system([1, 3, 1], prefill_units=2, decode_units=4)
    assert times(prefill, "last_token_s") == [1, 2, 3.5]  # the third waits until the second is sent
    assert list(links.done) == [1]


@pytest.mark.parametrize(("service_s", "left_s"), [(0.5, [1.25, 2.25]), (4.0, [4.5, 8.5])])
def test_layers_are_sent_while_they_are_computed_where_there_is_room(service_s, left_s):
    """Two layers: half of the prompt's second is left at the first token, or half of the transfer if that is less."""
    _, links, _ = system([2, 2], prefill_units=9, decode_units=9, ahead=0.5, service_s=service_s)
    assert [links.done[index].left_s for index in (0, 1)] == left_s


def test_layers_wait_for_room():
    """The second has room only when the first leaves at 2.25 s, after its own first token at 2 s."""
    _, links, decode = system([2, 2], prefill_units=9, decode_units=3, ahead=0.5)
    assert times(decode, "last_token_s")[0] == 2.25
    assert starts(links) == [0.75, 2.25]


def test_who_was_preempted_gets_kv_before_others_get_room():
    """At 7.5 s two requests fill 14 units: the later one goes, and 5 units are free. It needs more; the last request,
    which could do with 3 and has had its first token at 7 s, waits until the first has left and the second is back."""
    prefill, links, decode = system([12, 12, 1, 1, 1, 1, 2], prefill_units=9, decode_units=14, admission="on_demand")
    first, second, _ = decode.parts.values()
    assert (first.preemptions, second.preemptions, first.last_token_s) == (0, 1, 12.5)
    assert prefill.parts[6].first_token_s == 7 and links.done[6].started_s == 12.5


@pytest.mark.parametrize("queued", [False, True], ids=["at once", "engine core"])
def test_the_engine_core_of_vllm_gives_room_only_while_it_has_a_seat(queued):
    # The first has all of the decode side's seats from 1.5 s on, for three tokens. There is KV for both; the second is
    # computed at 2 s and gets room before the next iteration, or from an engine core at 4.5 s, when the first has left.
    limits = {"max_num_batched_tokens": 64, "block_tokens": 1, "kv_units": 40, "admission": "on_demand"}
    first = {i: Request(i, 0.0, PROMPT, PROMPT, 1, PROMPT) for i in range(2)}
    later = {i: Request(i, 0.0, 0, PROMPT, 3, PROMPT + 3) for i in range(2)}
    prefill = phase(first, Limits(1, **limits))
    decode = phase(later, Limits(1, kv_reserved=True, batch_queue=queued, **limits))
    links = Transfers(
        prefill, decode, lambda *_: Sending(0.5, 0.0), latency_s=0.0, one_by_one=True, by_layer=False,
        backpressure=True, choose=decode.choose, groups=None,
    )  # fmt: skip
    run([prefill, links, decode], list(first.values()))
    assert starts(links) == [1.0, 4.5 if queued else 2.5]


def test_room_for_a_prompt_whose_last_token_is_computed_again_is_that_of_the_prompt():
    queues = Queues(Limits(4, 64, kv_units=9, block_tokens=4, admission="on_demand", kv_reserved=True), 0)
    came, most = Request(0, 0.0, 0, 8, 3, 3), Request(1, 0.0, 8, 8, 3, 3)
    most.computed = 7
    for request in (came, most):
        queues.announce(request)
        queues.reservations.expected.append(request)
    queues.reservations.grant(queues)
    assert (came.units, most.units) == (3, 2)  # the next token of the one opens a block


@pytest.mark.parametrize("in_order", [False, True])
def test_an_engine_core_looks_at_prompts_that_have_come_in_the_order_of_their_room(in_order):
    waiting = ReservedFirst(Fcfs, in_order)
    for number in (2, 0, 1):  # as their transfers end
        came = Request(number, 0.0, 0, PROMPT, 2, 3)
        came.reservation = number
        waiting.push(came)
    assert [request.index for request in waiting] == ([0, 1, 2] if in_order else [2, 0, 1])
