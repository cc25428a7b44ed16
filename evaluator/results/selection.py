"""One configuration of a grid by what a person types: ``tp=4,hardware=l40s``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from evaluator.errors import InputError
from evaluator.scenario import Axis
from evaluator.units import si_number

SHORT_NAMES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "ep": "expert_parallel",
    "dp": "data_parallel",
    "rate": "rate_rps",
}


def parse_selection(texts: Sequence[str]) -> dict[str, str]:
    """``["tp=4,hardware=l40s", "rate=2"]`` as name -> value. InputError for what is not NAME=VALUE, or given twice."""
    wanted: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise InputError(f"--select {part!r}: NAME=VALUE is wanted, such as tp=4 or tp=4,hardware=h100-sxm")
        # Given twice with the same value is no contradiction, as where a script adds what is there.
        if wanted.get(name, value) != value:
            raise InputError(f"--select {name}: given twice, as {wanted[name]} and as {value}")
        wanted[name] = value
    return wanted


def select(axes: Sequence[Axis], wanted: Mapping[str, str]) -> tuple[int, ...]:
    """The index along each axis of the one configuration that ``wanted`` names.

    A name is the whole key path of an axis, its end (``hardware``, ``batching.policy``) or a short name (``tp``); on
    a zipped axis it may be any key that the axis changes. A value is compared as a number where both are, which may
    have a unit (``2TB/s``), else as text; a rounded number selects the value that it rounds. An axis with one value
    needs no selection. InputError where a name or a value is not in the grid, and where several configurations remain,
    with the axes and values.
    """
    remaining = [list(range(len(axis.values))) for axis in axes]
    for name, text in wanted.items():
        number = _axis(axes, name)
        # Among those that earlier names left: on a zipped axis two keys together may choose a step that neither
        # does alone.
        remaining[number] = _positions(axes[number], name, text, remaining[number])
    open_axes = [(axis, left) for axis, left in zip(axes, remaining, strict=True) if len(left) > 1]
    if open_axes:
        count = math.prod(len(left) for _, left in open_axes)
        open_values = "; ".join(f"{axis.name}: {_listed(axis.values[i] for i in left)}" for axis, left in open_axes)
        raise InputError(f"{count:,} configurations remain; choose one with --select NAME=VALUE on {open_values}")
    return tuple(left[0] for left in remaining)


def _axis(axes: Sequence[Axis], name: str) -> int:
    long = SHORT_NAMES.get(name, name)
    matching = [i for i, axis in enumerate(axes) if any(_is_end(long, path) for path in _paths(axis))]
    # A name may be an axis of its own and the end of another's path (``hardware``): the axis goes before the path.
    exact = [i for i in matching if axes[i].name in (name, long)]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        raise InputError(f"--select {name}: is an axis more than once: {', '.join(axes[i].name for i in matching)}")
    if not axes:
        raise InputError(f"--select {name}: the scenario sweeps nothing, there is one configuration")
    allowed = list(dict.fromkeys(path.rpartition(".")[2] for axis in axes for path in _paths(axis)))
    close = get_close_matches(long, allowed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InputError(f"--select {name}: not an axis of the sweep; {hint}the axes are {', '.join(allowed)}")


def _positions(axis: Axis, name: str, text: str, among: list[int]) -> list[int]:
    long = SHORT_NAMES.get(name, name)
    # The value itself goes before those that round to it: of rates 1 and 1.2, "1" is the first.
    for same in (_equal, _rounded):
        matching = [i for i in among if any(same(value, text) for value in _values(axis, i, long))]
        if matching:
            return matching
    raise InputError(
        f"--select {name}={text}: not in the sweep; {axis.name} is {_listed(axis.values[i] for i in among)}"
    )


def _paths(axis: Axis) -> list[str]:
    changed = (path for change in axis.changes for path, _ in _leaves(change))
    return list(dict.fromkeys([axis.name, *changed]))


def _values(axis: Axis, index: int, name: str) -> list[Any]:
    changed = [value for path, value in _leaves(axis.changes[index]) if _is_end(name, path)]
    return [axis.values[index], *changed] if _is_end(name, axis.name) else changed


def _leaves(change: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in change.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


def _is_end(name: str, path: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _equal(value: Any, text: str) -> bool:
    number = _number(value)
    wanted = _number(text)
    if number is not None and wanted is not None:
        # Steps of a range and values with units are products of floats: 2 TB/s need not be 2e12 to the last bit.
        return math.isclose(number, wanted, rel_tol=1e-12)
    # Names of the catalog are in lower case, and people write H100-SXM.
    return str(value).casefold() == text.casefold()


def _rounded(value: Any, text: str) -> bool:
    """Whether ``value`` rounds to ``text`` at the digits that the text gives."""
    number, wanted = _number(value), _number(text)
    if number is None or wanted is None:
        return False
    mantissa = re.match(r"[-+0-9.]*", text)
    # Significant digits as they are written: zeros in front are none, those behind are.
    digits = len(mantissa.group().replace(".", "").lstrip("+-0")) if mantissa else 0
    return math.isclose(float(f"{number:.{digits or 1}g}"), wanted, rel_tol=1e-12)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    return si_number(value) if isinstance(value, str) else float(value)


def _listed(values: Iterator[Any], most: int = 8) -> str:
    texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    shown = ", ".join(texts[:most])
    return f"{shown}, ... ({len(texts)} values)" if len(texts) > most else shown
