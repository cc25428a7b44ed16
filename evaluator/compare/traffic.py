"""The requests of an experiment: Poisson-like stages of exact counts, fixed prompts round robin, early stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evaluator.compare.experiments import POOLED, Experiment

RETOKENISED = 1.05
"""Prompt tokens that the server counts over those asked for: random tokens become text and are tokenised again."""
SPREAD = 0.01
"""Standard deviation over the mean of the prompts' lengths: where a prompt ends in its last block is chance."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one seed in order of arrival, each (request,)."""

    arrival_s: np.ndarray
    stage: np.ndarray
    prompt_tokens: np.ndarray
    compute_tokens: np.ndarray  # of the prompt; the rest is cached
    output_tokens: np.ndarray


def output_shares(experiments: Iterable[Experiment]) -> dict[str, float]:
    """By model: mean tokens generated over tokens asked for, for runs that do not say how much was generated."""
    shares: dict[str, list[float]] = {}
    for experiment in experiments:
        rows = [row.output_tokens for row in experiment.measured if row.output_tokens and row.stage != POOLED]
        shares.setdefault(experiment.model, []).extend(each / experiment.workload.output_tokens for each in rows)
    return {model: float(np.mean(each)) for model, each in shares.items() if each}


def mean_output(experiment: Experiment, stage: int, shares: Mapping[str, float]) -> float:
    """Mean tokens generated: of the stage, of all stages, as the model's other runs had it, or as asked for."""
    for wanted in (stage, POOLED):
        for row in experiment.measured:
            if row.stage == wanted and row.output_tokens:
                return row.output_tokens
    return experiment.workload.output_tokens * shares.get(experiment.model, 1.0)


def requests(experiment: Experiment, seed: int, shares: Mapping[str, float]) -> Requests:
    """The requests of an experiment under a seed; the same seed gives the same gaps whatever the server."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x636D7061]))
    workload, start = experiment.workload, 0.0
    arrivals, stages, outputs = [], [], []
    for stage in workload.stages:
        gaps = rng.exponential(size=stage.requests)
        arrivals.append(start + np.cumsum(gaps) * (stage.duration_s / gaps.sum()))
        stages.append(np.full(stage.requests, stage.index))
        mean = mean_output(experiment, stage.index, shares)
        outputs.append(output_lengths(rng, mean, workload.output_tokens, stage.requests))
        start += stage.duration_s
    prompt, compute = _prompts(experiment, rng, sum(map(len, arrivals)))
    return Requests(np.concatenate(arrivals), np.concatenate(stages), prompt, compute, np.concatenate(outputs))


def output_lengths(rng: np.random.Generator, mean: float, asked: int, count: int) -> np.ndarray:
    """Outputs of this mean: ``asked`` tokens, or fewer where the model stops by itself with one chance per token.

    Above ``asked`` (counted by another tokeniser) they are all alike, up to the fraction of a token.
    """
    if mean > asked - 0.5:
        return np.maximum(1, np.floor(mean + rng.random(count))).astype(np.int64)
    return np.minimum(rng.geometric(_chance_of_stop(mean, asked), size=count), asked).astype(np.int64)


@lru_cache(maxsize=1024)
def _chance_of_stop(mean: float, asked: int) -> float:
    """p with (1 - (1 - p)^asked) / p = mean, by bisection."""
    low, high = 1e-12, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if -np.expm1(asked * np.log1p(-middle)) / middle > mean:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _prompts(experiment: Experiment, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and those to compute. With prefix caching whole blocks of what was sent before are there, but one
    token at least is computed; in the first cycle only the system prompt of the group may be known."""
    workload, block = experiment.workload, experiment.block_tokens
    fixed = workload.groups * workload.prompts_per_group
    nominal = RETOKENISED * (workload.system_tokens + workload.question_tokens)
    lengths = np.maximum(1, np.rint(nominal * (1 + SPREAD * rng.standard_normal(fixed)))).astype(np.int64)
    number = np.arange(count)
    prompt = lengths[number % fixed]
    if not experiment.prefix_caching:
        return prompt, prompt
    first_of_group = number % workload.prompts_per_group == 0
    system = np.where(first_of_group, 0, int(RETOKENISED * workload.system_tokens))
    known = np.where(number < fixed, np.minimum(system, prompt - 1), prompt - 1)
    return prompt, prompt - known // block * block
