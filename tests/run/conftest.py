from __future__ import annotations

import pytest
import xarray as xr

from evaluator.run import sweep
from tests.scenario.build import GRID, scenario


@pytest.fixture(scope="session")
def grid():
    return scenario("workload.seeds=[0, 1]", **GRID)


@pytest.fixture(scope="module")  # as the bounds of short runs are, which say what computes it
def swept(grid) -> xr.Dataset:
    return sweep(grid)
