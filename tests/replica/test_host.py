"""``deployment.host``: how fast its threads are, by which all times of the host are divided, once."""

from dataclasses import fields, replace

import pytest

from evaluator.accuracy.basis import unmeasured_features
from evaluator.catalog import load_calibration
from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.calibration import read_calibration
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.replica import Change, ReplicaSpec, build, varied
from evaluator.scenario import load_scenario
from evaluator.scenario.host import host_speed
from tests.catalog.test_iterations import POLYNOMIAL

CPU = """
name: cpu-of-mine
kind: cpu
peak_flops: {fp32: 1TFLOP/s}
memory_bytes: 100GB
memory_bandwidth: 100GB/s
links: null
power_w: null
idle_power_w: null
usd_per_hour: null
host_speed: 1.25
sources: {peak_flops: mine, memory_bytes: mine, memory_bandwidth: mine, host_speed: mine}
"""
SPEC = ReplicaSpec("llama-3.1-8b", "h100-sxm", api_server_times=ApiServerTimes(1e-4, 1e-3))
KERNELS = ("efficiencies", "link_efficiency")


def host_times(calibration):
    """All times of the host that a set says, by name."""
    whole = {figure.name: getattr(calibration, figure.name) for figure in fields(calibration)}
    times = {name: value for name, value in whole.items() if name.endswith("_s")}
    for part in ("launches", "api_server_times"):
        inner = vars(whole[part])
        times |= {f"{part}.{name}": value for name, value in inner.items() if name.endswith("_s")}
    return times


def test_all_times_of_the_host_are_divided_and_no_other_figure():
    base, fast = (build(replace(SPEC, host_speed=speed)).calibration for speed in (1.0, 2.0))
    assert len(host_times(base)) > 15 and host_times(base)["frontend_s"] > 0
    assert host_times(fast) == pytest.approx({name: value / 2 for name, value in host_times(base).items()})
    for name in (*KERNELS, "lookahead_steps", "graph_tokens", "expert_skew"):
        assert getattr(fast, name) == getattr(base, name)
    assert fast.launches.captured_tokens == base.launches.captured_tokens
    assert build(replace(SPEC, host_speed=1.0, api_server_times=None)).calibration is load_calibration(
        "auto", "h100-sxm"
    )


def test_a_sensitivity_takes_the_host_as_it_is():
    """A variant is built from the set as used: the host is not divided again."""
    fast = build(replace(SPEC, host_speed=2.0))
    slower = varied(fast, Change("host_overhead", 1.1))
    expected = {name: 1.1 * value for name, value in host_times(fast.calibration).items()}
    assert host_times(slower.calibration) == pytest.approx(expected)
    assert host_times(varied(fast, Change("flops", 1.1)).calibration) == pytest.approx(host_times(fast.calibration))


def test_a_faster_host_is_said_to_be_unmeasured():
    assert "a host of another speed" in unmeasured_features(build(replace(SPEC, host_speed=1.1)))
    assert "a host of another speed" not in unmeasured_features(build(SPEC))


def scenario(deployment):
    workload = {
        "arrivals": {"process": "poisson", "rate_rps": 1},
        "lengths": {"source": "fixed", "prompt_tokens": 10, "output_tokens": 10},
    }
    return load_scenario({"workload": workload, "deployment": {"model": "llama-3.1-8b", **deployment}}).deployment


def test_a_cpu_of_the_catalog_says_its_speed(tmp_path, monkeypatch):
    (tmp_path / "models" / "hardware").mkdir(parents=True)
    (tmp_path / "models" / "hardware" / "cpu-of-mine.yaml").write_text(CPU)
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    of = scenario(
        {
            "hardware": "h100-sxm",
            "host": "cpu-of-mine",
            "batching": {"max_num_seqs": 8},
            "kv": {"memory_fraction": 0.9, "block_tokens": 16},
        }
    )
    assert of.host == "cpu-of-mine"
    assert host_speed(of.host) == 1.25


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("cpu-grace", "the file of cpu-grace does not say its host_speed"),
        ("cpu-grac", "did you mean cpu-grace"),
        ({"speed": 0}, "must be greater than 0, got 0"),
        ({}, "speed: is required"),
        (1.3, "expected the name of a CPU or {speed: 1.3}, got 1.3"),
    ],
)
def test_what_is_no_host(host, why):
    with pytest.raises(InputError) as error:
        scenario({"hardware": "h100-sxm", "host": host})
    assert "deployment.host" in str(error.value) and why in str(error.value)


def test_iterations_that_were_measured_whole_have_their_host_in_them():
    whole = read_calibration(POLYNOMIAL, "mine.yaml")
    served = {"precision": Precision(kv="fp8"), "parallel": Parallel(4)}
    built = build(replace(SPEC, model="llama-2-70b", calibration=whole, host_speed=2.0, **served))
    assert built.reason.startswith("deployment.host with calibration mine, whose iterations have their host in them")
