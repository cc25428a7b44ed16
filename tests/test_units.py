import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.errors import InputError
from evaluator.units import _ANY_UNIT, _UNITS, parse_quantity, readable, si_number

WHERE = "x.yaml: a.b"


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80GB", "byte", 80e9),
        ("80 GB", "byte", 80e9),
        ("80GiB", "byte", 80 * 2**30),
        ("512kB", "byte", 512e3),
        ("7 bytes", "byte", 7.0),
        ("3.35TB/s", "byte/s", 3.35e12),
        ("400Gb/s", "byte/s", 50e9),
        ("400 Gbit/s", "byte/s", 50e9),
        ("1GiB/s", "byte/s", 2.0**30),
        ("989TFLOP/s", "FLOP/s", 989e12),
        ("1.98 PFLOPS", "FLOP/s", 1.98e15),
        ("1979TOPS", "FLOP/s", 1979e12),
        ("50ms", "s", 0.05),
        ("9ms", "s", 0.009),
        ("1.5s", "s", 1.5),
        ("20us", "s", 20e-6),
        ("20µs", "s", 20e-6),
        ("3ns", "s", 3e-9),
        ("2min", "s", 120.0),
        ("1h", "s", 3600.0),
        ("700W", "W", 700.0),
        ("1.2kW", "W", 1200.0),
        ("2.5USD/h", "USD/h", 2.5),
        ("2048 tokens", "token", 2048.0),
        ("4rps", "1/s", 4.0),
        ("30 1/min", "1/s", 0.5),
        ("1e-3s", "s", 1e-3),
        (".5s", "s", 0.5),
        ("-3s", "s", -3.0),
        (5, "s", 5.0),
        (0.25, "s", 0.25),
        (np.float64(0.25), "s", 0.25),
        (np.int64(3), "s", 3.0),
    ],
)
def test_values(text, unit, value):
    read = parse_quantity(text, unit, WHERE)
    assert type(read) is float
    assert read == value


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        ("80gb", "byte", r"x\.yaml: a\.b: unknown unit 'gb' in '80gb' for a quantity in byte; did you mean GB\?"),
        ("50msec", "s", r"unknown unit 'msec'.*did you mean ms\? write a number in s, or such as 1\.5s, 50ms"),
        ("80GB", "s", r"GB is a unit of byte; write a number in s"),
        ("50ms", "byte/s", r"ms is a unit of s; write a number in byte/s"),
        ("400Gbps", "byte/s", r"unknown unit 'Gbps'.*did you mean .*Gb/s"),
        ("80", "byte", r"'80' has no unit; .*without quotes it is in byte"),
        ("fast", "byte/s", r"'fast' does not start with a number"),
        ("", "s", r"'' does not start with a number"),
        ("1.2.3s", "s", r"unknown unit '\.3s'"),
        (True, "s", r"expected a quantity in s .*, got True"),
        (None, "s", r"expected a quantity in s .*, got None"),
        ([1], "s", r"expected a quantity in s .*, got \[1\]"),
        (math.nan, "s", r"nan is not a finite number"),
        (-math.inf, "s", r"-inf is not a finite number"),
        ("1e999s", "s", r"'1e999s' is not a finite number"),
        ("1e99999999999999999999s", "s", r"too large or too small"),
        (10**400, "s", r"is not a finite number"),
    ],
)
def test_messages(value, unit, message):
    with pytest.raises(InputError, match=message):
        parse_quantity(value, unit, WHERE)


_finite = st.floats(min_value=-1e15, max_value=1e15)
_SCALES = [
    ("byte", "GB", 1e9),
    ("byte/s", "TB/s", 1e12),
    ("FLOP/s", "TFLOP/s", 1e12),
    ("W", "kW", 1e3),
    ("1/s", "rps", 1.0),
]


@given(_finite, st.sampled_from(_SCALES), st.sampled_from(["", " "]))
def test_units_multiply(number, scale, space):
    unit, written, factor = scale
    assert parse_quantity(f"{number!r}{space}{written}", unit, WHERE) == pytest.approx(number * factor, rel=1e-15)


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from(["ns", "us", "ms"]))
def test_decimal_fractions_are_the_nearest_float(number, unit):
    exponent = {"ns": -9, "us": -6, "ms": -3}[unit]
    assert parse_quantity(f"{number}{unit}", "s", WHERE) == float(f"{number}e{exponent}")


@given(_finite)
def test_numbers_are_si_already(number):
    assert parse_quantity(number, "s", WHERE) == number
    assert parse_quantity(f"{number!r}s", "s", WHERE) == number


def test_a_number_with_any_unit_and_without():
    assert [si_number(text) for text in ("4", "2e1", "2TB/s", "50 ms", "400Gb/s")] == [4.0, 20.0, 2e12, 0.05, 50e9]
    assert [si_number(text) for text in ("l40s", "", "2 parsec", "4x", "1e99999999")] == [None] * 5


def test_large_numbers_have_a_unit_to_read():
    assert readable("byte/s", 3.35e12) == ("TB/s", 1e12)
    assert readable("byte", 80e9) == ("GB", 1e9)
    assert readable("FLOP/s", 989e12) == ("TFLOP/s", 1e12)
    assert readable("byte", 12.0) == ("byte", 1.0)
    assert readable("s", 3e6) == ("s", 1.0)
    assert readable("byte", float("nan")) == ("byte", 1.0)


def test_no_unit_is_one_of_two_quantities():
    """Else a number with it, of which nobody says what it is, would mean two things."""
    names = [name for units in _UNITS.values() for name in units]
    assert len(names) == len(set(names)) == len(_ANY_UNIT) - 1
