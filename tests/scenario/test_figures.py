"""Figures of devices and models in a scenario: set, overridden, and swept beside names."""

import numpy as np
import pytest

import evaluator
from evaluator.catalog.what_if import WhatIf, device
from evaluator.errors import InputError
from evaluator.scenario import expand, load_scenario

H100, L40S = 3.35e12, 864e9


def _bandwidths(tree, *overrides):
    points = expand(load_scenario(tree, overrides)).points
    hardware = [deployment.hardware for _, deployment, _ in points]
    return [device(one).memory_bandwidth if isinstance(one, WhatIf) else one for one in hardware]


def test_an_axis_below_a_name(base):
    base["sweep"] = {"deployment.hardware.memory_bandwidth": {"linspace": ["2TB/s", "4TB/s", 3]}}
    assert _bandwidths(base) == [2e12, 3e12, 4e12]


@pytest.mark.parametrize("names_first", [True, False])
def test_names_and_multiples_make_a_product(base, names_first):
    axes = [("deployment.hardware", ["h100-sxm", "l40s"]), ("deployment.hardware.memory_bandwidth.times", [1, 1.5])]
    base["sweep"] = dict(axes if names_first else axes[::-1])
    expected = np.outer([H100, L40S], [1, 1.5])
    np.testing.assert_allclose(_bandwidths(base), (expected if names_first else expected.T).ravel())


def test_a_name_or_a_description_replaces_the_figures_of_another(base):
    base["deployment"]["hardware"] = {"like": "h100-sxm", "memory_bandwidth": "1TB/s"}
    whole = {"peak_flops": {"bf16": 5e14}, "memory_bytes": 64e9, "memory_bandwidth": 2e12}
    base["sweep"] = {"deployment.hardware": ["h100-sxm", {"like": "l40s"}, {"like": "l40s", "power_w": 300}, whole]}
    assert _bandwidths(base) == ["h100-sxm", "l40s", L40S, 2e12]


def test_overrides(base):
    assert _bandwidths(base, "deployment.hardware.memory_bandwidth=5TB/s") == [5e12]
    assert _bandwidths(base, "deployment.hardware={like: l40s, memory_bandwidth: {times: 2}}") == [2 * L40S]


def test_equal_descriptions_are_one_object(base):
    base["sweep"] = {"deployment.hardware.power_w": [500, 600], "workload.arrivals.rate_rps": [1, 2]}
    found = [deployment.hardware for _, deployment, _ in expand(load_scenario(base)).points]
    assert found[0] is found[1] is not found[2]


def test_axes_may_not_hide_each_other(base):
    base["sweep"] = {"deployment.hardware": [{"like": "l40s", "memory_bandwidth": 1e12}, "a40"]}
    base["sweep"]["deployment.hardware.memory_bandwidth"] = [1e12, 2e12]
    found = [device(one[1].hardware) for one in expand(load_scenario(base)).points]
    assert [one.memory_bandwidth for one in found] == [1e12, 2e12] * 2


def test_coordinates_are_numbers(base):
    base["workload"]["requests"] = 20
    base["deployment"]["calibration"] = "datasheet"
    base["deployment"]["model"] = "llama-3.1-8b"
    base["sweep"] = {
        "deployment.hardware": ["h100-sxm", {"like": "h100-sxm", "peak_flops": {"times": 2}}],
        "deployment.hardware.memory_bandwidth.times": [1, 2],
        "deployment.model.layers": [16, 32],
    }
    ds = evaluator.sweep(base)
    assert ds.memory_bandwidth_times.values.tolist() == [1, 1, 2, 2] * 2
    assert ds.layers.values.tolist() == [16, 32] * 4
    assert ds.hardware.values[0] == "h100-sxm" and ds.hardware.values[-1] == "like=h100-sxm,peak_flops.times=2"
    assert set(ds.provenance.values) == {"datasheet"}
    time = ds.tpot_s_mean.values.reshape(2, 2, 2)
    assert (time[:, 0] > time[:, 1]).all() and (time[..., 0] < time[..., 1]).all()


def test_the_place_of_a_figure(base):
    base["deployment"]["hardware"] = {"like": "h100-sxm", "memory_bandwidth": 3.35}
    with pytest.raises(InputError, match=r"^scenario: deployment\.hardware\.memory_bandwidth: 3\.35 byte/s is no"):
        load_scenario(base)
    base["deployment"]["hardware"] = 7
    with pytest.raises(InputError, match=r"deployment\.hardware: expected a name or {like: h100-sxm"):
        load_scenario(base)
