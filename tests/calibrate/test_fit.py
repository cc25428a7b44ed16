"""The fit finds what made the data, says what they do not tell, and keeps to its bounds."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from evaluator.calibrate import calibrate
from evaluator.calibrate.document import _provenance, document, written
from evaluator.calibrate.errors import error_summary
from evaluator.calibrate.fit import WEAKEST, Fitting, Target, _weakest
from evaluator.calibrate.kernels import predictor
from evaluator.calibrate.parameters import class_parameters, fixed, put, values
from evaluator.calibrate.picture import draw
from evaluator.calibrate.table import Table, checked
from evaluator.catalog import load_calibration, load_hardware
from evaluator.catalog.calibration import read_calibration
from evaluator.cost import rates, reach
from evaluator.yaml import loads_yaml

TRUTH = {"flops_efficiency": 0.7, "bandwidth_efficiency": 0.85, "activation_efficiency": 0.6, "knee": 0.25,
         "launch_s": 4e-6, "prologue": 150.0}  # fmt: skip


@pytest.fixture(scope="module")
def h100():
    device = load_hardware("h100-sxm")
    return device, rates(device, load_calibration("datasheet", "h100-sxm"))


def gemm_rows(sizes=(1, 16, 64, 128, 512, 2048, 8192)):
    shapes = [(n, k) for n in (1024, 4096, 8192, 28672) for k in (1024, 4096, 8192)]
    return checked(
        pd.DataFrame([{"op_class": "gemm", "m": m, "n": n, "k": k, "time_s": 1.0} for n, k in shapes for m in sizes]),
        "t",
    )


def measured(rows, rate, device, noise=0.02, seed=0):
    time = np.asarray(predictor("gemm", rows, reach(device))(rate))
    return rows.assign(time_s=time * np.exp(noise * np.random.default_rng(seed).normal(size=len(rows))))


def test_the_truth_is_found_within_its_errors(h100):
    device, rate = h100
    rows = measured(gemm_rows(), fixed(rate, {"gemm": TRUTH}), device)
    parameters = class_parameters("gemm", rate, without=("wave_share",))
    target = Target("gemm", predictor("gemm", rows, reach(device)), rows["time_s"].to_numpy())
    result = Fitting(rate, parameters, [target]).fit()
    for parameter, value, error in zip(result.parameters, result.values, result.errors, strict=True):
        true = TRUTH[parameter.name.removeprefix("gemm.")]
        assert value == pytest.approx(true, abs=4 * error), parameter.name
        assert error < 0.3 * true, parameter.name
    assert result.identified.all()


def test_what_the_data_do_not_tell_stays_at_its_prior(h100):
    """Weight-bound calls alone know nothing of the FLOPs."""
    device, rate = h100
    rows = measured(gemm_rows(sizes=(1,)), rate, device)
    target = Target("gemm", predictor("gemm", rows, reach(device)), rows["time_s"].to_numpy())
    result = Fitting(rate, class_parameters("gemm", rate, without=("wave_share",)), [target]).fit()
    known = dict(zip((each.name for each in result.parameters), result.identified, strict=True))
    assert known["gemm.bandwidth_efficiency"] and known["gemm.launch_s"]
    assert not known["gemm.flops_efficiency"]
    held = dict(zip((each.name for each in result.parameters), result.values, strict=True))
    assert held["gemm.flops_efficiency"] == pytest.approx(0.75)


def test_transforms_are_inverse_and_slopes_are_derivatives(h100):
    _, rate = h100
    parameters = class_parameters("gemm", rate) + class_parameters("attention_prefill", rate)
    inner = np.array([each.inner(each.start) for each in parameters])
    np.testing.assert_allclose(values(parameters, inner), [each.start for each in parameters], rtol=1e-12)
    step = 1e-6
    numeric = (values(parameters, inner + step) - values(parameters, inner - step)) / (2 * step)
    np.testing.assert_allclose(numeric, [each.slope(each.start) for each in parameters], rtol=1e-5)


def test_decode_bandwidth_moves_the_activations(h100):
    """Classes without an efficiency of their own for activations have one figure for both."""
    import jax

    _, rate = h100
    parameters = class_parameters("attention_decode", rate)
    new = put(
        jax.tree.map(jax.numpy.asarray, rate),
        parameters,
        np.where([each.name.endswith("bandwidth_efficiency") for each in parameters], 0.5, 1e-6),
    )
    changed = np.flatnonzero(np.asarray(new.activation_efficiency) != rate.activation_efficiency)
    assert len(changed) == 1 and float(new.activation_efficiency[changed[0]]) == 0.5


@pytest.fixture(scope="module")
def fitted(h100):
    device, rate = h100
    rows = measured(gemm_rows(), fixed(rate, {"gemm": TRUTH}), device).assign(hardware="h100-sxm", engine="mine")
    return calibrate([Table("mine.csv", "0" * 64, "own", rows)], "h100-sxm", "mine")


def test_the_document_is_a_set_of_the_catalog(fitted, tmp_path):
    text = written(document(fitted))
    again = read_calibration(loads_yaml(text, "mine.yaml"), "mine.yaml", expected_name="mine")
    assert (again.hardware, again.provenance, again.engine) == ("h100-sxm", "calibrated", "mine")
    assert again.efficiencies["gemm"].flops_efficiency == pytest.approx(0.7, rel=0.05)
    assert (
        again.efficiencies["attention_decode"]
        == load_calibration("datasheet", "h100-sxm").efficiencies["attention_decode"]
    )
    assert "not measured here" in again.sources["all_reduce"] and "fitted" in again.sources["gemm"]
    entry = again.fit["parameters"]["gemm.launch_s"]
    assert entry["unit"] == "s" and 0 < entry["standard_error"] < entry["value"]
    assert again.fit["data"][0]["sha256"] == "0" * 64
    draw(fitted, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_a_small_class_is_judged_on_rows_it_has_not_seen(fitted):
    assert not fitted.judged["fitted"].any()
    assert error_summary(fitted.judged)["gemm"]["held_out"]["median"] < 0.04


@pytest.mark.parametrize("shape", [(1, 4), (3, 7), (2, 2), (9, 4)])
def test_no_more_parameters_than_rows_are_identified(shape):
    """Held one after the other until every direction is seen; none where the rows see all."""
    sensitivity = np.random.default_rng(0).normal(size=shape)
    free = np.ones(shape[1], dtype=bool)
    while (weak := _weakest(sensitivity, free)) is not None:
        free[weak] = False
    assert free.sum() == min(shape)
    assert np.linalg.svd(sensitivity[:, free], compute_uv=False)[-1] > WEAKEST


def test_of_one_row_the_parameter_that_it_tells_most_of_is_left():
    free = np.ones(4, dtype=bool)
    while (weak := _weakest(np.array([[1.0, 2.0, 3.0, 0.5]]), free)) is not None:
        free[weak] = False
    assert free.tolist() == [False, False, True, False]


@pytest.fixture(scope="module")
def one_row():
    row = {"op_class": "gemm", "m": 1, "n": 4096, "k": 4096, "time_s": 1.2e-5}
    return calibrate([Table("one.csv", "0" * 64, "own", checked(pd.DataFrame([row]), "t"))], "h100-sxm", "one")


@pytest.mark.parametrize(
    ("labels", "base", "provenance"),
    [
        (("gemm", "attention_prefill", "attention_decode"), "calibrated", "calibrated"),
        (("gemm_block", "attention_prefill", "attention_decode"), "calibrated", "extrapolated"),  # an H20
        (("gemm", "mla_prefill", "mla_decode"), "calibrated", "extrapolated"),
        (("gemm_block", "attention_prefill", "attention_decode"), "datasheet", "calibrated"),
        (("iteration",), "calibrated", "calibrated"),
    ],
)
def test_what_stands_for_another_class_is_not_measured(labels, base, provenance):
    fitted = SimpleNamespace(result=SimpleNamespace(errors=np.array([0.1])), base=SimpleNamespace(provenance=base))
    assert _provenance(fitted, set(labels)) == provenance


def test_one_row_is_no_calibration(one_row):
    result = one_row.result
    assert result.identified.sum() == 1 and not np.isfinite(result.errors).any()
    held = [(each.start, value) for each, value, known in zip(result.parameters, result.values, result.identified,
                                                              strict=True) if not known]  # fmt: skip
    np.testing.assert_allclose(*zip(*held, strict=True), rtol=1e-6)
    written_set = document(one_row)
    assert written_set["provenance"] == "datasheet"
    notes = [set(entry) - {"value", "unit"} for entry in written_set["fit"]["parameters"].values()]
    assert notes.count({"too_few_rows"}) == 1 and notes.count({"held_at_prior"}) == len(notes) - 1
    assert read_calibration(loads_yaml(written(written_set), "one.yaml"), "one.yaml", expected_name="one").fit
