"""Reading sets that were fitted to whole iterations: what is there, and what is refused with its place."""

from __future__ import annotations

import copy

import pytest

from evaluator.catalog.calibration import read_calibration
from evaluator.errors import InputError

RANGES = {"decodes": [1, 8], "context": [128, 1024], "decode_context": [128, 4096]}
POLYNOMIAL = {
    "name": "mine",
    "hardware": "h100-sxm",
    "provenance": "calibrated",
    "form": "polynomial",
    "iterations": [
        {
            "model": "llama-2-70b",
            "tensor_parallel": 4,
            "precision": {"kv": "fp8"},
            "decode": {"ranges": RANGES, "coefficients": {"constant": "20ms", "context": 1e-8}},
        }
    ],
}
TABLE = copy.deepcopy(POLYNOMIAL) | {"form": "table", "beyond": "extend"}
TABLE["iterations"][0]["decode"] = {
    "ranges": RANGES, "axes": {"decodes": [1, 2, 8]}, "seconds": [0.01, 0.02, 0.03],
}  # fmt: skip


def test_a_polynomial():
    found = read_calibration(POLYNOMIAL, "mine.yaml")
    (fit,) = found.iterations
    assert (found.form, found.beyond, fit.model, fit.tensor_parallel, fit.expert_parallel) == (
        "polynomial", "refuse", "llama-2-70b", 4, 1,
    )  # fmt: skip
    assert fit.precision == ("checkpoint", "bf16", "fp8") and set(fit.phases) == {"decode"}
    assert fit.phases["decode"].coefficients == (0.02, 0.0, 0.0, 1e-8)
    assert fit.phases["decode"].ranges["context"] == (128.0, 1024.0)


def test_a_table():
    found = read_calibration(TABLE, "mine.yaml")
    assert found.beyond == "extend"
    assert found.iterations[0].phases["decode"].knots == ((1.0, 2.0, 8.0), (0.0,))


BAD = {
    "unknown form": (POLYNOMIAL, ("form",), "spline", "mine.yaml: form: 'spline' is unknown; did you mean"),
    "no fits": (POLYNOMIAL, ("iterations",), [], r"iterations: expected a list with at least one entry"),
    "beyond": (POLYNOMIAL, ("beyond",), "clamp", "beyond: 'clamp' is unknown"),
    "key": (POLYNOMIAL, ("efficiencies",), {}, "efficiencies: unknown key"),
    "term": (
        POLYNOMIAL,
        (0, "decode", "coefficients", "area"),
        1.0,
        r"iterations\[0\].decode.coefficients.area: unknown",
    ),
    "negative": (POLYNOMIAL, (0, "decode", "coefficients", "constant"), -1.0, "constant: must be at least 0"),
    "nothing": (POLYNOMIAL, (0, "decode", "coefficients"), {"decodes": 0.0}, "all of them are 0"),
    "no phase": (POLYNOMIAL, (0, "decode"), None, r"iterations\[0\]: neither prefill nor decode is there"),
    "range": (POLYNOMIAL, (0, "decode", "ranges", "decodes"), [8, 1], "expected the smallest and the largest measured"),
    "no range": (POLYNOMIAL, (0, "decode", "ranges"), {"decodes": [1, 8]}, "ranges.context: missing"),
    "no number": (POLYNOMIAL, (0, "decode", "ranges", "decodes"), [1, "many"], "decodes.1: expected a number"),
    "axis": (TABLE, (0, "decode", "axes", "area"), [1], "axes.area: unknown key"),
    "order": (TABLE, (0, "decode", "axes", "decodes"), [2, 1, 8], "the knots must ascend"),
    "count": (TABLE, (0, "decode", "seconds"), [1, 2], r"expected 3 numbers, one for each combination .*3 x 1.*got 2"),
    "falling": (TABLE, (0, "decode", "seconds"), [3, 2, 1], "fall where decodes grow"),
    "range beyond": (TABLE, (0, "decode", "ranges", "decodes"), [1, 9], "ranges.decodes: ends beyond the last knot, 8"),
    "twice": (POLYNOMIAL, ("iterations",), POLYNOMIAL["iterations"] * 2, r"iterations\[1\]: a second fit of the same"),
    "zero": (TABLE, (0, "decode", "seconds"), [0, 1, 2], "seconds: must be above 0"),
}


@pytest.mark.parametrize(("document", "path", "value", "message"), BAD.values(), ids=list(BAD))
def test_malformed_sets_are_refused_with_the_place(document, path, value, message):
    changed = copy.deepcopy(document)
    inner = changed["iterations"][path[0]] if path[0] == 0 else changed
    *outer, last = path[1:] if path[0] == 0 else path
    for key in outer:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(InputError, match=message):
        read_calibration(changed, "mine.yaml")
