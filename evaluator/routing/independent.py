"""Routers that do not look at the state: which replica serves a request is known before the run."""

from __future__ import annotations

import numpy as np

from evaluator.scenario import Deployment


def assign_replicas(deployment: Deployment, seed: int, count: int, station: int = 0) -> np.ndarray:
    """Which replica serves each job (job,) in order of arrival: independent of the state, so it is known beforehand.

    ``station`` is the place of the pool in its configuration: pools in tandem draw from streams of their own.
    """
    if deployment.replicas == 1:
        return np.zeros(count, dtype=np.int64)
    if deployment.router == "round_robin":
        return np.arange(count) % deployment.replicas
    stream = np.random.default_rng(
        np.random.SeedSequence([seed, 0x726F7574, *([station] if station else [])])
    )  # "rout"
    return np.floor(stream.random(count) * deployment.replicas).astype(np.int64)
