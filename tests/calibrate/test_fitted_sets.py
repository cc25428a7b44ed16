"""Calibration sets fitted to whole iterations in every command: as good as the iterations, and refused beyond them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluator import results
from evaluator.calibrate.whole import document, fit_iterations, written
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.metrics import OK
from evaluator.report import elasticity_table, plot_sensitivity, rows_with_elasticities
from evaluator.report.estimate import format_estimate
from evaluator.run import simulate, sweep
from evaluator.validation import validate
from tests.calibrate.test_whole import iterations, roofline, timed
from tests.scenario.build import scenario

LENGTHS = "workload.lengths={source: uniform, prompt_min: 50, prompt_max: 1500, output_min: 10, output_max: 300}"


def make(folder: Path, form: str, beyond: str = "refuse", mixed: bool = True) -> str:
    """The path of a set fitted to iterations that the roofline made, under the name of ``form``."""
    rows = iterations(mixed)
    fitted = fit_iterations([timed(rows, roofline())], "h100-sxm", form, form, beyond=beyond)
    (folder / f"{form}.yaml").write_text(written(document(fitted)))
    return str(folder / f"{form}.yaml")


@pytest.fixture(scope="module", params=["polynomial", "table"])
def fitted_set(request, tmp_path_factory):
    return request.param, make(tmp_path_factory.mktemp("sets"), request.param)


def using(path: str, *overrides: str, **axes):
    return scenario(LENGTHS, f"deployment.calibration={path}", *overrides, **axes)


@pytest.mark.parametrize("policy", ["chunked", "continuous"])
def test_a_run_is_close_to_that_of_the_cost_that_made_the_iterations(fitted_set, policy):
    form, path = fitted_set
    chosen = f"deployment.batching.policy={policy}"
    limit = "deployment.batching.max_num_batched_tokens=2048"
    found, exact = (sweep(using(name, chosen, limit)) for name in (path, "datasheet"))
    assert (found["engine"].item(), found["provenance"].item()) == ("iteration", "calibrated")
    tolerance = {"table": 0.03, "polynomial": 0.25}[form]  # a polynomial has no knee
    for name in ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean"):
        np.testing.assert_allclose(found[name], exact[name], rtol=tolerance, err_msg=name)
    assert 0 < found["mfu"].item() < 1 and 0 < found["mbu"].item() < 1


def test_both_engines_agree(fitted_set):
    _, path = fitted_set
    limit = "deployment.batching.max_num_batched_tokens=2048"
    axes = {
        "deployment__batching__policy": ["static", "continuous", "chunked", "mixed", "sarathi"],
        "deployment__batching__packing": ["fcfs", "least_work_left"],
    }
    found = validate(using(path, limit, **axes))
    assert (found.compared, found.apart) == (10, 0) and found.worst < 1e-9


def test_other_models_splits_and_hardware_are_rows_that_say_so(fitted_set):
    form, path = fitted_set
    axes = {
        "deployment__hardware": ["h100-sxm", "l40s"],
        "deployment__model": ["llama-3.1-8b", "qwen3-8b"],
        "deployment__tensor_parallel": [1, 2],
        "deployment__calibration": [path, "datasheet"],
    }
    ds = results.unstack(sweep(scenario(LENGTHS, "deployment.batching.max_num_batched_tokens=2048", **axes)))
    status = ds["status"].sel(calibration=path)
    assert (ds["status"].sel(calibration="datasheet") == OK).all()

    def told(**place) -> str:
        return str(status.sel(**place).item())

    assert told(hardware="h100-sxm", model="llama-3.1-8b", tensor_parallel=1) == OK
    assert (status == OK).sum() == 1
    wrong = told(hardware="l40s", model="llama-3.1-8b", tensor_parallel=1)
    assert wrong == f"unsupported: calibration {form} is of h100-sxm, not of l40s; use auto"
    assert "not of qwen3-8b" in told(hardware="h100-sxm", model="qwen3-8b", tensor_parallel=1)
    assert "not of tensor_parallel 2 in checkpoint" in told(
        hardware="h100-sxm", model="llama-3.1-8b", tensor_parallel=2
    )


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_what_leaves_the_range_is_a_row_that_says_so(fitted_set, simulator):
    form, path = fitted_set
    axes = {"deployment__batching__max_num_batched_tokens": [2048, 4096]}
    lot = ("workload.arrivals={process: all_at_once}", "deployment.batching.policy=continuous")
    ds = sweep(using(path, *lot, **axes), simulator=simulator)
    assert ds["status"].values[0] == OK
    told = str(ds["status"].values[1])
    assert f"prompt tokens in an iteration exceed the 2,048 that calibration {form} was fitted to; lower max" in told
    assert np.isnan(ds["ttft_s_mean"].values[1]) and np.isfinite(ds["ttft_s_mean"].values[0])
    with pytest.raises(InputError, match="exceed the 2,048"):
        simulate(using(path, *lot, "deployment.batching.max_num_batched_tokens=4096"), simulator=simulator)


@pytest.mark.parametrize("form", ["polynomial", "table"])
def test_a_set_may_allow_to_go_beyond_and_the_row_says_so(tmp_path, form):
    path = make(tmp_path, form, beyond="extend")
    axes = {"deployment__batching__max_num_batched_tokens": [2048, 4096]}
    lot = ("workload.arrivals={process: all_at_once}", "deployment.batching.policy=continuous")
    ds = sweep(using(path, *lot, **axes))
    assert (ds["status"] == OK).all() and ds["provenance"].values.tolist() == ["calibrated", "extrapolated"]


def test_batches_that_mix_need_measurements_that_do(tmp_path):
    path = make(tmp_path, "table", mixed=False)
    limit = "deployment.batching.max_num_batched_tokens=2048"
    ds = sweep(using(path, limit, deployment__batching__policy=["continuous", "chunked"]))
    assert ds["status"].values[0] == OK
    assert "no iteration with prompts and decodes together for llama-3.1-8b" in str(ds["status"].values[1])


def test_estimate(fitted_set):
    form, path = fitted_set
    known = {"prompt_tokens": 1024, "output_tokens": 128}
    found, exact = (estimate("llama-3.1-8b", "h100-sxm", calibration=name, **known) for name in (path, "datasheet"))
    assert found.tpot_s == pytest.approx(exact.tpot_s, rel=0.05) and found.status == OK
    assert f"efficiencies: {form} (calibrated)" in format_estimate(found)
    loaded = estimate("llama-3.1-8b", "h100-sxm", calibration=path, rate_rps=4.0, **known)
    assert loaded.status == OK and 0 < loaded.load.utilisation < 1
    crowd = estimate("llama-3.1-8b", "h100-sxm", calibration=path, batch=80, **known)
    assert "exceed the 2,048 that calibration" in crowd.status
    with pytest.raises(
        InputError, match=r"was fitted to iterations of llama-3.1-8b of tensor_parallel 1 .*, not of ten"
    ):
        estimate("llama-3.1-8b", "h100-sxm", calibration=path, tensor_parallel=2, **known)


def test_what_limits_measured_iterations_is_not_known(fitted_set, evaluator, tmp_path):
    _, path = fitted_set
    limit = "deployment.batching.max_num_batched_tokens=2048"
    both = scenario(LENGTHS, limit, deployment__calibration=[path, "datasheet"])
    ds = sweep(both, sensitivity=True)
    assert np.isnan(ds["tpot_s_elasticity"].values[0]).all() and np.isfinite(ds["tpot_s_elasticity"].values[1]).all()
    plot_sensitivity(ds, tmp_path / "a.png")
    alone = sweep(using(path, limit), sensitivity=True)
    assert "is not known" in elasticity_table(alone) and not rows_with_elasticities(alone).size
    file = tmp_path / "mine.yaml"
    file.write_text(
        "workload: {arrivals: {process: poisson, rate_rps: 1}, lengths: {source: fixed, prompt_tokens: 100, "
        "output_tokens: 20}, requests: 20}\n"
        "deployment: {model: llama-3.1-8b, hardware: h100-sxm, batching: {max_num_seqs: 32}, "
        f"calibration: {path}}}\n"
    )
    code, shown, _ = evaluator("sweep", file, "--sensitivity", "--plot", tmp_path / "b.png")
    assert code == 0 and "is not known" in shown
    assert (tmp_path / "b.png").is_file() and not (tmp_path / "b-sensitivity.png").exists()


def test_the_command(evaluator, tmp_path):
    table = timed(iterations(), roofline()).rows
    table.to_csv(tmp_path / "mine.csv", index=False)
    common = ("calibrate", tmp_path / "mine.csv", "--hardware", "h100-sxm", "--out", tmp_path / "set.yaml")
    for form in ("polynomial", "table"):
        code, shown, told = evaluator(*common, "--form", form, "--plot", tmp_path / "a.png")
        assert code == 0 and "llama-3.1-8b TP 1 decode" in shown and "wrote" in told
        assert f"form: {form}" in (tmp_path / "set.yaml").read_text()
    code, _, told = evaluator(*common, "--form", "table", "--axes", "batch")
    assert code == 2 and "--axes: 'batch' is no quantity" in told
    code, _, told = evaluator(*common, "--form", "polynomial", "--axes", "decodes")
    assert code == 2 and "--axes: only a table has them" in told
    code, _, told = evaluator(*common, "--form", "table", "--precision", "fp8")
    assert code == 2 and "expected three dtypes such as fp8/bf16/fp8" in told
    code, _, told = evaluator(*common, "--start", tmp_path / "set.yaml")
    assert code == 2 and "has no efficiencies to start from" in told
