"""The stages of one configuration under one seed as stations of the reference, and the way of every request.

A request visits stations, some of them several times: an agent comes back to the LLM, stages share a pool. So every
visit has an index of its own, under which the station knows the request: ``number x requests + request``, where visits
to the LLM have the first numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.plan.route import BETWEEN, RequestRoutes, StageVisitPlan
from evaluator.reference.network import EventStation
from evaluator.reference.request import Request
from evaluator.reference.stations.batch import BulkServers
from evaluator.reference.stations.delay import DelayStation as DelayStation
from evaluator.reference.stations.fifo import Fifo
from evaluator.reference.stations.parallel_sequences import ParallelSequences
from evaluator.stages import Batched, Pass, Served, Shipped
from evaluator.stations.route_visits import StepVisit
from evaluator.stations.stage_steps import StepStation, is_delay, queue_of, seconds_of

OpenPool = Callable[[int], Any]
"""Gives the side of an engine's pool for stages by its number, without parts, and its replicas with their gaps."""


@dataclass(eq=False)
class StepVisits:
    """One step of one visit: the ``stations`` that a request passes for it, by its queue, and under which index.

    ``left`` are the stations from which it departs: others than those where its service starts, if bytes arrive later.
    """

    place: int  # of the stage
    step: int
    base: int  # index of request 0
    ids: NDArray[np.int64]
    starts: dict[int, EventStation]  # by request
    left: dict[int, EventStation]
    service_s: float = 0.0
    batches: BulkServers | None = None  # the servers, where it is the first of their visits

    @property
    def busy_s(self) -> float:
        """Seconds of its servers, after the run."""
        return self.service_s if self.batches is None else self.batches.busy_s

    def told(self) -> StepVisit:
        """After the run, as all engines tell it."""
        rows = np.array([self._times(request) for request in self.ids.tolist()], dtype=float).reshape(-1, 3)
        began_s, left_s, replica = rows.T
        return StepVisit(self.place, self.step, self.ids, began_s, left_s, replica.astype(np.int64), self.busy_s)

    def _times(self, request: int) -> tuple[float, float, int]:
        """When the service of a request began and it left, and the replica that served it."""
        index, start, left = self.base + request, self.starts[request], self.left[request]
        if isinstance(start, ParallelSequences):
            parts = [start.phase.parts[number] for number in start.sequences[index]]
            last = max(parts, key=lambda part: part.last_token_s)
            return min(part.scheduled_s for part in parts), last.last_token_s, last.replica
        return start.visits[index].started_s, left.visits[index].left_s, 0  # type: ignore[attr-defined]


@dataclass(eq=False)
class Routes:
    """All stations of the stages, and the way of every request: (station, index) of each visit, by request."""

    step_visits: list[StepVisits | int] = field(default_factory=list)  # in their order; a number is a visit to the LLM
    stations: dict[Hashable, EventStation] = field(default_factory=dict)
    steps: list[list[tuple[EventStation, int]]] = field(default_factory=list)
    passes: dict[Hashable, Any] = field(default_factory=dict)  # runs of pools, by the pool that they share


def routes_of(
    routes: RequestRoutes,
    step_stations: Callable[[int, int], StepStation],
    config: int,
    llm: Sequence[EventStation],
    open_pool: OpenPool,
) -> Routes:
    """The way of every request through the stations of the LLM, ``llm``, and those of its stages.

    ``step_stations`` gives the step of a stage by their numbers; ``config`` is the position of the configuration in its
    chunk.
    """
    count = len(routes.tokens.prompt_tokens)
    step_routes = Routes(steps=[[] for _ in range(count)])
    site = _Site(step_routes, routes, config, open_pool)
    # Indices of visits to the LLM come first, those of steps behind them: so that no index of one is that of
    # another.
    answers, number = 0, len(routes.llm)

    def pass_llm(visit: StageVisitPlan, stations: Sequence[EventStation]) -> None:
        for request in visit.ids.tolist():
            step_routes.steps[request] += [(station, answers * count + request) for station in stations]

    computed: StageVisitPlan | None = None  # a visit to the LLM of which the decode side is still to come
    for visit in (*routes.visits, None):
        between = visit is not None and visit.stage is not None and site.between(step_stations, visit.stage)
        if computed is not None and not between:
            pass_llm(computed, llm[1:])
            computed, answers = None, answers + 1
        if visit is None:
            break
        if visit.stage is None:
            pass_llm(visit, llm[:1])
            step_routes.step_visits.append(answers)
            computed = visit
            continue
        assert visit.work is not None
        for step, work in enumerate(visit.work.steps):
            step_station = step_stations(visit.stage, step)
            step_visit = site.step_visit(step_station, visit, work, number * count)
            step_routes.step_visits.append(step_visit)
            number += 1
            for request in step_visit.ids.tolist():
                index = step_visit.base + request
                step_routes.steps[request].append((step_visit.starts[request], index))
                if step_visit.left[request] is not step_visit.starts[request]:
                    step_routes.steps[request].append((step_visit.left[request], index))
    return step_routes


@dataclass(frozen=True, eq=False)
class _Site:
    """Where the stations of one configuration are made, if they are not there yet, with what they need to know."""

    step_routes: Routes
    routes: RequestRoutes
    config: int
    open_pool: OpenPool

    def between(self, step_stations: Callable[[int, int], StepStation], stage: int) -> bool:
        """Whether a stage stands between prefill and decode."""
        return step_stations(stage, 0).stage(self.config).where == BETWEEN

    def step_visit(self, step_station: StepStation, visit: StageVisitPlan, work: Any, base: int) -> StepVisits:
        """The stations of a step for the requests of a visit."""
        assert visit.stage is not None
        shared, queues = step_station.queues_at(self.config), queue_of(work, len(self.routes.tokens.prompt_tokens))
        ids = visit.ids[queues[visit.ids] >= 0]
        step_visit = StepVisits(visit.stage, step_station.number, base, ids, {}, {})
        if isinstance(work, Pass):
            station = _engine(self.step_routes, shared, step_station.planned(self.config).station, self.open_pool)
            _add_parts(station, work, self.routes, visit, step_station.number, base)
            step_visit.starts = step_visit.left = dict.fromkeys(ids.tolist(), station)
        elif isinstance(work, Batched):
            self._batched(step_visit, step_station, work, shared)
        else:
            self._served(step_visit, step_station, work, shared, queues)
        return step_visit

    def _batched(self, step_visit: StepVisits, step_station: StepStation, work: Batched, shared: Hashable) -> None:
        """Servers in batches: one station for all visits that share them."""
        stations = self.step_routes.stations
        if shared not in stations:
            step_visit.batches = BulkServers(
                step_station.servers(self.config), np.asarray(work.seconds).tolist(), work.max_wait_s
            )
            stations[shared] = step_visit.batches
        step_visit.starts = step_visit.left = dict.fromkeys(step_visit.ids.tolist(), stations[shared])

    def _served(
        self,
        step_visit: StepVisits,
        step_station: StepStation,
        work: Any,
        shared: Hashable,
        queues: NDArray[np.int64],
    ) -> None:
        """Servers one by one, links and delays: a station for each queue, and one for the latency of a link."""
        stations, config = self.step_routes.stations, self.config
        seconds = seconds_of(step_station, config, work, len(queues))
        servers = step_station.servers(config) if isinstance(work, Served) else 1
        for request in step_visit.ids.tolist():
            key = shared, int(queues[request])
            if key not in stations:
                stations[key] = DelayStation({}) if is_delay(work) else Fifo(servers, {})
            step_visit.starts[request] = stations[key]
            stations[key].seconds[step_visit.base + request] = float(seconds[request])  # type: ignore[attr-defined]
        step_visit.left, step_visit.service_s = dict(step_visit.starts), float(seconds[step_visit.ids].sum())
        # A link is busy while it sends, and not while the bytes travel: the latency is a station of its own behind
        # it.
        if isinstance(work, Shipped) and work.latency_s > 0:
            own = step_station.place, step_station.number
            later = stations.setdefault((own, "latency"), DelayStation({}))
            latency_s = work.latency_s * step_station.factor(config, "link_latency")
            times = ((step_visit.base + request, latency_s) for request in step_visit.ids.tolist())
            later.seconds.update(times)  # type: ignore[attr-defined]
            step_visit.left = dict.fromkeys(step_visit.ids.tolist(), later)


def _engine(step_routes: Routes, shared: Hashable, number: int | None, open_pool: OpenPool) -> ParallelSequences:
    if shared not in step_routes.stations:
        step_routes.passes[shared] = run = open_pool(number)  # type: ignore[arg-type]
        step_routes.stations[shared] = ParallelSequences(run.phase, {})
    station = step_routes.stations[shared]
    assert isinstance(station, ParallelSequences)
    return station


def _add_parts(
    station: ParallelSequences, work: Pass, routes: RequestRoutes, visit: StageVisitPlan, step: int, base: int
) -> None:
    """Add the sequences of a visit's requests. Indices of parts go on from those of the visits before."""
    demand = routes.asked(visit, step)
    parts, sequences = station.phase.parts, station.sequences
    first = len(parts)
    rows = zip(
        demand.compute_tokens.tolist(), demand.prompt_tokens.tolist(), demand.output_tokens.tolist(), strict=True
    )
    for number, row in enumerate(rows, first):
        parts[number] = Request(number, 0.0, *row, 0)  # type: ignore[index]
    for position, request in enumerate(visit.ids.tolist()):
        start = first + position * work.sequences
        sequences[base + request] = range(start, start + work.sequences)  # type: ignore[index]


class RouteFollower:
    """Sends every request on its way, from the clients back to the clients (``reference.network.Onward``)."""

    def __init__(self, step_routes: Routes, clients: EventStation, requests: Sequence[Request]) -> None:
        self._routes, self._clients, self._requests = step_routes, clients, requests
        self._next = [0] * len(requests)
        self._records: dict[int, Request] = {}

    def __call__(self, station: EventStation, request: Request) -> tuple[EventStation, Request]:
        """The next station, and the record under whose index it knows the request."""
        number = request.index % len(self._requests)
        steps, step = self._routes.steps[number], self._next[number]
        self._next[number] += 1
        if step == len(steps):
            # Back at the clients a request is itself again, by whose number they know who sent it.
            return self._clients, self._requests[number]
        following, index = steps[step]
        return following, request if request.index == index and station is not self._clients else Request(
            index, 0.0, 1, 1, 1, 0
        )
