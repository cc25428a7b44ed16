"""A scenario: one question, checked, frozen, in SI units and with nothing optional left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.scenario.deployment import Deployment
from evaluator.scenario.objectives import Budget, Demand, Objective
from evaluator.scenario.workload import Workload


@dataclass(frozen=True)
class Axis:
    """One sweep axis: ``values`` as written (for coordinates), ``changes`` what each sets, key path -> value.

    The axis of a key path sets keys below it; one of designs has a name of its own and sets the key paths ``keys``.
    What else is among the changes are defaults that follow from them.
    """

    name: str
    values: tuple[Any, ...]
    changes: tuple[Mapping[str, Any], ...]
    keys: tuple[str, ...] = ()

    @property
    def keys_set(self) -> set[str]:
        """The key paths that any of its steps sets."""
        return {path for change in self.changes for path in change}


@dataclass(frozen=True)
class Scenario:
    """One question: a workload on a deployment under objectives, and the axes that vary it under conditions."""

    name: str
    workload: Workload
    deployment: Deployment
    slo: tuple[Objective, ...] = ()
    sweep: tuple[Axis, ...] = ()
    where: tuple[str, ...] = ()  # conditions that a point of the sweep fulfils
    budget: Budget = field(default_factory=Budget)  # of a search, as is the demand
    demand: Demand = field(default_factory=Demand)
    text: str = ""
    path: str | None = None
