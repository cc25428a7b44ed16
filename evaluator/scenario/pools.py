"""The pools of a deployment, each as a deployment of its own: what a pool says, and what is said beside the pools."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from evaluator.cost.precision import Precision
from evaluator.scenario.scenario import Batching, Deployment, KvCache, Pool, Routers

PASSED = ("prefill", "mixed", "decode")
"""Roles in the order in which a request passes their pools."""
SECTIONS = (Precision, Batching, KvCache)
"""What a pool may say key by key. A described device or model (``WhatIf``) is one value."""


def pools_of(deployment: Deployment) -> tuple[tuple[str, Deployment], ...]:
    """(name, pool) in the order in which a request passes them; a deployment without ``pools`` is one, ``engine``."""
    if deployment.pools is None:
        return (("engine", deployment),)
    named = sorted(deployment.pools.items(), key=lambda one: PASSED.index(one[1].role))
    return tuple((name, _pool(deployment, pool)) for name, pool in named)


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
