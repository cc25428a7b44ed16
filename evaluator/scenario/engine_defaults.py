"""The serving engine's own defaults for what a deployment does not say of its scheduler and memory."""

from __future__ import annotations

from functools import cache
from typing import Any

from evaluator.catalog.engines import SchedulerDefaults, serving_engine
from evaluator.catalog.model import Model
from evaluator.catalog.what_if import device_named, model_named
from evaluator.cost.kv_groups import keeps_tokens
from evaluator.policies import CHUNKED, CONTINUOUS, policy
from evaluator.records import with_fields
from evaluator.scenario.deployment import ASYNCHRONOUS, AT_ONCE, STAGE, Batching, Deployment, KvCache
from evaluator.scenario.workload import Workload

_ENGINE = ("engine", "engine_version")
_DEVICE = (*_ENGINE, "hardware", "hardware.memory_bytes", "hardware.like", "model", "model.like",
           "tensor_parallel", "pipeline_parallel", "data_parallel", "prefill_context_parallel")  # fmt: skip
_BY_RATIO = ("role", "model", "model.like", "pipeline_parallel", "data_parallel", "speculative", "kv.admission",
             "kv.preemption", "kv.watermark", "kv.manager", "kv.prefix_caching", "batching.packing",
             "batching.enable_mixed_chunk")  # fmt: skip
LEFT_TO_ENGINE: dict[str, dict[str, tuple[str, ...]]] = {
    "batching": {
        "policy": (*_ENGINE, *_BY_RATIO),
        "max_num_seqs": (*_DEVICE, "batching.max_num_batched_tokens", "speculative", "speculative.tokens"),
        "planning": (*_ENGINE, *_BY_RATIO, "async_scheduling", "batching.policy"),
    },
    "kv": {
        "memory_fraction": _DEVICE,
        "block_tokens": _ENGINE,
        "admission": (*_ENGINE, *_BY_RATIO, "batching.policy", "batching.max_num_batched_tokens"),
        "full_prompt": _ENGINE,
        "prefix_caching": (*_ENGINE, "model", "model.like", "role", "kv.admission", "kv.preemption", "kv.manager",
                           "kv.layer_groups", "batching.policy"),
    },
}  # fmt: skip
"""Keys that hold None where a file says nothing of them, by section, and the keys of a deployment that move their
defaults. ``batching.max_num_batched_tokens`` stays None: its default depends on the prompts
(``replica.token_budget``)."""


def scheduler_defaults(deployment: Deployment) -> SchedulerDefaults:
    """The defaults of the deployment's engine on its hardware."""
    # Data-parallel ranks of a model without experts are replicas that depend on nothing of one another.
    data_parallel = deployment.data_parallel
    ranks = data_parallel if data_parallel > 1 and model_named(deployment.model).has_experts else 1
    devices = deployment.tensor_parallel * deployment.pipeline_parallel * ranks * deployment.prefill_context_parallel
    hardware = device_named(deployment.hardware)
    defaults = serving_engine(deployment.engine).defaults(hardware, devices, ranks, deployment.engine_version)
    if deployment.async_scheduling is None:
        return defaults
    return with_fields(defaults, planning=ASYNCHRONOUS if deployment.async_scheduling else AT_ONCE)


def _policy(deployment: Deployment, defaults: SchedulerDefaults, workload: Workload | None, alone: bool) -> str:
    """``batching.policy`` as the engine has it, and where SGLang's own does not go with the rest the nearest to it.

    What it does not go with is refused where somebody asks for it (``plan.checks.ratio_problem``). ``continuous``
    computes whole prompts while the decodes wait; ``chunked`` has both in an iteration, as SGLang's mixed chunks.
    """
    if not policy(defaults.policy).token_ratio:
        return defaults.policy
    kv, model = deployment.kv, model_named(deployment.model)
    approximated = kv.prefix_caching and not (workload is not None and workload.known_content)
    goes = (
        alone
        and deployment.role == "mixed"
        and deployment.pipeline_parallel == 1
        and not (deployment.data_parallel > 1 and model.has_experts)
        and deployment.speculative is None
        and deployment.batching.packing != "least_work_left"
        and kv.admission != "reserve"
        and not (kv.preemption == "swap" or kv.watermark or kv.manager or approximated)
        and not (workload is not None and workload.reasoning.several)
        and model.keeps_all_tokens
        and not model.whole_texts
    )
    nearest = CHUNKED if deployment.batching.enable_mixed_chunk else CONTINUOUS
    return defaults.policy if goes else nearest.name


def _admission(deployment: Deployment, defaults: SchedulerDefaults, workload: Workload | None) -> str:
    """``kv.admission`` as the engine has it, and reserve where taking KV on demand is another thing than it does.

    A request that is preempted is computed anew with its output so far, for which a policy of whole prompts needs room
    in an iteration: a limit that is said was chosen for prompts, and would be refused for outputs.
    Pools for stages keep nothing of an answer. Several branches on demand take the reference, a hundred times as long.
    """
    record = policy(deployment.batching.policy or defaults.policy)
    room = deployment.batching.max_num_batched_tokens is None or not record.whole_prompts
    either = record.token_ratio or (room and record.admission is None)
    on_demand = either and deployment.kv.manager is None
    branches = workload is not None and workload.reasoning.several
    return defaults.admission if on_demand and not branches and deployment.role != STAGE else "reserve"


def _caches(deployment: Deployment, defaults: SchedulerDefaults, admission: str, workload: Workload | None) -> bool:
    """``kv.prefix_caching`` as the engine has it, where what is in the blocks is known, and we know how to find them.

    Where we do not, asking for it is refused with the reason (``plan.kv_checks.prefix_problem``), and saying nothing
    means no cache. System prompts without turns are an approximation, which is for the scenario to ask for.
    """
    if workload is None or not workload.known_content or not defaults.prefix_caching:
        return False
    trace, kv = workload.trace, deployment.kv
    swaps = admission == "on_demand" and kv.preemption == "swap"
    hashed = trace is not None and trace.hash_ids is not None
    cached = workload.cached_tokens or (
        trace is not None and trace.cached_tokens is not None and trace.cached_tokens.any()
    )
    # A hash stands for whole blocks of the trace: it says what is in a block of the cache only where these fit
    # into it.
    block = (kv.block_tokens or defaults.block_tokens) * deployment.decode_context_parallel
    whole_blocks = not hashed or workload.sessions.hash_block_tokens % block == 0
    return (
        deployment.role == "mixed"
        and not (swaps or cached or kv.manager or workload.reasoning.several or workload.adapters)
        and whole_blocks
        and not policy(deployment.batching.policy or defaults.policy).by_future_peak
        and _finds_prefixes(model_named(deployment.model), kv.layer_groups)
    )


def _finds_prefixes(model: Model, layer_groups: bool) -> bool:
    """Every layer keeps all tokens, or with groups of layers a window or chunk of them, and none a state."""
    return model.keeps_all_tokens or (layer_groups and keeps_tokens(model))


def with_engine_defaults(
    deployment: Deployment, workload: Workload | None = None, alone: bool = True, whole_requests: bool = False
) -> Deployment:
    """The deployment with nothing left to the engine; itself where it says everything.

    ``workload``: what it serves, as far as that is known. ``alone``: it is the one pool that answers, and no stages are
    around it. ``whole_requests``: of the request-level simulator, which knows KV that is reserved alone.
    """
    given = deployment

    @cache
    def of_engine() -> SchedulerDefaults:
        # Of device, layout and release, which nothing below changes: once for all that is unsaid, or not at all.
        return scheduler_defaults(given)

    if deployment.batching.policy is None:
        # First, because what an engine has of other keys goes by it. The request-level simulator knows whole prompts.
        chosen = _policy(deployment, of_engine(), workload, alone and not whole_requests)
        deployment = with_fields(deployment, batching=with_fields(deployment.batching, policy=chosen))
    filled: dict[str, Batching | KvCache] = {}
    for section, keys in LEFT_TO_ENGINE.items():
        stated: Any = getattr(deployment, section)
        if any(getattr(stated, key) is None for key in keys):
            budget = deployment.batching.max_num_batched_tokens
            defaults = of_engine().within(budget, deployment.decode_tokens)
            if policy(defaults.policy).token_ratio and not policy(deployment.batching.policy).token_ratio:
                # SGLang overlaps whatever it batches, which is simulated of its own order alone.
                defaults = with_fields(defaults, planning=AT_ONCE)
            if section == "kv":
                admission = deployment.kv.admission or (
                    "reserve" if whole_requests else _admission(deployment, defaults, workload)
                )
                caches = alone and not whole_requests and _caches(deployment, defaults, admission, workload)
                defaults = with_fields(defaults, admission=admission, prefix_caching=caches)
            unsaid = {key: getattr(defaults, key) for key in keys if getattr(stated, key) is None}
            filled[section] = with_fields(stated, **unsaid)
    if deployment.async_scheduling is not None:  # what it says is in ``planning`` now
        return with_fields(deployment, async_scheduling=None, **filled)
    # Itself, not a copy: points that say everything share one deployment, by whose identity plans are shared.
    return with_fields(deployment, **filled) if filled else deployment
