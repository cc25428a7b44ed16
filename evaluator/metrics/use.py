"""What a chunk of configurations used of a station: what stations hand to the metrics beside the times of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evaluator.cost.quantities import PEAKS

# One (gap_s, weight) pair: ``weight`` successive tokens came ``gap_s`` seconds after the token before.
WeightedGaps = tuple[np.ndarray, np.ndarray]


def side_by_side(parts: Sequence[WeightedGaps]) -> WeightedGaps:
    """All gaps, in the order of the parts: as quick as it gets, and all that statistics ask for."""
    parts = [part for part in parts if len(part[0])]
    if len(parts) < 2:
        return parts[0] if parts else (np.zeros(0), np.zeros(0))
    values, weights = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    return values, weights


def pooled(parts: Sequence[WeightedGaps]) -> WeightedGaps:
    """All gaps together, equal ones once."""
    values, weights = side_by_side(parts)
    if not len(values):
        return values, weights
    order = values.argsort()
    values, weights = values[order], weights[order]
    # Equal gaps stand together after the sort: their weights are added run by run.
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return values[begins], np.add.reduceat(weights, begins)


class PoolTotals(NamedTuple):
    """What the replicas of a pool did, or their data-parallel ranks, in sum: the one record of it in all engines.

    Of a chunk (config, seed); of what one lane, or one run of the reference, has done one number each.
    """

    busy_s: np.ndarray
    iterations: np.ndarray
    preemptions: np.ndarray
    experts_touched: np.ndarray  # fraction of the routed experts, summed over the iterations
    kv_unit_s: np.ndarray  # KV units in use, integrated over time
    kv_units_max: np.ndarray  # most units in use at once on any replica
    decoded: np.ndarray  # with drafts: decode iterations, summed over the sequences; else 0
    decoded_tokens: np.ndarray  # and the output tokens that they gave
    peaks: np.ndarray  # (..., quantity): largest of ``quantities.PEAKS`` in any iteration, under a fitted cost

    @staticmethod
    def empty(configs: int, seeds: int) -> PoolTotals:
        """Zeros, to be filled."""
        arrays: list[np.ndarray] = [np.zeros((configs, seeds)) for _ in range(8)]
        arrays.append(np.zeros((configs, seeds, len(PEAKS))))
        return PoolTotals(*arrays)

    @staticmethod
    def of(done: Any) -> PoolTotals:
        """What an engine says under these names of a lane or of a run."""
        return PoolTotals(*(getattr(done, name) for name in PoolTotals._fields))

    @staticmethod
    def unknown(configs: int, seeds: int) -> PoolTotals:
        """NaN, but for preemptions: of an engine that follows requests, not iterations, and preempts none."""
        unknown, empty = np.full((configs, seeds), np.nan), PoolTotals.empty(configs, seeds)
        names = ("busy_s", "iterations", "experts_touched", "kv_unit_s", "kv_units_max")
        return empty._replace(**dict.fromkeys(names, unknown))

    def add(self, at: tuple[Any, Any], done: PoolTotals) -> None:
        """Add what replicas did in a configuration and seed, or in those of every lane, (lane,) each; ``peaks`` may be
        empty."""
        # ``ufunc.at`` where an indexed ``+=`` would count one of several lanes of one run.
        for name in set(PoolTotals._fields) - {"kv_units_max", "peaks"}:
            np.add.at(getattr(self, name), at, getattr(done, name))
        np.maximum.at(self.kv_units_max, at, done.kv_units_max)
        # Empty under a roofline, which holds for any batch.
        if np.shape(done.peaks)[-1]:
            np.maximum.at(self.peaks, at, done.peaks)

    def rows(self, rows: np.ndarray | slice) -> PoolTotals:
        """Those of some configurations."""
        return PoolTotals(*(column[rows] for column in self))

    def joined(self, other: PoolTotals) -> PoolTotals:
        """Those of this pool and of another, as if they were one."""
        sums = PoolTotals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))
        # A largest value is no sum over pools.
        most = {name: np.maximum(getattr(self, name), getattr(other, name)) for name in ("kv_units_max", "peaks")}
        return sums._replace(**most)


WORK = ("flops", "bytes", "executed_flops", "executed_bytes")
"""Columns of ``Use`` that are sums over what was done."""


@dataclass(frozen=True, eq=False)
class Use:
    """What a chunk of configurations used of a station. Rows of configurations that cannot run may hold anything.

    A station without devices (a delay) has zeros; NaN is what is not known.
    """

    name: str
    devices: np.ndarray  # (config,): of all replicas together
    replicas: np.ndarray  # (config,)
    peak_flops: np.ndarray  # (config,): FLOP/s of one device
    peak_bandwidth: np.ndarray  # (config,): byte/s of one device
    power_w: np.ndarray  # (config,): of one device that works
    idle_power_w: np.ndarray  # (config,): of one device that waits
    power_law: np.ndarray  # (config, figure): the ``PowerLaw`` of one device
    usd_per_hour: np.ndarray  # (config,): of one device
    kv_capacity_units: np.ndarray  # (config,): of one replica; 0 without a KV cache
    kv_unit_bytes: np.ndarray  # (config,): on one device
    totals: PoolTotals  # (config, seed): sums over the replicas
    flops: np.ndarray  # (config, seed): useful FLOPs of the model
    bytes: np.ndarray  # (config, seed): useful bytes of the model
    executed_flops: np.ndarray  # (config, seed): with those that kernels fill up experts with
    executed_bytes: np.ndarray  # (config, seed): likewise
    itl: Sequence[Sequence[WeightedGaps]] | None = None  # [config][seed]: gaps between the tokens that it gave
    # [config][seed]: from when until when each replica was there, (replica, 2), of a fleet whose replicas come and go
    # (``replicas`` are then the most), from a station infinite until the end of the run; None: all of them all the
    # time.
    alive: Sequence[Sequence[np.ndarray | None]] | None = None
    up: Sequence[Sequence[np.ndarray | None]] | None = None  # the same of the times in which replicas that fail serve

    def until(self, last_s: np.ndarray) -> Use:
        """The same, with replicas that stay to the end (``alive`` until infinity) until ``last_s``, (config, seed)."""
        if self.alive is None:
            return self
        pairs = zip(self.alive, last_s, strict=True)
        # A run that is stuck has no end, and ``fmin`` keeps what is finite beside NaN.
        return replace(
            self,
            alive=[
                [
                    spans if spans is None else np.fmin(spans, [np.inf, end_s])
                    for spans, end_s in zip(*pair, strict=True)
                ]
                for pair in pairs
            ],
        )

    def replica_s(self, makespan_s: np.ndarray) -> np.ndarray:
        """Seconds that replicas were there, in sum, (config, seed), of runs that took ``makespan_s``."""
        return _in_spans(self.alive, self.replicas[:, None] * makespan_s)

    def up_s(self, makespan_s: np.ndarray) -> np.ndarray:
        """Seconds of these in which they served; all of them where none fails."""
        return _in_spans(self.up, self.replica_s(makespan_s))

    def devices_there(self, makespan_s: np.ndarray) -> np.ndarray:
        """Devices that are there, on the mean over runs of ``makespan_s``, (config, seed)."""
        devices = np.broadcast_to(self.devices[:, None], makespan_s.shape)
        if self.alive is None:
            return devices
        whole_s = self.replicas[:, None] * makespan_s
        share = np.divide(self.replica_s(makespan_s), whole_s, out=np.full(whole_s.shape, np.nan), where=whole_s > 0)
        return devices * share

    def figure(self, name: str) -> np.ndarray:
        """An array by its name, such as ``devices``, or ``iterations`` of the totals."""
        return getattr(self.totals if name in PoolTotals._fields else self, name)


def _in_spans(spans: Sequence[Sequence[np.ndarray | None]] | None, otherwise_s: np.ndarray) -> np.ndarray:
    """Seconds of all spans of each run, (config, seed); ``otherwise_s``, of the same shape, of runs without any."""
    if spans is None:
        return otherwise_s
    seconds = otherwise_s.copy()
    for run in np.ndindex(seconds.shape):
        of_run = spans[run[0]][run[1]]
        if of_run is not None:
            seconds[run] = (of_run[:, 1] - of_run[:, 0]).sum()
    return seconds
