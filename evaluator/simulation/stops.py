"""The routes of requests through stages as the stops of an event loop, and what became of them there as visits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.plan.route import RequestRoutes, RouteSizes
from evaluator.stages import Served, Shipped
from evaluator.stations.engine.common.rings import NONE
from evaluator.stations.engine.preemptive import AT_HOME, AT_LLM, Stops
from evaluator.stations.route_visits import RouteRun, StepVisit
from evaluator.stations.stage_steps import StepStation, is_delay, queue_of, seconds_of


class StepStops(NamedTuple):
    """One step of one visit to a stage: the requests that come, and of each the stop of its service and its last."""

    place: int
    step: int
    ids: NDArray[np.int64]
    service: NDArray[np.int64]
    last: NDArray[np.int64]  # another one where bytes arrive later than they were sent


class RouteStops(NamedTuple):
    """The stops of all requests of a lane, one request behind the other, as of ``preemptive.Stops``."""

    first: NDArray[np.int64]  # (request,)
    llm: NDArray[np.int64]  # (job,): visits to the LLM
    request: NDArray[np.int64]  # (job,)
    queue: NDArray[np.int64]  # (stop,) as the next two
    seconds: NDArray[np.float64]
    number: NDArray[np.int64]
    servers: list[int]  # (queue,)
    visits: list[StepStops | int]  # in their order; a number is a visit to the LLM

    def in_shape(self, width: int, sizes: RouteSizes | None) -> Stops:
        """As the engine is given them."""
        assert sizes is not None

        def filled(values: Sequence[Any] | NDArray[Any], size: int, kind: type = np.int32) -> np.ndarray:
            return np.concatenate([np.asarray(values, kind), np.zeros(size - len(values), kind)])

        return Stops(
            filled(self.first, width),
            filled(self.llm, width),
            filled(self.request, width),
            filled(self.queue, sizes.stops),
            filled(self.seconds, sizes.stops, np.float64),
            filled(self.number, sizes.stops),
            filled(self.servers, sizes.queues),
        )

    def after_run(self, began_s: NDArray[np.float64]) -> RouteRun:
        """What became of the requests; ``began_s`` as of ``LaneResult``."""
        left_s = began_s[: len(self.seconds)] + self.seconds
        visits = [
            visit
            if isinstance(visit, int)
            else StepVisit(
                visit.place,
                visit.step,
                visit.ids,
                began_s[visit.service],
                left_s[visit.last],
                0,
                float(self.seconds[visit.service].sum()),
            )
            for visit in self.visits
        ]
        return RouteRun(began_s[self.first], visits)


class _Stop(NamedTuple):
    """A stop of some requests. The figures are one for all, or (request,) in their order."""

    ids: NDArray[np.int64]
    queue: NDArray[np.int64] | int
    seconds: NDArray[np.float64] | float
    number: NDArray[np.int64] | int


def route_stops(routes: RequestRoutes, step_stations: Any, config: int) -> RouteStops:
    """The stops of all requests on their routes; ``step_stations`` gives the step of a stage by their numbers.

    ``config`` is the position of the configuration in its chunk.
    """
    count = len(routes.tokens.prompt_tokens)
    everybody, last_job = np.arange(count), np.arange(count)
    stops, servers = [_Stop(everybody, NONE, 0.0, 0)], dict[Hashable, tuple[int, int]]()
    marks: list[tuple[StepStation, NDArray[np.int64], int, int] | int] = []
    jobs, answers, number = 0, 0, 0
    for visit in routes.visits:
        ids = visit.ids
        if visit.stage is None:
            last_job[ids] = np.arange(jobs, jobs + len(ids))
            marks.append(answers)
            stops.append(_Stop(ids, AT_LLM, 0.0, last_job[ids]))
            jobs, answers = jobs + len(ids), answers + 1
            continue
        assert visit.work is not None
        for position, work in enumerate(visit.work.steps):
            step_station = step_stations(visit.stage, position)
            steps = _stops_of(step_station, config, work, ids, count, number, servers)
            marks.append((step_station, steps[0].ids, len(stops), len(stops) + len(steps) - 1))
            stops += steps
            number += 1
    stops.append(_Stop(everybody, AT_HOME, 0.0, last_job))
    return _in_rows(stops, marks, [of_queue for _, of_queue in servers.values()])


def _stops_of(
    step_station: StepStation,
    config: int,
    work: Any,
    ids: NDArray[np.int64],
    count: int,
    number: int,
    queues: dict[Hashable, tuple[int, int]],
) -> list[_Stop]:
    """The stops of a step of a visit, the ``number``-th of all. Queues that are new are added, with their servers."""
    queue, shared = queue_of(work, count), step_station.queues_at(config)
    ids = ids[queue[ids] >= 0]
    seconds = seconds_of(step_station, config, work, count)[ids]
    servers = step_station.servers(config) if isinstance(work, Served) else 1
    numbers: NDArray[np.int64] | int = NONE
    if not is_delay(work) and servers < count:
        numbers = np.empty(len(ids), np.int64)
        for own in np.unique(queue[ids]).tolist():
            numbers[queue[ids] == own], _ = queues.setdefault((shared, own), (len(queues), servers))
    stops = [_Stop(ids, numbers, seconds, number)]
    if isinstance(work, Shipped) and work.latency_s > 0:
        stops.append(_Stop(ids, NONE, work.latency_s * step_station.factor(config, "link_latency"), number))
    return stops


def _in_rows(
    stops: list[_Stop], marks: list[tuple[StepStation, NDArray[np.int64], int, int] | int], servers: list[int]
) -> RouteStops:
    """Stops of all requests one request behind the other."""
    owner = np.concatenate([stop.ids for stop in stops])
    order = np.argsort(owner, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    of_stop = np.split(places, np.cumsum([len(stop.ids) for stop in stops])[:-1])

    def column(name: str) -> np.ndarray:
        return np.concatenate([np.broadcast_to(getattr(stop, name), len(stop.ids)) for stop in stops])[order]

    at_llm = [number for number, stop in enumerate(stops) if isinstance(stop.queue, int) and stop.queue == AT_LLM]
    visits: list[StepStops | int] = []
    for mark in marks:
        if isinstance(mark, int):
            visits.append(mark)
            continue
        step_station, ids, service, last = mark
        visits.append(StepStops(step_station.place, step_station.number, ids, of_stop[service], of_stop[last]))
    return RouteStops(
        of_stop[0],
        np.concatenate([of_stop[number] for number in at_llm]),
        np.concatenate([stops[number].ids for number in at_llm]),
        column("queue"),
        column("seconds"),
        column("number"),
        servers,
        visits,
    )
