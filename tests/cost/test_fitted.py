"""Costs fitted to whole iterations: their formulae, in plain Python, NumPy and JAX alike, and where they hold."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.iterations import RANGES as NAMES
from evaluator.catalog.iterations import Iterations, MeasuredPhase
from evaluator.cost import Parallel, decode_batch, iteration_time, prefill_batch, together
from evaluator.cost.fitted import fitted_cost, fitted_problem, iteration_cost, verdict
from evaluator.cost.iteration import BatchStatistics, alike_steps, decode_growth
from evaluator.cost.lanes import stack, structure
from evaluator.cost.precision import Precision
from evaluator.cost.quantities import PEAKS, peaks, quantities
from evaluator.reference.pipeline import plain

WIDE = {name: (0.0, 1e6) for name in NAMES["prefill"]}
POLYNOMIAL = {
    "prefill": MeasuredPhase(WIDE, coefficients=(1e-2, 1e-4, 1e-3, 1e-8, 1e-9, 1e-5, 1e-7)),
    "decode": MeasuredPhase(WIDE, coefficients=(2e-2, 1e-4, 1e-6, 1e-8)),
}
DECODES, CONTEXT = (1.0, 8.0, 64.0), (100.0, 1000.0, 4000.0)
PROMPTS = (128.0, 512.0, 2048.0)
TABLE = {
    "prefill": MeasuredPhase(WIDE, knots=(PROMPTS, (0.0,), (0.0,), (0.0,)), seconds=(0.05, 0.06, 0.2)),
    "decode": MeasuredPhase(
        WIDE, knots=(DECODES, CONTEXT), seconds=tuple(2e-2 + 1e-4 * n + 1e-7 * n * c for n in DECODES for c in CONTEXT)
    ),
}
BATCHES = [
    prefill_batch(2.0, 300.0, None, past_tokens=100.0),
    decode_batch(5.0, 700.0, None),
    together(prefill_batch(1.0, 64.0, None), decode_batch(12.0, 3000.0, None)),
]


def as_floats(batch: BatchStatistics) -> BatchStatistics:
    return BatchStatistics(*map(float, batch))


def test_a_polynomial_is_the_sum_of_its_terms():
    cost = fitted_cost("polynomial", POLYNOMIAL)
    area = 2 * (sum(range(101, 401)))
    mixed = 1e-2 + 1e-4 * 64 + 1e-3 + 1e-9 * (64 * 65 / 2) + 1e-5 * 12 + 1e-7 * 36_000
    found = [float(iteration_time(cost, batch)) for batch in BATCHES]
    prefill = 1e-2 + 1e-4 * 600 + 1e-3 * 2 + 1e-8 * 200 + 1e-9 * area
    assert found == pytest.approx([prefill, 2e-2 + 5e-4 + 25e-6 + 1e-8 * 3500, mixed], rel=1e-12)


def test_a_table_is_exact_where_time_is_linear_in_each_quantity():
    cost = fitted_cost("table", TABLE)
    for n, c in ((1, 100), (3, 555), (8, 1000), (40, 3999), (64, 4000)):
        expected = 2e-2 + 1e-4 * n + 1e-7 * n * c
        assert float(iteration_time(cost, decode_batch(float(n), float(c), None))) == pytest.approx(expected, rel=1e-12)
    prompts = [float(iteration_time(cost, prefill_batch(1.0, tokens, None))) for tokens in (128.0, 320.0, 2048.0)]
    assert prompts == pytest.approx([0.05, 0.055, 0.2], rel=1e-12)


def test_below_the_first_knot_is_as_the_first_and_beyond_the_last_goes_on():
    cost = fitted_cost("table", TABLE)

    def of(n: float, c: float) -> float:
        return float(iteration_time(cost, decode_batch(n, c, None)))

    assert of(4.0, 3.0) == of(4.0, 100.0)
    assert of(64.0, 9000.0) == pytest.approx(2e-2 + 64e-4 + 1e-7 * 64 * 9000, rel=1e-12)
    assert float(iteration_time(cost, prefill_batch(1.0, 5.0, None))) == pytest.approx(0.05)


@pytest.mark.parametrize(("form", "phases"), [("polynomial", POLYNOMIAL), ("table", TABLE)])
def test_growth_is_the_difference_of_successive_decodes(form, phases):
    cost = fitted_cost(form, phases)
    for n, c in ((3.0, 50.0), (3.0, 98.5), (5.0, 500.0), (17.0, 997.25), (2.0, 5000.0)):
        batches = [decode_batch(n, c + step, None) for step in range(200)]
        times = np.array([float(iteration_time(cost, batch)) for batch in batches])
        steps = int(min(float(alike_steps(cost, batches[0])), 200))
        growth = float(decode_growth(cost, batches[0], 0.0))
        np.testing.assert_allclose(np.diff(times[:steps]), growth, atol=1e-15)
        assert steps >= 1


@pytest.mark.parametrize(("form", "phases"), [("polynomial", POLYNOMIAL), ("table", TABLE)])
def test_floats_numpy_and_jax_agree(form, phases):
    cost = fitted_cost(form, phases)
    for batch in map(as_floats, BATCHES):
        traced = BatchStatistics(*map(jnp.asarray, batch))
        several = BatchStatistics(*(np.full(3, value) for value in batch))
        for function in (iteration_time, lambda c, b: decode_growth(c, b, 0.0), alike_steps):
            expected = function(plain(cost), batch)
            np.testing.assert_allclose(float(function(cost, traced)), expected, rtol=1e-13)
            np.testing.assert_allclose(function(cost, several), expected, rtol=1e-13)


def test_lanes_of_one_structure_stack():
    one, other = fitted_cost("table", TABLE), fitted_cost("polynomial", POLYNOMIAL)
    assert structure(one) != structure(other) and structure(one) == structure(fitted_cost("table", dict(TABLE)))
    both = stack([one, one])
    np.testing.assert_array_equal(both.decode.seconds[:, 1], one.decode.seconds)
    assert both.decode.knots[1].shape == (3, 2) and both.expert_skew.shape == (2,)


def test_quantities_are_the_columns_of_a_measurement():
    assert [float(value) for value in quantities(BATCHES[0])] == [600, 100, 0, 0]
    assert [float(value) for value in quantities(BATCHES[2])] == [64, 0, 12, 3000]
    assert [float(value) for value in peaks(BATCHES[1])] == [0, 0, 0, 0, 0, 5, 700, 3500]


# --- whom a fit is of, and how far it holds

MODEL, H100, L40S = load_model("llama-2-70b"), load_hardware("h100-sxm"), load_hardware("l40s")
RANGES = {"prefill_tokens": (128.0, 8192.0), "past_tokens": (0.0, 0.0), "decodes": (0.0, 0.0), "context": (0.0, 0.0),
          "decode_context": (0.0, 0.0)}  # fmt: skip
FIT = Iterations(
    "llama-2-70b", 4, 1, ("checkpoint", "bf16", "bf16"),
    {
        "prefill": replace(POLYNOMIAL["prefill"], ranges=RANGES),
        "decode": replace(POLYNOMIAL["decode"], ranges={"decodes": (1.0, 64.0), "context": (128.0, 4096.0),
                                                         "decode_context": (128.0, 32_768.0)}),
    },
)  # fmt: skip
SET = replace(
    load_calibration("datasheet", "h100-sxm"),
    name="mine", hardware="h100-sxm", form="polynomial", provenance="calibrated", iterations=(FIT,),
)  # fmt: skip


@pytest.mark.parametrize("precision", [Precision(), Precision("bf16"), Precision(attention="bf16")])
def test_the_fit_of_a_replica(precision):
    assert fitted_problem(SET, MODEL, H100, precision, Parallel(4)) is None
    cost = iteration_cost(MODEL, H100, SET, precision, Parallel(4))
    np.testing.assert_array_equal(cost.decode, POLYNOMIAL["decode"].coefficients)


@pytest.mark.parametrize(
    ("model", "hardware", "precision", "parallel", "message"),
    [
        ("llama-2-70b", "l40s", Precision(), Parallel(4), "calibration mine is of h100-sxm, not of l40s"),
        (
            "llama-2-70b",
            "h100-sxm",
            Precision(),
            Parallel(2),
            "of tensor_parallel 4 in checkpoint/bf16/bf16, not of ten",
        ),
        (
            "llama-2-70b",
            "h100-sxm",
            Precision("fp8"),
            Parallel(4),
            "not of tensor_parallel 4 in fp8/bf16/bf16; measure",
        ),
        (
            "llama-2-70b",
            "h100-sxm",
            Precision(attention="fp8"),
            Parallel(4),
            "not of tensor_parallel 4 in checkpoint/bf16/bf16, attention in fp8; measure",
        ),
        ("llama-2-70b", "h100-sxm", Precision(), Parallel(4, 2), "tensor_parallel 4, pipeline_parallel 2 in"),
        ("llama-3.1-70b", "h100-sxm", Precision(), Parallel(4), "iterations of llama-2-70b, not of llama-3.1-70b;"),
    ],
)
def test_a_fit_of_something_else_is_refused(model, hardware, precision, parallel, message):
    assert message in fitted_problem(SET, load_model(model), load_hardware(hardware), precision, parallel)


def run(**largest: float) -> list[float]:
    return [largest.get(f"{phase}_{quantity}", 0.0) for phase, quantity in PEAKS]


INSIDE = {
    "prefill_prefill_tokens": 8192.0,
    "decode_decodes": 64.0,
    "decode_context": 4096.0,
    "decode_decode_context": 32_768.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        (
            {"decode_decodes": 65.0},
            "65 sequences that decode exceed the 64 that calibration mine was fitted to; lower max",
        ),
        ({"decode_context": 41_000.0}, "41,000 tokens of context per decode exceed the 4,096"),
        ({"decode_decode_context": 41_000.0}, "41,000 tokens of context of all decodes exceed the 32,768"),
        ({"prefill_prefill_tokens": 9000.0}, "9,000 prompt tokens in an iteration exceed the 8,192"),
        ({"prefill_past_tokens": 16.0}, "16 tokens of KV read by a prompt exceed the 0"),
        ({"prefill_decodes": 3.0}, "no iteration with prompts and decodes together for llama-2-70b, tensor_parallel 4"),
    ],
)
def test_what_leaves_the_range_is_refused_by_name_or_extrapolated(change, message):
    largest = run(**{**INSIDE, **change})
    problem, provenance = verdict(SET, FIT, largest)
    assert provenance == "calibrated" and (problem is None if message is None else message in problem)
    problem, provenance = verdict(replace(SET, beyond="extend"), FIT, largest)
    if "prefill_decodes" in change:  # of which no measurement tells
        assert problem is not None
    else:
        assert problem is None and provenance == ("extrapolated" if message else "calibrated")


def test_a_phase_that_was_not_measured_is_refused():
    decodes_only = replace(FIT, phases={"decode": FIT.phases["decode"]})
    assert verdict(SET, decodes_only, run(decode_decodes=4.0)) == (None, "calibrated")
    problem, _ = verdict(replace(SET, beyond="extend"), decodes_only, run(**INSIDE))
    assert "no iteration with prompts for llama-2-70b" in problem
