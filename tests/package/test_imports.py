"""Heavy packages are loaded only where they are used, since each of them delays the start of every command."""

import subprocess
import sys

import pytest

HEAVY = {"distributed", "jax", "matplotlib", "pandas", "scipy", "xarray"}


@pytest.mark.parametrize("module", ["evaluator.run", "evaluator.estimation", "evaluator.report"])
def test_an_import_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*sorted({HEAVY} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == []
