"""What is known of a router: how it chooses the replica of a request, as data that every engine and check reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

COUNTERS = ("requests", "work_tokens", "output_tokens", "kv_units", "context_tokens")
"""What a router may count of a replica as of an arrival, over the requests that were sent there and have not finished.

Iterations that ended by then are counted; the one under way has done nothing yet, but its KV is taken.

* ``requests``: how many they are.
* ``work_tokens``: tokens to compute and to generate. What a preempted request has to compute again is among them.
* ``output_tokens``: tokens to generate, whatever is to be computed before.
* ``kv_units``: KV units in use, and those that the waiting requests will hold when they finish, as a share of the
  capacity. Without the waiting ones a replica with a full cache and a long queue would look like one with no queue.
* ``context_tokens``: tokens of their prompts and outputs so far.
"""


class WithOptions(Protocol):
    """The choice of a router that has keys of its own."""

    @property
    def router(self) -> str:
        """The name of the router."""


Choice = str | WithOptions
"""A router as a deployment names it: its name alone, or its name with its keys."""


def name_of(choice: Any) -> str:
    """The name of the router of a choice."""
    return choice if isinstance(choice, str) else choice.router


class Sent(NamedTuple):
    """Requests in the order in which they are sent to the replicas of a pool."""

    prompt_tokens: NDArray[np.int64]  # (request,)
    replicas: int
    draws: np.random.Generator  # of this pool and seed, see ``stream``
    session: NDArray[np.int64] | None = None  # (request,): the numbers of their sessions, where they are known


InTurn = Callable[[int, int], int]
"""Chooses the replica of one request after the other, in the order in which they are sent, by its prompt tokens and the
number of its session."""


@dataclass(frozen=True)
class Independent:
    """A router that does not look at the replicas, in two forms which choose the same.

    ``assign`` chooses for all requests at once, (choice, sent) -> int64 (request,); ``in_turn`` for one after the
    other, (choice, replicas, draws) -> ``InTurn``, where their order is known only in the run.
    """

    assign: Callable[[Any, Sent], NDArray[np.int64]]
    in_turn: Callable[[Any, int, np.random.Generator], InTurn]
    by_prompt: bool = False  # it looks at the prompt, so that shares depend on the lengths
    by_session: bool = False  # it looks at the session, so that shares depend on who sends how much


def by_turns(
    in_turn: Callable[[Any, int, np.random.Generator], InTurn], by_prompt: bool = False, by_session: bool = False
) -> Independent:
    """An independent router of its second form alone: for all requests at once each is asked for in its turn."""

    def assign(choice: Any, sent: Sent) -> NDArray[np.int64]:
        choose = in_turn(choice, sent.replicas, sent.draws)
        count = len(sent.prompt_tokens)
        session = np.zeros(count, np.int64) if sent.session is None else sent.session
        pairs = zip(sent.prompt_tokens.tolist(), session.tolist(), strict=True)
        return np.fromiter((choose(prompt, number) for prompt, number in pairs), np.int64, count)

    return Independent(assign, in_turn, by_prompt, by_session)


@dataclass(frozen=True)
class Router:
    """One of six kinds: ``independent`` of the state of the replicas, the replica with the least of ``counts``,
    ``by_prefix``: by what is in their prefix caches, as the choice says (``PrefixRule.choose``), ``by_adapter``: by the
    LoRA adapters that they have, ``by_reports``: by what they said of themselves some time ago (these two the reference
    alone computes), or a ``queue`` before the replicas, none of which is chosen on arrival.

    Of several replicas with the least, the first is taken. ``keys`` is the record of what a deployment may say of it
    (``evaluator.keys.key``), written {NAME: {KEY: VALUE}}; None: nothing but its name.

    Errors: ValueError for none or several of the kinds.
    """

    name: str  # in scenario files
    says: str
    independent: Independent | None = None
    counts: str | None = None  # one of COUNTERS
    by_prefix: bool = False
    by_adapter: bool = False
    by_reports: bool = False
    queue: bool = False
    keys: type | None = None

    def __post_init__(self) -> None:
        # A record that says two kinds would be run as one of them by the vectorised engine and as the other by the
        # reference, which ask in different orders.
        kinds = (self.by_prefix, self.by_adapter, self.by_reports, self.queue)
        if sum((self.independent is not None, self.counts is not None, *kinds)) != 1:
            raise ValueError(
                f"router {self.name} is either independent, or counts something, or goes by prefixes, adapters or "
                "reports, or is a queue"
            )
        if self.independent is not None and not isinstance(self.independent, Independent):
            raise ValueError(f"router {self.name}: independent must be an Independent, as of by_turns")
        if self.counts is not None and self.counts not in COUNTERS:
            raise ValueError(f"router {self.name} counts {self.counts}, which is none of {', '.join(COUNTERS)}")


def stream(seed: int, station: int = 0) -> np.random.Generator:
    """The draws of a router. ``station`` is the place of its pool: pools in tandem draw from streams of their own."""
    # Apart from the streams of arrivals and lengths, lest a change of the router change the traffic. The station is
    # left out where it is 0, so that a pool alone has the draws that it had before there were pools in tandem.
    return np.random.default_rng(np.random.SeedSequence([seed, 0x726F7574, *([station] if station else [])]))  # "rout"
