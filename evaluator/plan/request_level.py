"""What the request-level engine can run, and what its results are worth.

It is asked for by name, and never stands in for another engine nor another for it: a configuration that it cannot run
says so in its status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from evaluator.cost.memory import kv_units
from evaluator.plan.simulators import is_joint, on_demand, shares_queue, waits_for_adapters
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.routing import SHARED_QUEUE, name_of
from evaluator.scenario import Objective, Workload

ERROR_NOTE = (
    "simulator request is BestServe's approximation of whole requests. Against simulator iteration, below saturation: "
    "ttft_s "
    "of a prefill pool is exact, of mixed replicas too small by up to a decode step; tpot_s is within 4 % with tau 1, "
    "and up to a half too small with the paper's tau 2.5"
)
"""What its rows are worth. Measured on BestServe's four mixes of lengths, one replica and two pools, from a quarter of
the goodput up; tests/reference/serve has a part of it. The 4 % are with operators of the roofline:
unfused ones count every step of a decode at the context of the last, as the paper does, so that long outputs are too
slow with tau 1. At saturation mixed replicas are off by any amount, because a suspended decode keeps its place and
prompts do not wait for one.
"""


class RequestSizes(NamedTuple):
    """So many instances, each of at most so many prompts in a batch and so many decodes at a time."""

    instances: int
    prompts: int
    boxes: int


def request_problem(workload: Workload, station: StationPlan) -> str | None:
    """Why the request-level engine cannot run a pool that others can; None where it can."""
    deployment, built = station.deployment, station.design
    batching, record = deployment.batching, policy(deployment.batching.policy)
    # BestServe's replica computes whole prompts while its decodes are suspended. A policy that cuts prompts, or
    # computes them beside decodes, has iterations that it knows nothing of.
    alone = (record.whole_prompts and record.prefill_alone) or station.role.prompt_resident
    refused = {
        "a closed loop; use arrivals with a rate": workload.arrivals.process == "closed_loop",
        f"batching.policy {record.name}; use continuous": not alone or record.drain_first or record.by_future_peak,
        "kv.admission on_demand; use reserve": on_demand(deployment),
        f"data_parallel of {built.model.name}, whose ranks run in lockstep": station.lockstep > 1,
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        f"batching.packing {batching.packing}; use fcfs": batching.packing != "fcfs",
        "batching.max_queued_requests; leave it out": batching.max_queued_requests is not None,
        "workload.adapters beyond lora.max_loras; use as many max_loras": waits_for_adapters(workload, deployment),
        "deployment.autoscaling; leave it out": deployment.autoscaling is not None,
        "deployment.failures; leave it out": deployment.failures is not None,
        "api_server_times; leave them out": station.api_server_times is not None,
        "sessions that think from the answer": workload.feedback,
        f"router {name_of(deployment.router)}; use {SHARED_QUEUE.name} or round_robin": is_joint(workload, deployment)
        and not shares_queue(deployment),
        "workload.reasoning.branches": station.extremes.branches > 1,
        "deployment.speculative": deployment.speculative is not None,
        "kv.manager": deployment.kv.manager is not None,
        "cached prompt tokens; leave out cached_tokens and prefix_caching": station.extremes.cached > 0
        and not station.role.prompt_resident,
        f"the windowed layers of {built.model.name}": built.ready.kv.window is not None,
        # A fit is checked against the largest batches of a run, which are not recorded where there are no iterations.
        f"calibration {built.calibration.name}, whose measured range it cannot check; use a roofline": built.ready.fit
        is not None,
    }
    return _refused(refused)


def objective_problem(objectives: Iterable[Objective]) -> str | None:
    """Why an objective cannot be judged: single tokens have no times at the level of requests."""
    return _refused({"slo.itl; use tpot": any(objective.metric == "itl" for objective in objectives)})


def _refused(refused: dict[str, bool]) -> str | None:
    for what, applies in refused.items():
        if applies:
            remedy = ", or simulator iteration" if ";" in what else "; use simulator iteration"
            return f"unsupported: simulator request does not cover {what}{remedy}"
    return None


def queue_problem(station: StationPlan) -> str | None:
    """Why another engine cannot run a pool that the request-level one can."""
    if not shares_queue(station.deployment):
        return None
    return (
        f"unsupported: router {SHARED_QUEUE.name}: only simulator request lets requests wait before the replicas; "
        "use router least_outstanding, or simulator request"
    )


def request_sizes(station: StationPlan) -> RequestSizes:
    """The sizes of a pool that can run: of all its replicas where they share a queue, else of one.

    The algorithms know no memory. Of the decodes, as many run as the KV of the largest request has room for; KV of
    requests that have their first token and wait for a place among the decodes is not counted.
    """
    deployment, extremes, kv = station.deployment, station.extremes, station.design.ready.kv
    # A request of no KV fits as often as one likes; the divisor is then 1 unit.
    fitting = int(kv.capacity_units) // max(int(kv_units(kv, extremes.kv_tokens)), 1)
    most = max(min(deployment.batching.max_num_seqs, fitting), 1)
    within = station.max_num_batched_tokens // max(extremes.least_prompt, 1)
    return RequestSizes(
        instances=deployment.ranks if shares_queue(deployment) else 1,
        # A decode pool computes no prompts; the size only has to be one that the algorithm takes.
        prompts=1 if station.role.prompt_resident else max(min(most, within), 1),
        boxes=1 if station.role.first_token_only else most,
    )
