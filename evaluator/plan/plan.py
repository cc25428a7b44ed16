"""All configurations of a scenario: which can run, and in which groups of one compiled structure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evaluator.plan.engines import ITERATION
from evaluator.plan.groups import Group, groups_of
from evaluator.plan.member import Member, Rate, Setting, member
from evaluator.plan.pipeline import stage_names
from evaluator.plan.variants import variant
from evaluator.plan.walked import Walked
from evaluator.replica import Change
from evaluator.scenario import Grid, Scenario, expand
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.traffics import Traffics


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
    by_seed: bool = False  # whether the statistics of each seed are asked for

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.scenario.workload.seeds

    @property
    def runs(self) -> int:
        """How often a configuration is simulated, at most: for each seed, and for each input up and down."""
        return len(self.seeds) * (1 + 2 * len(self.inputs))

    def jobs(self, member: Member) -> list[Jobs]:
        """The requests of a configuration, for each seed, as they come to its first pool, or to the stages before."""
        pool, workload = member.stations[0], member.workload
        shared = shared_tokens(workload, pool.deployment)
        return [self.traffics.jobs(workload, seed, pool.role, shared, member.pipeline) for seed in self.seeds]

    def walked(self, member: Member) -> list[Walked]:
        """What the stages of a configuration do with its requests, for each seed."""
        assert member.pipeline is not None
        return [self.traffics.walked(member.workload, seed, member.pipeline) for seed in self.seeds]

    @cached_property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of all pipelines of the grid, each once; none where all have nothing but prefill and decode."""
        points = {id(deployment): (workload, deployment) for workload, deployment, _ in self.grid.points}
        found: dict[str, None] = {}
        for workload, deployment in points.values():
            if deployment.pipeline:
                found |= dict.fromkeys(stage_names(workload, deployment))
        return tuple(found)

    def of(self, configs: np.ndarray) -> Plan:
        """The plan of these configurations alone."""
        setting = Setting(self.traffics, self.seeds, self.engine)
        members = [member(int(config), self.grid.points[config], setting) for config in configs]
        return replace(self, members=members, groups=groups_of(members, self.seeds))

    def changed(self, member: Member, change: Change | Rate) -> Member:
        """A configuration with one thing changed; ``member`` itself where that makes no difference.

        Errors: ValueError for a rate of arrivals that have none.
        """
        return variant(member, change, self.traffics)

    def at_rates(self, members: Iterable[Member], rates_rps: Iterable[float]) -> list[Member]:
        """Each of the members at a rate of arrivals of its own. Requests keep their lengths and their unit gaps."""
        pairs = zip(members, rates_rps, strict=True)
        return [self.changed(one, Rate(float(rate_rps))) for one, rate_rps in pairs]

    def group_of(self, member: Member) -> Group:
        """The group in which a configuration and its variants run."""
        return self._groups[member.config]

    @cached_property
    def _groups(self) -> dict[int, Group]:
        return {one.config: group for group in self.groups for one in group.members}


def plan(
    scenario: Scenario,
    configs: np.ndarray | None = None,
    engine: str = ITERATION,
    inputs: tuple[str, ...] = (),
    by_seed: bool = False,
) -> Plan:
    """Check every configuration (or only ``configs``) and group those that can run; nothing is simulated yet.

    ``engine`` iteration leaves to the reference what the vectorised engine lacks; token leaves it everything; request
    leaves nothing to others.
    """
    grid = expand(scenario)
    everything = Plan(scenario, grid, [], [], Traffics(), engine, inputs, by_seed)
    return everything.of(np.arange(len(grid.points)) if configs is None else np.asarray(configs))
