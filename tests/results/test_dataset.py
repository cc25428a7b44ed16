import hashlib
import json

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.metrics.variables import VARIABLES
from evaluator.results import objectives_of, unstack
from evaluator.results.dataset import to_dataset
from evaluator.results.schema import attributes
from tests.results.build import BATCHING, HARDWARE, OBJECTIVES, PARALLEL, RATE, measured, sweep


def test_every_variable_and_coordinate_says_what_it_is():
    ds = measured((HARDWARE, PARALLEL))
    for name in (*ds.data_vars, *ds.coords):
        for key in ("units", "long_name", "description"):
            assert ds[name].attrs[key], f"{name} has no {key}"
    assert ds["ttft_s"].dims == ("config", "quantile")
    assert ds["ttft_s"].attrs["units"] == "s"


def test_the_table_of_variables_is_whole():
    for name, variable in VARIABLES.items():
        assert variable.units and variable.long_name and variable.description, name
        if name.endswith(("ttft_s", "wait_s", "tpot_s", "e2e_s", "itl_s")):
            assert variable.units == "s"


def test_attributes_are_text():
    ds = measured()
    assert all(isinstance(value, str) for value in ds.attrs.values())
    assert ds.attrs["scenario_sha256"] == hashlib.sha256(b"name: t\n").hexdigest()
    assert ds.attrs["seeds"] == "0, 1"
    assert json.loads(attributes("t", "", [0], "c", OBJECTIVES)["objectives"])[0]["bound_s"] == 1.5
    assert objectives_of(sweep(RATE))[1] == {"metric": "tpot", "statistic": "p90", "bound_s": 0.07}


def test_an_unknown_variable_is_a_mistake():
    with pytest.raises(KeyError, match="speed"):
        to_dataset({"speed": np.ones(2)}, np.array([0.5]))


def test_unstack_gives_one_dimension_per_axis():
    axes = (HARDWARE, BATCHING, RATE)
    ds = measured(axes)
    grid = unstack(ds)
    assert dict(grid.sizes) == {"hardware": 3, "batching": 2, "rate_rps": 8, "quantile": 4}
    assert grid["policy"].dims == ("batching",)
    row = ds.isel(config=1 * 16 + 1 * 8 + 5)
    cell = grid.sel(hardware="l40s", rate_rps=6.0).isel(batching=1)
    np.testing.assert_array_equal(cell["ttft_s"], row["ttft_s"])
    assert str(cell["policy"].values) == str(row["policy"].values) == "continuous"
    assert grid["ttft_s"].attrs == ds["ttft_s"].attrs


def test_unstack_of_one_configuration_has_no_config():
    assert unstack(measured())["throughput_rps"].dims == ()


def test_unstack_needs_every_row():
    with pytest.raises(InputError, match=r"unstack needs the full grid \{'hardware': 3\}, got 2 rows of it"):
        unstack(measured((HARDWARE,)).isel(config=[0, 2]))
