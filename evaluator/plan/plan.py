"""All configurations of a scenario: which can run, and in which groups of one compiled structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from evaluator.catalog.fields import forget_changed
from evaluator.catalog.store import looked_for_once
from evaluator.plan.configuration import Configuration, PlanContext, RateChange, configuration_at, variant
from evaluator.plan.groups import Group, groups_of, programs_of
from evaluator.plan.labels import Labels
from evaluator.plan.route import RequestRoutes
from evaluator.plan.simulators import AUTO, ITERATION, CompileKey
from evaluator.records import without_collecting
from evaluator.replica import Change
from evaluator.scenario import Grid, Scenario, expand
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.requests import shared_tokens

MOST_WEIGHED = 2_000
"""Configurations of which it is counted how many requests each of their programs serves; in larger sweeps a program
counts for all of them. Each shard of a sweep plans all configurations for that: in 0.1 s, or in a second where each has
a design of its own."""


@dataclass(frozen=True)
class Plan:
    """Everything that is to run, checked. ``configurations`` are in the order of the grid."""

    scenario: Scenario
    grid: Grid
    configurations: list[Configuration]
    groups: list[Group]
    sampler: RequestSampler
    labels: Labels
    simulator: str = ITERATION
    inputs: tuple[str, ...] = ()  # of INPUTS: those to which elasticities are asked for
    requests: int = 0  # of the whole run: all configurations of the grid, seeds and inputs
    by_seed: bool = False  # whether the statistics of each seed are asked for
    # Those of them that the vectorised engine can compute; all, where it is not counted (``MOST_WEIGHED``).
    able: int = 0
    # Of the whole run, too: the program of each compile key, and what it serves of ``requests``. Keys that are missing
    # have programs of their own, each of which counts for all requests.
    programs: Mapping[CompileKey, tuple[CompileKey, int]] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.scenario.workload.seeds

    @property
    def runs(self) -> int:
        """How often a configuration is simulated, at most: for each seed, and for each input up and down."""
        return len(self.seeds) * (1 + 2 * len(self.inputs))

    def jobs(self, configuration: Configuration) -> list[Jobs]:
        """The requests of a configuration, for each seed, as they come to its first pool, or to the stages before."""
        workload, role = configuration.workload, configuration.phases[0].asked
        shared = shared_tokens(workload, configuration.stations[0].deployment)
        return [self.sampler.jobs(workload, seed, role, shared, configuration.pipeline) for seed in self.seeds]

    def routes(self, configuration: Configuration) -> list[RequestRoutes]:
        """What the stages of a configuration do with its requests, for each seed."""
        assert configuration.pipeline is not None
        return [self.sampler.routes(configuration.workload, seed, configuration.pipeline) for seed in self.seeds]

    def of(self, configs: np.ndarray) -> Plan:
        """The plan of these configurations alone."""
        return self._grouped(self._configurations(configs))

    def _configurations(self, configs: np.ndarray) -> list[Configuration]:
        return [configuration_at(int(config), self.grid.points[config], self._setting) for config in configs]

    def _grouped(self, configurations: list[Configuration]) -> Plan:
        # Who asks for the vectorised engine by name gets its programs as fast as they are.
        rest = self.requests if self.simulator == AUTO else None
        return replace(
            self, configurations=configurations, groups=groups_of(configurations, self.seeds, self.programs, rest)
        )

    @cached_property
    def _setting(self) -> PlanContext:
        """What all configurations are checked with, kept since a worker asks for those of one chunk after the other."""
        # The requests of the whole run, not of these configurations: a shard and a worker must come to the simulator
        # that the whole sweep has.
        return PlanContext(self.sampler, self.seeds, self.simulator, self.able)

    def changed(self, configuration: Configuration, change: Change | RateChange) -> Configuration:
        """A configuration with one thing changed; ``configuration`` itself where that makes no difference.

        Errors: ValueError for a rate of arrivals that have none.
        """
        return variant(configuration, change, self.sampler)

    def at_rates(self, configurations: Iterable[Configuration], rates_rps: Iterable[float]) -> list[Configuration]:
        """Each of the configurations at a rate of arrivals of its own. Requests keep their lengths and their unit
        gaps."""
        pairs = zip(configurations, rates_rps, strict=True)
        return [self.changed(configuration, RateChange(float(rate_rps))) for configuration, rate_rps in pairs]

    def group_of(self, configuration: Configuration) -> Group:
        """The group in which a configuration and its variants run."""
        number = self._group_numbers[configuration.config]
        assert number >= 0, "the configuration is of another plan"
        return self.groups[number]

    @cached_property
    def _group_numbers(self) -> np.ndarray:
        """The number of the group of each configuration, by its own number; -1 of points that are not planned.

        The groups may be of several plans, as tests put them together.
        """
        places = [[configuration.config for configuration in group.configurations] for group in self.groups]
        # An array, since a dictionary of a million configurations takes as much memory as half of these.
        numbers = np.full(1 + max(map(max, filter(None, places)), default=-1), -1, dtype=np.int32)
        for number, configs in enumerate(places):
            numbers[configs] = number
        return numbers


def plan(
    scenario: Scenario,
    configs: np.ndarray | None = None,
    simulator: str = ITERATION,
    inputs: tuple[str, ...] = (),
    by_seed: bool = False,
) -> Plan:
    """Check every configuration (or only ``configs``) and group those that can run; nothing is simulated yet.

    ``simulator`` iteration leaves to the reference what the vectorised engine lacks; auto does so too, and leaves it
    runs so short that a program would take longer to compile; token leaves it everything; request leaves nothing to
    others.
    """
    forget_changed()
    with without_collecting(), looked_for_once():
        grid = expand(scenario)
        everything = Plan(
            scenario, grid, [], [], RequestSampler(), Labels(grid.points), simulator, inputs, by_seed=by_seed
        )
        # Before any configuration is made: ``auto`` decides by it for each of them.
        requests = len(grid.points) * everything.runs * scenario.workload.requests
        everything = replace(everything, requests=requests, able=requests)
        rows = np.arange(len(grid.points))
        asked = rows if configs is None else np.asarray(configs)
        # Who asks for no configuration yet knows better (``run.single``), or is told (``execution.workers``).
        if simulator != AUTO or len(rows) > MOST_WEIGHED or (configs is not None and not len(configs)):
            return everything.of(asked)
        configurations = everything._configurations(rows)
        lacking = sum(everything.runs * each.workload.requests for each in configurations if each.lacking)
        if lacking:  # once more: programs have less to do than it looked
            everything = replace(everything, able=requests - lacking)
            configurations = everything._configurations(rows)
        everything = replace(everything, programs=programs_of(configurations, everything.runs))
        return everything._grouped([configurations[config] for config in asked])
