"""Waits and service times by stage: what the stations of a chain say of each request, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.stages import StageTimes
from evaluator.plan.pipeline import LLM_TIMES
from evaluator.stations.contract import StationVisit, by_run, table_shape

PREFILL, TRANSFER, DECODE = LLM_TIMES


@dataclass(frozen=True, eq=False)
class Span:
    """When requests came to a stage, their service began and they left; (config, seed, request), NaN for requests that
    did not come."""

    name: str
    came_s: np.ndarray
    began_s: np.ndarray
    left_s: np.ndarray


def spans_of(visit: StationVisit, shape: tuple[int, int, int]) -> list[Span]:
    """One span of a station; of an engine's pool that computes prompts and goes on with them, prefill and decode."""
    role = visit.station.role
    came_s, began_s, first_s, left_s = _by_request(visit, shape)
    began_s = np.maximum(began_s, came_s)  # layers of a prompt may be sent before its first token
    if visit.station.stage is not None:
        return [Span(visit.station.name, came_s, began_s, left_s)]
    if role is None or role.prompt_resident:
        return [Span(TRANSFER if role is None else DECODE, came_s, began_s, left_s)]
    prefill = [Span(PREFILL, came_s, began_s, first_s)]
    if not role.first_token_only:
        return [*prefill, Span(DECODE, first_s, first_s, left_s)]
    whole = left_s > first_s
    if not whole.any():
        return prefill
    # Of mixed pools beside prefill pools, whose requests have all their tokens here.
    given_s = np.where(whole, first_s, np.nan)
    return [*prefill, Span(DECODE, given_s, given_s, np.where(whole, left_s, np.nan))]


def _by_request(visit: StationVisit, shape: tuple[int, int, int]) -> list[np.ndarray]:
    """The times of a visit, NaN of requests that do not come; not copied where all do."""
    values = [getattr(visit.times, name) for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")]
    # The usual case, in which copies would be most of what a chunk needs.
    if visit.times.visited is None and all(
        alike.are_first and len(alike.jobs[0]) == shape[-1] == values[0].shape[-1] for alike in visit.alike
    ):
        return values
    came = np.zeros(shape, dtype=bool)
    for run, run_jobs in by_run(visit.jobs):
        came[run][run_jobs.id] = True if visit.times.visited is None else visit.times.visited[run][run_jobs.id]
    tables = [np.full(shape, np.nan) for _ in values]
    for table, value in zip(tables, values, strict=True):
        width = value.shape[-1]  # narrower where the last requests do not come
        table[..., :width][came[..., :width]] = value[came[..., :width]]
    return tables


def stage_times(station_visits: Sequence[StationVisit], makespan_s: np.ndarray) -> tuple[StageTimes, ...]:
    """Of every stage, and of each step of a stage that has several."""
    shape = table_shape(station_visits[0].jobs)
    steps: dict[str, dict[str, StageTimes]] = {}  # by stage, in the order of the visits
    for visit in station_visits:
        utilisation = _utilisation(visit, makespan_s)
        for span in spans_of(visit, shape):
            of_span = StageTimes(span.name, span.began_s - span.came_s, span.left_s - span.began_s, utilisation)
            of_stage = steps.setdefault(visit.station.stage or of_span.name, {})
            of_stage[of_span.name] = (
                _once_more(of_stage[of_span.name], of_span) if of_span.name in of_stage else of_span
            )
            # Decodes of mixed pools beside prefill pools were told of with these; the decode side has its own replicas.
            if visit.station.role is not None and visit.station.role.prompt_resident:
                of_stage[of_span.name] = replace(of_stage[of_span.name], utilisation=utilisation)
    times = []
    for stage, of_stage in steps.items():
        several = [*of_stage.values()]
        times += several if len(several) == 1 else [_whole(stage, several), *several]
    return tuple(times)


def _once_more(first: StageTimes, again: StageTimes) -> StageTimes:
    """Times of a stage with what a later visit of the same requests takes."""
    return replace(first, wait_s=_plus(first.wait_s, again.wait_s), service_s=_plus(first.service_s, again.service_s))


def _plus(first: np.ndarray, again: np.ndarray) -> np.ndarray:
    # NaN, who came at neither visit, stays NaN; who came once has that visit's time.
    return np.where(np.isnan(again), first, np.nan_to_num(first) + again)


def _utilisation(visit: StationVisit, makespan_s: np.ndarray) -> np.ndarray:
    """Busy time of the servers, or of the replicas of all pools, over what they had; NaN without a number of them."""
    if not visit.station.waits or not visit.uses:
        return np.full(makespan_s.shape, np.nan)
    busy_s = sum(use.totals.busy_s for use in visit.uses)
    servers = sum(use.replicas for use in visit.uses)
    # A station that had no time, since all came and left at once, has no utilisation.
    had_s = np.asarray(servers)[:, None] * makespan_s
    return np.divide(busy_s, had_s, out=np.full(makespan_s.shape, np.nan), where=had_s > 0)


def _whole(stage: str, steps: Sequence[StageTimes]) -> StageTimes:
    """A stage from its steps; its utilisation is that of the step that has the most to do."""
    wait_s, service_s = (sum(getattr(step, name) for step in steps) for name in ("wait_s", "service_s"))
    loads = np.array([step.utilisation for step in steps])
    # nanmax of nothing but NaN warns, hence -1 in their place, which is below any load.
    busiest = np.where(np.isnan(loads).all(axis=0), np.nan, np.nanmax(np.where(np.isnan(loads), -1.0, loads), axis=0))
    return StageTimes(stage, wait_s, service_s, busiest)
