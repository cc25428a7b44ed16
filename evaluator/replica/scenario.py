"""A scenario's deployment -> the spec and the design of one of its replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evaluator.catalog.engines import serving_engine
from evaluator.catalog.fields import catalog_folders
from evaluator.catalog.model import AS_PUBLISHED, AskedOfSampler
from evaluator.catalog.what_if import WhatIf, device
from evaluator.cost.parallel import DEEPEP_LOW_LATENCY, Parallel, TwoBatches
from evaluator.policies import policy
from evaluator.records import shared_while_used, with_fields
from evaluator.replica.build import build
from evaluator.replica.changes import Change
from evaluator.replica.replica_build import ReplicaBuild
from evaluator.replica.spec import ReplicaSpec
from evaluator.scenario import scheduler_defaults
from evaluator.scenario.adapters import NamedAdapters, adapters_of
from evaluator.scenario.deployment import ASYNCHRONOUS
from evaluator.scenario.host import host_speed

if TYPE_CHECKING:
    from evaluator.scenario import Deployment


def deals_decodes(engine: str, version: str | None) -> bool:
    """Whether the ranks that split prompts deal out decodes in a release; the last that was read where none is said."""
    served = serving_engine(engine)
    since = None if served.splits_prompts is None else served.splits_prompts.dealt
    return since is not None and served.last_read(version) >= since


def overlap(engine: str, exchange: str) -> TwoBatches:
    """From how many tokens on an engine splits batches in two halves."""
    # SGLang, each of whose halves needs a token, leaves prompts whole under low latency (``TboDPAttentionPreparer``).
    sglangs = TwoBatches(2, float("inf") if exchange == DEEPEP_LOW_LATENCY else 2)
    # vLLM's defaults (``ParallelConfig.dbo_decode_token_threshold``)
    return sglangs if engine == "sglang" else TwoBatches(32, 512)


def token_budget(deployment: Deployment, longest_prompt: int) -> int:
    """``max_num_batched_tokens``, or its default (``default_budget``).

    Where the policy itself has no token budget (Orca) this is what the activations are given memory for.
    """
    batching = deployment.batching
    if batching.max_num_batched_tokens is not None:
        return batching.max_num_batched_tokens
    least = scheduler_defaults(deployment).max_num_batched_tokens
    return default_budget(batching.policy, least, batching.max_num_seqs * deployment.decode_tokens, longest_prompt)


def default_budget(batching_policy: str, engines: int, decodes: int, longest_prompt: int) -> int:
    """max_num_batched_tokens of a scenario that states none: the engine's default, or more where it would not do.

    A policy that computes prompts whole needs room for the longest one; where decodes run beside it, for all tokens
    that these verify as well (``decodes``).
    """
    record = policy(batching_policy)
    # A policy that computes prompts alone needs no room for decodes beside them. vLLM refuses limits in which a full
    # batch of decodes does not fit (``SchedulerConfig``); a default must not be such.
    beside = 0 if record.prefill_alone else decodes
    return max(engines, beside + (longest_prompt if record.whole_prompts else 0))


def replica_spec(
    deployment: Deployment,
    longest_prompt: int,
    asked: AskedOfSampler = AS_PUBLISHED,
    unequal: float | None = None,
    adapters: NamedAdapters | None = None,
) -> ReplicaSpec:
    """One replica of a deployment, under prompts of at most ``longest_prompt`` tokens to compute, from requests that
    name ``adapters``."""
    kv = deployment.kv
    return ReplicaSpec(
        deployment.model,
        deployment.hardware,
        deployment.calibration,
        deployment.precision,
        Parallel(
            deployment.tensor_parallel,
            deployment.pipeline_parallel,
            deployment.expert_parallel,
            deployment.data_parallel,
            deployment.redundant_experts,
            deployment.expert_exchange,
            deployment.decode_context_parallel,
            deployment.prefill_context_parallel,
            # Only where prompts are split, so that any other split is one and the same whatever the release.
            deployment.prefill_context_parallel > 1 and deals_decodes(deployment.engine, deployment.engine_version),
            overlap(deployment.engine, deployment.expert_exchange) if deployment.two_batch_overlap else None,
        ),
        memory_fraction=kv.memory_fraction,
        block_tokens=kv.block_tokens,
        # Whole blocks: what is left of the last one is no room.
        kv_blocks=None if kv.capacity_tokens is None else kv.capacity_tokens // deployment.shared_block_tokens,
        max_num_batched_tokens=token_budget(deployment, longest_prompt),
        max_num_seqs=deployment.batching.max_num_seqs,
        engine=deployment.engine,
        drafting=None if deployment.speculative is None else deployment.speculative.drafting,
        asked=asked,
        grouped=kv.layer_groups and (2 if deployment.batching.planning == ASYNCHRONOUS else 1),
        eager=deployment.eager,
        unequal=unequal,
        adapters=adapters_of(deployment.lora, adapters),
        engine_version=deployment.engine_version,
        apart=None if deployment.feed_forward_apart is None else deployment.feed_forward_apart.apart,
        attention_backend=deployment.attention_backend,
        host_speed=host_speed(deployment.host),
        api_server_times=deployment.api_server_times,
    )


def design(
    deployment: Deployment,
    longest_prompt: int,
    asked: AskedOfSampler = AS_PUBLISHED,
    unequal: float | None = None,
    adapters: NamedAdapters | None = None,
) -> ReplicaBuild:
    """The design of one replica of a deployment; the same object for all deployments with the same spec."""
    return _built(replica_spec(deployment, longest_prompt, asked, unequal, adapters), catalog_folders())


@shared_while_used(latest=1024)
def _built(spec: ReplicaSpec, folders: tuple[str, str, int]) -> ReplicaBuild:
    # A spec has names, which stand for something else after one of their files was edited, and in other folders.
    return build(spec)


@shared_while_used(latest=1024)
def on_device(built: ReplicaBuild, hardware: WhatIf) -> ReplicaBuild:
    """The design on a device that differs from its own in speed, power and price alone: nothing is checked anew.

    It shares its costing with ``built``, so that the engine folds the costs of both together.
    """
    changed, spec = device(hardware), with_fields(built.spec, hardware=hardware)
    # ``with_fields`` and not ``replace``: what the replica has found of its costs is that of the other device.
    replica = None if built.replica is None else with_fields(built.replica, hardware=changed)
    return with_fields(built, spec=spec, hardware=changed, replica=replica)


@shared_while_used(latest=8192)
def varied(built: ReplicaBuild, change: Change) -> ReplicaBuild:
    """A design as its names say, with one input changed: it takes other times, and has the same memory. Cached."""
    # The objects instead of their names, so that the catalog is not asked again for each of many changes.
    spec = replace(
        built.spec,
        model=built.model,
        hardware=built.hardware,
        # The set as it is used: its times are divided by the host's speed already, which must not be done twice.
        calibration=built.calibration,
        host_speed=1.0,
        api_server_times=None,
    )
    return build(replace(spec, change=change))
