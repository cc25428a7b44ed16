"""All configurations of a scenario: which can run, and in which groups of one compiled structure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evaluator.cost.iteration import CostParameters
from evaluator.cost.lanes import RowCounts, common_counts, structure
from evaluator.metrics.outcomes import OK
from evaluator.plan.checks import limit_problem, longest_prompt, policy_problem, routing_problem
from evaluator.plan.engines import IN_ORDER, ITERATION, TOKEN, Program, lacking, program
from evaluator.replica import Change, Design, design, token_budget, varied
from evaluator.routing.independent import assign_replicas
from evaluator.scenario import Deployment, Grid, Scenario, Workload, expand
from evaluator.scenario.grid import Point
from evaluator.traffic.loads import Extremes, Traffics

SMALLEST_RING = 256


@dataclass(frozen=True)
class Member:
    """One configuration: ``config`` is its row of the grid, ``status`` is ok or why it cannot run.

    ``engine`` computes it; ``lacking`` are the keys for which the vectorised engine cannot.
    """

    config: int
    design: Design
    status: str
    max_num_batched_tokens: int
    extremes: Extremes
    engine: str = ITERATION
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Configurations of one engine that share one shape of arrays and, vectorised, one compiled program."""

    members: list[Member]
    requests: int
    warmup_requests: int
    lane_requests: int  # slots of a lane: a power of two, at least the most requests that any replica gets
    ring: int
    windowed: bool
    rows: RowCounts
    engine: str = ITERATION
    program: Program = IN_ORDER


@dataclass(frozen=True)
class Plan:
    """Everything that is to run, checked. ``members`` are in the order of the grid."""

    scenario: Scenario
    grid: Grid
    members: list[Member]
    groups: list[Group]
    traffics: Traffics
    engine: str = ITERATION
    inputs: tuple[str, ...] = ()  # of INPUTS: those to which elasticities are asked for

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.scenario.workload.seeds

    @property
    def runs(self) -> int:
        """How often a configuration is simulated, at most: for each seed, and for each input up and down."""
        return len(self.seeds) * (1 + 2 * len(self.inputs))

    def of(self, configs: np.ndarray) -> Plan:
        """The plan of these configurations alone."""
        members = [
            _check(self.grid.points[config], int(config), self.traffics, self.seeds, self.engine) for config in configs
        ]
        return replace(self, members=members, groups=_groups(members, self.grid, self.seeds))

    def varied(self, member: Member, change: Change) -> Member:
        """A configuration with one input changed; ``member`` itself where that makes no difference."""
        _, deployment, _ = self.grid.points[member.config]
        linked = member.design.devices > 1 or deployment.kv.preemption == "swap"
        if member.status != OK or (change.input.startswith("link_") and not linked):
            return member
        return replace(member, design=varied(member.design, change))


def plan(
    scenario: Scenario, configs: np.ndarray | None = None, engine: str = ITERATION, inputs: tuple[str, ...] = ()
) -> Plan:
    """Check every configuration (or only ``configs``) and group those that can run; nothing is simulated yet.

    ``engine`` iteration leaves to the reference what the vectorised engine lacks; token leaves it everything.
    """
    grid = expand(scenario)
    everything = Plan(scenario, grid, [], [], Traffics(), engine, inputs)
    return everything.of(np.arange(len(grid.points)) if configs is None else np.asarray(configs))


def _check(point: Point, config: int, traffics: Traffics, seeds: tuple[int, ...], engine: str) -> Member:
    workload, deployment, _ = point
    extremes = Extremes.of([traffics.demand(workload, seed, deployment.role).extremes for seed in seeds])
    longest = longest_prompt(deployment, extremes)
    built = design(deployment, longest)
    status = built.status
    if status == OK:
        problem = routing_problem(workload, deployment) or policy_problem(deployment, built)
        status = problem or limit_problem(deployment, built, extremes) or OK
    missing = lacking(workload, deployment)
    chosen = TOKEN if missing else engine
    return Member(config, built, status, token_budget(deployment.batching, longest), extremes, chosen, missing)


def _groups(members: list[Member], grid: Grid, seeds: tuple[int, ...]) -> list[Group]:
    """Members by structure; shapes are the largest of each group, so that structures stay few."""
    together: dict[tuple, list[Member]] = {}
    for member in members:
        workload, deployment, _ = grid.points[member.config]
        compiled = member.design.replica if member.engine == ITERATION else None
        windowed = compiled is not None and compiled.kv.window is not None
        cost = None if compiled is None else compiled.cost
        experts = isinstance(cost, CostParameters) and len(cost.expert_rows.flop) > 0
        form = (experts, () if cost is None else structure(cost))
        shape = workload.requests, workload.warmup_requests
        which = IN_ORDER if compiled is None else program(deployment)
        together.setdefault((member.engine, which, windowed, form, *shape), []).append(member)
    return [
        replace(_group(group, grid, seeds, windowed, requests, warmup), program=which)
        if engine == ITERATION
        else Group(group, requests, warmup, requests, 0, windowed, RowCounts(*(0,) * len(RowCounts._fields)), engine)
        for (engine, which, windowed, _, requests, warmup), group in together.items()
    ]


def _group(
    members: list[Member], grid: Grid, seeds: tuple[int, ...], windowed: bool, requests: int, warmup: int
) -> Group:
    able = [member for member in members if member.status == OK]
    ring = SMALLEST_RING
    while ring < max((member.extremes.output for member in able), default=0) + 2:
        ring *= 2
    designs = {id(member.design): member.design.ready for member in able}  # members share their designs
    rows = common_counts([cost for ready in designs.values() for cost in ready.pipeline_ranks])
    routed = {(d.replicas, d.router): d for d in (grid.points[member.config][1] for member in able)}.values()
    slots = max((_largest_share(deployment, seeds, requests) for deployment in routed), default=1)
    return Group(members, requests, warmup, 1 << max(slots - 1, 1).bit_length(), ring, windowed, rows)


def _largest_share(deployment: Deployment, seeds: tuple[int, ...], requests: int) -> int:
    return max(int(np.bincount(assign_replicas(deployment, seed, requests)).max()) for seed in seeds)


def open_loop(workload: Workload) -> bool:
    """Whether requests come at times of their own, so that a queue can grow without bound."""
    return workload.arrivals.process not in ("closed_loop", "all_at_once")
