"""Outcomes for tests: a FIFO server per configuration, small enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from evaluator.metrics import Outcomes, RequestTimes, TokenCounts
from evaluator.metrics.power import H100
from evaluator.metrics.use import PoolTotals, Use


def fifo(arrival_s: np.ndarray, service_s: np.ndarray) -> np.ndarray:
    """Start times of a single FIFO server (Lindley), any leading axes."""
    before = np.cumsum(service_s, axis=-1) - service_s
    return np.maximum.accumulate(arrival_s - before, axis=-1) + before


def outcomes(
    configs: int = 3, seeds: int = 2, requests: int = 200, load: float = 0.5, warmup: int = 20, **changes: Any
) -> Outcomes:
    """Poisson arrivals, unit service: first token after half of it, last token at its end."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1.0 / load, (configs, seeds, requests)), axis=-1)
    start = fifo(arrival, np.ones_like(arrival))
    base = Outcomes(
        times=RequestTimes(arrival, start, start + 0.5, start + 1.0, np.zeros(arrival.shape, np.int32)),
        tokens=TokenCounts(np.full((seeds, requests), 100), np.full((seeds, requests), 11)),
        measured=np.arange(requests) >= warmup,
        makespan_s=start[..., -1] + 1.0,
        stations=(use(configs, seeds, requests),),
        open_loop=np.ones(configs, dtype=bool),
        users=np.zeros(configs, dtype=int),
        one_batch=np.zeros(configs, dtype=bool),
        status=np.full(configs, "ok"),
        engine=np.full(configs, "iteration"),
        provenance=np.full(configs, "datasheet"),
        calibration_set=np.full(configs, "datasheet"),
        model_error=np.tile([0.04, 0.05, 0.04], (configs, 3, 1)),
        model_error_basis=np.full(configs, "a data sheet"),
        finds_warmup=np.zeros(configs, dtype=bool),
        asked_rps=np.full(configs, np.nan),
    )
    return changed(base, **changes)


def changed(whole: Outcomes, **changes: Any) -> Outcomes:
    """With other columns, those of the tables of requests among them, by their names."""
    times = {name: changes.pop(name) for name in vars(whole.times) if name in changes}
    tokens = {name: changes.pop(name) for name in vars(whole.tokens) if name in changes}
    return replace(whole, times=replace(whole.times, **times), tokens=replace(whole.tokens, **tokens), **changes)


def use(configs: int = 1, seeds: int = 1, requests: int = 3, **changes: Any) -> Use:
    """A pool of one replica on two devices, whose KV cache has 100 units of 1 byte."""
    run, config = np.ones((configs, seeds)), np.ones(configs)
    totals = PoolTotals.empty(configs, seeds)._replace(
        busy_s=run * requests,
        iterations=run * 11 * requests,
        kv_unit_s=run * 25 * requests,
        kv_units_max=run * 50,
        decoded=run * 40,
        decoded_tokens=run * 100,
    )
    totals = totals._replace(**{name: changes.pop(name) for name in PoolTotals._fields if name in changes})
    base = Use(
        name="engine",
        devices=config * 2,
        replicas=config,
        peak_flops=config,
        peak_bandwidth=config,
        power_w=config * 700.0,
        idle_power_w=config * 100.0,
        power_law=np.tile(H100, (configs, 1)),
        usd_per_hour=config * 3.6,
        kv_capacity_units=config * 100,
        kv_unit_bytes=config,
        totals=totals,
        flops=run * requests * 0.25,
        bytes=run * requests * 0.5,
        executed_flops=run * requests * 0.25,
        executed_bytes=run * requests * 0.5,
    )
    return replace(base, **changes)


def used(whole: Outcomes, **changes: Any) -> Outcomes:
    """The same with figures of its only station changed."""
    (station,) = whole.stations
    totals = station.totals._replace(**{name: changes.pop(name) for name in PoolTotals._fields if name in changes})
    return replace(whole, stations=(replace(station, totals=totals, **changes),))
