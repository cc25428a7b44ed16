"""Why a configuration could never serve its requests, and what to do; ``kv_checks`` has what concerns its KV cache."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluator.cost.dtypes import BYTES
from evaluator.cost.memory import KvLayout, kv_units
from evaluator.kv_managers import manager
from evaluator.plan.simulators import by_reports, on_demand, waits_for_adapters, waits_for_answers
from evaluator.plan.station import StationPlan, longest_prompt, watermark_units
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild
from evaluator.routing import HeavyLight, PrefixAware, name_of, router_of
from evaluator.scenario import Deployment, Routers, Workload
from evaluator.scenario.deployment import ASYNCHRONOUS, AT_ONCE, BY_PRIORITY, QUEUED, SHORTEST_FIRST, STAGE
from evaluator.scenario.failures import LOST
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
        # Where all adapters have places every replica holds all of them, and no request is told which one it names.
        if record.by_adapter and workload.adapters is None:
            return (
                f"infeasible: router {record.name} without adapters; use workload.adapters and deployment.lora with "
                "fewer max_loras, or another router"
            )
        if record.by_adapter and not waits_for_adapters(workload, deployment):
            return (
                f"infeasible: router {record.name} without more workload.adapters than lora.max_loras, which every "
                "replica then holds; use fewer max_loras, or another router"
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
    return left_out(f"router {name_of(deployment.router)}", others)


def api_servers_problem(station: StationPlan, alone: bool) -> str | None:
    """What API servers with a capacity do not go with; None where they do, or take no time. ``alone``: the pool is the
    only station."""
    if station.api_server_times is None:
        return None
    deployment = station.deployment
    others = {
        "several pools or stages; use one pool without stages": not alone,
        f"role {deployment.role}; use role mixed": deployment.role != "mixed",
        # Tokens that are accepted together are sent together, which no figure tells the time of.
        "deployment.speculative; leave it out": deployment.speculative is not None,
        "several branches of a request; use one": station.extremes.branches > 1,
        "deployment.failures; leave it out": deployment.failures is not None,
    }
    return left_out("api_server_times", others, ", or leave api_server_times out")


def late_problem(station: StationPlan) -> str | None:
    """Whose caches a router cannot follow by their events; None where it can, or does not."""
    deployment = station.deployment
    router = deployment.router
    if not isinstance(router, PrefixAware) or router.exact:
        return None
    registered = manager(deployment.kv.manager)
    others = {
        "kv.layer_groups, of which each has blocks of its own": bool(station.design.ready.kv.groups),
        f"policy {deployment.batching.policy}, whose cache is a tree": policy(deployment.batching.policy).token_ratio,
        f"kv.manager {deployment.kv.manager}": registered is not None and registered.reference is not None,
    }
    key = "events_delay_s" if router.events_delay_s else "predicted_ttl_s"
    return left_out(f"{key} of router {router.router}", others, "; leave it out, or use router prefix_approximate")


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


def left_out(subject: str, others: Mapping[str, bool], remedy: str = "") -> str | None:
    """Why something does not go with the first of ``others`` that applies; None where none does.

    A text of ``others`` has its own remedy behind a semicolon.
    """
    # Each of them was left out of a simulator, and is not refused by an engine: hence unsupported, not infeasible.
    what = next((what for what, applies in others.items() if applies), None)
    return None if what is None else f"unsupported: {subject} with {what}{remedy}"


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
    return left_out(f"batching.planning {planning}", others)


def priority_problem(station: StationPlan, alone: bool) -> str | None:
    """What requests by their priority, or by predicted lengths, do not go with; None where they do, or go otherwise.

    Each would be another path of vLLM's scheduler than the one that was compared with it, or has none there.
    """
    deployment = station.deployment
    batching, record = deployment.batching, policy(deployment.batching.policy)
    if batching.packing != SHORTEST_FIRST:
        # Nothing is predicted there: a row that states such a key would be taken for one in which it had an effect.
        for key in ("prediction_error", "aging_tokens_per_s"):
            if getattr(batching, key):
                return (
                    f"infeasible: batching.{key} with packing {batching.packing}, which predicts no answers; use "
                    f"packing {SHORTEST_FIRST}, or {key}: 0"
                )
    if batching.packing not in BY_PRIORITY:
        return None
    by_length = batching.packing == SHORTEST_FIRST
    chunks = not (record.whole_prompts or record.whole_kv or record.prefill_alone)
    others = {
        f"policy {record.name}; use policy chunked": not chunks,
        f"planning {batching.planning}; use planning at_once": batching.planning != AT_ONCE,
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        "deployment.speculative; leave it out": deployment.speculative is not None,
        "several branches of a request; use one": station.extremes.branches > 1,
        "preemption swap; use preemption recompute": on_demand(deployment) and deployment.kv.preemption == "swap",
    }
    # What is predicted is the whole output, of which a prefill side gives a token, and a stage may ask for another.
    others |= {
        f"role {deployment.role}; use role mixed": by_length and deployment.role != "mixed",
        "several pools or stages; use one pool without stages": by_length and not alone,
    }
    return left_out(f"packing {batching.packing}", others)


def lora_problem(workload: Workload, station: StationPlan, alone: bool) -> str | None:
    """Why a station cannot serve LoRA adapters; None where it can, or no request names one. ``alone``: the only one."""
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
    # A prompt's KV depends on the adapter: no request with another adapter finds its blocks, though tokens are equal.
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
        return left_out(beyond, others, ", or as many max_loras")
    return left_out("workload.adapters", others)


def refusal_problem(workload: Workload, station: StationPlan, alone: bool) -> str | None:
    """What a bound on waiting requests does not go with; None where it does, or there is none.

    ``alone``: no other station, at which a refused request would never come. Who waits for an answer to send the next
    request would send all of them at once, or never again: that is a client's own rule, which nobody has said.
    """
    if station.deployment.batching.max_queued_requests is None:
        return None
    others = {
        "several pools or stages; use one pool without stages": not alone,
        f"role {station.deployment.role}; use role mixed": station.deployment.role != "mixed",
        "a closed loop; use arrivals with a rate": workload.arrivals.process == "closed_loop",
        "sessions that think from the answer; use sessions.think_from arrival": workload.feedback,
        "data-parallel ranks in lockstep; use replicas": station.lockstep > 1,
    }
    return left_out("max_queued_requests", others, ", or leave it out")


def failures_problem(workload: Workload, station: StationPlan, alone: bool) -> str | None:
    """Why replicas cannot fail; None where they can, or do not. ``alone``: there is no other station.

    Users who wait for answers take an error for one where requests are sent again; where they are not, those who come
    while no replica serves would send all their requests at once (``refusal_problem``).
    """
    deployment = station.deployment
    failures = deployment.failures
    if failures is None:
        return None
    beyond = [outage.replica for outage in failures.outages if outage.replica >= deployment.replicas]
    if beyond:
        return (
            f"infeasible: failures.outages names replica {beyond[0]}, and there are {deployment.replicas}, from 0 on; "
            "use one of them or more replicas"
        )
    others = {
        "several pools or stages; use one pool without stages": not alone,
        f"role {deployment.role}; use role mixed": deployment.role != "mixed",
        "data_parallel; use replicas": deployment.data_parallel > 1,
        "requests lost and users who wait for answers; use requests: resent": failures.requests == LOST
        and waits_for_answers(workload),
        "kv.offload_bytes; use a prefix cache without host memory": deployment.kv.offload_bytes is not None,
    }
    return left_out("failures", others, ", or leave it out")


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
    return left_out(f"policy {record.name}", others) or _pages_problem(station, record.name)


def _pages_problem(station: StationPlan, name: str) -> str | None:
    """Why SGLang's policy ``name`` would never admit some request with these sizes of blocks and KV."""
    deployment, kv = station.deployment, station.design.ready.kv
    # SGLang starts only where its chunk is of whole pages; one that holds none would never admit a long prompt.
    if station.max_num_batched_tokens < kv.block_tokens:
        return (
            f"infeasible: policy {name} cuts prompts where a block ends, and max_num_batched_tokens "
            f"{station.max_num_batched_tokens:,} is less than a kv.block_tokens of {kv.block_tokens:,}; "
            "raise the one or lower the other"
        )
    # ``PrefillAdder.add_one_req``: prompt, answer and a page must be less than what is free.
    if station.extremes.sequence + kv.block_tokens >= kv.capacity_units * kv.block_tokens:
        return (
            f"infeasible: policy {name} keeps a block free beside a request, and one of "
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
    if (problem := left_out("workload.reasoning.branches", others, ", or one branch")) is not None:
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
    if (problem := left_out("deployment.speculative", others, ", or leave out speculative")) is not None:
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


def limit_problem(
    deployment: Deployment, built: ReplicaBuild, extremes: Extremes, largest_units: int | None = None
) -> str | None:
    """Why some request could never be served within the limits; None where all can.

    ``largest_units``: of the KV cache, what the largest request takes, where that does not follow from its tokens.
    """
    longest, budget = longest_prompt(deployment, extremes), built.spec.max_num_batched_tokens
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
    apart = deployment.feed_forward_apart
    # A request is on one of these ranks, and what an admission leaves free is on all of them alike.
    ranks = 1 if apart is None else apart.attention_ranks
    if units > (kv.capacity_units - watermark) // ranks:
        beside = f" beside the watermark of {deployment.kv.watermark:g}" if watermark else ""
        branches = f" on {extremes.branches} branches" if extremes.branches > 1 else ""
        of_rank = "" if ranks == 1 else f" on each of the {ranks} ranks of feed_forward_apart"
        return (
            f"infeasible: a request of {extremes.kv_tokens:,} tokens{branches} exceeds the KV cache of "
            f"{kv.capacity_tokens / ranks:,.0f} tokens{of_rank}{beside}; use {_more_room(deployment)} or shorter "
            "requests"
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
