"""The pools of a deployment, each as a deployment of its own, and what the keys of pools may not say together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evaluator.keys import Place, Section, absent, listed, section
from evaluator.records import with_fields
from evaluator.scenario.deployment import POOL, STAGE, Batching, Deployment, KvCache, Pool, check_engine, check_kv
from evaluator.scenario.engine_defaults import with_engine_defaults
from evaluator.scenario.pipeline import Stage
from evaluator.scenario.routers import Routers
from evaluator.scenario.workload import Workload

PASSED = ("prefill", "mixed", "decode")
"""Roles in the order in which a request passes their pools."""

UNNAMED = "engine"
"""The pool that answers where a deployment names none."""


def pools_of(deployment: Deployment) -> tuple[tuple[str, Deployment], ...]:
    """(name, pool) of those that give the answers, in the order in which a request passes them.

    A deployment without ``pools``, or with pools for stages alone, is one, ``UNNAMED``.
    """
    given = {name: pool for name, pool in (deployment.pools or {}).items() if pool.role != STAGE}
    if not given:  # the keys beside the pools are those of the one pool that answers
        return ((UNNAMED, with_fields(deployment, pools=None) if deployment.pools else deployment),)
    # A stable sort: pools of one role stay in the order of the file, by which their replicas are numbered.
    ordered = sorted(given.items(), key=lambda named: PASSED.index(named[1].role))
    several = len(ordered) > 1
    return tuple((name, with_fields(_pool(deployment, pool), one_of_several=several)) for name, pool in ordered)


def answers_alone(deployment: Deployment) -> bool:
    """Whether one pool gives the answers, and no stages are around it."""
    # What an engine caches of prefixes by default hangs on it: the point of a sweep and its plan must say the same.
    return len(pools_of(deployment)) == 1 and all(stage.of_llm for stage in deployment.pipeline.values())


def stage_pools_of(deployment: Deployment) -> dict[str, Deployment]:
    """The pools for stages, by name. Of what is said beside the pools only the hardware and the engine hold for them.

    Their model is what their stages say.
    """
    pools = {name: pool for name, pool in (deployment.pools or {}).items() if pool.role == STAGE}
    if not pools:
        return {}
    # Batching and KV of what answers say nothing of an encoder's pool: only what is absent everywhere goes to the
    # engine's defaults. The model stands in until the stage names its own.
    bare = Deployment(
        deployment.model,
        deployment.hardware,
        batching=absent(Batching),
        kv=absent(KvCache),
        role=STAGE,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
    )
    return {name: _pool(bare, pool) for name, pool in pools.items()}


def _pool(deployment: Deployment, pool: Pool) -> Deployment:
    fields = {name: _said(entry.read, getattr(pool, name), getattr(deployment, name)) for name, entry in POOL.items()}
    if fields["engine"] != deployment.engine:  # a release beside the pools is one of the engine there
        fields["engine_version"] = pool.engine_version
    router = deployment.router
    if isinstance(router, Routers):
        # Mixed pools beside prefill pools are on one side with them, which has one router.
        router = router.decode if pool.role == "decode" else router.prefill
    return with_fields(deployment, **fields, router=router, pools=None)


def _said(read: Any, by_pool: Any, beside: Any) -> Any:
    """A key of a pool: what the pool says, else what is said beside the pools; sections key by key."""
    if by_pool is None:
        return beside
    if not isinstance(read, Section):
        return by_pool
    values = {name: getattr(by_pool, name) for name in read.table}
    return with_fields(beside, **{name: value for name, value in values.items() if value is not None})


def _check_capacity(deployment: Deployment, place: Place) -> None:
    """The cache holds a block."""
    stated = deployment.kv.capacity_tokens
    # After the engine's defaults, which say how large a block is where the file does not.
    if stated is not None and stated < (block := with_engine_defaults(deployment).shared_block_tokens):
        raise place.key("kv.capacity_tokens").error(
            f"{stated} tokens are less than a block of {block}; raise it or lower block_tokens"
        )


def _check_deployment(deployment: Deployment, place: Place) -> None:
    """What several pools and the keys beside them may not say together."""
    for name, pool in stage_pools_of(deployment).items():
        if pool.speculative is not None:
            raise place.key(f"pools.{name}.speculative").error("is for pools that decode; leave it out of a stage's")
        if pool.lora is not None:
            raise place.key(f"pools.{name}.lora").error(
                "is for pools that answer, since requests name adapters of the LLM alone; leave it out of a stage's"
            )
        check_kv(pool.kv, place.key(f"pools.{name}.kv"))
        check_engine(pool, place.key(f"pools.{name}"))
        _check_capacity(pool, place.key(f"pools.{name}"))
    if deployment.pools is None or all(pool.role == STAGE for pool in deployment.pools.values()):
        check_engine(deployment, place)
        _check_capacity(deployment, place)
        if isinstance(deployment.router, Routers):
            raise place.key("router").error("routers by role are for a prefill and a decode pool: add deployment.pools")
        if deployment.split.prompt_tokens_above is not None:
            raise place.key("split.prompt_tokens_above").error(
                "is for mixed pools beside prefill and decode pools: add deployment.pools"
            )
        return
    # "mixed" is what an absent role reads as, so that only another word was said.
    if deployment.role != "mixed":
        raise place.key("role").error("say the role in each of the pools, not beside them")
    roles = {pool.role for pool in deployment.pools.values()}
    if isinstance(deployment.router, Routers) and roles <= {"mixed", STAGE}:
        raise place.key("router").error("routers by role are for a prefill and a decode pool; give one name here")
    if deployment.split.prompt_tokens_above is not None and not {"mixed", "prefill"} <= roles:
        raise place.key("split.prompt_tokens_above").error(
            "is for mixed pools beside prefill and decode pools; add the others, or leave it out"
        )
    # Of each pool with what is said beside it: the one may say preemption: swap, and the other the bandwidth.
    for name, pool in pools_of(deployment):
        check_kv(pool.kv, place.key(f"pools.{name}.kv"))
        check_engine(pool, place.key(f"pools.{name}"))
        _check_capacity(pool, place.key(f"pools.{name}"))


deployment_reader = section(Deployment, _check_deployment)


def pipeline_problem(workload: Workload, deployment: Deployment) -> tuple[str, str] | None:
    """(key, what is wrong) where stages name pools or pipelines that are not there; None where all are."""
    pools, pipelines = stage_pools_of(deployment), workload.pipeline_names
    for name, stage in deployment.pipeline.items():
        if stage.pool is not None and stage.pool not in pools:
            return (
                f"pipeline.{name}.pool",
                f"no pool {stage.pool} serves it; those with role stage are {listed(pools)}. Add "
                f"deployment.pools.{stage.pool}: {{role: stage, hardware: ...}}",
            )
        missing = [pipeline for pipeline in stage.only if pipeline not in pipelines]
        if missing:
            return (
                f"pipeline.{name}.only",
                f"no request takes the pipeline {missing[0]}; workload.pipelines has {listed(pipelines)}",
            )
    # A pool that no stage names would be paid for and do nothing, most likely for a misspelt name.
    used = {stage.pool for stage in deployment.pipeline.values()}
    for pool in pools:
        if pool not in used and not _named_inside(deployment.pipeline.values(), pool):
            return (
                f"deployment.pools.{pool}",
                "no stage of the pipeline runs on it; name it as the pool of one, or leave it out",
            )
    return None


def _named_inside(stages: Iterable[Stage], pool: str) -> bool:
    """Whether the parameters of a stage name the pool: a stage may have steps on several."""
    return any(pool in vars(stage.parameters).values() for stage in stages if stage.parameters is not None)
