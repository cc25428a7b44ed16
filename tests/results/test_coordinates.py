import numpy as np
import pytest

from evaluator.metrics.variables import coordinate_units
from evaluator.results.coordinates import axis_coordinates
from evaluator.scenario.offload import OffloadTier
from tests.results.build import BATCHING, HARDWARE, PARALLEL, RATE, Axis, axis, sweep


def test_coordinates_have_short_names_units_and_types():
    ds = sweep(HARDWARE, PARALLEL, RATE)
    assert list(ds["hardware"].values[:2]) == ["h100-sxm", "h100-sxm"]
    assert ds["tensor_parallel"].dtype == np.int64
    assert ds["rate_rps"].dtype == np.float64
    assert ds["rate_rps"].attrs["units"] == "1/s"
    assert ds["rate_rps"].attrs["description"] == "swept: workload.arrivals.rate_rps"


def test_a_zip_has_a_label_and_every_quantity():
    (columns,) = axis_coordinates([BATCHING])
    assert list(columns) == ["batching", "policy", "max_num_batched_tokens"]
    np.testing.assert_array_equal(columns["max_num_batched_tokens"][1], [512.0, np.nan])
    assert columns["batching"][1][0] == "policy=chunked,max_num_batched_tokens=512"


def test_lists_are_labelled_as_yaml_writes_them():
    path, nvme, shared = (
        "deployment.kv.offload_tiers",
        OffloadTier("nvme"),
        {"storage": "rack-pool", "shared_by": "all"},
    )
    (columns,) = axis_coordinates([axis(path, [], ["nvme", shared], (nvme, OffloadTier(bandwidth=1e9)))])
    assert columns["offload_tiers"][1].tolist() == [
        "[]", "[nvme, {storage: rack-pool, shared_by: all}]", "[nvme, {bandwidth: 1000000000.0}]"
    ]  # fmt: skip


def test_defaults_that_follow_from_an_axis_are_no_quantities_of_it():
    changes = ({"workload.requests": 100}, {"workload.requests": 1000, "workload.warmup_requests": 100})
    (columns,) = axis_coordinates([Axis("workload.requests", (100, 1000), changes)])
    assert list(columns) == ["requests"]


def test_names_that_clash_are_made_longer():
    axes = [
        axis("slo.ttft.p90", 1.0, 2.0),
        axis("slo.tpot.p99.9", 0.1, 0.2),
        axis("deployment.precision.kv", "fp8", "bf16"),
        axis("deployment.other.kv", "a", "b"),
        axis("workload.devices", 1, 2),
    ]
    names = [next(iter(columns)) for columns in axis_coordinates(axes)]
    assert names == ["ttft_p90", "tpot_p99.9", "precision_kv", "other_kv", "workload_devices"]


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("slo.ttft.p90", ("500ms", 2.0), [0.5, 2.0]),
        ("deployment.kv.memory_fraction", (0.5, None), [0.5, np.nan]),
        ("deployment.calibration", ("auto", None, True), ["auto", "none", "true"]),
        ("deployment.flag", (True, False), [True, False]),
        ("workload.requests", (10, 20), [10, 20]),
        ("workload.arrivals.rate_rps", ("auto", 2.0), ["auto", "2.0"]),
    ],
)
def test_values_are_numbers_where_all_of_them_are(path, values, expected):
    ((_, column),) = axis_coordinates([axis(path, *values)])[0].values()
    np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("a.rate_rps", "1/s"),
        ("slo.ttft.p90", "s"),
        ("slo.relax", "1"),
        ("a.block_tokens", "token"),
        ("a.hardware", "1"),
        ("deployment.hardware.peak_flops.bf16", "FLOP/s"),
        ("deployment.hardware.peak_flops.times", "1"),
        ("deployment.hardware.links.nvlink.bandwidth", "byte/s"),
        ("deployment.transfer.link.latency", "s"),
        ("deployment.kv.swap_bandwidth", "byte/s"),
        ("workload.sessions.think_s.mean", "s"),
        ("workload.sessions.turns.mean", "1"),
    ],
)
def test_units_of_coordinates(path, unit):
    assert coordinate_units(path) == unit
