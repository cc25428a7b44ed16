"""Every model of the catalog, in every precision and split that it allows, costs something finite."""

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model, names, parameter_count
from evaluator.cost import (
    Parallel,
    fold,
    iteration_time,
    kv_bytes_per_token,
    memory_plan,
    model_window,
    operators,
    parallel_problem,
    weight_bytes,
)
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.precision import Precision

PRECISIONS = (
    Precision(),
    Precision(weights="bf16", kv="fp8"),
    Precision(weights="fp8", activations="fp8", kv="fp8"),
    Precision(weights="int4"),
    Precision(weights="nvfp4", activations="nvfp4"),
)
SPLITS = (Parallel(), Parallel(2), Parallel(4, 2), Parallel(8), Parallel(8, 2, 8), Parallel(4, 1, 4))


@pytest.mark.parametrize("name", names("models"))
def test_times_are_finite_and_positive(name):
    model, hardware = load_model(name), load_hardware("h100-sxm")
    window, calibration = model_window(model), load_calibration("datasheet", "h100-sxm")
    splits = [split for split in SPLITS if parallel_problem(model, hardware, split) is None]
    assert Parallel() in splits
    for split in splits:
        for precision in PRECISIONS:
            parameters = fold(operators(model, precision, split), hardware, calibration)
            decode = float(iteration_time(parameters, decode_batch(8.0, 2000.0, window)))
            prefill = float(iteration_time(parameters, prefill_batch(1.0, 2000, window)))
            assert 0 < decode < prefill < 60
            assert np.isfinite(weight_bytes(model, precision, split))
            assert memory_plan(model, hardware, precision, split).kv.unit_bytes > 0


@pytest.mark.parametrize("hardware", names("hardware"))
def test_all_hardware_runs_a_model(hardware):
    device, model = load_hardware(hardware), load_model("llama-3.1-8b")
    calibration = load_calibration("datasheet", hardware)
    for weights in ("bf16", "fp8", "int4"):
        parameters = fold(operators(model, Precision(weights=weights), Parallel()), device, calibration)
        assert 1e-3 < float(iteration_time(parameters, decode_batch(1.0, 1000.0, None))) < 2.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("deepseek-v3", 70_272),
        ("qwen3-235b-a22b", 192_512),
    ],
)
def test_kv_bytes_of_the_catalog(name, expected):
    assert kv_bytes_per_token(load_model(name), "bf16") == expected


@pytest.mark.parametrize("name", names("models"))
def test_weights_are_the_published_parameters(name):
    model = load_model(name)
    held = weight_bytes(model, Precision(weights="bf16"), Parallel())
    if {model.checkpoint.embedding, model.checkpoint.head} <= {"bf16", "fp16"}:
        assert held == pytest.approx(2 * parameter_count(model), rel=1e-6)
    if model.published_parameters:
        assert held / 2 == pytest.approx(model.published_parameters, rel=0.05)  # some count a vision tower
