"""The requests of an experiment: Poisson-like stages of exact counts, fixed prompts round robin, fixed outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.experiments.experiment import Experiment

RETOKENISED = 1.05
"""Prompt tokens that the server counts over those asked for: random tokens become text and are tokenised again."""
SPREAD = 0.01
"""Standard deviation over the mean of the prompts' lengths: where a prompt ends in its last block is chance."""


@dataclass(frozen=True, eq=False)
class MeasuredRequests:
    """The requests of one seed in order of arrival, each (request,)."""

    arrival_s: np.ndarray
    stage: np.ndarray
    prompt_tokens: np.ndarray
    compute_tokens: np.ndarray  # of the prompt; the rest is cached
    output_tokens: np.ndarray


def requests(experiment: Experiment, seed: int) -> MeasuredRequests:
    """The requests of an experiment under a seed; the same seed gives the same gaps whatever the server.

    Every request generates what was asked for: inference-perf sends ``ignore_eos`` by default.
    """
    # "cmpa" in ASCII: a stream of this comparison's own, apart from those of the scenarios' traffic
    # under the same seed.
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x636D7061]))
    workload, start = experiment.workload, 0.0
    arrivals, stages = [], []
    for stage in workload.stages:
        gaps = rng.exponential(size=stage.requests)
        # inference-perf draws the gaps of a stage and scales them to its duration, so that a stage has its exact
        # count and rate.
        arrivals.append(start + np.cumsum(gaps) * (stage.duration_s / gaps.sum()))
        stages.append(np.full(stage.requests, stage.index))
        start += stage.duration_s
    count = sum(map(len, arrivals))
    prompt, compute = _prompts(experiment, rng, count)
    output = np.full(count, workload.output_tokens)
    return MeasuredRequests(np.concatenate(arrivals), np.concatenate(stages), prompt, compute, output)


def _prompts(experiment: Experiment, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt tokens and those to compute. With prefix caching whole blocks of what was sent before are there, but one
    token at least is computed; in the first cycle only the system prompt of the group may be known. Each data-parallel
    rank has a cache of its own. Which rank a request goes to the server decides; here it is drawn."""
    workload = experiment.workload
    fixed = workload.groups * workload.prompts_per_group
    nominal = RETOKENISED * (workload.system_tokens + workload.question_tokens)
    # After the gaps and for the fixed prompts alone: the arrivals of a seed do not depend on how
    # many prompts there are.
    lengths = np.maximum(1, np.rint(nominal * (1 + SPREAD * rng.standard_normal(fixed)))).astype(np.int64)
    # All arrays from here on are (request,), in the order of sending.
    number = np.arange(count)
    prompt = lengths[number % fixed]
    if not experiment.prefix_caching:
        return prompt, prompt
    ranks = experiment.data_parallel
    rank = rng.integers(0, ranks, count) if ranks > 1 else np.zeros(count, dtype=np.int64)
    return prompt, computed_tokens(experiment, prompt, rank)


def computed_tokens(experiment: Experiment, prompt: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Tokens to compute of prompts that go round robin through the fixed ones, (request,), each at its rank."""
    workload, block = experiment.workload, experiment.block_tokens
    fixed, number = workload.groups * workload.prompts_per_group, np.arange(len(prompt))
    system = np.minimum(int(RETOKENISED * workload.system_tokens), prompt - 1)
    group = number % fixed // workload.prompts_per_group
    cached = np.where(_before(number % fixed, rank), prompt - 1, np.where(_before(group, rank), system, 0))
    # Whole blocks are found, as of vLLM: the rest of the last one is computed anew.
    return prompt - cached // block * block


def _before(what: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Whether the same has been sent to the same rank before, (request,)."""
    # One number for each pair, whose first occurrence `np.unique` gives.
    both = what * (rank.max(initial=0) + 1) + rank
    before = np.ones(len(both), dtype=bool)
    before[np.unique(both, return_index=True)[1]] = False
    return before
