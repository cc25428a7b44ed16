"""What the request-level engine can run, and the shapes of the programs that it is compiled to.

It is asked for by name, and never stands in for another engine nor another for it: a configuration that it cannot run
says so in its status.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluator.cost.iteration import CostParameters
from evaluator.cost.lanes import RowCounts, common_counts, structure
from evaluator.cost.memory import kv_units
from evaluator.plan.simulators import is_coupled, on_demand, shares_queue
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
the goodput up; tests/simulation/test_request_level.py has a part of it. The 4 % are with operators of the roofline:
unfused ones count every step of a decode at the context of the last, as the paper does, so that long outputs are too
slow with tau 1. At saturation mixed replicas are off by any amount, because a suspended decode keeps its place and
prompts do not wait for one.
"""


class RequestSizes(NamedTuple):
    """Of one lane: so many instances, each of at most so many prompts in a batch and so many decodes at a time."""

    instances: int
    prompts: int
    boxes: int


@dataclass(frozen=True)
class RequestGroup:
    """What the request-level engine is compiled for at one station: the largest sizes of any configuration.

    ``tabulated``: the requests of each configuration are alike, so that a table of the times by the size of a batch
    says all that the engine asks of a cost; tables of all costs have one structure.
    """

    sizes: RequestSizes
    rows: RowCounts
    tabulated: bool
    lane_requests: int  # slots of a lane: at least the most requests that any gets


class RequestStructure(NamedTuple):
    """What configurations must have in common to share a compiled program at a station, beside the shapes."""

    role: str
    tabulated: bool
    experts: bool
    cost: Hashable
    requests: int


def request_problem(workload: Workload, station: StationPlan) -> str | None:
    """Why the request-level engine cannot run a pool that others can; None where it can."""
    deployment, built = station.deployment, station.design
    batching, record = deployment.batching, policy(deployment.batching.policy)
    alone = (record.whole_prompts and record.prefill_alone) or station.role.prompt_resident
    found = {
        "a closed loop; use arrivals with a rate": workload.arrivals.process == "closed_loop",
        f"batching.policy {record.name}; use continuous": not alone or record.drain_first or record.by_future_peak,
        "kv.admission on_demand; use reserve": on_demand(deployment),
        f"data_parallel of {built.model.name}, whose ranks run in lockstep": station.lockstep > 1,
        "pipeline_parallel; use tensor_parallel": deployment.pipeline_parallel > 1,
        f"batching.packing {batching.packing}; use fcfs": batching.packing != "fcfs",
        f"router {name_of(deployment.router)}; use {SHARED_QUEUE.name} or round_robin": is_coupled(workload, deployment)
        and not shares_queue(deployment),
        "workload.reasoning.branches": station.extremes.branches > 1,
        "deployment.speculative": deployment.speculative is not None,
        "cached prompt tokens; leave out cached_tokens and prefix_caching": station.extremes.cached > 0
        and not station.role.prompt_resident,
        f"the windowed layers of {built.model.name}": built.ready.kv.window is not None,
        f"calibration {built.calibration.name}, whose measured range it cannot check; use a roofline": built.ready.fit
        is not None,
    }
    return _refused(found)


def objective_problem(objectives: Iterable[Objective]) -> str | None:
    """Why an objective cannot be judged: single tokens have no times at the level of requests."""
    return _refused({"slo.itl; use tpot": any(objective.metric == "itl" for objective in objectives)})


def _refused(found: dict[str, bool]) -> str | None:
    for what, applies in found.items():
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
    """The sizes of a lane of a pool that can run.

    The algorithms know no memory. Of the decodes, as many run as the KV of the largest request has room for; KV of
    requests that have their first token and wait for a place among the decodes is not counted.
    """
    deployment, extremes, kv = station.deployment, station.extremes, station.design.ready.kv
    fitting = int(kv.capacity_units) // max(int(kv_units(kv, extremes.kv_tokens)), 1)
    most = max(min(deployment.batching.max_num_seqs, fitting), 1)
    within = station.max_num_batched_tokens // max(extremes.least_prompt, 1)
    return RequestSizes(
        instances=deployment.ranks if shares_queue(deployment) else 1,
        prompts=1 if station.role.prompt_resident else max(min(most, within), 1),
        boxes=1 if station.role.first_token_only else most,
    )


def request_structure(workload: Workload, station: StationPlan) -> RequestStructure:
    """The structure of a pool."""
    replica, alike = station.design.replica, station.extremes.alike
    role, requests = station.role.name, int(workload.requests)
    if replica is None or alike:
        return RequestStructure(role, alike, False, (), requests)
    cost = replica.costing.typical[0]
    experts = isinstance(cost, CostParameters) and len(cost.expert_rows.flop) > 0
    return RequestStructure(role, alike, experts, structure(cost), requests)


def request_group(which: RequestStructure, stations: Sequence[StationPlan], most_jobs: int) -> RequestGroup:
    """The shapes of a program that hold stations which can run, each lane with at most ``most_jobs`` requests."""
    columns = zip(*(request_sizes(station) for station in stations), strict=True)
    sizes = RequestSizes(*map(max, columns)) if stations else RequestSizes(1, 1, 1)
    costings = {id(costing): costing for costing in (station.design.ready.costing for station in stations)}
    rows = common_counts([costing.typical[0] for costing in costings.values()])
    return RequestGroup(sizes, rows, which.tabulated, 1 << max(most_jobs - 1, 1).bit_length())
