"""The latencies, the objectives and the throughput of each class of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from evaluator.metrics.outcomes import Outcomes
from evaluator.metrics.service import throughput
from evaluator.metrics.statistics import Summary, mean_by_parts, over_seeds, seed_stderr, summary
from evaluator.metrics.window import Window


def members_of(outcomes: Outcomes, window: Window) -> list[np.ndarray]:
    """Which of the measured requests are of each class, boolean as values that were cut, class by class."""
    if outcomes.request_class is None:
        return []
    # As floats: NaN, in the places of requests that do not count, is no class.
    cut = window.cut(outcomes.request_class.astype(np.float64))
    return [cut == number for number in range(len(outcomes.class_names))]


def class_summaries(
    latencies: Mapping[str, np.ndarray], members: list[np.ndarray], levels: np.ndarray
) -> list[dict[str, Summary]]:
    """The statistics of the latencies (config, seed, request) of the members of each class."""
    return [
        {name: summary(np.where(of_class, values, np.nan), levels) for name, values in latencies.items()}
        for of_class in members
    ]


def class_statistics(
    outcomes: Outcomes,
    window: Window,
    members: list[np.ndarray],
    summaries: list[dict[str, Summary]],
    inside: np.ndarray | None,
    gone: Mapping[str, np.ndarray | None],
    met: list[np.ndarray],
) -> dict[str, np.ndarray]:
    """The variables by class, (config, class) and (config, class, quantile); none where there are no classes.

    ``inside`` (config, seed, request) as of ``within_objectives``, ``gone`` of the same shape who was refused, and who
    was lost (None: nobody); ``met`` of each class whether its own objectives hold, (config,), and false where it has
    none.
    """
    if not members:
        return {}
    table: dict[str, list[np.ndarray]] = {}
    configs = outcomes.status.size
    for number, (of_class, statistics) in enumerate(zip(members, summaries, strict=True)):
        columns = {"class_share": over_seeds(of_class.sum(axis=-1) / window.count)}
        columns |= _latencies(statistics) | _shares(of_class, gone, configs)
        attainment, parts = np.full(configs, np.nan), np.full((configs, 1), np.nan)
        if inside is not None:
            attainment, parts = mean_by_parts(np.where(of_class, inside, np.nan))
        columns["class_slo_attainment"] = attainment
        columns["class_slo_attainment_stderr"] = seed_stderr(parts)
        columns["class_slo_met"] = met[number]
        columns |= _rates(outcomes, window, number)
        for name, column in columns.items():
            table.setdefault(name, []).append(column)
    return {name: np.stack(columns, axis=1) for name, columns in table.items()}


def _latencies(statistics: Mapping[str, Summary]) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for name, of_latency in statistics.items():
        columns[f"class_{name}"] = of_latency.quantiles
        columns[f"class_{name}_stderr"] = of_latency.quantiles_stderr
        columns[f"class_{name}_mean"] = of_latency.mean
        columns[f"class_{name}_mean_stderr"] = of_latency.mean_stderr
    return columns


def _shares(of_class: np.ndarray, gone: Mapping[str, np.ndarray | None], configs: int) -> dict[str, np.ndarray]:
    """The parts of a class that were refused and lost, (config,)."""
    columns: dict[str, np.ndarray] = {}
    for name, some in gone.items():
        columns[f"class_{name}_share"] = np.zeros(configs)
        if some is not None:
            of_these = (of_class & some).sum(axis=-1) / np.maximum(of_class.sum(axis=-1), 1)
            columns[f"class_{name}_share"] = over_seeds(of_these)
    return columns


def _rates(outcomes: Outcomes, window: Window, number: int) -> dict[str, np.ndarray]:
    """What is completed of one class, as of all (``service.throughput``), of which the classes are the parts."""
    assert outcomes.request_class is not None
    of_class = outcomes.request_class == number
    amounts = {"class_throughput_rps": of_class, "class_output_tok_per_s": of_class * outcomes.tokens.output_tokens}
    rates = {}
    for name, amount in amounts.items():
        counted = replace(outcomes, tokens=replace(outcomes.tokens, output_tokens=amount))
        rates[name] = over_seeds(throughput(counted, window)["output_tok_per_s"])
    return rates
