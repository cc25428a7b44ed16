"""What a caller may give a run: a scenario in any form, and the engine that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from evaluator.errors import InputError
from evaluator.plan.simulators import SIMULATORS
from evaluator.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from evaluator.typed import Scenario as ScenarioKeys

AnyScenario: TypeAlias = "Scenario | ScenarioKeys | Mapping[str, Any] | str | Path"
"""A scenario as it was loaded, as mappings (``evaluator.typed`` has their types), or the path of a file."""


def loaded(scenario: AnyScenario) -> Scenario:
    """The scenario, read where it is not yet."""
    return scenario if isinstance(scenario, Scenario) else load_scenario(scenario)


def check_simulator(simulator: str) -> None:
    """InputError where there is no such engine."""
    if simulator not in SIMULATORS:
        raise InputError(f"there is no simulator {simulator!r}; use {' or '.join(SIMULATORS)}")
