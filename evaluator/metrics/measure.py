"""Per-request arrays of a chunk -> one number (or one per quantile) for each configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.latency import VARIABLE, latencies, within_objectives
from evaluator.metrics.outcomes import OK, Bounds, Outcomes
from evaluator.metrics.saturation import saturated
from evaluator.metrics.service import cost, hardware_use, throughput
from evaluator.metrics.statistics import Summary, batch_stderr, mean, over_seeds, seed_stderr, summarise, summarise_gaps

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99)


def quantile_levels(objectives: Sequence[Bounds], extra: Sequence[float] = DEFAULT_QUANTILES) -> np.ndarray:
    """The quantiles to report, ascending: the usual ones and those that an objective names."""
    named = [bound.quantile for bound in objectives]
    return np.array(sorted({*extra, *(level for level in named if level is not None)}))


def measure(outcomes: Outcomes, levels: np.ndarray) -> dict[str, np.ndarray]:
    """Every variable of the dataset for a chunk: (config,) or (config, quantile) NumPy arrays by name.

    ``levels`` (quantile,) must hold every percentile of the objectives (``quantile_levels``). Rows whose status is
    not ``ok`` are NaN, or false. Errors: InputError for an objective on itl when the gaps were not recorded.
    """
    able = np.flatnonzero(outcomes.status == OK)
    if able.size == outcomes.status.size:
        values = _measure(outcomes, levels)
    else:
        values = place(_measure(select(outcomes, able), levels), able, outcomes.status.size)
    return values | {"status": outcomes.status, "engine": outcomes.engine, "provenance": outcomes.provenance}


def place(values: Mapping[str, np.ndarray], rows: np.ndarray, configs: int) -> dict[str, np.ndarray]:
    """Spread results of some rows (config index ``rows``) over ``configs``; the others are NaN, or false."""
    result = {}
    for name, value in values.items():
        empty = False if value.dtype == bool else np.nan
        result[name] = np.full((configs, *value.shape[1:]), empty, dtype=bool if value.dtype == bool else np.float64)
        result[name][rows] = value
    return result


def select(outcomes: Outcomes, rows: np.ndarray) -> Outcomes:
    """The outcomes of some configurations."""
    shared = ("measured", "objectives", "itl")
    changes = {
        field.name: getattr(outcomes, field.name)[rows]
        for field in fields(outcomes)
        if field.name not in shared and _per_config(outcomes, field.name)
    }
    bounds = tuple(replace(bound, bound_s=bound.bound_s[rows]) for bound in outcomes.objectives)
    itl = None if outcomes.itl is None else [outcomes.itl[row] for row in rows]
    return replace(outcomes, **changes, objectives=bounds, itl=itl)


def _per_config(outcomes: Outcomes, name: str) -> bool:
    """Traffic may be common to all configurations: (seed, request) instead of (config, seed, request)."""
    value = getattr(outcomes, name)
    traffic = ("prompt_tokens", "output_tokens", "cached_tokens", "replica")
    return value is not None and (name not in traffic or value.ndim == 3)


def _measure(outcomes: Outcomes, levels: np.ndarray) -> dict[str, np.ndarray]:
    measured = _measured(outcomes.measured)
    values = {name: value[..., measured] for name, value in latencies(outcomes).items()}
    summaries = {name: summarise(value, levels) for name, value in values.items()}
    if outcomes.itl is not None:
        summaries["itl_s"] = summarise_gaps(outcomes.itl, levels)
    result = _named(summaries)
    result |= throughput(outcomes, measured)
    result |= hardware_use(outcomes)
    result |= cost(outcomes, result["output_tok_per_s"])
    result |= _objectives(outcomes.objectives, values, summaries, levels)
    tpot = summaries["tpot_s"].mean
    result["tok_per_s_per_user"] = np.divide(1.0, tpot, out=np.full(tpot.shape, np.nan), where=tpot > 0)
    grows = saturated(outcomes.arrival_s[..., measured], values["queue_wait_s"])
    result["saturated"] = outcomes.open_loop & (grows.mean(axis=1) >= 0.5)
    result["devices"] = np.asarray(outcomes.devices, dtype=np.float64)
    return result


def _measured(mask: np.ndarray) -> np.ndarray | slice:
    """The mask as a slice where the warm-up comes first, as it does, so that nothing is copied."""
    count = int(mask.sum())
    if count == 0:
        raise ValueError("no measured request: the warm-up must be shorter than the run")
    return slice(mask.size - count, None) if mask[mask.size - count :].all() else mask


def _named(summaries: Mapping[str, Summary]) -> dict[str, np.ndarray]:
    result = {}
    for name, summary in summaries.items():
        result[name], result[f"{name}_stderr"] = summary.quantiles, summary.quantiles_stderr
        result[f"{name}_mean"], result[f"{name}_mean_stderr"] = summary.mean, summary.mean_stderr
    return result


def _objectives(
    objectives: tuple[Bounds, ...],
    values: Mapping[str, np.ndarray],
    summaries: Mapping[str, Summary],
    levels: np.ndarray,
) -> dict[str, np.ndarray]:
    """slo_attainment with its standard error, and slo_met; NaN and false for configurations without an objective."""
    configs, seeds = next(iter(values.values())).shape[:2]
    attainment, error = np.full(configs, np.nan), np.full(configs, np.nan)
    inside = within_objectives(values, objectives)
    if inside is not None:
        per_seed = mean(inside)
        attainment = over_seeds(per_seed)
        error = seed_stderr(per_seed) if seeds > 1 else batch_stderr(inside[:, 0])
    met, asked = np.ones(configs, dtype=bool), np.zeros(configs, dtype=bool)
    for bound in objectives:
        name = VARIABLE[bound.metric]
        if name not in summaries:
            raise InputError(f"slo.{bound.metric}: the gaps between tokens were not recorded; use tpot, or record them")
        statistic = _statistic(summaries[name], bound.quantile, levels)
        present = ~np.isnan(bound.bound_s)
        met &= ~(statistic > np.where(present, bound.bound_s, np.inf))
        asked |= present
    return {"slo_attainment": attainment, "slo_attainment_stderr": error, "slo_met": met & asked}


def _statistic(summary: Summary, quantile: float | None, levels: np.ndarray) -> np.ndarray:
    if quantile is None:
        return summary.mean
    return summary.quantiles[:, int(np.argmin(np.abs(levels - quantile)))]
