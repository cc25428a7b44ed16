"""Words for axes, levels and layouts in tables, pictures and pages."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import evaluator
from evaluator.report.axes import axes_shown
from evaluator.report.labels import in_words, laid_out, named_level, pool_of, short_layout
from evaluator.report.table.ranked import ranked_table

STEPS = [
    {"deployment.tensor_parallel": 2},
    {"deployment.data_parallel": 2, "deployment.expert_parallel": 2},
    {"deployment.tensor_parallel": 4},
]
NAMES = ["tensor_parallel", "data_parallel", "expert_parallel"]


@pytest.fixture(scope="module")
def swept():
    return evaluator.sweep(
        {
            "name": "layouts",
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 4},
                "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 4},
                "requests": 12,
            },
            "deployment": {"model": "qwen3-30b-a3b", "hardware": "h100-sxm"},
            "sweep": {"layout": {"zip": STEPS}, "workload.arrivals.rate_rps": [2, 4]},
        },
        simulator="token",
    )


def test_quantities_of_a_pool():
    assert pool_of("tensor_parallel") == "" and pool_of("decode_data_parallel") == "decode"
    assert pool_of("rate_rps") is None
    assert laid_out(["tensor_parallel", "rate_rps"]) == {}
    assert laid_out(["p_tensor_parallel", "d_tensor_parallel", "d_data_parallel"]) == {
        "d": ["d_tensor_parallel", "d_data_parallel"]
    }


def test_several_quantities_that_lay_out_devices_are_one_short_name(swept):
    names = [short_layout(swept, NAMES, row) for row in range(swept.sizes["config"])]
    assert names == ["tp2", "tp2", "dp2 ep2", "dp2 ep2", "tp4", "tp4"]
    table = ranked_table(swept, width=100)
    head = next(line for line in table.split("\n") if line.startswith("#"))
    assert "layout" in head and " dp" not in head and "dp2 ep2" in table
    assert in_words(swept, 2, [*NAMES, "rate_rps"]).startswith("dp2 ep2, ")
    axis = next(axis for axis in axes_shown(swept) if "data_parallel" in axis.names)
    assert [axis.words(swept, int(row)) for row in axis.first] == ["tp2", "dp2 ep2", "tp4"]


def test_one_quantity_alone_keeps_its_column(swept):
    alone = swept.isel(config=[0, 4])
    head = next(line for line in ranked_table(alone, width=100).split("\n") if line.startswith("#"))
    assert " tp " in head and "layout" not in head


def test_bytes_have_a_unit_and_empty_lists_a_name():
    ds = xr.Dataset(
        {
            "offload_bytes": ("config", [4e10], {"units": "byte"}),
            "offload_tiers": ("config", np.array(["[]"], dtype=object)),
            "cooldown_s": ("config", [900.0], {"units": "s"}),
            "router": ("config", np.array(["session"], dtype=object)),
        }
    )
    words = [named_level(ds, name, 0) for name in ds]
    assert words == ["offload bytes 40 GB", "no offload tiers", "cooldown s 900", "session"]
