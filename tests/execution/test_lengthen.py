"""``requests: auto``: undecided designs run longer, decided ones do not."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.execution.lengthen import run_lengths
from evaluator.run import sweep
from evaluator.scenario import Auto, load_scenario

RATES = [2, 18, 60]


@pytest.fixture
def base():
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 2},
            "lengths": {
                "source": "uniform",
                "prompt_min": 100,
                "prompt_max": 2000,
                "output_min": 10,
                "output_max": 200,
            },
            "requests": {"auto": {"most": 8000}},
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "calibration": "datasheet"},
        "slo": {"ttft": {"p90": 0.5}},
        "sweep": {"workload.arrivals.rate_rps": RATES},
    }


def test_what_is_decided_stays_short_and_every_row_is_its_run(base, tmp_path):
    ds = sweep(base, out=tmp_path / "a.nc")
    run = ds["requests_run"].values
    assert run[0] == 1000 and set(run) <= {1000, 4000, 8000}
    assert ds["steady"].values[0] and ds["slo_met"].values[0] and not ds["slo_met"].values[2]
    assert not (tmp_path / "a.chunks").exists()
    for row, requests in enumerate(run.tolist()):
        warmup, cooldown = requests // 10, requests // 10
        whole = {**base["workload"], "requests": requests, "warmup_requests": warmup, "cooldown_requests": cooldown}
        alone = sweep({**base, "workload": whole})
        for name in ("ttft_s", "e2e_s_mean", "throughput_rps"):
            np.testing.assert_array_equal(ds[name].values[row], alone[name].values[row], err_msg=name)


def test_lengths(base):
    assert run_lengths(load_scenario(base)) == [1000, 4000, 8000]
    base["workload"]["requests"] = "auto"
    assert run_lengths(load_scenario(base))[-1] == 50_000
    base["workload"]["requests"] = 300
    assert run_lengths(load_scenario(base)) == [300]
    base["workload"]["requests"] = {"auto": {"most": 700}}
    assert load_scenario(base).workload.requests == 700 and run_lengths(load_scenario(base)) == [700]
    base["sweep"] = {"workload.requests": [100, 200]}
    assert len(run_lengths(load_scenario(base))) == 1


@pytest.mark.parametrize("wrong", ["often", {"auto": 3}, {"auto": {"least": 3}}, {"auto": {"most": 0}}, [1]])
def test_other_forms_are_refused(base, wrong):
    base["workload"]["requests"] = wrong
    with pytest.raises(InputError, match=r"workload\.requests"):
        load_scenario(base)


def test_auto_is_a_number():
    import pickle

    one = Auto(1000, 50_000)
    assert one == 1000 and one // 10 == 100 and pickle.loads(pickle.dumps(one)).most == 50_000
