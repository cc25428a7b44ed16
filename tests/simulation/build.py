"""Chunks of jobs without an engine, and members of several pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.plan import Plan, plan
from evaluator.plan.groups import groups_of
from evaluator.traffic.jobs import Demand, Jobs
from evaluator.traffic.requests import Tokens
from evaluator.traffic.roles import ROLES
from tests.scenario.build import scenario


def jobs(ready_s: Sequence[float] | np.ndarray, output: int = 5, warmup: int = 0) -> Jobs:
    """Jobs with ids in the order given, of 10 prompt tokens."""
    ready = np.asarray(ready_s, dtype=np.float64)
    prompt = np.full(len(ready), 10)
    tokens = Tokens(prompt, np.full(len(ready), output), *[np.zeros_like(prompt)] * 3)
    identity = np.arange(len(ready))
    return Jobs(identity, ready, Demand.of(tokens, ROLES["mixed"]), identity >= warmup)


def poisson(rate: float, count: int, seeds: int) -> list[list[Jobs]]:
    """One configuration."""
    rng = np.random.default_rng(7)
    return [[jobs(np.cumsum(rng.exponential(1 / rate, count))) for _ in range(seeds)]]


def on_s(edges_s: np.ndarray, spans: Sequence[np.ndarray]) -> np.ndarray:
    """Seconds of each window in which a run is on, (window,), in the mean over its seeds.

    Windows count what is there for that part of the first and the last of them. ``edges_s`` (window + 1,); ``spans`` of
    each seed: from when until when its replicas are there, (replica, 2).
    """
    runs = [np.clip(edges_s, of_seed[:, 0].min(), of_seed[:, 1].max()) for of_seed in spans]
    return np.mean([np.diff(run) for run in runs], axis=0)


def shuffled(run_jobs: Jobs, seed: int = 0) -> Jobs:
    """The same jobs in another order."""
    order = np.random.default_rng(seed).permutation(len(run_jobs))
    return Jobs(run_jobs.id[order], run_jobs.ready_s[order], run_jobs.demand[order], run_jobs.measured[order])


def plan_of_pools(*overrides: str, simulator: str = "iteration") -> Plan:
    """A plan of one configuration: the deployment once as a prefill and once as a decode pool, nothing between them."""
    pools = "deployment.pools={prefill: {role: prefill}, decode: {role: decode}}"
    whole = plan(scenario(*overrides, pools), simulator=simulator)
    configurations = [replace(configuration, link=None) for configuration in whole.configurations]
    return replace(whole, configurations=configurations, groups=groups_of(configurations, whole.seeds))
