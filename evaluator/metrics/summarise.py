"""Per-request arrays of a chunk -> one number (or one per quantile) for each configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.classes import class_statistics, class_summaries, members_of
from evaluator.metrics.elasticity import elasticities
from evaluator.metrics.latency import VARIABLE, latencies, place_of, within_objectives
from evaluator.metrics.model_error import amplified, model_errors, objective_errors, overload, waited_share
from evaluator.metrics.outcomes import OK, Bounds, Outcomes
from evaluator.metrics.saturation import drift, saturated
from evaluator.metrics.service import (
    attained,
    decode_hit_rate,
    energy,
    fleet,
    fleet_of_pools,
    hardware_use,
    host_hit_rate,
    kv_used_max,
    lost_share,
    prefix_hit_rate,
    price,
    refused_share,
    shared_hit_rate,
    storage_hit_rate,
    throughput,
)
from evaluator.metrics.sessions import session_summary
from evaluator.metrics.stages import stage_statistics
from evaluator.metrics.statistics import Summary, mean_by_parts, over_seeds, seed_stderr, summary, summary_of_gaps
from evaluator.metrics.steady import FILLED, KEPT_UP, OVERLOAD, PASSAGES, drifts, growth, passages
from evaluator.metrics.use import Use, WeightedGaps
from evaluator.metrics.variables import BY_SEED, by_seed_name
from evaluator.metrics.warmup import transient
from evaluator.metrics.window import Window

_TEXTS = ("status", "engine", "provenance", "calibration_set", "model_error_basis")
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99)
NEVER_S = 1e12
"""A latency that misses every bound. Finite: between a time and infinity quantiles would be interpolated to NaN."""


def quantile_levels(objectives: Sequence[Bounds], extra: Sequence[float] = DEFAULT_QUANTILES) -> np.ndarray:
    """The quantiles to report, ascending: the usual ones and those that an objective names."""
    named = [bound.quantile for bound in objectives]
    return np.array(sorted({*extra, *(level for level in named if level is not None)}))


def summarise(
    outcomes: Outcomes, levels: np.ndarray, bumps: np.ndarray | None = None, by_seed: bool = False
) -> dict[str, np.ndarray]:
    """Every variable of the dataset for a chunk: (config,) or (config, quantile) NumPy arrays by name.

    ``levels`` (quantile,) must hold every percentile of the objectives (``quantile_levels``). Rows whose status is
    not ``ok`` are NaN, or false. Errors: InputError for an objective on itl when the gaps were not recorded.

    ``bumps`` (config, input, 2) asks for elasticities: the rows in which an input of the configuration is a step
    lower and higher. Then the configurations are the first rows, and what is returned is theirs.

    ``by_seed`` adds the variables of BY_SEED for each seed, (config, seed) or (config, seed, quantile).
    """
    able, rows = np.flatnonzero(outcomes.status == OK), outcomes.status.size
    # Rows that cannot run hold anything, and would make every statistic of a chunk slower to guard.
    if able.size == rows:
        values, parts = _by_warmup(outcomes, levels, bumps is None)
    else:
        of_able = _by_warmup(select(outcomes, able), levels, bumps is None)
        values, parts = (place(some, able, rows) for some in of_able)
    values |= {name: getattr(outcomes, name) for name in _TEXTS}
    values["devices"] = np.asarray(outcomes.summed("devices")).astype(np.int64)  # also of rows that cannot run
    if by_seed:
        values |= _by_seed(values, parts, outcomes.times.arrival_s.shape[1])
    if bumps is None:
        return values
    return {name: value[: len(bumps)] for name, value in values.items()} | elasticities(values, parts, bumps)


def _by_seed(values: dict[str, np.ndarray], parts: dict[str, np.ndarray], seeds: int) -> dict[str, np.ndarray]:
    """What the means over the seeds are of; the parts of one seed are of its batches, and it is the mean itself."""
    of_seeds = {name: parts[name] if seeds > 1 else values[name][:, None] for name in BY_SEED if name in parts}
    return {  # what is not known of any seed has one part
        by_seed_name(name): np.broadcast_to(value, (value.shape[0], seeds, *value.shape[2:]))
        for name, value in of_seeds.items()
    }


Found = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
Asked = tuple[np.ndarray, np.ndarray]
"""What an objective is held against and its standard error, (config,) each."""


def _by_warmup(outcomes: Outcomes, levels: np.ndarray, find: bool) -> Found:
    """The variables and their parts; of runs whose transient goes beyond the warm-up without that, if ``find``.

    Runs that are compared with one another (sensitivities) must have one window.
    """
    settled = np.ones(outcomes.times.arrival_s.shape[:-1], dtype=bool)
    longer = np.zeros(outcomes.status.size, dtype=bool)
    # One mask for all rows: else each row has a window of its own, and none is made longer.
    if outcomes.measured.size == outcomes.measured.shape[-1]:
        window = Window.of(outcomes.measured)
        passage_s = outcomes.times.last_token_s[..., : window.end] - outcomes.times.arrival_s[..., : window.end]
        first, settled = transient(passage_s, window.start)
        longer = find & outcomes.finds_warmup & (first > window.start).any(axis=1)
    if not longer.any():
        return _summarised(outcomes, levels, settled)
    values: dict[str, np.ndarray] = {}
    of_parts: dict[str, np.ndarray] = {}
    # Two passes, with the common window and with each run's own, because a slice is faster than a mask.
    for rows in (np.flatnonzero(~longer), np.flatnonzero(longer)):
        if rows.size:
            starts = first[rows] if longer[rows[0]] else None
            some = _summarised(select(outcomes, rows), levels, settled[rows], starts)
            for whole, found in zip((values, of_parts), some, strict=True):
                _put(whole, found, rows, longer.size)
    return values, of_parts


def _put(whole: dict[str, np.ndarray], values: Mapping[str, np.ndarray], rows: np.ndarray, configs: int) -> None:
    """Put results of some rows (config index ``rows``) among those of ``configs``; rows of which nothing is put are
    NaN, or false."""
    for name, value in values.items():
        if name not in whole:
            # There is no NaN among booleans: what is not known is not met, not saturated and not steady.
            empty, kind = (False, bool) if value.dtype == bool else (np.nan, np.float64)
            whole[name] = np.full((configs, *value.shape[1:]), empty, dtype=kind)
        whole[name][rows] = value


def place(values: Mapping[str, np.ndarray], rows: np.ndarray, configs: int) -> dict[str, np.ndarray]:
    """Spread results of some rows (config index ``rows``) over ``configs``; the others are NaN, or false."""
    result: dict[str, np.ndarray] = {}
    _put(result, values, rows, configs)
    return result


def select(outcomes: Outcomes, rows: np.ndarray) -> Outcomes:
    """The outcomes of some configurations."""
    # Every array of the outcomes has a row for each configuration but the mask, which all of them may share.
    arrays = {name: value for name, value in vars(outcomes).items() if isinstance(value, np.ndarray)}
    del arrays["measured"]
    return replace(
        outcomes,
        **{name: value[rows] for name, value in arrays.items()},
        times=outcomes.times.rows(rows),
        tokens=outcomes.tokens.rows(rows),
        objectives=tuple(bound.rows(rows) for bound in outcomes.objectives),
        itl=_gaps_of(outcomes.itl, rows),
        stations=tuple(_rows_of(use, rows) for use in outcomes.stations),
        measured=outcomes.measured[rows] if outcomes.measured.ndim == 3 else outcomes.measured,
        stages=tuple(stage.rows(rows) for stage in outcomes.stages),
        sessions=None if outcomes.sessions is None else outcomes.sessions.rows(rows),
    )


def _rows_of(use: Use, rows: np.ndarray) -> Use:
    names = [field.name for field in fields(use) if field.name not in ("name", "totals", "itl", "alive", "up")]
    arrays = {name: getattr(use, name)[rows] for name in names}
    alive, up = (None if spans is None else [spans[row] for row in rows] for spans in (use.alive, use.up))
    return replace(use, **arrays, totals=use.totals.rows(rows), itl=_gaps_of(use.itl, rows), alive=alive, up=up)


def _gaps_of(itl: Sequence[Sequence[WeightedGaps]] | None, rows: np.ndarray) -> list[Sequence[WeightedGaps]] | None:
    return None if itl is None else [itl[row] for row in rows]


def _summarised(outcomes: Outcomes, levels: np.ndarray, settled: np.ndarray, first: np.ndarray | None = None) -> Found:
    """The variables by name, and of those whose error is known by their spread the parts (config, part, ...).

    ``settled`` (config, seed): the transient ends within the run. ``first`` as of ``Window.of``.
    """
    window = Window.of(outcomes.measured, first)
    values = {name: window.cut(value) for name, value in latencies(outcomes).items()}
    summaries = {name: summary(value, levels) for name, value in values.items()}
    if outcomes.itl is not None:
        summaries["itl_s"] = summary_of_gaps(outcomes.itl, levels)
    rates = throughput(outcomes, window)
    parts = rates | hardware_use(outcomes) | {"joule_per_tok": energy(outcomes)}
    parts["refused_share"], parts["lost_share"] = refused_share(outcomes, window), lost_share(outcomes, window)
    parts |= fleet(outcomes)
    if outcomes.api_server_utilisation is not None:
        parts["api_server_utilisation"] = outcomes.api_server_utilisation
    parts["prefix_hit_rate"] = prefix_hit_rate(outcomes, window)
    parts["host_hit_rate"] = host_hit_rate(outcomes, window)
    parts["storage_hit_rate"] = storage_hit_rate(outcomes, window)
    parts["shared_hit_rate"] = shared_hit_rate(outcomes, window)
    parts["decode_hit_rate"] = decode_hit_rate(outcomes, window)
    result = _named(summaries) | {name: over_seeds(part) for name, part in parts.items()}
    result |= {f"{name}_stderr": seed_stderr(rate) for name, rate in rates.items()}
    result["kv_used_max"] = kv_used_max(outcomes).max(axis=1)
    result["usd_per_mtok"] = price(outcomes, result["output_tok_per_s"])
    parts["usd_per_mtok"] = _inverse_parts(result["usd_per_mtok"], rates["output_tok_per_s"])
    for name, statistics in summaries.items():
        parts[name], parts[f"{name}_mean"] = statistics.quantile_parts, statistics.mean_parts
    of_objectives, parts["slo_attainment"], asked = _within_objectives(outcomes, window, values, summaries, levels)
    result |= of_objectives
    tpot = summaries["tpot_s"].mean
    result["tok_per_s_per_user"] = np.divide(1.0, tpot, out=np.full(tpot.shape, np.nan), where=tpot > 0)
    result |= _state(outcomes, window, settled)
    # A queue that grows all along would miss any objective in a longer run, however early this one ends.
    result["slo_met"] &= ~result["saturated"]
    result |= model_errors(outcomes, window, result)
    if outcomes.objectives:
        result |= _of_objectives(outcomes, window, result, asked)
    if outcomes.sessions is not None:
        times = outcomes.times
        of_sessions = session_summary(
            outcomes.sessions, times.arrival_s, times.last_token_s, window, levels, times.refused
        )
        result |= _named({"session_s": of_sessions})
    result |= fleet_of_pools(outcomes)
    result |= stage_statistics(outcomes.stage_names, outcomes.stages, window, levels, outcomes.status.size)
    return result, parts


def _within_objectives(
    outcomes: Outcomes,
    window: Window,
    values: Mapping[str, np.ndarray],
    summaries: Mapping[str, Summary],
    levels: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray, list[Asked]]:
    """What the objectives make of the latencies, ``values`` with their ``summaries``: attained_rps, slo_attainment and
    slo_met, and the variables by class; with them the parts of slo_attainment, and the statistics asked for."""
    members = members_of(outcomes, window)
    by_class = class_summaries(values, members, levels)
    named = dict(zip(outcomes.class_names, members, strict=False))
    unanswered = _those(outcomes.times.unanswered, window)
    inside = within_objectives(values, outcomes.objectives, named, unanswered)
    # Within no bound at all, as a value that was cut, would count as a miss.
    if inside is not None:
        inside = window.blank(inside)
    asked, asked_by_class = summaries, by_class
    if unanswered is not None and unanswered.any():
        # Who was refused or lost misses every objective, those at a quantile or a mean, too: a latency that no bound
        # allows, where the told statistics are of those who were served.
        missed = {name: np.where(unanswered, NEVER_S, value) for name, value in values.items()}
        asked = {**summaries, **{name: summary(value, levels) for name, value in missed.items()}}
        asked_by_class = class_summaries(missed, members, levels)
    statistics = _asked(outcomes, asked, asked_by_class, levels)
    # Not "<=", as in ``within_objectives``: a latency that no request has misses no bound.
    holds = [
        ~(value > np.where(np.isnan(bound.bound_s), np.inf, bound.bound_s))
        for bound, (value, _) in zip(outcomes.objectives, statistics, strict=True)
    ]
    met, parts = _objectives(outcomes, inside, holds)
    met_in = [_met(outcomes, holds, name) for name in outcomes.class_names]
    by_name = {"attained_rps": attained(outcomes, window, inside)} | met
    gone = {name: _those(getattr(outcomes.times, name), window) for name in ("refused", "lost")}
    by_name |= class_statistics(outcomes, window, members, by_class, inside, gone, met_in)
    return by_name, parts, statistics


def _those(some: np.ndarray | None, window: Window) -> np.ndarray | None:
    """A mask of all requests, such as those that were refused, cut to the measured ones; None stays None."""
    # 1.0, and not NaN in the places of requests that do not count, says that one is.
    return None if some is None else window.cut(some.astype(float)) == 1.0


def _inverse_parts(value: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """What each seed (config, seed) makes of a value (config,) that goes as one over the mean rate, to first order."""
    average = over_seeds(rate)[:, None]
    # 1 / rate around its mean: 2 - rate / mean, whose mean over the seeds is 1 again.
    return value[:, None] * (2.0 - np.divide(rate, average, out=np.full(rate.shape, np.nan), where=average > 0))


def _state(outcomes: Outcomes, window: Window, settled: np.ndarray) -> dict[str, np.ndarray]:
    """saturated and steady, (config,): in at least half of the seeds."""
    arrival_s, start, end = outcomes.times.arrival_s, window.start, window.end
    grown, by_chance = growth(arrival_s, outcomes.times.last_token_s, start)
    passage_s = outcomes.times.last_token_s - arrival_s
    length = passages(arrival_s[..., :end], passage_s[..., :end], start)
    half = slice((start + end) // 2, end)
    with np.errstate(invalid="ignore"):  # NaN, of arrivals all at once, compares as False
        slower = drift(arrival_s[..., half], passage_s[..., half]) > OVERLOAD
    grows = (grown > by_chance) & ((length >= FILLED) | slower)
    waited_s = outcomes.times.scheduled_s - arrival_s
    if outcomes.later_wait_s is not None:
        waited_s += outcomes.later_wait_s
    rises = _waits_longer(window, arrival_s, waited_s) | grows
    saturated = outcomes.open_loop & (rises.mean(axis=1) >= 0.5)
    # A batch that comes at once and is all that is asked has no state but being done.
    together = (arrival_s[..., -1] == arrival_s[..., start]) & outcomes.one_batch[:, None]
    level = settled & (np.abs(grown) <= by_chance) & ~drifts(passage_s[..., start:end]) & (length >= PASSAGES)
    span_s = arrival_s[..., end - 1] - arrival_s[..., start]
    behind = (end - 1 - start) < KEPT_UP * outcomes.asked_rps[:, None] * span_s  # NaN compares as False
    level = (level | together) & ~behind
    return {"saturated": saturated, "steady": ~saturated & (level.mean(axis=1) >= 0.5)}


def _waits_longer(window: Window, arrival_s: np.ndarray, queue_wait_s: np.ndarray) -> np.ndarray:
    """Whether the wait grows, (config, seed); run by run where each has a window of its own."""
    if window.common is not None:
        return saturated(arrival_s[..., window.common], queue_wait_s[..., window.common])
    mask = np.broadcast_to(window.mask, arrival_s.shape)
    grows = np.zeros(arrival_s.shape[:-1], dtype=bool)
    for run in np.ndindex(grows.shape):
        grows[run] = saturated(arrival_s[run][mask[run]], queue_wait_s[run][mask[run]])
    return grows


def _named(summaries: Mapping[str, Summary]) -> dict[str, np.ndarray]:
    result = {}
    for name, statistics in summaries.items():
        result[name], result[f"{name}_stderr"] = statistics.quantiles, statistics.quantiles_stderr
        result[f"{name}_mean"], result[f"{name}_mean_stderr"] = statistics.mean, statistics.mean_stderr
    return result


def _objectives(
    outcomes: Outcomes, inside: np.ndarray | None, holds: list[np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """slo_attainment with its standard error, and slo_met; NaN and false for configurations without an objective.

    ``inside`` (config, seed, request) is what ``within_objectives`` finds, ``holds`` as of ``_met``. With them the
    attainment by seed, or of one seed by batch: (config, part).
    """
    configs = outcomes.status.size
    attainment, parts = np.full(configs, np.nan), np.full((configs, 1), np.nan)
    if inside is not None:
        attainment, parts = mean_by_parts(inside)
    met = _met(outcomes, holds)
    return {"slo_attainment": attainment, "slo_attainment_stderr": seed_stderr(parts), "slo_met": met}, parts


def _met(outcomes: Outcomes, holds: list[np.ndarray], of_class: str | None = None) -> np.ndarray:
    """Whether all objectives hold, or those of a class, (config,); false for a configuration that has none of them.

    ``holds`` says of each objective whether it does, true where a configuration does not have it.
    """
    met, bounded = np.ones(outcomes.status.size, dtype=bool), np.zeros(outcomes.status.size, dtype=bool)
    for bound, held in zip(outcomes.objectives, holds, strict=True):
        if of_class in (None, bound.request_class):
            met &= held
            bounded |= ~np.isnan(bound.bound_s)
    return met & bounded


def _asked(
    outcomes: Outcomes,
    summaries: Mapping[str, Summary],
    by_class: Sequence[Mapping[str, Summary]],
    levels: np.ndarray,
) -> list[Asked]:
    """What each objective is held against, its own statistic, with its standard error."""
    asked = []
    for bound in outcomes.objectives:
        name, statistics = VARIABLE[bound.metric], summaries
        if bound.request_class:
            statistics = by_class[outcomes.class_names.index(bound.request_class)]
        if name not in statistics:
            raise InputError(f"slo.{bound.metric}: the gaps between tokens were not recorded; use tpot, or record them")
        of_metric, quantile = statistics[name], bound.quantile
        if quantile is None:
            asked.append((of_metric.mean, of_metric.mean_stderr))
        else:
            place = place_of(quantile, levels)
            asked.append((of_metric.quantiles[:, place], of_metric.quantiles_stderr[:, place]))
    return asked


def _of_objectives(
    outcomes: Outcomes, window: Window, values: Mapping[str, np.ndarray], asked: Sequence[Asked]
) -> dict[str, np.ndarray]:
    """What the chances that objectives hold are made of (``metrics.chance``), (config, objective); NaN where a
    configuration has no such objective."""
    # Columns are the objectives of the plan, of which a chunk may have some.
    names = outcomes.objective_names or tuple(bound.name for bound in outcomes.objectives)
    table: dict[str, np.ndarray] = {}
    rho = overload(outcomes, window, values)
    errors = objective_errors(outcomes, values)
    for bound, (value, stderr), (mean_error, model_error) in zip(outcomes.objectives, asked, errors, strict=True):
        # A latency that no request has misses no bound: 0 of it.
        ratio = np.where(np.isnan(value), 0.0, value) / bound.bound_s
        headroom, growth = _headroom(values, VARIABLE[bound.metric], ratio, rho)
        bounded = ~np.isnan(bound.bound_s)
        figures = {
            "ratio": ratio,
            "ratio_stderr": stderr / bound.bound_s,
            "mean_error": np.where(bounded, mean_error, np.nan),
            "model_error": np.where(bounded, model_error, np.nan),
            "headroom": headroom,
            "growth": np.where(bounded, growth, np.nan),
            "confidence": np.nan if bound.confidence is None else bound.confidence,
        }
        for name, figure in figures.items():
            column = table.setdefault(f"objective_{name}", np.full((outcomes.status.size, len(names)), np.nan))
            column[:, names.index(bound.name)] = figure
    return table


def _headroom(
    values: Mapping[str, np.ndarray], name: str, ratio: np.ndarray, rho: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The headroom of an objective and the growth of its latency, (config,), as far as one run tells.

    Of a design that keeps up other rates would tell more: here its latency is as much longer as its service. Of a
    saturated one the wait grows (``amplified``), and whatever its latency it has to be faster by ``rho`` to keep up.
    """
    saturated, growth = values["saturated"], np.ones_like(ratio)
    if saturated.any() and name not in ("tpot_s", "itl_s"):
        waited = waited_share(values, name)
        growth = np.where(saturated, waited * amplified(rho) + (1.0 - waited), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        headroom = ratio ** (-1.0 / growth)
        headroom = np.where(saturated, np.minimum(headroom, 1.0 / np.maximum(rho, 1.0)), headroom)
    return headroom, growth
