"""What a command loads before it computes: the heavy packages only where they are used, since each delays every start."""

import subprocess
import sys

import pytest

HEAVY = {"distributed", "jax", "matplotlib", "pandas", "scipy", "xarray"}


@pytest.mark.parametrize("module", ["evaluator.run", "evaluator.estimation", "evaluator.report"])
def test_an_import_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*sorted({HEAVY} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == []
