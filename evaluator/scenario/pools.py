"""The pools of a deployment, each as a deployment of its own: what a pool says, and what is said beside the pools."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from evaluator.cost.precision import Precision
from evaluator.scenario.scenario import Batching, Deployment, KvCache, Pool, Routers

PASSED = ("prefill", "mixed", "decode")
"""Roles in the order in which a request passes their pools."""
STAGE = "stage"
"""The role of a pool that computes no part of the answers, for stages of the pipeline."""
SECTIONS = (Precision, Batching, KvCache)
"""What a pool may say key by key. A described device or model (``WhatIf``) is one value."""


def pools_of(deployment: Deployment) -> tuple[tuple[str, Deployment], ...]:
    """(name, pool) of those that give the answers, in the order in which a request passes them.

    A deployment without ``pools``, or with pools for stages alone, is one, ``engine``.
    """
    given = {name: pool for name, pool in (deployment.pools or {}).items() if pool.role != STAGE}
    if not given:
        return (("engine", replace(deployment, pools=None) if deployment.pools else deployment),)
    named = sorted(given.items(), key=lambda one: PASSED.index(one[1].role))
    return tuple((name, _pool(deployment, pool)) for name, pool in named)


def stage_pools_of(deployment: Deployment) -> dict[str, Deployment]:
    """The pools for stages, by name. Of what is said beside the pools only the hardware and the engine hold for them.

    Their model is what their stages say.
    """
    pools = {name: pool for name, pool in (deployment.pools or {}).items() if pool.role == STAGE}
    if not pools:
        return {}
    bare = Deployment(
        deployment.model,
        deployment.hardware,
        batching=Batching(policy=None, max_num_seqs=None),  # type: ignore[arg-type]
        kv=KvCache(memory_fraction=None, block_tokens=None),  # type: ignore[arg-type]
        role=STAGE,
        engine=deployment.engine,
    )
    return {name: _pool(bare, pool) for name, pool in pools.items()}


def _pool(deployment: Deployment, pool: Pool) -> Deployment:
    given = {each.name: _told(getattr(deployment, each.name), getattr(pool, each.name)) for each in fields(pool)}
    router = deployment.router
    own = getattr(router, pool.role) if isinstance(router, Routers) else router
    return replace(deployment, **given, router=own, pools=None)


def _told(beside: Any, own: Any) -> Any:
    """A key of a pool: what the pool says, else what is said beside the pools; sections key by key."""
    if own is None:
        return beside
    if not isinstance(own, SECTIONS):
        return own
    given = {each.name: getattr(own, each.name) for each in fields(own)}
    return replace(beside, **{key: value for key, value in given.items() if value is not None})
