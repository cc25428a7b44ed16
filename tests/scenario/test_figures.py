"""Figures of devices and models in a scenario: set, overridden, and swept beside names."""

import numpy as np
import pytest

import evaluator
from evaluator.catalog.what_if import WhatIf, device, read_device
from evaluator.errors import InputError
from evaluator.keys import figures
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
    others = ["h100-sxm", {"like": "l40s"}, {"like": "l40s", "power_w": 300}, whole]
    designs = [*({"deployment.hardware": other} for other in others), {"deployment.replicas": 2}]
    base["sweep"] = {"design": {"zip": designs}}
    assert _bandwidths(base) == ["h100-sxm", "l40s", L40S, 2e12, 1e12]


FASTER = "deployment.hardware.memory_bandwidth=5TB/s"
LOST = {
    "of the file": (
        {"hardware": {"like": "h100-sxm", "memory_bandwidth": "5TB/s"}},
        {"deployment.hardware": ["h100-sxm", {"like": "l40s", "power_w": 300}]},
        (),
        "scenario: sweep.deployment.hardware: the axis replaces deployment.hardware as a whole, so that "
        "deployment.hardware.memory_bandwidth = '5TB/s' does nothing; put it into each value of the axis, such as "
        "{like: NAME, memory_bandwidth: '5TB/s'}, or sweep it beside them: "
        "sweep.deployment.hardware.memory_bandwidth: ['5TB/s']",
    ),
    "of an override": (
        {},
        {"device": {"zip": [{"deployment.hardware": "l40s"}, {"deployment.hardware": "a100-sxm"}]}},
        (FASTER,),
        f"--set '{FASTER}': the axis device replaces deployment.hardware as a whole, so that ",
    ),
    "of some designs": (
        {},
        {"design": {"zip": [{"deployment.hardware": "l40s"}, {"deployment.replicas": 2}]}},
        (FASTER,),
        f"--set '{FASTER}': the axis design replaces deployment.hardware as a whole, so that ",
    ),
    "of a figure below": (
        {"hardware": {"like": "h100-sxm", "peak_flops": {"times": 1.5}}},
        {"deployment.hardware": ["l40s"]},
        (),
        "such as {like: NAME, peak_flops: {times: 1.5}}, or sweep it beside them: "
        "sweep.deployment.hardware.peak_flops.times: [1.5]",
    ),
    "of a model": (
        {},
        {"deployment.model": ["llama-3.1-8b", "llama-3.1-70b"]},
        ("deployment.model.layers=40",),
        "so that deployment.model.layers = 40 does nothing; put it into each value of the axis, such as "
        "{like: NAME, layers: 40}, or ",
    ),
    "of a pool": (
        {"pools": {"all": {"role": "mixed"}}},
        {"deployment.pools.all.hardware": ["l40s"]},
        ("deployment.pools.all.hardware={like: h100-sxm}", "deployment.pools.all.hardware.power_w=300"),
        "the sweep sets deployment.pools.all.hardware; take its axis away first",
    ),
    "of what drafts": (
        {"speculative": {"method": "ngram", "tokens": 3, "acceptance": 0.5}},
        {"deployment.speculative": [None, {"method": "ngram", "tokens": 1, "acceptance": 0.5}]},
        ("deployment.speculative.tokens=4",),
        "the axis deployment.speculative replaces deployment.speculative as a whole, so that "
        "deployment.speculative.tokens = 4 does nothing; set tokens in each value of the axis",
    ),
}


@pytest.mark.parametrize(("deployment", "sweep", "overrides", "message"), LOST.values(), ids=list(LOST))
def test_figures_that_an_axis_would_replace_are_refused(base, deployment, sweep, overrides, message):
    base["deployment"] |= deployment
    base["sweep"] = sweep
    with pytest.raises(InputError) as told:
        load_scenario(base, overrides)
    assert message in str(told.value)


def test_figures_that_all_designs_have_anew_or_that_are_swept_beside_names_are_not_lost(base):
    base["deployment"]["hardware"] = {"like": "h100-sxm", "memory_bandwidth": "1TB/s"}
    given = [{"like": "h100-sxm", "memory_bandwidth": 2e12}, {"like": "l40s", "memory_bandwidth": {"times": 2}}]
    base["sweep"] = {"deployment.hardware": given}
    assert _bandwidths(base) == [2e12, 2 * L40S]
    base["sweep"] = {"deployment.hardware": ["h100-sxm", "l40s"], "deployment.hardware.memory_bandwidth": ["3TB/s"]}
    assert _bandwidths(base) == [3e12, 3e12]


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


def test_of_many_figures_those_at_the_ends_are_read(base, monkeypatch):
    """What lies between two figures that a device can have is one, too; each is told apart from the others as ever."""
    read = []
    monkeypatch.setattr(figures, "_check", lambda described, kind: read.append(described))
    base["sweep"] = {"deployment.hardware.memory_bandwidth": {"linspace": ["2TB/s", "4TB/s", 2001]}}
    loaded = load_scenario(base)
    assert len(read) == 2
    assert [change["deployment.hardware.memory_bandwidth"] for change in loaded.sweep[0].changes[:2]] == [
        2e12,
        2.001e12,
    ]
    assert _bandwidths(base)[1000] == 3e12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"linspace": ["0.1TB/s", "-1TB/s", 1001]}, "must be above 0, got -1"),
        ([*np.linspace(1e12, 2e12, 1000).tolist(), 3.35], "3.35 byte/s is no figure of a device; write its unit"),
        ([*np.linspace(1e12, 2e12, 1000).tolist(), 1e12], r"is the same as value 1: 1e\+12; keep one"),
        ([*np.linspace(1e12, 2e12, 1000).tolist(), "fast"], "'fast' does not start with a number"),
    ],
    ids=["negative", "no unit", "twice", "no number"],
)
def test_one_bad_figure_among_many(base, values, message):
    base["sweep"] = {"deployment.hardware.memory_bandwidth": values}
    with pytest.raises(InputError, match=rf"value 1001 of 1001\).*{message}"):
        load_scenario(base)


def test_counts_of_devices_are_read_one_by_one(base):
    base["sweep"] = {"deployment.hardware.links.nvlink.devices": [2.0 + step / 2 for step in range(1001)]}
    with pytest.raises(InputError, match=r"value 1 of 1001|value 2 of 1001"):
        load_scenario(base)


def test_devices_of_which_only_the_ends_are_read_are_those_that_the_others_would_be(base, monkeypatch):
    """Of two figures of a device at a time, one of them from the far end; of a mapping deeper down each is read."""
    count = 1001
    rows = [
        {"deployment.hardware.memory_bandwidth": 2e12 + 1e9 * step, "deployment.hardware.power_w": 700.0 - step / 4}
        for step in range(count)
    ]
    base["sweep"] = {"device": {"zip": rows}}
    scenario = load_scenario(base)
    read = []
    monkeypatch.setattr(figures, "_check", lambda described, kind: read.append(described))
    points = expand(scenario).points
    assert len(read) == 2  # the first has the least bandwidth and the greatest power
    described = [deployment.hardware for _, deployment, _ in points]
    assert described == [
        WhatIf.of({"like": "h100-sxm", **{key.split(".")[-1]: value for key, value in row.items()}}) for row in rows
    ]
    for step in (0, 1, 500, count - 1):
        assert device(described[step]) == read_device(described[step].parameters, "here")
    base["sweep"] = {"deployment.hardware.peak_flops.bf16": {"linspace": [5e14, 9e14, count]}}
    peaks = [device(deployment.hardware).peak_flops["bf16"] for _, deployment, _ in expand(load_scenario(base)).points]
    assert peaks == np.linspace(5e14, 9e14, count).tolist()
