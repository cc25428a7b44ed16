"""Polynomials and tables fitted to whole iterations: the truth is found, and what cannot be fitted is said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluator.calibrate.forms import table as table_form
from evaluator.calibrate.iterations import batches
from evaluator.calibrate.picture import draw
from evaluator.calibrate.table import Table, checked
from evaluator.calibrate.whole import document, errors_by_load, errors_table, fit_iterations, written
from evaluator.catalog import data_folder, load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import read_calibration
from evaluator.catalog.iterations import MeasuredPhase
from evaluator.cost import Parallel, iteration_time
from evaluator.cost.fitted import fitted_cost, iteration_cost
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml

TRUTH = {
    "prefill": MeasuredPhase({}, coefficients=(1e-2, 1e-4, 1e-3, 1e-7, 2e-8, 1e-4, 3e-7)),
    "decode": MeasuredPhase({}, coefficients=(2e-2, 1e-4, 1e-6, 1e-8)),
}


def grid(**columns) -> pd.DataFrame:
    """Every combination of the values."""
    index = pd.MultiIndex.from_product(columns.values(), names=columns)
    return index.to_frame(index=False)


def iterations(mixed: bool = True) -> pd.DataFrame:
    """A campaign: decodes over a grid, prompts of some lengths on some history, with decodes beside."""
    decodes = grid(prompts=[0], prompt_tokens=[0], past_tokens=[0], decodes=[1, 2, 4, 8, 16, 32, 64],
                   context=[16, 128, 512, 1024, 2048, 4096])  # fmt: skip
    chunks = {"prompts": [1], "prompt_tokens": [8, 32, 128, 256, 512, 1024, 2048], "past_tokens": [0, 512, 2048]}
    prefills = grid(**chunks, decodes=[0], context=[0])
    beside = grid(**chunks, decodes=[4, 16, 64], context=[16, 1024, 4096])
    parts = [decodes, prefills, *([beside] if mixed else [])]
    return pd.concat(parts, ignore_index=True).assign(
        op_class="iteration", model="llama-3.1-8b", tensor_parallel=1, hardware="h100-sxm", engine="mine"
    )


def timed(rows: pd.DataFrame, cost, noise: float = 0.0) -> Table:
    time = np.asarray(iteration_time(cost, batches(rows, None)))
    time = time * np.exp(noise * np.random.default_rng(0).normal(size=len(rows)))
    return Table("mine.csv", "0" * 64, "own", checked(rows.assign(time_s=time), "mine.csv"))


def roofline():
    hardware = load_hardware("h100-sxm")
    calibration = load_calibration("datasheet", "h100-sxm")
    return iteration_cost(load_model("llama-3.1-8b"), hardware, calibration, Precision(), Parallel())


def test_a_polynomial_is_recovered_exactly():
    several = grid(prompts=[2, 5], prompt_tokens=[100, 700], past_tokens=[0, 300], decodes=[0], context=[0])
    rows = pd.concat([iterations(), several.assign(**iterations().iloc[0, 5:].to_dict())], ignore_index=True)
    fitted = fit_iterations([timed(rows, fitted_cost("polynomial", TRUTH))], "h100-sxm", "mine", "polynomial")
    for phase, known in TRUTH.items():
        np.testing.assert_allclose(fitted.fits[0].phases[phase].coefficients, known.coefficients, rtol=1e-6)
    assert max(group["p90"] for label in errors_by_load(fitted.judged).values() for group in label.values()) < 1e-4


def test_standard_errors_are_of_the_size_of_the_errors():
    rows = pd.concat([iterations()] * 3, ignore_index=True)
    fitted = fit_iterations([timed(rows, fitted_cost("polynomial", TRUTH), 0.02)], "h100-sxm", "mine", "polynomial")
    errors = fitted.notes["llama-3.1-8b TP 1 decode"]["standard_errors"]
    found = fitted.fits[0].phases["decode"].coefficients
    for error, value, true in zip(errors.values(), found, TRUTH["decode"].coefficients, strict=True):
        assert abs(value - true) < 4 * error < 0.8 * true
    assert fitted.notes["llama-3.1-8b TP 1 prefill"]["not_told_apart"] == ["prompts"]  # one in every iteration


def test_a_table_of_the_roofline_is_close_to_it_between_its_knots():
    cost = roofline()
    fitted = fit_iterations([timed(iterations(), cost)], "h100-sxm", "mine", "table")
    table = fitted_cost("table", fitted.fits[0].phases)
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"prompts": 0, "prompt_tokens": 0, "past_tokens": 0, "decodes": rng.integers(1, 65, 200)})
    decodes = batches(rows.assign(context=rng.integers(16, 4097, 200)), None)
    np.testing.assert_allclose(iteration_time(table, decodes), iteration_time(cost, decodes), rtol=0.01)
    rows = rows.assign(prompts=1, prompt_tokens=rng.integers(64, 2049, 200), past_tokens=rng.integers(0, 2049, 200))
    mixed = batches(rows.assign(context=rng.integers(16, 4097, 200)), None)
    np.testing.assert_allclose(iteration_time(table, mixed), iteration_time(cost, mixed), rtol=0.06)


def test_a_set_reads_back_and_is_drawn(tmp_path):
    for form in ("polynomial", "table"):
        fitted = fit_iterations([timed(iterations(), roofline(), 0.01)], "h100-sxm", "mine", form, beyond="extend")
        found = read_calibration(loads_yaml(written(document(fitted)), "mine.yaml"), "mine.yaml", "mine")
        assert (found.form, found.beyond, found.engine, found.provenance) == (form, "extend", "mine", "calibrated")
        again, first = found.iterations[0], fitted.fits[0]
        rows = batches(iterations(), None)
        times = [iteration_time(fitted_cost(form, each.phases), rows) for each in (again, first)]
        np.testing.assert_allclose(*times, rtol=1e-5)
        assert again.phases["decode"].ranges == {
            "decodes": (1.0, 64.0), "context": (16.0, 4096.0), "decode_context": (16.0, 64 * 4096.0),
        }  # fmt: skip
        errors = found.fit["errors"]["llama-3.1-8b TP 1 decode"]
        assert {"in_sample", "held_out", "held_out, low decodes", "held_out, high decodes"} <= set(errors)
        assert "llama-3.1-8b TP 1 prefill" in errors_table(fitted.judged)
        draw(fitted, tmp_path / f"{form}.png")
        assert (tmp_path / f"{form}.png").stat().st_size > 5000


def test_empty_batches_are_left_out_and_expert_parallelism_is_kept():
    rows = iterations()
    empty = rows.iloc[:2].assign(decodes=0)
    table = timed(pd.concat([rows, empty], ignore_index=True), roofline())
    assert fit_iterations([table], "h100-sxm", "mine", "polynomial").left_out == {"empty batches": 2}
    wide = timed(rows.assign(expert_parallel=8, tensor_parallel=8, model="gpt-oss-20b"), roofline())
    fitted = fit_iterations([wide], "h100-sxm", "mine", "polynomial")
    assert fitted.fits[0].expert_parallel == 8 and "gpt-oss-20b TP 8 EP 8 decode" in fitted.notes


def test_noise_does_not_make_more_work_faster():
    fitted = fit_iterations([timed(iterations(), roofline(), 0.05)], "h100-sxm", "mine", "table")
    phase = fitted.fits[0].phases["decode"]
    seconds = np.reshape(phase.seconds, [len(knots) for knots in phase.knots])
    assert (np.diff(seconds, axis=0) >= 0).all() and (np.diff(seconds, axis=1) >= 0).all()
    given = np.random.default_rng(0).random((4, 5, 3))
    level = table_form._rising(given)
    assert all((np.diff(level, axis=axis) >= 0).all() for axis in range(3))
    np.testing.assert_allclose(level.mean(), given.mean(), rtol=0.02)


def test_an_incomplete_grid_names_what_is_missing_and_the_remedy():
    rows = iterations().query("not (decodes == 64 and context == 512 and prompts == 0)")
    with pytest.raises(
        InputError, match=r"decodes x context needs every .* 1 of 42 are missing \(such as decodes 64, c"
    ):
        fit_iterations([timed(rows, roofline())], "h100-sxm", "mine", "table")
    fitted = fit_iterations([timed(rows, roofline())], "h100-sxm", "mine", "table", axes=("prefill_tokens", "decodes"))
    assert fitted.fits[0].phases["decode"].knots[1] == (0.0,)
    assert fitted.fits[0].phases["decode"].ranges["context"] == (16.0, 4096.0)  # the data's, whatever the axes


def test_contexts_for_which_there_was_no_room_are_bounded_by_the_context_of_all():
    """128 K tokens of KV: the corners beyond are on the line that ends there, and the range says how far it goes."""
    fits = iterations().query("decodes * context <= 131072")
    whole, part = (
        fit_iterations([timed(rows, roofline())], "h100-sxm", "mine", "table").fits[0].phases["decode"]
        for rows in (iterations(), fits)
    )
    assert part.knots == whole.knots and part.ranges["decode_context"][1] == 131_072
    np.testing.assert_allclose(part.seconds, whole.seconds, rtol=1e-5)  # decodes are affine in the context


def test_what_is_no_iteration_is_refused():
    gemm = checked(pd.DataFrame({"op_class": "gemm", "m": [1, 2], "n": 8, "k": 8, "time_s": [1e-5, 2e-5]}), "t")
    with pytest.raises(InputError, match=r"a table is fitted to whole iterations .*, and there are none"):
        fit_iterations([Table("t", "", "own", gemm)], "h100-sxm", "mine", "table")
    with pytest.raises(InputError, match="'batch' is no quantity of an iteration; there are: prefill_tokens, past"):
        fit_iterations([timed(iterations(), roofline())], "h100-sxm", "mine", "table", axes=("batch",))
    with pytest.raises(InputError, match="no measurement of l40s"):
        fit_iterations([timed(iterations(), roofline())], "l40s", "mine", "table")
    with pytest.raises(InputError, match="unknown model 'llama-9'"):
        table = timed(iterations(), roofline())
        fit_iterations([Table("t", "", "own", table.rows.assign(model="llama-9"))], "h100-sxm", "mine", "polynomial")


@pytest.mark.parametrize("hardware", ["h100-sxm", "a100-sxm"])
def test_splitwise(data_folder, hardware):
    """Mean errors over TP 2, 4 and 8 of Llama-2-70B: decodes within 3 % in and out of the sample, prefills within 5 %
    in the sample of a table. A polynomial has no room for the plateau of short prompts and for kernels that change."""
    found = {}
    for form, axes in (("polynomial", None), ("table", ("prefill_tokens", "decodes"))):
        fitted = fit_iterations([data_folder / "splitwise_perf_model.csv"], hardware, "x", form, axes=axes)
        errors = {name: each for name, each in errors_by_load(fitted.judged).items() if "llama-2-70b" in name}
        for phase in ("prefill", "decode"):
            for group in ("in_sample", "held_out"):
                means = [each[group]["mean"] for name, each in errors.items() if name.endswith(phase)]
                assert len(means) == 3
                found[form, phase, group] = np.mean(means)
    print(found)
    for form in ("polynomial", "table"):
        assert found[form, "decode", "in_sample"] < 0.025
        assert found[form, "decode", "held_out"] < 0.035
    assert found["table", "prefill", "in_sample"] < 0.05 and found["table", "prefill", "held_out"] < 0.10
    assert found["polynomial", "prefill", "in_sample"] < 0.09 and found["polynomial", "prefill", "held_out"] < 0.15


def test_a_device_of_a_file_has_its_own_name_in_the_set(tmp_path):
    given = (data_folder("hardware")[-1] / "h100-sxm.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(given.replace("name: h100-sxm", "name: mine"))
    table = timed(iterations().assign(hardware=""), roofline())
    fitted = fit_iterations([table], str(tmp_path / "mine.yaml"), "set", "polynomial")
    found = read_calibration(loads_yaml(written(document(fitted)), "set.yaml"), "set.yaml", "set")
    assert fitted.hardware == found.hardware == "mine"
