"""Why the KV cache of a configuration cannot be kept as its keys say, and what to do."""

from __future__ import annotations

from evaluator.cost.memory import KvLayout, kv_units
from evaluator.kv_managers import manager
from evaluator.plan.checks import left_out
from evaluator.plan.simulators import on_demand
from evaluator.plan.station import StationPlan, host_space, tier_spaces, watermark_units
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild
from evaluator.scenario import Deployment, Workload
from evaluator.traffic.jobs import Extremes
from evaluator.traffic.requests import cached_by_content, shared_tokens


def prefix_problem(workload: Workload, deployment: Deployment, built: ReplicaBuild, extremes: Extremes) -> str | None:
    """Why prefixes cannot be kept in the KV cache; None where they can, or are not."""
    shared, kv = shared_tokens(workload, deployment), built.ready.kv
    by_content = cached_by_content(workload, deployment)
    if not shared and not by_content:
        return None
    record = policy(deployment.batching.policy)
    others = {
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
        f"policy {record.name}; use policy chunked or continuous": record.by_future_peak,
        f"{built.model.name}, whose layers do not all keep every token; use another model": not kv.groups
        and (kv.window is not None or kv.bytes_per_sequence > 0),
    }
    if (problem := left_out("kv.prefix_caching", others, ", or leave it out")) is not None:
        return problem
    if by_content:
        return _content_problem(workload, kv, deployment.decode_context_parallel)
    units, prompts = int(kv_units(kv, shared)), workload.sessions.system_prompts
    # A system prompt is kept for good, so that it is taken off the cache; the largest request must fit beside all of
    # them.
    largest = int(kv_units(kv, extremes.kv_tokens)) - units + watermark_units(deployment, kv)
    if prompts * units + largest <= kv.capacity_units:
        return None
    return (
        f"infeasible: {prompts:,} system prompts of {shared:,} tokens stay in the KV cache of "
        f"{kv.capacity_tokens:,.0f} tokens and leave too little for a request of {extremes.kv_tokens - shared:,} more; "
        "use fewer or shorter system_prompts, more tensor_parallel or no kv.prefix_caching"
    )


def _content_problem(workload: Workload, kv: KvLayout, split: int) -> str | None:
    """What a trace says that does not go with a cache of blocks by their content.

    ``split``: decode_context_parallel, by so many of which a block of the cache is more than kv.block_tokens.
    """
    trace, hashed = workload.trace, workload.sessions.hash_block_tokens
    if trace is None:
        return None
    if workload.cached_tokens or (trace.cached_tokens is not None and trace.cached_tokens.any()):
        return (
            "infeasible: cached_tokens beside kv.prefix_caching, which finds out itself what is cached; leave out the "
            "one or the other"
        )
    # A hash names a whole block of the trace: that can be cut into equal parts, but not put together otherwise.
    if trace.hash_ids is not None and hashed % kv.block_tokens:
        product = f" (kv.block_tokens {kv.block_tokens // split} x decode_context_parallel {split})"
        # Where the number of ranks does not divide the trace's blocks, no kv.block_tokens makes them whole.
        key = "decode_context_parallel" if hashed % split else "kv.block_tokens"
        return (
            f"infeasible: hash_ids of blocks of {hashed} tokens do not say what is in blocks of {kv.block_tokens}"
            f"{product if split > 1 else ''}; use a {key} that divides {hashed if hashed % split else hashed // split}"
        )
    return None


def offload_problem(workload: Workload, station: StationPlan, pools: int) -> str | None:
    """Why blocks of the prefix cache cannot be kept in host memory, too; None where they can, or are not.

    ``pools``: how many give the answers.
    """
    deployment, record = station.deployment, policy(station.deployment.batching.policy)
    if deployment.kv.offload_bytes is None:
        return None
    if not cached_by_content(workload, deployment):
        return (
            "infeasible: kv.offload_bytes without a prefix cache by content; use kv.prefix_caching, and "
            "workload.sessions.turns or a trace with a column session or hash_ids, or leave it out"
        )
    packing = deployment.batching.packing
    others = {
        f"role {deployment.role}; use role mixed": deployment.role != "mixed",
        "several pools; use one": pools > 1,
        "kv.admission reserve; use on_demand": not on_demand(deployment),
        f"policy {record.name}; use policy chunked": record.whole_prompts or record.prefill_alone,
        f"batching.packing {packing}; use fcfs": packing != "fcfs",
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        "data-parallel ranks in lockstep; use replicas": station.lockstep > 1,
        "deployment.speculative; leave out speculative": station.drafts > 0,
        "kv.layer_groups; leave out layer_groups": deployment.kv.layer_groups,
        "prefill_context_parallel, whose ranks keep the same blocks; use 1": deployment.prefill_context_parallel > 1,
    }
    problem = left_out("kv.offload_bytes", others, ", or leave it out")
    if problem is None and not host_space(station)[0]:
        return "infeasible: kv.offload_bytes has no room for a block of the KV cache; use more of it, or leave it out"
    if problem is None and any(space.blocks < 1 for space in tier_spaces(station)):
        return (
            "infeasible: kv.offload_tiers: a tier has no room for a block of the KV cache; use more capacity, or leave "
            "it out"
        )
    return problem


def groups_problem(workload: Workload, station: StationPlan) -> str | None:
    """What groups of layers do not go with; None where they do, or where the layers are in none.

    Compared with vLLM are chunked prefill, its KV on demand, planning ahead and prefix caches of windows.
    """
    deployment, groups = station.deployment, station.design.ready.kv.groups
    if not groups:
        return None
    record, kv = policy(deployment.batching.policy), deployment.kv
    cached = cached_by_content(workload, deployment)
    others = {
        f"engine {deployment.engine}, which has none; leave it out": deployment.engine != "vllm",
        f"policy {record.name}; use policy chunked": not record.plans_ahead,
        "kv.admission reserve; use on_demand": not on_demand(deployment),
        "preemption swap; use preemption recompute": kv.preemption == "swap",
        f"role {deployment.role}; use role mixed": deployment.role != "mixed",
        "deployment.speculative; leave out the one or the other": deployment.speculative is not None,
        "several branches of a request; use one": station.extremes.branches > 1,
        "kv.manager; leave out the one or the other": kv.manager is not None,
        "kv.capacity_tokens, which do not say how many blocks there are; leave it out": kv.capacity_tokens is not None,
        "kv.prefix_caching and layers that keep states; leave out prefix_caching": cached
        and any(group.state for group in groups),
        "system prompts alone in kv.prefix_caching, which are resident here; leave out prefix_caching": not cached
        and shared_tokens(workload, deployment) > 0,
    }
    return left_out("kv.layer_groups", others)


def context_parallel_problem(deployment: Deployment) -> str | None:
    """What KV that is split along its tokens does not go with; None where it does, or is not split."""
    if deployment.decode_context_parallel == 1:
        return None
    others = {f"role {deployment.role}, between whose sides whole heads are sent": deployment.role != "mixed"}
    return left_out("decode_context_parallel", others, "; use role mixed, or 1")


def manager_problem(station: StationPlan) -> str | None:
    """Why a KV manager of one's own cannot keep the KV of a pool; None where it can, or there is none."""
    deployment = station.deployment
    registered = manager(deployment.kv.manager)
    if registered is None:
        return None
    # What the package's own KV does besides counting units: hooks of a manager have no part in it.
    others = {
        "kv.admission on_demand; use reserve": registered.units is not None and on_demand(deployment),
        "kv.prefix_caching; leave it out": deployment.kv.prefix_caching,
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
        "several branches of a request; use one": station.extremes.branches > 1,
    }
    return left_out(f"kv.manager {registered.name}", others)
