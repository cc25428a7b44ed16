"""Sweep axes: from the forms that a file may write to checked values, each with the keys that it sets."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evaluator.scenario.fields import Place, count, did_you_mean, listed
from evaluator.scenario.scenario import Axis, Workload
from evaluator.scenario.sections import Base, read_fields
from evaluator.scenario.tree import field_tree, get, leaves, slo_tree, split_path
from evaluator.scenario.workload import FOLLOWING, check_cached, finish

SECTIONS = ("workload", "deployment", "slo")
MAX_POINTS = 10_000_000
_NO_FIGURES = (
    "sweeping the figures of hardware or of a model is not implemented yet; "
    "put files with the figures you want into folders of your own and sweep their names"
)
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9.].*?)\s*")


def raw_axes(value: Any, place: Place) -> dict[str, list[Any]]:
    """``sweep`` as written -> the values of each axis, still unchecked, by key path. A null axis is left out.

    Errors: InputError for unknown forms, empty axes, paths that cannot be swept, two axes that set the same key.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise place.error(f"expected axes such as workload.arrivals.rate_rps: [1, 2, 4], got {value!r}")
    axes = {}
    for path, written in value.items():
        where = place.key(path)
        _check_path(path, where)
        if written is not None:
            axes[path] = _values(written, where)
    _check_overlap(axes, place)
    points = math.prod(len(values) for values in axes.values())
    if points > MAX_POINTS:
        raise place.error(f"{points:,} points are too many for one sweep; the limit is {MAX_POINTS:,}")
    return axes


def _check_path(path: Any, where: Place) -> None:
    keys = split_path(str(path))
    figures = keys[0] if keys[0] in ("hardware", "model", "models") else keys[1] if len(keys) > 2 else ""
    if figures in ("hardware", "model", "models") and keys[0] in ("deployment", figures):
        raise where.error(_NO_FIGURES)
    if keys[0] not in SECTIONS:
        raise where.error(f"an axis is a key path below {listed(SECTIONS)}{did_you_mean(keys[0], SECTIONS)}")
    if keys[:2] == ("workload", "seeds"):
        raise where.error("seeds are repetitions of one design, not designs: list them in workload.seeds instead")


def _check_overlap(axes: Mapping[str, list[Any]], place: Place) -> None:
    owner: dict[str, str] = {}
    for axis, values in axes.items():
        for path in {path for value in values for path, _ in leaves(value, axis)}:
            other = owner.setdefault(path, axis)
            if other != axis:
                raise place.key(axis).error(f"sets {path}, which the axis {other} sets too; put both into one zip")


def _values(written: Any, where: Place) -> list[Any]:
    """The raw values of one axis."""
    if isinstance(written, list):
        values = written
    elif isinstance(written, Mapping) and len(written) == 1 and next(iter(written)) in _FORMS:
        form, argument = next(iter(written.items()))
        values = _FORMS[form](argument, where.key(form))
    else:
        hint = did_you_mean(next(iter(written)), _FORMS) if isinstance(written, Mapping) and written else ""
        raise where.error(f"expected a list or one of {listed(_FORMS)} with its arguments{hint}, got {written!r}")
    if not values:
        raise where.error("the axis is empty; give at least one value, or null to delete it")
    named = where.path in ("sweep.deployment.hardware", "sweep.deployment.model")
    for index, value in enumerate(values):
        if named and isinstance(value, Mapping):
            raise where.item(index).error(_NO_FIGURES)
        if isinstance(value, list) or value == {}:
            raise where.item(index).error(f"expected a value or a section of values, got {value!r}")
    return values


def _zip(entries: Any, where: Place) -> list[Any]:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise where.error("expected a list of sections such as [{policy: chunked}, {policy: static}]")
    return list(entries)


def _range(arguments: Any, where: Place) -> list[Any]:
    """From the first to the second, which is included where the steps meet it."""
    (first, last, step), suffix = _numbers(arguments, where, "[first, last, step]")
    if step == 0 or (last - first) * step < 0:
        raise where.error(f"the step must lead from the first to the last, got {arguments!r}")
    steps = (last - first) / step
    if not steps < MAX_POINTS:
        raise where.error(f"too many values; the limit is {MAX_POINTS:,}")
    return [_write(first + index * step, suffix) for index in range(math.floor(steps + 1e-9) + 1)]


def _spaced(between: Callable[[float, float, float], float], positive: bool) -> Callable[[Any, Place], list[Any]]:
    def values(arguments: Any, where: Place) -> list[Any]:
        shape = "[first, last, how many]"
        if not isinstance(arguments, list) or len(arguments) != 3:
            raise where.error(f"expected {shape}, got {arguments!r}")
        number = count(most=MAX_POINTS)(arguments[2], where.item(2))
        (first, last), suffix = _numbers(arguments[:2], where, shape)
        if positive and (first <= 0 or last <= 0):
            raise where.error(f"both ends must be greater than 0, got {arguments!r}")
        if number == 1:
            return [_write(first, suffix)]
        inner = [between(first, last, index / (number - 1)) for index in range(1, number - 1)]
        return [_write(value, suffix) for value in (first, *inner, last)]

    return values


def _numbers(arguments: Any, where: Place, shape: str) -> tuple[list[Any], str]:
    """The numbers, and the unit that all of them carry."""
    if not isinstance(arguments, list) or len(arguments) != (2 if "how" in shape else 3):
        raise where.error(f"expected {shape}, got {arguments!r}")
    matches = [_QUANTITY.fullmatch(value) if isinstance(value, str) else None for value in arguments]
    units = {match.group(2) if match else "" for match in matches}
    if len(units) > 1:
        raise where.error(f"write all ends in the same unit, got {arguments!r}")
    numbers = [
        _number(match.group(1) if match else value, where) for match, value in zip(matches, arguments, strict=True)
    ]
    return numbers, units.pop()


def _number(value: Any, where: Place) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, float | str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise where.error(f"expected finite numbers, got {value!r}")
    return number


def _write(value: int | float, suffix: str) -> Any:
    # 15 digits: steps of 0.1 give 0.3, not 0.30000000000000004.
    shown = value if isinstance(value, int) else float(f"{value:.15g}")
    return f"{shown}{suffix}" if suffix else shown


_FORMS: dict[str, Callable[[Any, Place], list[Any]]] = {
    "linspace": _spaced(lambda first, last, part: first + (last - first) * part, positive=False),
    "logspace": _spaced(lambda first, last, part: first * (last / first) ** part, positive=True),
    "geomspace": _spaced(lambda first, last, part: first * (last / first) ** part, positive=True),
    "range": _range,
    "zip": _zip,
}


def check_axes(axes: Mapping[str, list[Any]], base: Base, given: set[str], place: Place) -> tuple[Axis, ...]:
    """The axes with every value read once against the base scenario, alone.

    ``given`` are the keys of ``workload`` that the file sets; what follows from others moves with a swept value
    unless it is among them. Errors: InputError naming the key, the axis and the number of the value.
    """
    swept = {path for axis, values in axes.items() for value in values for path, _ in leaves(value, axis)}
    given = given | {split_path(path)[1] for path in swept if path.startswith("workload.")}
    follows = frozenset(FOLLOWING) - given
    return tuple(_check_axis(name, values, base, follows, place) for name, values in axes.items())


def _check_axis(name: str, values: Sequence[Any], base: Base, follows: frozenset[str], place: Place) -> Axis:
    labels, changes = [], []
    for index, value in enumerate(values):
        where = Place(place.file, note=f" (sweep.{name}, value {index + 1} of {len(values)})")
        written = dict(leaves(value, name))
        read = read_fields(base, written, where)
        normal = {path: _normal(path, raw, read) for path, raw in written.items()}
        if name.startswith("workload"):
            normal |= _following(base.workload, read, follows, where)
        labels.append(_label(value, name, normal))
        changes.append(normal)
    return Axis(name, tuple(labels), tuple(changes))


def _normal(path: str, raw: Any, read: Mapping[tuple[str, ...], Any]) -> Any:
    """The value in SI units where it was written with one; names of files as they were written."""
    keys = split_path(path)
    field = next(field for field in read if keys[: len(field)] == field)
    value = read[field]
    tree = slo_tree(value) if field == ("slo",) else field_tree(value)
    leaf = get(tree, keys[len(field) :])
    return leaf if isinstance(leaf, int | float) else raw


def _following(
    base: Workload, read: Mapping[tuple[str, ...], Any], follows: frozenset[str], where: Place
) -> dict[str, Any]:
    """Checks the workload as a whole; returns the defaults that differ from the base's because of this value."""
    values = {key: None if key in follows else getattr(base, key) for key in base.__dataclass_fields__}
    workload = finish(values | {field[1]: value for field, value in read.items()}, where.key("workload"))
    check_cached(workload, where.key("workload"))
    moved = [key for key in follows if getattr(workload, key) != getattr(base, key)]
    return {path: leaf for key in moved for path, leaf in leaves(field_tree(getattr(workload, key)), f"workload.{key}")}


def _label(value: Any, name: str, normal: Mapping[str, Any]) -> Any:
    """The coordinate: the value itself, or ``policy=chunked,max_num_batched_tokens=512``."""
    if not isinstance(value, Mapping):
        return "none" if value is None else normal[name]
    parts = [(path.removeprefix(f"{name}."), normal[path]) for path, _ in leaves(value, name)]
    short = [split_path(path)[-1] for path, _ in parts]
    names = short if len(set(short)) == len(short) else [path for path, _ in parts]
    return ",".join(f"{key}={_shown(leaf)}" for key, (_, leaf) in zip(names, parts, strict=True))


def _shown(leaf: Any) -> str:
    return "none" if leaf is None else f"{leaf:g}" if isinstance(leaf, float) else str(leaf)
