"""Waits and service times by stage: what the stations of a chain say of each request, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from evaluator.metrics.stages import StageTimes
from evaluator.plan.pipeline import LLM_TIMES
from evaluator.stations.contract import each, shape_of

if TYPE_CHECKING:
    from evaluator.simulation.chain import Leg

PREFILL, TRANSFER, DECODE = LLM_TIMES


def stage_times(legs: Sequence[Leg], makespan_s: np.ndarray) -> tuple[StageTimes, ...]:
    """Of every stage, and of each step of a stage that has several."""
    shape = shape_of(legs[0].jobs)
    steps: dict[str, dict[str, StageTimes]] = {}  # by stage, in the order of the legs
    for leg in legs:
        if leg.station.stage is not None:
            visit = [_step(leg, shape, makespan_s)]
        elif leg.station.role is None:
            visit = [_step(leg, shape, makespan_s, TRANSFER)]
        elif leg.station.role.prompt_resident:
            visit = [_step(leg, shape, makespan_s, DECODE)]
        else:
            visit = _engine(leg, shape, makespan_s)
        for one in visit:
            of_stage = steps.setdefault(leg.station.stage or one.name, {})
            of_stage[one.name] = _once_more(of_stage[one.name], one) if one.name in of_stage else one
    found = []
    for stage, of_stage in steps.items():
        several = [*of_stage.values()]
        found += several if len(several) == 1 else [_whole(stage, several), *several]
    return tuple(found)


def _once_more(one: StageTimes, again: StageTimes) -> StageTimes:
    """With what a later visit takes, of those who come again."""
    return replace(one, wait_s=_plus(one.wait_s, again.wait_s), service_s=_plus(one.service_s, again.service_s))


def _plus(one: np.ndarray, again: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(again), one, np.nan_to_num(one) + again)


def _step(leg: Leg, shape: tuple[int, int, int], makespan_s: np.ndarray, name: str = "") -> StageTimes:
    wait_s, service_s = np.full(shape, np.nan), np.full(shape, np.nan)
    for at, one in each(leg.jobs):
        ready, started, left = (
            getattr(leg.departures, time)[at][: len(one)] for time in ("ready_s", "scheduled_s", "last_token_s")
        )
        came = slice(None) if leg.departures.visited is None else leg.departures.visited[at][: len(one)]
        started = np.maximum(started, ready)  # layers of a prompt may be sent before its first token
        wait_s[at][one.id[came]] = (started - ready)[came]
        service_s[at][one.id[came]] = (left - started)[came]
    return StageTimes(name or leg.station.name, wait_s, service_s, _utilisation(leg, makespan_s))


def _engine(leg: Leg, shape: tuple[int, int, int], makespan_s: np.ndarray) -> list[StageTimes]:
    """Of a pool that computes prompts, up to the first token, and where it goes on, from there to the last."""
    wait_s, prefill_s, decode_s = (np.full(shape, np.nan) for _ in range(3))
    for at, one in each(leg.jobs):
        ready, started, first, last = (
            getattr(leg.departures, time)[at][: len(one)]
            for time in ("ready_s", "scheduled_s", "first_token_s", "last_token_s")
        )
        wait_s[at][one.id], prefill_s[at][one.id], decode_s[at][one.id] = started - ready, first - started, last - first
    utilisation = _utilisation(leg, makespan_s)
    found = [StageTimes(PREFILL, wait_s, prefill_s, utilisation)]
    if leg.station.role is not None and not leg.station.role.first_token_only:
        found.append(StageTimes(DECODE, np.where(np.isnan(decode_s), np.nan, 0.0), decode_s, utilisation))
    return found


def _utilisation(leg: Leg, makespan_s: np.ndarray) -> np.ndarray:
    """Busy time of the servers, or of the replicas of all pools, over what they had; NaN without a number of them."""
    if not leg.station.waits or not leg.uses:
        return np.full(makespan_s.shape, np.nan)
    busy_s = sum(use.busy_s for use in leg.uses)
    servers = sum(use.replicas for use in leg.uses)
    had_s = np.asarray(servers)[:, None] * makespan_s
    return np.divide(busy_s, had_s, out=np.full(makespan_s.shape, np.nan), where=had_s > 0)


def _whole(stage: str, steps: Sequence[StageTimes]) -> StageTimes:
    """A stage from its steps; its utilisation is that of the step that has the most to do."""
    wait_s, service_s = (sum(getattr(step, name) for step in steps) for name in ("wait_s", "service_s"))
    loads = np.array([step.utilisation for step in steps])
    busiest = np.where(np.isnan(loads).all(axis=0), np.nan, np.nanmax(np.where(np.isnan(loads), -1.0, loads), axis=0))
    return StageTimes(stage, wait_s, service_s, busiest)
