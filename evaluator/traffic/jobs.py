"""Requests as one station sees them: when they come and what they ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.cost.memory import KvLayout, kv_units
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import Role
from evaluator.traffic.sharing import Sharing


@dataclass(frozen=True)
class Extremes:
    """The largest requests of a demand, in tokens: what the limits of a replica are checked against.

    ``least_`` are the smallest: where they are the largest, all requests are alike.
    """

    prompt: int  # to compute
    output: int
    sequence: int  # prompt and output
    kv_tokens: int
    cached: int  # leading prompt tokens whose KV is there already
    least_prompt: int
    least_output: int
    least_sequence: int

    @staticmethod
    def of(several: Sequence[Extremes]) -> Extremes:
        """Those of several demands together."""
        if len(several) == 1:
            return several[0]
        columns = zip(fields(Extremes), zip(*map(astuple, several), strict=True), strict=True)
        return Extremes(*((min if field.name.startswith("least_") else max)(column) for field, column in columns))

    @property
    def alike(self) -> bool:
        """Whether all requests have as many prompt tokens and as many output tokens."""
        return (self.least_output, self.least_sequence) == (self.output, self.sequence)


@dataclass(frozen=True, eq=False)
class Demand:
    """What jobs ask of a station, whenever they come: (job,) arrays of tokens.

    Arrival rates change no demand, so that all rates of a sweep share one object; what is derived from it (KV units,
    useful work, the demand on a decode side) is cached by its identity.
    """

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]  # that this station has to give
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there already
    compute_tokens: NDArray[np.int64]  # prompt tokens to compute
    kv_tokens: NDArray[np.int64]  # tokens in the KV cache when the job is done
    later_tokens: NDArray[np.int64]  # that a decode side behind a prefill side has to give
    shared_tokens: NDArray[np.int64]  # leading prompt tokens, whole blocks, whose KV the station keeps for all jobs
    model: NDArray[np.int64]  # the number of the model that they ask for, among those of the workload

    @staticmethod
    def of(tokens: Tokens, role: Role, shared_tokens: int = 0) -> Demand:
        """What requests ask of a pool of this role, where it is the first that computes them.

        ``shared_tokens``, less than any prompt, are cached as well, and the station keeps their KV for all requests.
        """
        prompt, output, cached = tokens.prompt_tokens, tokens.output_tokens, tokens.cached_tokens
        if role.prompt_resident:
            return _resident(prompt, output, cached, tokens.model)
        given = np.ones_like(output) if role.first_token_only else output
        # The last token is sampled and never computed.
        shared = np.full_like(prompt, shared_tokens)
        cached = np.maximum(cached, shared)
        kv = prompt + given - 1
        return Demand(prompt, given, cached, prompt - cached, kv, output - given, shared, tokens.model)

    @cached_property
    def extremes(self) -> Extremes:
        """The largest of its jobs, and the smallest."""
        whole = self.prompt_tokens + self.output_tokens
        sizes = (self.compute_tokens, self.output_tokens, whole)
        most = (int(size.max(initial=0)) for size in (*sizes, self.kv_tokens, self.cached_tokens))
        return Extremes(*most, *(int(size.min()) if len(size) else 0 for size in sizes))

    @cached_property
    def after_prefill(self) -> tuple[NDArray[np.int64], Demand]:
        """(jobs that go on to the decode side, what they ask of it). Jobs of one token are done with it and stay."""
        on = np.flatnonzero(self.later_tokens > 0)
        given = (self.prompt_tokens, self.later_tokens, self.cached_tokens, self.model)
        return on, _resident(*(column[on] for column in given))

    @cached_property
    def by_model(self) -> dict[int, Demand]:
        """The jobs of every model by themselves, by its number."""
        return {int(number): self[self.model == number] for number in np.unique(self.model)}

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def with_hits(self, tokens: NDArray[np.int64]) -> Demand:
        """The same where so many tokens of each prompt, (job,), were found in a prefix cache."""
        return replace(self, cached_tokens=self.cached_tokens + tokens, compute_tokens=self.compute_tokens - tokens)

    def __getitem__(self, at: NDArray) -> Demand:
        """The demand of some jobs."""
        return Demand(*(getattr(self, name)[at] for name in self.__dataclass_fields__))

    def joined(self, other: Demand) -> Demand:
        """The demand of these jobs, then of the others."""
        names = self.__dataclass_fields__
        return Demand(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


def _resident(prompt: NDArray, output: NDArray, cached: NDArray, model: NDArray) -> Demand:
    """Of prompts whose KV is there: they came with a first token, which is computed and takes KV too."""
    nothing = np.zeros_like(prompt)
    return Demand(prompt, output, cached, nothing, prompt + output, nothing, nothing, model)


class Origin(NamedTuple):
    """What the last engine did with jobs, (job,)."""

    replica: NDArray[np.int32]  # which of its replicas served the job
    served_s: NDArray[np.float64]  # from the first iteration that computed it to its first token


@dataclass(frozen=True, eq=False)
class Jobs:
    """The requests of one configuration and seed as one station sees them; (job,) arrays in any order.

    Stations put jobs out of order, so a job is known by its ``id``, its row in the table of requests, and not by its
    position. For the same reason the warm-up is a mask.
    """

    id: NDArray[np.int64]
    ready_s: NDArray[np.float64]  # when the job comes to the station
    demand: Demand
    measured: NDArray[np.bool_]  # False for the warm-up
    origin: Origin | None = None  # None before the first engine, and where jobs of several ways have joined
    chosen: NDArray[np.int64] | None = None  # the replica that serves it next; None: the pool's own router says
    sharing: Sharing | None = None  # of all requests, by their ids; None: nothing is known of it

    @property
    def session(self) -> NDArray[np.int64] | None:
        """The session of each job, (job,)."""
        known = self.sharing is not None and self.sharing.session is not None
        return self.sharing.session[self.id] if known else None  # type: ignore[union-attr, index]

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def order(self) -> NDArray[np.int64] | slice:
        """The jobs by their time, those of one time by their id: an index, a slice where they are in order already."""
        if in_order(self.id, self.ready_s):
            return slice(0, len(self))
        return np.lexsort((self.id, self.ready_s))

    def some(self, positions: NDArray[np.int64]) -> Jobs:
        """Those at these positions."""
        own = self.id[positions], self.ready_s[positions], self.demand[positions], self.measured[positions]
        return Jobs(*own, sharing=self.sharing)

    def at(self, ready_s: NDArray[np.float64]) -> Jobs:
        """The same jobs at the next station, where they come at ``ready_s`` (job,)."""
        return replace(self, ready_s=ready_s)

    def after_prefill(self, ready_s: NDArray[np.float64]) -> tuple[Jobs, Jobs | None]:
        """(jobs that go on to the decode side, jobs of one token or None), both as they leave the prefill side.

        The decode side gives ``output_tokens - 1``, which leaves nothing to do for a request of one token.
        """
        on, demand = self.demand.after_prefill
        if len(on) == len(self):
            return replace(self, ready_s=ready_s, demand=demand), None
        off = np.flatnonzero(self.demand.later_tokens == 0)
        done = Jobs(self.id[off], ready_s[off], self.demand[off], self.measured[off], sharing=self.sharing)
        origin = None if self.origin is None else Origin(self.origin.replica[on], self.origin.served_s[on])
        return Jobs(self.id[on], ready_s[on], demand, self.measured[on], origin, sharing=self.sharing), done

    def joined(self, other: Jobs) -> Jobs:
        """These jobs and the others, which took another way."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("id", "ready_s", "measured"))
        identity, ready_s, measured = (np.concatenate(pair) for pair in pairs)
        return Jobs(identity, ready_s, self.demand.joined(other.demand), measured, sharing=self.sharing)


def in_order(ids: NDArray[np.int64], times_s: NDArray[np.float64]) -> bool:
    """Whether jobs are in the order of their times, those of one time in that of their ids."""
    later = times_s[1:] - times_s[:-1]
    return bool((later > 0.0).all() or ((later >= 0.0).all() and (ids[1:] > ids[:-1])[later == 0.0].all()))


@lru_cache(maxsize=4096)
def held_units(demand: Demand, kv: KvLayout) -> np.ndarray:
    """KV units that each job holds at its end beside shared ones, (job,); from its admission where KV is reserved."""
    return np.maximum(kv_units(kv, demand.kv_tokens) - shared_units(demand, kv), 0)


@lru_cache(maxsize=4096)
def shared_units(demand: Demand, kv: KvLayout) -> np.ndarray:
    """KV units of each job's prompt that the station keeps for all jobs, (job,)."""
    return kv_units(kv, demand.shared_tokens)
