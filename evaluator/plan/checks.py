"""Why a configuration could never serve its requests, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from evaluator.cost.dtypes import BYTES
from evaluator.cost.memory import KvLayout, kv_units
from evaluator.kv_managers import manager
from evaluator.plan.simulators import by_reports, on_demand, waits_for_adapters
from evaluator.plan.station import StationPlan, longest_prompt
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild, token_budget
from evaluator.routing import HeavyLight, name_of, router_of
from evaluator.scenario import Deployment, Routers, Workload
from evaluator.scenario.deployment import ASYNCHRONOUS, AT_ONCE, PRIORITY, QUEUED, STAGE
from evaluator.scenario.pools import UNNAMED
from evaluator.traffic.jobs import Extremes
from evaluator.traffic.requests import cached_by_content, shared_tokens
from evaluator.traffic.roles import ROLES

# The engine's rings have a cell for every token of the longest output (``simulators.ring_of``): with this one they take
# some 100 MB per replica.
LARGEST_OUTPUT = 1 << 22


def routing_problem(workload: Workload, deployment: Deployment) -> str | None:
    """Why a router has no replica for some requests, or nothing to go by."""
    router, replicas = deployment.router, deployment.ranks
    if not isinstance(router, Routers):
        record = router_of(router)
        if record.independent is not None and record.independent.by_session and not workload.known_sessions:
            return (
                f"infeasible: router {record.name} without sessions; use workload.sessions.turns, a trace with a "
                "column session, or another router"
            )
        # Such a router compares prefixes by the names of their blocks, which only a cache by content gives them.
        if record.by_prefix and not cached_by_content(workload, deployment):
            return (
                f"infeasible: router {record.name} without a prefix cache; use kv.prefix_caching, and "
                "workload.sessions.turns or a trace with a column session or hash_ids, or another router"
            )
    if not isinstance(router, HeavyLight) or replicas == 1 or router.heavy_replicas < replicas:
        return None
    return (
        f"infeasible: router heavy_light has {router.heavy_replicas} of {replicas} replicas for long prompts, and none "
        "is left for the others; use fewer heavy_replicas"
    )


def reports_problem(station: StationPlan) -> str | None:
    """Why vLLM would not balance the ranks of a pool as its router says; None where it does, or is not asked to."""
    deployment = station.deployment
    if not by_reports(deployment):
        return None
    # A frontend knows the ranks of its own server. Ranks with experts report whole iterations of all of them, and a
    # server that plans ahead reports between plans: neither was compared with vLLM's.
    others = {
        f"engine {deployment.engine}, which balances its ranks in turn; use router round_robin": deployment.engine
        != "vllm",
        "several replicas, which are servers of their own; use data_parallel for the ranks of one": deployment.replicas
        > 1,
        "data-parallel ranks in lockstep; use router least_outstanding": station.lockstep > 1,
        f"batching.planning {deployment.batching.planning}; use planning at_once": deployment.batching.planning
        != AT_ONCE,
    }
    return _left_out(f"router {name_of(deployment.router)}", others)


def policy_problem(deployment: Deployment, built: ReplicaBuild) -> str | None:
    """What a policy cannot do with the KV cache, or with a model that has none."""
    record, kv = policy(deployment.batching.policy), built.ready.kv
    # The pools of stages may compute encoders; whoever answers users must give tokens.
    role = ROLES.get(deployment.role)
    if not built.model.gives_tokens and role is not None and not role.first_token_only:
        return (
            f"infeasible: {built.model.name} gives a vector and no tokens; use it in a stage of the pipeline, or "
            "another model"
        )
    if built.model.whole_texts and not record.whole_prompts:
        return (
            f"infeasible: policy {record.name} cuts prompts into chunks, and {built.model.name} attends to later "
            "tokens; use policy continuous or static"
        )
    if record.admission == "reserve" and deployment.kv.admission == "on_demand":
        return f"infeasible: policy {record.name} reserves the KV of a whole request; use kv.admission reserve"
    if not record.by_future_peak:
        return None
    # LightLLM's future peak is a sum of single tokens, which whole blocks would exceed.
    if kv.block_tokens != 1:
        return f"infeasible: policy {record.name} deals out KV token by token; use kv.block_tokens 1"
    if kv.window is not None or kv.bytes_per_sequence > 0:
        return (
            f"unsupported: policy {record.name} on {built.model.name}, whose layers do not all keep every token; "
            "use policy chunked or continuous"
        )
    return None


def prefix_problem(workload: Workload, deployment: Deployment, built: ReplicaBuild, extremes: Extremes) -> str | None:
    """Why prefixes cannot be kept in the KV cache; None where they can, or are not."""
    shared, kv = shared_tokens(workload, deployment), built.ready.kv
    by_content = cached_by_content(workload, deployment)
    if not shared and not by_content:
        return None
    record = policy(deployment.batching.policy)
    others = {
        # System prompts without turns are taken to be in the cache from the start: of mixed replicas only.
        f"system prompts alone and role {deployment.role}; use role mixed, or workload.sessions.turns": not by_content
        and deployment.role != "mixed",
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
        f"policy {record.name}; use policy chunked or continuous": record.by_future_peak,
        f"{built.model.name}, whose layers do not all keep every token; use another model": not kv.groups
        and (kv.window is not None or kv.bytes_per_sequence > 0),
    }
    if (problem := _left_out("kv.prefix_caching", others, ", or leave it out")) is not None:
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
    }
    problem = _left_out("kv.offload_bytes", others, ", or leave it out")
    if problem is None and not host_space(station)[0]:
        return "infeasible: kv.offload_bytes has no room for a block of the KV cache; use more of it, or leave it out"
    return problem


def _left_out(subject: str, others: Mapping[str, bool], remedy: str = "") -> str | None:
    """Why something does not go with the first of ``others`` that applies; None where none does.

    A text of ``others`` has its own remedy behind a semicolon.
    """
    # Each of them was left out of a simulator, and is not refused by an engine: hence unsupported, not infeasible.
    what = next((what for what, applies in others.items() if applies), None)
    return None if what is None else f"unsupported: {subject} with {what}{remedy}"


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


def planning_problem(station: StationPlan) -> str | None:
    """Why batches cannot be planned ahead as vLLM's engine core does; None where they can, or are not."""
    deployment = station.deployment
    record = policy(deployment.batching.policy)
    planning, several = deployment.batching.planning, deployment.pipeline_parallel > 1
    if planning == AT_ONCE or (planning == QUEUED and not several):
        # With a single batch in flight a queue of batches never holds a second one: ``queued`` is then ``at_once``.
        return None
    others = {
        f"policy {deployment.batching.policy}; use policy chunked": not record.plans_ahead,
        "pipeline_parallel; use planning queued": planning == ASYNCHRONOUS and several,
        "data_parallel; use planning at_once": station.lockstep > 1,
        "deployment.speculative; use planning at_once": deployment.speculative is not None,
        "several branches of a request; use planning at_once": station.extremes.branches > 1,
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
    }
    return _left_out(f"batching.planning {planning}", others)


def priority_problem(station: StationPlan) -> str | None:
    """What requests by their priority do not go with; None where they do, or do not go by it.

    Each would be another path of vLLM's scheduler than the one that was compared with it, or has none there.
    """
    deployment = station.deployment
    batching, record = deployment.batching, policy(deployment.batching.policy)
    if batching.packing != PRIORITY:
        return None
    chunks = not (record.whole_prompts or record.whole_kv or record.prefill_alone)
    others = {
        f"policy {record.name}; use policy chunked": not chunks,
        f"planning {batching.planning}; use planning at_once": batching.planning != AT_ONCE,
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        "deployment.speculative; leave it out": deployment.speculative is not None,
        "several branches of a request; use one": station.extremes.branches > 1,
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
    }
    return _left_out("packing priority", others)


def context_parallel_problem(deployment: Deployment) -> str | None:
    """What KV that is split along its tokens does not go with; None where it does, or is not split."""
    if deployment.decode_context_parallel == 1:
        return None
    others = {f"role {deployment.role}, between whose sides whole heads are sent": deployment.role != "mixed"}
    return _left_out("decode_context_parallel", others, "; use role mixed, or 1")


def lora_problem(workload: Workload, station: StationPlan, alone: bool) -> str | None:
    """What LoRA adapters do not go with; None where they do, or nobody names any. ``alone``: no other station."""
    deployment, named = station.deployment, workload.adapters
    if named is None or deployment.role == STAGE:
        return None
    if deployment.lora is None:
        # Without pools there is one station, of a name that no reader has given.
        named_pool = station.name != UNNAMED
        return (
            "infeasible: requests name adapters (workload.adapters), and "
            f"{f'pool {station.name}' if named_pool else 'the deployment'} holds none; use "
            f"{f'deployment.pools.{station.name}.' if named_pool else ''}lora: {{max_loras: {min(named.count, 8)}}}, "
            "or leave out workload.adapters"
        )
    # A prompt's KV depends on the adapter, so that blocks of equal tokens are found by nobody who names another one.
    cached = cached_by_content(workload, deployment) or shared_tokens(workload, deployment)
    others = {
        "kv.prefix_caching; use prefix_caching: false": bool(cached),
        "several models; use one": bool(workload.model_names),
    }
    if waits_for_adapters(workload, deployment):
        record = policy(deployment.batching.policy)
        chunks = not (record.whole_prompts or record.whole_kv or record.prefill_alone or record.token_ratio)
        others |= {
            f"policy {record.name}; use policy chunked": not chunks,
            f"packing {deployment.batching.packing}; use fcfs": deployment.batching.packing != "fcfs",
            "several pools or stages; use one pool without stages": not alone,
            f"role {deployment.role}; use role mixed": deployment.role != "mixed",
            "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
            "data-parallel ranks in lockstep; use replicas": station.lockstep > 1,
            "several branches of a request; use one": station.extremes.branches > 1,
        }
        beyond = f"{named.count:,} workload.adapters, more than lora.max_loras {deployment.lora.max_loras},"
        return _left_out(beyond, others, ", or as many max_loras")
    return _left_out("workload.adapters", others)


def refusal_problem(workload: Workload, station: StationPlan, alone: bool) -> str | None:
    """What a bound on waiting requests does not go with; None where it does, or there is none.

    ``alone``: no other station, at which a refused request would never come. Who waits for an answer to send the next
    request would send all of them at once, or never again: that is a client's own rule, which nobody has said.
    """
    if station.deployment.batching.max_queued_requests is None:
        return None
    others = {
        "several pools or stages": not alone,
        f"role {station.deployment.role}": station.deployment.role != "mixed",
        "a closed loop": workload.arrivals.process == "closed_loop",
        "sessions that think from the answer": workload.feedback,
        "data-parallel ranks in lockstep": station.lockstep > 1,
    }
    return _left_out("max_queued_requests", others, "; leave it out")


def scaling_problem(station: StationPlan, alone: bool) -> str | None:
    """Why replicas cannot come and go; None where they can, or do not. ``alone``: there is no other station."""
    deployment = station.deployment
    scaling = deployment.autoscaling
    if scaling is None:
        return None
    if scaling.min_replicas > deployment.replicas:
        return (
            f"infeasible: autoscaling.min_replicas {scaling.min_replicas} exceeds replicas {deployment.replicas}, the "
            "most that there may be; raise the one or lower the other"
        )
    others = {
        "several pools or stages": not alone,
        f"role {deployment.role}": deployment.role != "mixed",
        "data_parallel": deployment.data_parallel > 1,
    }
    return _left_out("autoscaling", others, "; leave it out")


def ratio_problem(workload: Workload, station: StationPlan) -> str | None:
    """What a policy that admits by the ratio of new tokens does not go with; None where it does, or is not asked for.

    Each is another path of SGLang's code than the one that was compared with it.
    """
    deployment, kv = station.deployment, station.design.ready.kv
    record = policy(deployment.batching.policy)
    packing = deployment.batching.packing
    if not record.token_ratio:
        if packing != "longest_prefix":
            return None
        return f"unsupported: packing longest_prefix with policy {record.name}; use policy token_ratio or packing fcfs"
    others = {
        f"role {deployment.role}; use role mixed": deployment.role != "mixed",
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        "data-parallel ranks in lockstep; use policy continuous": station.lockstep > 1,
        f"packing {packing}; use packing fcfs": packing not in ("fcfs", "longest_prefix"),
        "deployment.speculative; use policy continuous": deployment.speculative is not None,
        "several branches of a request; use policy continuous": station.extremes.branches > 1,
        "preemption swap; use preemption recompute": deployment.kv.preemption == "swap",
        "kv.watermark, which is vLLM's; leave it out": deployment.kv.watermark > 0,
        "system prompts alone in kv.prefix_caching, which are resident here; use policy continuous": shared_tokens(
            workload, deployment
        )
        > 0
        and not cached_by_content(workload, deployment),
        f"{station.design.model.name}, whose layers do not all keep every token; use policy continuous": kv.window
        is not None
        or kv.bytes_per_sequence > 0,
    }
    if (problem := _left_out(f"policy {record.name}", others)) is not None:
        return problem
    # SGLang starts only where its chunk is of whole pages; one that holds none would never admit a long prompt.
    if station.max_num_batched_tokens < kv.block_tokens:
        return (
            f"infeasible: policy {record.name} cuts prompts where a block ends, and max_num_batched_tokens "
            f"{station.max_num_batched_tokens:,} is less than a kv.block_tokens of {kv.block_tokens:,}; "
            "raise the one or lower the other"
        )
    # ``PrefillAdder.add_one_req``: prompt, answer and a page must be less than what is free.
    if station.extremes.sequence + kv.block_tokens >= kv.capacity_units * kv.block_tokens:
        return (
            f"infeasible: policy {record.name} keeps a block free beside a request, and one of "
            f"{station.extremes.sequence:,} tokens fills the KV cache of {kv.capacity_tokens:,.0f}; use "
            f"{_more_room(deployment)} or shorter requests"
        )
    return None


def branches_problem(workload: Workload, station: StationPlan) -> str | None:
    """Why requests with several branches cannot be served; None where they can, or have one."""
    deployment, branches = station.deployment, station.extremes.branches
    if branches == 1:
        return None
    record, most = policy(deployment.batching.policy), deployment.batching.max_num_seqs
    others = {
        f"policy {record.name}; use policy chunked or continuous": record.by_future_peak,
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
        "kv.prefix_caching by content; leave out kv.prefix_caching": cached_by_content(workload, deployment),
    }
    if (problem := _left_out("workload.reasoning.branches", others, ", or one branch")) is not None:
        return problem
    # The branches of a request decode together or not at all, so that each needs a place in the batch.
    if branches > most:
        return (
            f"infeasible: a request decodes on {branches:,} branches, and max_num_seqs is {most:,}; raise it or use "
            "fewer workload.reasoning.branches"
        )
    if record.token_budget and station.role.prompt_resident and branches > station.max_num_batched_tokens:
        return (
            f"infeasible: a request decodes on {branches:,} branches, and max_num_batched_tokens is "
            f"{station.max_num_batched_tokens:,}; raise it or use fewer workload.reasoning.branches"
        )
    return None


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
    return _left_out("kv.layer_groups", others)


def drafts_problem(station: StationPlan) -> str | None:
    """Why decodes cannot verify drafts; None where they can, or have none."""
    deployment = station.deployment
    if not station.drafts:
        return None
    record = policy(deployment.batching.policy)
    # The future peak is foreseen at one token of each sequence in an iteration; drafts give as many as are accepted.
    others = {
        f"policy {record.name}; use policy chunked or continuous": record.by_future_peak,
        "workload.reasoning.branches; use one branch": station.extremes.branches > 1,
    }
    if (problem := _left_out("deployment.speculative", others, ", or leave out speculative")) is not None:
        return problem
    by = station.design.ready.costing.drafts
    # A drafter that reads the whole text must have positions for it, as the model has.
    most = None if by is None else by.max_positions
    if most is not None and station.extremes.sequence > most:
        return (
            f"infeasible: a request of {station.extremes.sequence:,} tokens exceeds the {most:,} positions of the "
            "model that drafts; use shorter requests, another draft model or no speculative"
        )
    return None


def manager_problem(workload: Workload, station: StationPlan) -> str | None:
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
    return _left_out(f"kv.manager {registered.name}", others)


def limit_problem(
    deployment: Deployment, built: ReplicaBuild, extremes: Extremes, largest_units: int | None = None
) -> str | None:
    """Why some request could never be served within the limits; None where all can.

    ``largest_units``: of the KV cache, what the largest request takes, where that does not follow from its tokens.
    """
    longest = longest_prompt(deployment, extremes)
    budget = token_budget(deployment, longest)
    if extremes.sequence > built.model.max_positions:
        return (
            f"infeasible: a request of {extremes.sequence:,} tokens exceeds the {built.model.max_positions:,} "
            f"positions of {built.model.name}; use shorter prompts or a model with a longer context"
        )
    kv = built.ready.kv
    # A decode has slots for its drafts beside its own token; a prefill side verifies none.
    drafts = 0 if ROLES[deployment.role].first_token_only else deployment.decode_tokens - 1
    # The largest request alone on an idle replica: if that fits, every request can be served some time.
    units = int(kv_units(kv, extremes.kv_tokens + drafts)) if largest_units is None else largest_units
    registered = manager(deployment.kv.manager)
    if registered is not None and registered.units is not None:
        # A manager by sizes says what a request takes in place of the package's own count.
        units = int(registered.units(np.array([units]))[0])
    return _budget_problem(deployment, budget, longest) or _kv_problem(deployment, kv, extremes, units)


def _budget_problem(deployment: Deployment, budget: int, longest: int) -> str | None:
    batching, record = deployment.batching, policy(deployment.batching.policy)
    if not record.token_budget:
        return None
    decodes = batching.max_num_seqs * deployment.decode_tokens
    # vLLM refuses so, too (``SchedulerConfig``): else a full batch of decodes would not fit into an iteration.
    if not record.prefill_alone and decodes > budget:
        drafts = f" with {deployment.decode_tokens - 1} drafts each" if decodes > batching.max_num_seqs else ""
        return (
            f"infeasible: max_num_seqs {batching.max_num_seqs:,}{drafts} exceeds max_num_batched_tokens {budget:,}; "
            "lower the one or raise the other"
        )
    if record.whole_prompts and longest > budget:
        again = ", with the output so far after a preemption," if on_demand(deployment) else ""
        return (
            f"infeasible: a prompt of {longest:,} tokens{again} exceeds max_num_batched_tokens {budget:,}, and "
            f"{record.name} batching computes whole prompts; raise it or use policy chunked"
        )
    return None


def _kv_problem(deployment: Deployment, kv: KvLayout, extremes: Extremes, units: int) -> str | None:
    watermark = watermark_units(deployment, kv)
    if units + watermark > kv.capacity_units:
        beside = f" beside the watermark of {deployment.kv.watermark:g}" if watermark else ""
        branches = f" on {extremes.branches} branches" if extremes.branches > 1 else ""
        return (
            f"infeasible: a request of {extremes.kv_tokens:,} tokens{branches} exceeds the KV cache of "
            f"{kv.capacity_tokens:,.0f} tokens{beside}; use {_more_room(deployment)} or shorter requests"
        )
    if extremes.output > LARGEST_OUTPUT:
        return f"unsupported: outputs of more than {LARGEST_OUTPUT:,} tokens; shorten them"
    return None


def _more_room(deployment: Deployment) -> str:
    """What gives the KV cache more tokens: where their number is stated, nothing else does."""
    if deployment.kv.capacity_tokens is not None:
        return "more kv.capacity_tokens"
    wide = BYTES[deployment.precision.kv] > BYTES["fp8"]
    return "more tensor_parallel, kv precision fp8" if wide else "more tensor_parallel"


def watermark_units(deployment: Deployment, kv: KvLayout) -> int:
    """KV units that an admission leaves free; rounded down as vLLM does."""
    return int(deployment.kv.watermark * kv.capacity_units) if on_demand(deployment) else 0


def _to_host(station: StationPlan, bandwidth: float | None) -> float:
    """Bytes per second of a device to host memory; a sensitivity to the links' bandwidth concerns it."""
    assert bandwidth is not None
    change = station.design.change
    return bandwidth * (change.factor if change and change.input == "link_bandwidth" else 1.0)


def host_space(station: StationPlan) -> tuple[int, float]:
    """Under the prefix cache of a replica: (blocks that host memory has room for, seconds in which one is copied)."""
    kv, block_bytes = station.deployment.kv, station.design.ready.kv.unit_bytes
    # Each device has a part of every block, and copies it over a link of its own.
    blocks = int((kv.offload_bytes or 0.0) / station.deployment.tensor_parallel // block_bytes)
    return blocks, block_bytes / _to_host(station, kv.offload_bandwidth)


def swap_space(station: StationPlan) -> tuple[float, float]:
    """Of preemption by swapping: (KV units that host memory has room for, seconds in which one is copied there)."""
    kv, layout = station.deployment.kv, station.design.ready.kv
    bandwidth = _to_host(station, kv.swap_bandwidth)
    # Whole units: half a block in host memory is of no use.
    return math.inf if kv.swap_bytes is None else kv.swap_bytes // layout.unit_bytes, layout.unit_bytes / bandwidth
