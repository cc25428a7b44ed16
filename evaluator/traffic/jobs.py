"""Requests as one station sees them: when they come and what they ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.cost.memory import KvLayout, kv_units, prefix_units, suffix_units
from evaluator.records import kept_with_record, with_fields
from evaluator.traffic.classes import RequestClasses
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
    branches: int = 1
    unequal: float = 0.0  # longest context of a batch of decodes over the mean one, less 1: ``unequal_contexts``

    @staticmethod
    def of(several: Sequence[Extremes]) -> Extremes:
        """Those of several demands together."""
        # The same object, since most have a single demand, and it is kept by those who share it.
        if len(several) == 1:
            return several[0]
        columns = zip(fields(Extremes), zip(*map(astuple, several), strict=True), strict=True)
        extreme = Extremes(*((min if field.name.startswith("least_") else max)(column) for field, column in columns))
        # No limit is checked against it: the mean, which does not grow with the number of seeds.
        return replace(extreme, unequal=round(sum(of_demand.unequal for of_demand in several) / len(several), 2))

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
    output_tokens: NDArray[np.int64]  # that this station has to give; of several branches those of the longest
    cached_tokens: NDArray[np.int64]  # leading prompt tokens whose KV is there already
    compute_tokens: NDArray[np.int64]  # prompt tokens to compute
    kv_tokens: NDArray[np.int64]  # tokens in the KV cache when the job is done, had no branch left it before
    later_tokens: NDArray[np.int64]  # that a decode side behind a prefill side has to give
    shared_tokens: NDArray[np.int64]  # leading prompt tokens, whole blocks, whose KV the station keeps for all jobs
    model: NDArray[np.int64]  # the number of the model that they ask for, among those of the workload
    # (job, branch): output tokens of each branch here, ascending, 0 for one that is not here; None: one path each
    branch_tokens: NDArray[np.int64] | None = None
    later_branch_tokens: NDArray[np.int64] | None = None  # (job, branch) that a decode side has to give

    @staticmethod
    def of(tokens: Tokens, role: Role, shared_tokens: int = 0) -> Demand:
        """What requests ask of a pool of this role, where it is the first that computes them.

        ``shared_tokens``, less than any prompt, are cached as well, and the station keeps their KV for all requests.
        A prefill side samples the first tokens of all branches from the same prompt, as one sequence.
        """
        prompt, output, cached = tokens.prompt_tokens, tokens.output_tokens, tokens.cached_tokens
        branches = tokens.branch_tokens
        if role.prompt_resident:
            return _resident(prompt, output, cached, tokens.model, branches)
        shared = np.full_like(prompt, shared_tokens)
        cached = np.maximum(cached, shared)
        # The last token of a sequence is sampled and never computed.
        if role.first_token_only:
            first_token, later = np.ones_like(output), None if branches is None else branches - 1
            return Demand(
                prompt, first_token, cached, prompt - cached, prompt, output - 1, shared, tokens.model, None, later
            )
        # Of every branch the last token is sampled and never computed.
        kv = prompt + (output - 1 if branches is None else (branches - 1).sum(axis=1))
        return Demand(prompt, output, cached, prompt - cached, kv, 0 * output, shared, tokens.model, branches)

    @cached_property
    def made_tokens(self) -> NDArray[np.int64]:
        """Output tokens of all branches that this station gives, (job,); a prefill side gives one of each branch."""
        if self.branch_tokens is not None:
            return self.branch_tokens.sum(axis=1)
        later = self.later_branch_tokens
        return self.output_tokens if later is None else np.full_like(self.output_tokens, later.shape[1])

    @cached_property
    def branches(self) -> NDArray[np.int64] | int:
        """How many branches each job has here, (job,); 1 where no job has several."""
        return 1 if self.branch_tokens is None else (self.branch_tokens > 0).sum(axis=1)

    @cached_property
    def extremes(self) -> Extremes:
        """The largest of its jobs, and the smallest."""
        whole = self.prompt_tokens + self.output_tokens
        sizes = (self.compute_tokens, self.output_tokens, whole)
        most = (int(size.max(initial=0)) for size in (*sizes, self.kv_tokens, self.cached_tokens))
        least = (int(size.min()) if len(size) else 0 for size in sizes)
        return replace(
            Extremes(*most, *least),
            branches=int(np.max(self.branches, initial=1)),
            unequal=unequal_contexts(self.prompt_tokens, self.output_tokens),
        )

    @cached_property
    def after_prefill(self) -> tuple[NDArray[np.int64], Demand]:
        """(jobs that go on to the decode side, what they ask of it). Jobs of one token are done with it and stay."""
        on = np.flatnonzero(self.later_tokens > 0)
        given = (self.prompt_tokens, self.later_tokens, self.cached_tokens, self.model)
        prompt, output, cached, model = (column[on] for column in given)
        later = None if self.later_branch_tokens is None else self.later_branch_tokens[on]
        return on, _resident(prompt, output, cached, model, later)

    @cached_property
    def done_by_prefill(self) -> tuple[NDArray[np.int64], Demand]:
        """(jobs of one token, which a prefill side has done, what they asked of it)."""
        off = np.flatnonzero(self.later_tokens == 0)
        return off, self[off]

    @cached_property
    def by_model(self) -> dict[int, Demand]:
        """The jobs of every model by themselves, by its number."""
        return {int(number): self[self.model == number] for number in np.unique(self.model)}

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def with_hits(self, tokens: NDArray[np.int64]) -> Demand:
        """The same where so many tokens of each prompt, (job,), were found in a prefix cache."""
        return replace(self, cached_tokens=self.cached_tokens + tokens, compute_tokens=self.compute_tokens - tokens)

    def apart(self, jobs: NDArray[np.bool_] | bool) -> Demand:
        """The same where ``jobs``, (job,), go to prefill and decode pools; of mixed replicas it is what all ask."""
        output, kv = np.where(jobs, 1, self.output_tokens), np.where(jobs, self.prompt_tokens, self.kv_tokens)
        return replace(self, output_tokens=output, kv_tokens=kv, later_tokens=np.where(jobs, self.output_tokens - 1, 0))

    def __getitem__(self, positions: NDArray) -> Demand:
        """The demand of some jobs."""
        columns = (getattr(self, name) for name in self.__dataclass_fields__)
        chosen: list[Any] = [None if column is None else column[positions] for column in columns]
        return Demand(*chosen)

    def joined(self, other: Demand) -> Demand:
        """The demand of these jobs, then of the others."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        both: list[Any] = [None if any(column is None for column in pair) else np.concatenate(pair) for pair in pairs]
        return Demand(*both)


AT_A_TIME = 64
"""Decodes of the batch whose longest context is told: the more there are, the longer, by a tenth for twice as many."""

_MOMENTS, _JOBS = 8, 2048
"""Contexts taken of each job, and jobs that are enough to tell how unequal they are."""


def unequal_contexts(prompt: NDArray[np.int64], output: NDArray[np.int64]) -> float:
    """How much longer than the mean the longest context of AT_A_TIME decodes is expected to be, of the mean.

    A job is in as many batches as it decodes tokens, and its context grows from its prompt to all of it meanwhile. The
    batch is drawn from the contexts so weighted: the largest of n draws is at most x with the nth power of the chance
    that one is. Rounded, so that workloads alike share their designs. Of more than ``_JOBS`` jobs it takes those at
    even steps along the decoded tokens of all, in the order of their sizes: steps in the order of the jobs would meet a
    period in it (turns of sessions, classes that alternate), and pass over the few that decode for long.
    """
    start, decoded = prompt.astype(float), np.maximum(output - 1.0, 0.0)
    if not decoded.any():
        return 0.0
    weight = decoded
    if len(prompt) > _JOBS:
        by_size = np.lexsort((decoded, start + 0.5 * decoded))
        along = np.cumsum(decoded[by_size])
        some = by_size[np.searchsorted(along, along[-1] * (np.arange(_JOBS) + 0.5) / _JOBS)]
        # Each stands for as many tokens: who decodes more is taken more often.
        start, decoded, weight = start[some], decoded[some], np.ones(_JOBS)
    moments = (np.arange(_MOMENTS) + 0.5) / _MOMENTS
    contexts = (start[:, None] + decoded[:, None] * moments).ravel()
    share = np.repeat(weight / weight.sum(), _MOMENTS) / _MOMENTS
    # Not by ``@``: BLAS wakes a thread per processor for so many numbers, and these wait for one another in busy loops.
    mean = (contexts * share).sum()
    # Half the work is to sort what is hardly ever the longest: up to a quantile of 0.7 by a chance of 1e-10.
    above = contexts > mean
    below = 1.0 - share[above].sum()
    if below < 0.7:
        contexts, share = contexts[above], share[above]
    else:
        below = 0.0
    order = np.argsort(contexts)
    contexts, share = contexts[order], share[order]
    longest = np.diff(np.minimum(below + np.cumsum(share), 1.0) ** AT_A_TIME, prepend=below**AT_A_TIME)
    return round(float((contexts * longest).sum() / (mean * longest.sum())) - 1.0, 2)


def _resident(
    prompt: NDArray, output: NDArray, cached: NDArray, model: NDArray, branches: NDArray | None = None
) -> Demand:
    """Of prompts whose KV is there: they came with a first token of each branch, which is computed and takes KV too."""
    nothing = np.zeros_like(prompt)
    kv = prompt + (output if branches is None else branches.sum(axis=1))
    return Demand(prompt, output, cached, nothing, kv, nothing, nothing, model, branches)


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
    classes: RequestClasses | None = None  # of all requests, by their ids; None: all are of one
    begin_s: float | None = None  # behind a prefill side: when the first request came there

    @property
    def session(self) -> NDArray[np.int64] | None:
        """The session of each job, (job,)."""
        if self.sharing is None or self.sharing.session is None:
            return None
        # Ids of later visits to the LLM follow those of all requests (``stations.route_visits``).
        return self.sharing.session[self.id % len(self.sharing.session)]

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
        columns = self.id[positions], self.ready_s[positions], self.demand[positions], self.measured[positions]
        return Jobs(*columns, sharing=self.sharing, classes=self.classes)

    def at(self, ready_s: NDArray[np.float64]) -> Jobs:
        """The same jobs at the next station, where they come at ``ready_s`` (job,)."""
        return with_fields(self, ready_s=ready_s)

    def after_prefill(self, ready_s: NDArray[np.float64]) -> tuple[Jobs, Jobs | None]:
        """(jobs that go on to the decode side, jobs of one token or None), both as they leave the prefill side.

        The decode side gives ``output_tokens - 1``, which leaves nothing to do for a request of one token.
        """
        on, demand = self.demand.after_prefill
        begin_s = float(self.ready_s.min(initial=np.inf))
        # All go on: the demand is the cached object, which rates of a sweep share.
        if len(on) == len(self):
            return with_fields(self, ready_s=ready_s, demand=demand, begin_s=begin_s), None
        off, of_done = self.demand.done_by_prefill
        columns = self.id[off], ready_s[off], of_done, self.measured[off]
        done = Jobs(*columns, sharing=self.sharing, classes=self.classes)
        origin = None if self.origin is None else Origin(self.origin.replica[on], self.origin.served_s[on])
        columns = self._ids_of(on), ready_s[on], demand, self.measured[on]
        return Jobs(*columns, origin, sharing=self.sharing, classes=self.classes, begin_s=begin_s), done

    def _ids_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        # Where all requests are there the positions are the ids: one array, then, for all runs of a demand.
        return positions if bool((self.id == np.arange(len(self))).all()) else self.id[positions]

    def joined(self, other: Jobs) -> Jobs:
        """These jobs and the others, which took another way."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("id", "ready_s", "measured"))
        identity, ready_s, measured = (np.concatenate(pair) for pair in pairs)
        demand = self.demand.joined(other.demand)
        return Jobs(identity, ready_s, demand, measured, sharing=self.sharing, classes=self.classes)


def in_order(ids: NDArray[np.int64], times_s: NDArray[np.float64]) -> bool:
    """Whether jobs are in the order of their times, those of one time in that of their ids."""
    # Sorting costs more than this look, and most often the jobs are in order already.
    later = times_s[1:] - times_s[:-1]
    return bool((later > 0.0).all() or ((later >= 0.0).all() and (ids[1:] > ids[:-1])[later == 0.0].all()))


@kept_with_record(16)
def held_units(demand: Demand, kv: KvLayout, drafts: int = 0) -> np.ndarray:
    """KV units that each job holds at its end beside shared ones, (job,); from its admission where KV is reserved.

    Of a job with several branches those of all of them, although the shorter ones free theirs before. ``drafts``: slots
    for so many tokens more, which a sequence verifies with its last one (vLLM's lookahead slots).
    """
    if demand.branch_tokens is not None:
        return branch_units(demand, kv).sum(axis=1)
    return np.maximum(kv_units(kv, demand.kv_tokens + drafts) - shared_units(demand, kv), 0)


@kept_with_record(16)
def branch_units(demand: Demand, kv: KvLayout) -> np.ndarray:
    """KV units that are freed when each branch of a job ends, (job, branch).

    Every branch holds what it does not share with the others (``cost.memory.suffix_units``); with the longest, the last
    column, goes what all of them share: the whole blocks of the prompt.
    """
    assert demand.branch_tokens is not None
    prompt, is_branch = demand.prompt_tokens[:, None], demand.branch_tokens > 0
    resident = demand.compute_tokens[:, None] == 0
    tokens = prompt + demand.branch_tokens - np.where(resident, 0, 1)  # the last token is sampled and never computed
    units = np.where(is_branch, suffix_units(kv, prompt, tokens), 0)
    # The prompt's whole blocks go with the last branch that needs them.
    units[:, -1] += np.maximum(prefix_units(kv, demand.prompt_tokens) - shared_units(demand, kv), 0)
    return units


@kept_with_record(16)
def shared_units(demand: Demand, kv: KvLayout) -> np.ndarray:
    """KV units of each job's prompt that the station keeps for all jobs, (job,)."""
    return kv_units(kv, demand.shared_tokens)


@kept_with_record(16)
def prompt_units(demand: Demand, kv: KvLayout, resident: bool) -> np.ndarray:
    """KV units of each job's prompt, with those that it shares, (job,).

    ``resident``: a job of a decode pool comes with its first token, which takes a place beside the prompt.
    """
    return kv_units(kv, demand.prompt_tokens + resident)
