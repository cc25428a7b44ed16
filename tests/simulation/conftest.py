from functools import cache
from pathlib import Path

import pytest

from evaluator.run import Simulation, simulate
from tests.scenario.build import scenario
from tests.simulation.runs import RUNS


@pytest.fixture(scope="session")
def traced_run(tmp_path_factory):
    """The trace's file and the result of one of RUNS; every run is simulated once for all tests that read it."""
    folder = tmp_path_factory.mktemp("traces")

    @cache
    def run(name: str) -> tuple[Path, Simulation]:
        path = folder / f"{name}.json"
        return path, simulate(scenario(*RUNS[name]), trace=path)

    return run
