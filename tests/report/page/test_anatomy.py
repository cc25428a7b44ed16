import numpy as np
import pytest

from evaluator.estimation import estimate
from evaluator.report.axes import axes_shown
from evaluator.report.page.anatomy import anatomy, configuration_of
from tests.results.build import HARDWARE, PARALLEL, measured

SCENARIO = """
name: small
workload:
  arrivals: {process: poisson, rate_rps: 2}
  lengths: {source: fixed, prompt_tokens: 1024, output_tokens: 128}
  requests: 60
  warmup_requests: 10
  seeds: [0]
deployment: {model: llama-3.1-8b, hardware: h100-sxm, calibration: datasheet, replicas: 2}
slo: {ttft: {p90: 1s}}
sweep: {deployment.hardware: [h100-sxm, l40s, mi300x], deployment.tensor_parallel: [2, 4, 8]}
"""


@pytest.fixture
def ds():
    """Nine designs of SCENARIO that serve 2 requests/s, of which 16 decode at a time, 8 on each replica."""
    found = measured((HARDWARE, PARALLEL))
    found.attrs["scenario"] = SCENARIO
    ones = np.ones(9)
    for name, value in (
        ("throughput_rps", 2.0),
        ("output_tok_per_s", 256.0),
        ("total_tok_per_s", 2304.0),
        ("e2e_s_mean", 8.5),
        ("ttft_s_mean", 0.5),
    ):
        found[name] = ("config", value * ones)
    return found


def anatomy_of(ds, row):
    return anatomy(ds, axes_shown(ds), row, configuration_of(ds, row))


def test_times_are_those_of_the_estimate_at_the_load_of_the_run(ds):
    found = anatomy_of(ds, 4)  # l40s, tensor parallel 4
    given = {"calibration": "datasheet", "prompt_tokens": 1024, "output_tokens": 128, "tensor_parallel": 4}
    alone, together = (estimate("llama-3.1-8b", "l40s", batch=batch, **given) for batch in (1, 8))
    for phase, time_s in zip(found["phases"], (alone.prefill.time_s, together.decode.time_s), strict=True):
        assert sum(one["milliseconds"] for one in phase["operators"]) == pytest.approx(1e3 * time_s, rel=1e-3)
        assert sum(one["share"] for one in phase["operators"]) == pytest.approx(100, abs=0.2)
    assert found["design"] == "l40s, tensor parallel 4"
    assert "the mean 8 sequences of a replica" in found["phases"][1]["about"]


def test_a_device_that_the_sweep_describes_has_a_plan(ds):
    assert configuration_of(ds, 4).status == "ok"
    ds["hardware"] = ("config", np.repeat(["h100-sxm", "mine", "mi300x"], 3), ds["hardware"].attrs)
    assert configuration_of(ds, 4) is None  # a name alone is none of the catalog
    mine = "{name: mine, like: h100-sxm, memory_bandwidth: 5TB/s}"
    ds.attrs["scenario"] = SCENARIO.replace("l40s", mine)
    assert configuration_of(ds, 4).answering[0].design.hardware.memory_bandwidth == 5e12


def test_drafts_are_operators_of_a_decode_step(ds):
    speculative = "{method: eagle, tokens: 3, acceptance: 0.6, vocabulary: 32000}"
    ds.attrs["scenario"] = SCENARIO.replace("replicas: 2", f"replicas: 2, speculative: {speculative}")
    ds["accepted_per_iteration"] = ("config", np.full(9, 2.0))
    decode = anatomy_of(ds, 4)["phases"][1]
    assert sum(one["share"] for one in decode["operators"]) == pytest.approx(100, abs=0.2)
    assert any(one["name"].startswith("draft.") for one in decode["operators"])


def test_the_largest_operators_come_first(ds):
    for phase in anatomy_of(ds, 0)["phases"]:
        times = [one["milliseconds"] for one in phase["operators"]]
        assert times == sorted(times, reverse=True) and phase["operators"][0]["bound"]


def test_a_design_that_did_not_run_has_none(ds):
    ds["status"] = ("config", np.full(9, "infeasible: no room"))
    assert anatomy_of(ds, 0) is None


@pytest.mark.parametrize("text", ["", "name: [", "name: x\n", "just words", SCENARIO.replace("1024", "many")])
def test_a_scenario_that_cannot_be_read_here_has_none(ds, text):
    ds.attrs["scenario"] = text
    assert anatomy_of(ds, 0) is None


def test_a_result_without_means_has_none(ds):
    assert anatomy_of(ds.drop_vars("ttft_s_mean"), 0) is None
