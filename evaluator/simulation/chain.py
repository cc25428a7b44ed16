"""The stations of a configuration in tandem: the jobs of a chunk through one after the other, and what their clients
see.

There is no feedback: a station serves all its jobs before the next starts, and the times at which they leave are those
at which they come there. A station may change the order of the jobs; they are put together by their ids.

A prefill side hands the tokens after the first on to the decode side. Requests of one token skip all up to and with the
decode side and join the others behind it. The gap between the first token, which the client gets from the prefill side,
and the second is one of the gaps between tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from evaluator.metrics.outcomes import TokenCounts
from evaluator.metrics.sessions import SessionTable
from evaluator.metrics.stages import StageTimes
from evaluator.metrics.use import side_by_side
from evaluator.records import with_fields
from evaluator.simulation.times import stage_times
from evaluator.stations.contract import (
    ChunkJobs,
    Gaps,
    RequestTimes,
    RunKey,
    Station,
    StationVisit,
    Use,
    by_run,
    whole_table,
)
from evaluator.traffic.jobs import Jobs, Origin
from evaluator.traffic.roles import Role, hands_on


@dataclass(frozen=True, eq=False)
class HandedOn:
    """The gap between the token of a prefill side and the first of the decode side, (config, seed, request).

    Clients see it longer than the engines do, by what the frontend adds (``ChainResult.gaps``).
    """

    gap_s: np.ndarray
    sequences: np.ndarray  # how many have it: the branches of a measured request, 0 where there is no gap


@dataclass(frozen=True, eq=False)
class ChainResult:
    """What became of all requests of a chunk, as the stations have it: (config, seed, request), by the id of a request.

    Of ``times`` the arrival is at the first station; the start of the service, the first token and the replica are of
    the first station that gives tokens (of the last one, where none does), the last token of the last.
    """

    times: RequestTimes
    tokens: TokenCounts
    model: np.ndarray | None  # numbers of the models that the requests ask for; None where it is the first of all
    request_class: np.ndarray | None  # numbers of their classes; None where none are told apart
    later_wait_s: np.ndarray | None  # at stations behind the first that gives tokens, in sum; None: there are none
    measured: np.ndarray  # (request,) where it is the same for all
    uses: tuple[Use, ...]
    engine_itl: Gaps | None  # of each engine; None: none gives tokens, or one does not say when each of them came
    handed: HandedOn | None = None  # behind a prefill side: the gaps before the second token, beside those
    given_s: tuple[np.ndarray, np.ndarray] | None = None  # first and last token behind the engine; None: as above
    station_visits: tuple[StationVisit, ...] = ()  # of a pipeline
    stages: tuple[StageTimes, ...] = ()  # of a pipeline: in front of, at and behind the stations that give tokens
    sessions: SessionTable | None = None  # None: no configuration of the chunk has any of several turns

    @property
    def itl(self) -> Gaps | None:
        """All gaps between tokens, as the engines have them."""
        return self.gaps(0.0)

    def gaps(self, longer_s: np.ndarray | float) -> Gaps | None:
        """Gaps between tokens as clients see them: behind a prefill side the gap before the second token is longer.

        ``longer_s`` (config, seed, request) is how much later the tokens after the first come than the first itself,
        beyond what the engines say.
        """
        if self.engine_itl is None or self.handed is None:
            return self.engine_itl
        gap_s, weights = self.handed.gap_s + np.maximum(longer_s, 0.0), self.handed.sequences
        on = weights > 0
        ends = np.cumsum(np.count_nonzero(on, axis=-1)).tolist()
        gap_s, weights = gap_s[on], weights[on]
        handed = [(gap_s[start:end], weights[start:end]) for start, end in pairwise([0, *ends])]
        seeds = on.shape[1]
        return [
            [side_by_side([gaps, handed[config * seeds + seed]]) for seed, gaps in enumerate(of_seeds)]
            for config, of_seeds in enumerate(self.engine_itl)
        ]


JointStations = Callable[[ChunkJobs], list[StationVisit]]
"""Stations that depend on one another, as one step of the chain: the visits to all of them."""


def run_chain(stations: Sequence[Station | JointStations], jobs: ChunkJobs) -> ChainResult:
    """Serve the jobs of a chunk, all of its requests, at the stations one after the other."""
    roles = [station.role if isinstance(station, Station) else None for station in stations]
    station_visits: list[StationVisit] = []
    aside: dict[tuple[int, int], Jobs] = {}  # requests of one token while the others are at the decode side
    for position, station in enumerate(stations):
        goes_on = position + 1 < len(stations)
        if isinstance(station, Station):
            if station.deals is not None:
                jobs = station.deals(jobs)
            times, *uses = station.serve(jobs)
            station_visits.append(StationVisit(station, jobs, times, tuple(uses)))
            if goes_on:
                # Whoever leaves the last station comes nowhere.
                jobs = _onwards(station_visits[-1], aside, _splits(stations, roles, position))
            continue
        visits = station(jobs)
        station_visits += visits
        own_roles = [visit.station.role for visit in visits]
        # Jobs go from one to the next within the loop; what is asked here is only who comes out, and when.
        for phase, visit in enumerate(visits if goes_on else ()):
            jobs = _onwards(visit, aside, hands_on(own_roles, phase))
    return chain_result_of(station_visits)


def _splits(stations: Sequence[Station | JointStations], roles: Sequence[Role | None], position: int) -> bool:
    """Whether requests of one token part from the others behind a station, which go on to a decode side.

    So they do behind the prefill side, or behind the last of the stages between both, which all requests pass.
    """
    following = stations[position + 1]
    if isinstance(following, Station) and following.between:
        return False
    while getattr(stations[position], "between", False):
        position -= 1
    return hands_on(roles, position)


def _onwards(visit: StationVisit, aside: dict[tuple[int, int], Jobs], splits: bool) -> ChunkJobs:
    """The jobs of the next station; ``aside`` is filled where the requests split, and emptied where they join."""
    rejoin = visit.station.role is not None and visit.station.role.prompt_resident
    following: dict[RunKey, Jobs] = {}
    for run, arrived, left_s in _leaving(visit):
        if splits:
            on, done = arrived.after_prefill(left_s)
            if done is not None:  # the decode side has nothing to give to them, stages behind it have
                aside[run] = done
            if visit.station.sends is not None:  # what the link takes depends on the replica to which it sends
                on = with_fields(on, chosen=visit.station.sends(run, on))
        else:
            on = arrived.at(left_s)
            if rejoin and run in aside:
                on = on.joined(aside.pop(run))
        following[run] = on
    return [[following[config, seed] for seed in range(len(seeds))] for config, seeds in enumerate(visit.jobs)]


def _leaving(visit: StationVisit) -> Iterator[tuple[RunKey, Jobs, np.ndarray]]:
    """The jobs of each run, with what an engine did with them, and when they leave, (job,)."""
    times = visit.times
    for alike in visit.alike:
        left_s = alike.of(times.last_token_s)
        if visit.station.role is None:
            yield from zip(alike.runs, alike.jobs, left_s, strict=True)
            continue
        # The link behind a prefill side asks which replica sends, and how long the prompt took (layers are sent
        # meanwhile). Kept from the last station that gives tokens: a stage behind it has neither replicas nor prompts.
        replica, served_s = alike.of(times.replica), alike.of(times.first_token_s) - alike.of(times.scheduled_s)
        for number, (run, jobs) in enumerate(zip(alike.runs, alike.jobs, strict=True)):
            yield run, with_fields(jobs, origin=Origin(replica[number], served_s[number])), left_s[number]


def chain_result_of(station_visits: Sequence[StationVisit]) -> ChainResult:
    """What became of all requests that came to the first of these stations."""
    start = station_visits[0]
    giving = [visit for visit in station_visits if visit.station.role is not None]
    # A pipeline of stages alone, as of an encoder, gives its result at its last station.
    first = giving[0] if giving else station_visits[-1]
    result = ChainResult(
        # All requests come to the first station and to the first that gives tokens: their tables have one shape.
        times=replace(
            first.times,
            arrival_s=start.times.arrival_s,
            hit_tokens=None,
            host_tokens=None,
            storage_tokens=None,
            shared_tokens=None,
            visited=None,
        ),
        tokens=_tokens_of(start, first),
        model=_by_request(start, "model") if _several_models(start) else None,
        request_class=_classes(start),
        later_wait_s=_waits(station_visits[station_visits.index(first) + 1 :], first.times.arrival_s.shape),
        measured=_measured(start),
        uses=tuple(use for visit in station_visits for use in visit.uses),
        engine_itl=first.itl,
        sessions=_sessions(start),
    )
    for visit in station_visits[station_visits.index(first) + 1 :]:
        if visit.station.between:
            result = _held_between(result, visit)
        if visit.station.role is None:
            continue
        # A later visit of a pipeline that comes back to the LLM starts a new answer; on its decode side that answer
        # goes on.
        again = visit.number > 0 and visit.station.role is not None and not visit.station.role.prompt_resident
        result = _another_answer(result, visit) if again else _later_tokens(result, visit, visit.itl)
    behind = station_visits[station_visits.index(giving[-1]) + 1 :] if giving else []
    if behind:
        # What the engines gave, for the frontend, whose delays count from the engine and not from a stage behind it.
        result = replace(result, given_s=(result.times.first_token_s, result.times.last_token_s))
    for visit in behind:
        result = _behind(result, visit)
    if any(visit.station.stage is not None for visit in station_visits):
        makespan_s = result.times.last_token_s.max(axis=-1) - result.times.arrival_s.min(axis=-1)
        result = replace(result, stages=stage_times(station_visits, makespan_s), station_visits=tuple(station_visits))
    return result


def _sessions(start: StationVisit) -> SessionTable | None:
    drawn = {
        run: jobs.sharing.turns
        for run, jobs in by_run(start.jobs)
        if jobs.sharing is not None and jobs.sharing.session is not None and jobs.sharing.turns is not None
    }
    if not drawn:
        return None
    table = SessionTable.empty(start.times.arrival_s.shape)
    for run, turns in drawn.items():
        table.session[run], table.turn[run], table.last[run] = turns.session, turns.place - turns.first, turns.last
    return table


def _waits(station_visits: Sequence[StationVisit], shape: tuple[int, int, int]) -> np.ndarray | None:
    """How long requests wait at these stations before their service starts, (config, seed, request)."""
    if not station_visits:
        return None
    waits_s = np.zeros(shape)
    for visit in station_visits:
        for alike in visit.alike:
            # Layers of KV are sent before their prompt ends: service that starts before its job is ready is no wait.
            waited_s = np.maximum(alike.of(visit.times.scheduled_s) - alike.ready_s, 0.0)
            alike.put(waits_s, alike.of(waits_s) + waited_s)
    return waits_s


def _tokens_of(start: StationVisit, first: StationVisit) -> TokenCounts:
    """The tokens of the requests, with the output that the first station that gives any gives."""
    cached, hits = _shared_by_request(start, "cached_tokens"), first.times.hit_tokens
    if hits is not None:
        cached = np.array(np.broadcast_to(cached, hits.shape))
        for run, jobs in by_run(first.jobs):
            # A prefix cache adds what it found to what the workload says is cached.
            cached[run][jobs.id] += hits[run][jobs.id]
    prompt, output = _shared_by_request(start, "prompt_tokens"), _shared_by_request(first, "output_tokens")
    # A client counts the tokens of all branches, and waits for the longest path.
    if _branching(start):
        return TokenCounts(prompt, _shared_by_request(first, "made_tokens"), cached, path_tokens=output)
    times = first.times
    return TokenCounts(prompt, output, cached, times.host_tokens, times.storage_tokens, times.shared_tokens)


def _shared_by_request(visit: StationVisit, name: str) -> np.ndarray:
    """A column of the demand of the jobs: (seed, request) where all configurations share it, as the rates of a sweep
    do."""
    first = visit.jobs[0]
    others = [pair for seeds in visit.jobs[1:] for pair in zip(seeds, first, strict=True)]
    shared = others and all(jobs.demand is same.demand and jobs.id is same.id for jobs, same in others)
    if shared and all(map(whole_table, first)):
        return np.stack([getattr(jobs.demand, name) for jobs in first])
    return _by_request(visit, name)


def _by_request(visit: StationVisit, name: str) -> np.ndarray:
    """A column of the demand of the jobs, (config, seed, request)."""
    # Zeros where a request does not come; ``measured`` and the stages' masks leave those out.
    column = np.zeros(visit.times.arrival_s.shape, dtype=np.int64)
    for run, jobs in by_run(visit.jobs):
        column[run][jobs.id] = getattr(jobs.demand, name)
    return column


def _branching(visit: StationVisit) -> bool:
    # Rates of a sweep share their demands, so that each is looked at once.
    demands = {id(jobs.demand): jobs.demand for _, jobs in by_run(visit.jobs)}.values()
    return any(demand.branch_tokens is not None or demand.later_branch_tokens is not None for demand in demands)


def _several_models(visit: StationVisit) -> bool:
    return any(
        demand.model.any() for demand in {id(jobs.demand): jobs.demand for _, jobs in by_run(visit.jobs)}.values()
    )


def _classes(visit: StationVisit) -> np.ndarray | None:
    if all(jobs.classes is None for _, jobs in by_run(visit.jobs)):
        return None
    column = np.zeros(visit.times.arrival_s.shape, dtype=np.int64)
    for run, jobs in by_run(visit.jobs):
        if jobs.classes is not None:
            column[run] = jobs.classes.number
    return column


def _measured(visit: StationVisit) -> np.ndarray:
    # By value: threads that need a mask at the same time may each have built it, and statistics of one mask for all sum
    # in another order than those of a mask for each.
    distinct = list({id(jobs.measured): jobs for _, jobs in by_run(visit.jobs)}.values())
    if distinct and all(whole_table(jobs) and np.array_equal(jobs.measured, distinct[0].measured) for jobs in distinct):
        return distinct[0].measured
    measured = np.zeros(visit.times.arrival_s.shape, dtype=bool)
    for run, jobs in by_run(visit.jobs):
        measured[run][jobs.id] = jobs.measured
    return measured


def _later_tokens(result: ChainResult, visit: StationVisit, itl: Gaps | None) -> ChainResult:
    """The result with the tokens that a later engine gives, and the gap before the first of them."""
    last_token_s, tokens = result.times.last_token_s.copy(), _with_later(result, visit)
    gaps, handed = None, HandedOn(np.zeros_like(last_token_s), np.zeros_like(last_token_s))
    if result.engine_itl is not None and itl is not None:
        gaps = [
            [side_by_side(of_run) for of_run in zip(*seeds, strict=True)]
            for seeds in zip(result.engine_itl, itl, strict=True)
        ]
    for alike in visit.alike:
        # Between the last token of the side before and the first of this one: over the link and the queue of the
        # decode side.
        alike.put(handed.gap_s, alike.of(visit.times.first_token_s) - alike.of(last_token_s))
        # Each branch of a measured request has a gap of its own here.
        measured = np.stack([jobs.measured for jobs in alike.jobs])
        alike.put(handed.sequences, measured * alike.demand.branches)
        alike.put(last_token_s, alike.of(visit.times.last_token_s))
    return replace(
        result, times=replace(result.times, last_token_s=last_token_s), tokens=tokens, engine_itl=gaps, handed=handed
    )


def _with_later(result: ChainResult, visit: StationVisit) -> TokenCounts:
    """The tokens with those that a later engine gives."""
    # As the rates of a sweep share their requests: then a row of each seed is enough.
    shared = all(alike.one_seed and len(alike.runs) == len(visit.jobs) for alike in visit.alike)
    tokens, hits = _copied(result, shared), visit.times.hit_tokens
    if hits is not None:
        tokens = replace(tokens, decode_hit_tokens=np.zeros(result.times.arrival_s.shape, dtype=np.int64))
    for alike in visit.alike:
        if tokens.decode_hit_tokens is not None and hits is not None:
            alike.put(tokens.decode_hit_tokens, alike.of(hits))
        alike.put(tokens.longest, alike.of(tokens.longest) + alike.demand.output_tokens)
        if tokens.path_tokens is not None:  # then ``longest`` is another array than the output of all branches
            alike.put(tokens.output_tokens, alike.of(tokens.output_tokens) + alike.demand.made_tokens)
    return tokens


def _held_between(result: ChainResult, visit: StationVisit) -> ChainResult:
    """The result behind a stage between prefill and decode: clients see the first token when it has answered."""
    first_token_s, last_token_s = result.times.first_token_s.copy(), result.times.last_token_s.copy()
    for alike in visit.alike:
        left_s = alike.of(visit.times.last_token_s)
        for table in (first_token_s, last_token_s):
            # Who does not come may have had all tokens: others went back to the LLM once more.
            held_s = left_s
            if visit.times.visited is not None:
                held_s = np.where(alike.of(visit.times.visited), left_s, alike.of(table))
            alike.put(table, held_s)
    return replace(result, times=replace(result.times, first_token_s=first_token_s, last_token_s=last_token_s))


def _another_answer(result: ChainResult, visit: StationVisit) -> ChainResult:
    """The result with the answers of a later visit. The client sees a request's last one; those before are calls.

    How the gaps between tokens are spread over the answers is not known.
    """
    # On copies: the tables of the first answer belong to the visit that gave it.
    names, tokens = ("first_token_s", "last_token_s"), _copied(result)
    times = replace(result.times, **{name: getattr(result.times, name).copy() for name in names})
    assert tokens.cached_tokens is not None
    for run, jobs in by_run(visit.jobs):
        for name in names:
            getattr(times, name)[run][jobs.id] = getattr(visit.times, name)[run][jobs.id]
        tokens.prompt_tokens[run][jobs.id] = jobs.demand.prompt_tokens
        tokens.cached_tokens[run][jobs.id] = jobs.demand.cached_tokens
        tokens.longest[run][jobs.id] = jobs.demand.output_tokens
        if tokens.path_tokens is not None:
            tokens.output_tokens[run][jobs.id] = jobs.demand.made_tokens
    return replace(result, times=times, tokens=tokens, engine_itl=None)


def _copied(result: ChainResult, shared: bool = False) -> TokenCounts:
    """The tokens as a copy that may be written to: (config, seed, request), or as they are where ``shared``."""
    shape, columns = result.times.arrival_s.shape, vars(result.tokens).items()
    return TokenCounts(
        **{
            name: np.array(values if shared else np.broadcast_to(values, shape))
            for name, values in columns
            if values is not None
        }
    )


def _behind(result: ChainResult, visit: StationVisit) -> ChainResult:
    """The result behind a station after the last engine, which passes on each token or holds all until the last."""
    first_token_s, last_token_s = result.times.first_token_s.copy(), result.times.last_token_s.copy()
    for alike in visit.alike:
        first_s, left_s = alike.of(first_token_s), alike.of(visit.times.last_token_s)
        # A stage that streams passes each token on, later by what the whole takes it; else the answer is there at
        # once.
        seen_s = first_s + (left_s - alike.ready_s) if visit.station.streams else left_s
        if visit.times.visited is not None:
            seen_s = np.where(alike.of(visit.times.visited), seen_s, first_s)
        alike.put(first_token_s, seen_s)
        alike.put(last_token_s, left_s)
    gaps, handed = result.engine_itl, result.handed
    if gaps is not None and not visit.station.streams:
        # All tokens come at once; where only some requests were held, nobody knows which of the pooled gaps are theirs.
        # As many gaps as before, all of them 0.
        counts = np.array([[weights.sum() for _, weights in seeds] for seeds in gaps])
        if handed is not None:
            counts += handed.sequences.sum(axis=-1)
        at_once = [[(np.zeros(1), count) for count in seeds] for seeds in counts[..., None]]
        gaps, handed = at_once if visit.times.visited is None else None, None
    times = replace(result.times, first_token_s=first_token_s, last_token_s=last_token_s)
    return replace(result, times=times, engine_itl=gaps, handed=handed)
