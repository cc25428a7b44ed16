"""What the results of a sweep are labelled by, which follows from all points of its grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from evaluator.metrics import bounds_of
from evaluator.plan.pipeline import stage_names
from evaluator.scenario import Objective, all_objectives, pools_of
from evaluator.scenario.grid import Point


@dataclass(frozen=True, eq=False)
class Labels:
    """Plans of some points share those of all: a worker process plans chunk after chunk, and looks at the grid once."""

    points: list[Point]

    @property
    def of_outcomes(self) -> tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...], tuple[str, ...]]:
        """What the outcomes of every chunk are labelled by, whichever of it its configurations have
        (``simulation.outcomes``)."""
        return self.stage_names, self.class_names, self.has_sessions, self.pool_names, self.objective_names

    @cached_property
    def stage_names(self) -> tuple[str, ...]:
        """The stages of all pipelines of the grid, each once; none where all have nothing but prefill and decode."""
        # A hundred thousand points share some deployments: each is asked once.
        points = {id(deployment): (workload, deployment) for workload, deployment, _ in self.points}
        names: dict[str, None] = {}
        for workload, deployment in points.values():
            if deployment.pipeline:
                names |= dict.fromkeys(stage_names(workload, deployment))
        return tuple(names)

    @cached_property
    def objectives(self) -> list[tuple[Objective, ...]]:
        """The objectives of all points of the grid, those that points share once."""
        # By identity: the points of a large sweep share few objects, and are not to be hashed one by one.
        points = {(id(workload.classes), id(slo)): (workload, slo) for workload, _, slo in self.points}.values()
        return [all_objectives(workload, slo) for workload, slo in points]

    @cached_property
    def objective_names(self) -> tuple[str, ...]:
        """What the objectives of all points of the grid bound, each once."""
        return tuple(bound.name for bound in bounds_of(self.objectives))

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes of requests of all workloads of the grid, each once; none where there are none."""
        # A hundred thousand points share some classes, and a trace is looked at once.
        workloads = {(id(workload.classes), id(workload.lengths)): workload for workload, _, _ in self.points}.values()
        return tuple(dict.fromkeys(name for workload in workloads for name in workload.class_names))

    @cached_property
    def pool_names(self) -> tuple[str, ...]:
        """The pools that answer of all deployments of the grid, each once, where replicas of one of several come and
        go; else none."""
        deployments = {id(deployment): deployment for _, deployment, _ in self.points if deployment.pools}.values()
        pools = [pools_of(deployment) for deployment in deployments]
        scaling = [several for several in pools if len(several) > 1 and any(pool.autoscaling for _, pool in several)]
        return tuple(dict.fromkeys(name for several in scaling for name, _ in several))

    @cached_property
    def has_sessions(self) -> bool:
        """Whether requests of any configuration of the grid are turns of sessions, or calls of tasks."""
        # Points share their workloads, which a sweep over designs has one of: each is asked once.
        workloads = {id(workload): workload for workload, _, _ in self.points}
        return any(workload.sessions.continued or workload.traced_tasks for workload in workloads.values())
