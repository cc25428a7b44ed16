"""All configurations of a scenario: which can run, and in which groups of one compiled structure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.cost.lanes import RowCounts, row_counts
from evaluator.cost.memory import kv_units
from evaluator.metrics.outcomes import OK
from evaluator.plan.design import Design, design, token_budget
from evaluator.plan.traffics import Extremes, Traffics, assign_replicas
from evaluator.scenario import Deployment, Grid, Scenario, Workload, expand
from evaluator.scenario.grid import Point

TOKEN_ROWS = 4  # token rows of a group are padded to a multiple of this, so that few structures are compiled
SMALLEST_RING = 256
LARGEST_OUTPUT = 1 << 22


@dataclass(frozen=True)
class Member:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run."""

    config: int
    design: Design
    status: str
    max_num_batched_tokens: int
    extremes: Extremes


@dataclass(frozen=True)
class Group:
    """Configurations that share one compiled program and one shape of arrays."""

    members: list[Member]
    requests: int
    warmup_requests: int
    lane_requests: int  # slots of a lane: a power of two, at least the most requests that any replica gets
    ring: int
    windowed: bool
    rows: RowCounts


@dataclass(frozen=True)
class Plan:
    """Everything that is to run, checked. ``members`` are in the order of the grid."""

    scenario: Scenario
    grid: Grid
    members: list[Member]
    groups: list[Group]
    traffics: Traffics

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.scenario.workload.seeds


def plan(scenario: Scenario, configs: np.ndarray | None = None) -> Plan:
    """Check every configuration (or only ``configs``) and group those that can run; nothing is simulated yet."""
    grid = expand(scenario)
    traffics = Traffics()
    wanted = np.arange(len(grid.points)) if configs is None else np.asarray(configs)
    members = [_check(grid.points[config], int(config), traffics, scenario.workload.seeds) for config in wanted]
    return Plan(scenario, grid, members, _groups(members, grid, scenario.workload.seeds), traffics)


def _check(point: Point, config: int, traffics: Traffics, seeds: tuple[int, ...]) -> Member:
    workload, deployment, _ = point
    extremes = Extremes.of([traffics.demand(workload, seed, deployment.role).extremes for seed in seeds])
    built = design(deployment, extremes.prompt)
    status = built.status
    if status == OK:
        status = _routing_problem(workload, deployment) or _limit_problem(deployment, built, extremes) or OK
    budget = token_budget(deployment.batching, extremes.prompt)
    return Member(config, built, status, budget, extremes)


def _routing_problem(workload: Workload, deployment: Deployment) -> str | None:
    """Users of a closed loop keep to their replica: every replica needs one, and chance must not choose it."""
    users = workload.arrivals.users if workload.arrivals.process == "closed_loop" else None
    if users is None or deployment.replicas == 1:
        return None
    if deployment.router != "round_robin":
        return "unsupported: a closed loop over replicas with router random; use router round_robin"
    if users < deployment.replicas:
        return f"infeasible: {users} users on {deployment.replicas} replicas; use at least one user for each"
    return None


def _limit_problem(deployment: Deployment, built: Design, extremes: Extremes) -> str | None:
    """Why some request could never be served within the limits; None where all can."""
    batching = deployment.batching
    budget = token_budget(batching, extremes.prompt)
    if extremes.sequence > built.model.max_positions:
        return (
            f"infeasible: a request of {extremes.sequence:,} tokens exceeds the {built.model.max_positions:,} "
            f"positions of {built.model.name}; use shorter prompts or a model with a longer context"
        )
    if batching.policy in ("chunked", "mixed") and batching.max_num_seqs > budget:
        return (
            f"infeasible: max_num_seqs {batching.max_num_seqs:,} exceeds max_num_batched_tokens {budget:,}; "
            "lower the one or raise the other"
        )
    if batching.policy != "chunked" and extremes.prompt > budget:
        return (
            f"infeasible: a prompt of {extremes.prompt:,} tokens exceeds max_num_batched_tokens {budget:,}, and "
            f"{batching.policy} batching computes whole prompts; raise it or use policy chunked"
        )
    kv = built.ready.kv
    if int(kv_units(kv, extremes.kv_tokens)) > kv.capacity_units:
        return (
            f"infeasible: a request of {extremes.kv_tokens:,} tokens exceeds the KV cache of "
            f"{kv.capacity_tokens:,.0f} tokens; use more tensor_parallel, kv precision fp8 or shorter requests"
        )
    if extremes.output > LARGEST_OUTPUT:
        return f"unsupported: outputs of more than {LARGEST_OUTPUT:,} tokens; shorten them"
    return None


def _groups(members: list[Member], grid: Grid, seeds: tuple[int, ...]) -> list[Group]:
    """Members by structure; shapes are the largest of each group, so that structures stay few."""
    together: dict[tuple[bool, bool, int, int], list[Member]] = {}
    for member in members:
        workload = grid.points[member.config][0]
        replica = member.design.replica
        windowed = replica is not None and replica.kv.window is not None
        experts = replica is not None and len(replica.cost.expert_rows.flop) > 0
        together.setdefault((windowed, experts, workload.requests, workload.warmup_requests), []).append(member)
    return [
        _group(group, grid, seeds, windowed, requests, warmup)
        for (windowed, _, requests, warmup), group in together.items()
    ]


def _group(
    members: list[Member], grid: Grid, seeds: tuple[int, ...], windowed: bool, requests: int, warmup: int
) -> Group:
    able = [member for member in members if member.status == OK]
    ring = SMALLEST_RING
    while ring < max((member.extremes.output for member in able), default=0) + 2:
        ring *= 2
    counts = {tuple(row_counts(member.design.ready.cost)) for member in able} or {(0,) * len(RowCounts._fields)}
    largest = np.array(list(counts)).max(axis=0).tolist()
    rows = RowCounts(-(-largest[0] // TOKEN_ROWS) * TOKEN_ROWS, *largest[1:])
    routed = {(d.replicas, d.router): d for d in (grid.points[member.config][1] for member in able)}.values()
    slots = max((_largest_share(deployment, seeds, requests) for deployment in routed), default=1)
    return Group(members, requests, warmup, 1 << max(slots - 1, 1).bit_length(), ring, windowed, rows)


def _largest_share(deployment: Deployment, seeds: tuple[int, ...], requests: int) -> int:
    return max(int(np.bincount(assign_replicas(deployment, seed, requests)).max()) for seed in seeds)


def open_loop(workload: Workload) -> bool:
    """Whether requests come at times of their own, so that a queue can grow without bound."""
    return workload.arrivals.process not in ("closed_loop", "all_at_once")
