"""Quantities with units: ``80GB``, ``3.35 TB/s``, ``50ms``, ``989 TFLOP/s`` become SI numbers; numbers are SI."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

from evaluator.errors import InputError

# ``DOTALL``: a line end in a unit is then part of the unknown unit that the message shows.
_NUMBER = re.compile(r"\s*([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*", re.DOTALL)

_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def _decimal(*names: str) -> dict[str, Decimal]:
    return {prefix + name: Decimal(10) ** power for prefix, power in _DECIMAL.items() for name in names}


def _bytes(suffix: str) -> dict[str, Decimal]:
    binary = {f"{prefix}B{suffix}": Decimal(2) ** power for prefix, power in _BINARY.items()}
    return _decimal(f"B{suffix}") | binary


_UNITS: dict[str, dict[str, Decimal]] = {
    "byte": _bytes("") | {"byte": Decimal(1), "bytes": Decimal(1)},
    # b is a bit and B a byte, as network and memory sheets write them; decimals divide exactly by 8.
    "byte/s": _bytes("/s")
    | {"byte/s": Decimal(1)}
    | {unit: factor / 8 for unit, factor in _decimal("b/s", "bit/s").items()},
    "FLOP/s": _decimal("FLOP/s", "FLOPS", "OP/s", "OPS"),
    "s": {
        "ns": Decimal("1e-9"),
        "us": Decimal("1e-6"),
        "µs": Decimal("1e-6"),
        "ms": Decimal("1e-3"),
        "s": Decimal(1),
        "min": Decimal(60),
        "h": Decimal(3600),
    },
    "W": {"mW": Decimal("1e-3"), "W": Decimal(1), "kW": Decimal(1000), "MW": Decimal(10) ** 6},
    "USD/h": dict.fromkeys(("USD/h", "USD/hour", "$/h"), Decimal(1)),
    "token": dict.fromkeys(("token", "tokens"), Decimal(1)),
    "1/s": {
        "1/s": Decimal(1),
        "/s": Decimal(1),
        "rps": Decimal(1),
        # Rounded to 28 digits, where all other factors are exact; a float has 17.
        "1/min": 1 / Decimal(60),
        "1/h": 1 / Decimal(3600),
    },
}

_ANY_UNIT = {"": Decimal(1)} | {name: scale for units in _UNITS.values() for name, scale in units.items()}
"""Every unit, and none; no unit is one of two quantities."""

_EXAMPLES = {
    "byte": "80GB, 80GiB, 512MB",
    "byte/s": "3.35TB/s, 50GB/s, 400Gb/s (bits)",
    "FLOP/s": "989TFLOP/s, 1.98PFLOP/s",
    "s": "1.5s, 50ms, 20us",
    "W": "700W, 1.2kW",
    "USD/h": "2.5USD/h",
    "token": "2048 tokens",
    "1/s": "4rps, 4/s",
}


def parse_quantity(value: Any, unit: str, where: str) -> float:
    """``value`` in ``unit`` as a float: a number is in that unit already, a string carries its own unit.

    ``unit`` is one of byte, byte/s, FLOP/s, s, W, USD/h, token, 1/s; ``where`` names the place in messages.
    The arithmetic is decimal, so ``50ms`` is the same float as 0.05. The sign is left to the caller.
    Errors: InputError for another type, NaN or infinity, a missing, misspelt or unfitting unit.
    """
    units = _UNITS[unit]
    if isinstance(value, str):
        return _finite(_parse_text(value, unit, units, where), value, where)
    # bool is a number to Python; ``true`` is none to a scenario.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(
            f"{where}: expected a quantity in {unit} (a number, or such as {_EXAMPLES[unit]}), "
            f"got {reprlib.repr(value)}"
        )
    return _finite(value, value, where)


def si_number(text: str) -> float | None:
    """The SI number of a text with any unit that is known here, or with none; None for another text or exponent."""
    number, written = _parts(text)
    # A name that begins with digits, such as a model's, has no unit of these.
    scale = _ANY_UNIT.get(written)
    scaled = None if number is None or scale is None else _scaled(number, scale)
    return None if scaled is None else float(scaled)


def readable(unit: str, largest: float) -> tuple[str, float]:
    """The unit to show numbers of up to ``largest`` in, and what to divide them by: byte/s -> (TB/s, 1e12)."""
    # Only these: seconds and watts are read in the unit that a table has for them.
    name = {"byte": "B", "byte/s": "B/s", "FLOP/s": "FLOP/s"}.get(unit)
    if name is None or not largest >= 1e3:
        return unit, 1.0
    prefix, power = max(
        (entry for entry in _DECIMAL.items() if 10.0 ** entry[1] <= largest), key=lambda entry: entry[1]
    )
    return prefix + name, 10.0**power


def pattern(unit: str) -> str:
    """The regular expression (of a JSON Schema) of a string with a number and one of the units of ``unit``."""
    number, units = r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", "|".join(map(re.escape, _UNITS[unit]))
    return rf"^\s*{number}\s*({units})\s*$"


def _parts(text: str) -> tuple[str | None, str]:
    """The number that a text starts with, and the unit behind it; None for a text that starts otherwise."""
    match = _NUMBER.fullmatch(text)
    return (None, "") if match is None else (match[1], match[2])


def _scaled(number: str, scale: Decimal) -> Decimal | None:
    """None for an exponent beyond what decimals hold."""
    try:
        return Decimal(number) * scale
    except ArithmeticError:
        return None


def _parse_text(text: str, unit: str, units: Mapping[str, Decimal], where: str) -> Decimal:
    number, written = _parts(text)
    allowed = f"write a number in {unit}, or such as {_EXAMPLES[unit]}"
    if number is None:
        raise InputError(f"{where}: {text!r} does not start with a number; {allowed}")
    if not written:
        raise InputError(f"{where}: {text!r} has no unit; {allowed} (without quotes it is in {unit})")
    if written not in units:
        hint = _hint(written, units)
        raise InputError(f"{where}: unknown unit {written!r} in {text!r} for a quantity in {unit}; {hint}{allowed}")
    scaled = _scaled(number, units[written])
    if scaled is None:
        raise InputError(f"{where}: {text!r} is too large or too small")
    return scaled


def _hint(written: str, units: Mapping[str, Decimal]) -> str:
    # A unit of another quantity is a mistake that can be named; else the nearest spelling.
    for other, table in _UNITS.items():
        if written in table and table is not units:
            return f"{written} is a unit of {other}; "
    # ``gb`` may be a bit or a byte: case is never guessed, and told as a spelling.
    same = [name for name in units if name.casefold() == written.casefold()]
    close = same or difflib.get_close_matches(written, units, n=2, cutoff=0.5)
    return f"did you mean {' or '.join(close)}? " if close else ""


def _finite(number: Any, value: Any, where: str) -> float:
    # Decimals beyond the range of floats.
    try:
        result = float(number)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InputError(f"{where}: {value!r} is not a finite number")
    return result


def counted(count: int, what: str) -> str:
    """``1 design``, ``1,000 designs``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def in_four_digits(value: object) -> str:
    """A number with a point in four digits; whatever else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
