"""The forms in which a file writes the values of one axis: lists, spaced numbers, ranges, sections, and bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.keys import Place, count, did_you_mean, listed, shown

MAX_POINTS = 10_000_000
# The number as any YAML reader has it, and behind it whatever is no digit: which units there are is for the
# key's reader.
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.].*?)\s*")


@dataclass(frozen=True)
class Between:
    """An axis to sample from: a value from ``low`` to ``high``, in ``unit``; ``log``: evenly in the logarithm."""

    low: float
    high: float
    unit: str
    log: bool

    def at(self, part: float, whole: bool) -> Any:
        """The value at ``part`` of the way, 0 <= part < 1; integers are all equally likely (or their logarithms)."""
        # ``floor`` of a value below high + 1 makes high as likely as any other integer; ``min`` catches a part that
        # rounds up to 1.
        high = self.high + 1 if whole else self.high
        value = self.low * (high / self.low) ** part if self.log else self.low + (high - self.low) * part
        return write(min(math.floor(value), int(self.high)) if whole else value, self.unit)


def values_of(written: Any, where: Place) -> list[Any] | Between:
    """The raw values of one axis, or the bounds between which they are to be drawn."""
    if isinstance(written, Mapping) and "between" in written:
        return _between(written, where)
    if isinstance(written, list):
        values = written
    elif isinstance(written, Mapping) and len(written) == 1 and next(iter(written)) in FORMS:
        form, argument = next(iter(written.items()))
        values = FORMS[form](argument, where.key(form))
    else:
        hint = did_you_mean(next(iter(written)), FORMS) if isinstance(written, Mapping) and written else ""
        raise where.error(
            f"expected a list or one of {listed([*FORMS, 'between'])} with its arguments{hint}, got {shown(written)}"
        )
    if not values:
        raise where.error("the axis is empty; give at least one value, or null to delete it")
    for index, value in enumerate(values):
        # ``[[1, 2]]`` is most likely a slip for two values.
        if isinstance(value, list) or value == {}:
            raise where.item(index).error(
                f"expected a value or a section of values, got {shown(value)}; write its entries side by side, or "
                "sweep the section around it as a whole, such as deployment.failures: [{outages: [...]}]"
            )
    return values


def _between(written: Mapping[str, Any], where: Place) -> Between:
    for key in written:
        if key not in ("between", "log"):
            raise where.key(key).error(
                f"unknown key{did_you_mean(key, ('between', 'log'))}; allowed here: between, log"
            )
    log = written.get("log") or False
    if not isinstance(log, bool):
        raise where.key("log").error(f"expected true or false, got {shown(log)}")
    place = where.key("between")
    (low, high), unit = numbers(written["between"], place, "[lowest, highest]", 2)
    if not low < high:
        raise place.error(f"the lowest must be less than the highest, got {shown(written['between'])}")
    if log and low <= 0:
        raise place.error(f"with log both must be greater than 0, got {shown(written['between'])}")
    return Between(low, high, unit, log)


def sections(entries: Any, where: Place) -> list[Any]:
    """The entries of a zip."""
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise where.error("expected a list of sections such as [{policy: chunked}, {policy: static}]")
    return list(entries)


def _range(arguments: Any, where: Place) -> list[Any]:
    """Values from the first to the second, which is included where the steps meet it."""
    (first, last, step), suffix = numbers(arguments, where, "[first, last, step]", 3)
    if step == 0 or (last - first) * step < 0:
        raise where.error(f"the step must lead from the first to the last, got {shown(arguments)}")
    steps = (last - first) / step
    # ``not <``: a step so small that the quotient is infinite must not pass.
    if not steps < MAX_POINTS:
        raise where.error(f"too many values; the limit is {MAX_POINTS:,}")
    # 1e-9: (1.0 - 0.1) / 0.1 is 8.999..., and a range to 1.0 has its last value all the same.
    return [write(first + index * step, suffix) for index in range(math.floor(steps + 1e-9) + 1)]


def _spaced(between: Callable[[float, float, float], float], positive: bool) -> Callable[[Any, Place], list[Any]]:
    def values(arguments: Any, where: Place) -> list[Any]:
        shape = "[first, last, how many]"
        if not isinstance(arguments, list) or len(arguments) != 3:
            raise where.error(f"expected {shape}, got {shown(arguments)}")
        number = count(most=MAX_POINTS)(arguments[2], where.item(2))
        (first, last), suffix = numbers(arguments[:2], where, shape, 2)
        if positive and (first <= 0 or last <= 0):
            raise where.error(f"both ends must be greater than 0, got {shown(arguments)}")
        if number == 1:
            return [write(first, suffix)]
        # Both ends as they were written, not computed: 64 * (4096 / 64) ** 1.0 need not be 4096.
        inner = [between(first, last, index / (number - 1)) for index in range(1, number - 1)]
        return [write(value, suffix) for value in (first, *inner, last)]

    return values


def numbers(arguments: Any, where: Place, shape: str, many: int) -> tuple[list[Any], str]:
    """The numbers, and the unit that all of them carry."""
    if not isinstance(arguments, list) or len(arguments) != many:
        raise where.error(f"expected {shape}, got {shown(arguments)}")
    matches = [_QUANTITY.fullmatch(value) if isinstance(value, str) else None for value in arguments]
    units = {match.group(2) if match else "" for match in matches}
    if len(units) > 1:
        raise where.error(f"write all ends in the same unit, got {shown(arguments)}")
    read = [_number(match.group(1) if match else value, where) for match, value in zip(matches, arguments, strict=True)]
    return read, units.pop()


def _number(value: Any, where: Place) -> int | float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 1e300:  # differences and ratios of such numbers stay finite
        raise where.error(f"expected finite numbers, got {shown(value)}")
    return value if isinstance(value, int) else number


def write(value: int | float, suffix: str) -> Any:
    """A number as a file could write it, with its unit."""
    # 15 digits: steps of 0.1 give 0.3, not 0.30000000000000004.
    written = value if isinstance(value, int) else float(f"{value:.15g}")
    return f"{written}{suffix}" if suffix else written


FORMS: dict[str, Callable[[Any, Place], list[Any]]] = {
    "linspace": _spaced(lambda first, last, part: first + (last - first) * part, positive=False),
    "logspace": _spaced(lambda first, last, part: first * (last / first) ** part, positive=True),
    "geomspace": _spaced(lambda first, last, part: first * (last / first) ** part, positive=True),
    "range": _range,
    "zip": sections,
}
"""The forms that give the values themselves."""
