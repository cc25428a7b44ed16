"""``sweep`` as it is written: axes of keys and of designs, tables and samples, still unchecked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evaluator.keys import (
    Key,
    Place,
    Table,
    choice,
    count,
    did_you_mean,
    listed,
    many,
    read_section,
    resolve_file,
    shown,
    split_path,
    text,
)
from evaluator.scenario.axis_values import MAX_POINTS, Between, sections, values_of
from evaluator.scenario.design_table import LABELS, read_designs
from evaluator.scenario.key_paths import FIGURES, leaves
from evaluator.scenario.sampling import draw
from evaluator.scenario.short_names import SECTIONS, key_path

SAMPLE: Table = {
    "method": Key(
        choice("sobol", "latin_hypercube", "halton", "random"), "sobol", "How the designs are spread over the axes."
    ),
    "size": Key(count(most=10**6), says="How many designs; a power of 2 serves sobol best."),
    "seed": Key(count(least=0, most=2**63 - 1), 0, "Of the random numbers."),
    "beside": Key(many(text), (), "Axes that are not sampled: every design is taken at each of their values."),
}


@dataclass(frozen=True)
class RawAxis:
    """``steps``: what each sets, key path -> value as written; ``place`` says for messages where a step stands.

    ``values`` are those of an axis of one key path (a section merges into what is there), or the names of designs;
    a sample (``repeats``) may hold the same design twice.
    """

    name: str
    values: Sequence[Any]
    steps: Sequence[Mapping[str, Any]]
    place: Callable[[int], Place]
    designs: bool = False
    repeats: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The key paths that any step sets."""
        return tuple(dict.fromkeys(path for step in self.steps for path in step))


def raw_axes(value: Any, place: Place) -> list[RawAxis]:
    """The axes of ``sweep``; a null axis is left out.

    Errors: InputError for unknown forms, empty axes, paths that cannot be swept, two axes that set the same key.
    """
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise place.error(f"expected axes such as workload.arrivals.rate_rps: [1, 2, 4], got {shown(value)}")
    axes, bounds = _written_axes(value, place)
    for axis in axes:
        for path in axis.keys:
            _check_path(path, place.key(axis.name))
    # A dataset has one dimension of each name.
    if len([axis for axis in axes if axis.name == LABELS]) > 1:
        raise place.key(LABELS).error("the designs of sweep.table are called so already; give this axis another name")
    _check_overlap(axes, bounds, place)
    if value.get("sample") is not None:
        axes = _sampled(read_section(value["sample"], SAMPLE, place.key("sample")), axes, bounds, place)
    elif bounds:
        raise place.key(next(iter(bounds))).error("between is to be sampled from: add sweep.sample: {size: 256}")
    # Before any value is read: a slip in a range could ask for more points than there is memory to refuse them
    # in.
    points = math.prod(len(axis.steps) for axis in axes)
    if points > MAX_POINTS:
        raise place.error(f"{points:,} points are too many for one sweep; the limit is {MAX_POINTS:,}")
    return axes


def _written_axes(value: Mapping[str, Any], place: Place) -> tuple[list[RawAxis], dict[str, Between]]:
    """The axes with steps, and the bounds of those to sample from: they have no steps until all others are known, as
    one draw covers all of them."""
    axes: list[RawAxis] = []
    bounds: dict[str, Between] = {}
    for name, written in value.items():
        where = place.key(name)
        # ``where`` and ``sample`` are no axes, and null takes an axis of an overlaid file away.
        if name in ("where", "sample") or written is None:
            continue
        if name == "table":
            axes.append(_table(LABELS, written, where))
        # Not the path of a key, so it names designs. A misspelt section ends there, too, and gets a hint.
        elif not isinstance(name, str) or split_path(name)[0] not in SECTIONS:
            axes.append(_designs(name, written, where))
        else:
            axis = _of_key(name, written, where)
            if isinstance(axis, Between):
                bounds[name] = axis
            else:
                axes.append(axis)
    return axes, bounds


def raw_conditions(value: Any, place: Place) -> tuple[str, ...]:
    """``sweep.where``: one condition or a list of them."""
    written = value.get("where") if isinstance(value, Mapping) else None
    conditions = [written] if isinstance(written, str) else [] if written is None else written
    if not isinstance(conditions, list) or not all(isinstance(condition, str) for condition in conditions):
        raise place.key("where").error(
            f"expected a condition such as tensor_parallel * replicas <= 8, or a list of such, got {shown(written)}"
        )
    return tuple(conditions)


def _of_key(name: str, written: Any, where: Place) -> RawAxis | Between:
    _check_path(name, where)
    values = values_of(written, where)
    if isinstance(values, Between):
        return values

    def place(step: int) -> Place:
        return where.noted(f" ({where.path}, value {step + 1} of {len(values)})")

    return RawAxis(name, values, [dict(leaves(value, name)) for value in values], place)


def _designs(name: Any, written: Any, where: Place) -> RawAxis:
    """An axis with a name of its own, over designs that each set keys of any section."""
    # A dot is no name of designs: most likely a path below a section that was misspelt, which `_check_path` names.
    if "." in str(name):
        _check_path(str(name), where)
    form = next(iter(written)) if isinstance(written, Mapping) and len(written) == 1 else None
    if not isinstance(name, str) or not name.strip() or form not in ("zip", "table"):
        raise where.error(
            f"an axis is a key path below {listed(SECTIONS)}, or a name for designs in a zip or a table"
            f"{did_you_mean(str(name).partition('.')[0], SECTIONS)}"
        )
    if form == "table":
        return _table(name, written["table"], where.key("table"))
    entries = sections(written["zip"], where.key("zip"))
    if not entries:
        raise where.error("the axis is empty; give at least one value, or null to delete it")

    def place(step: int) -> Place:
        return where.noted(f" ({where.path}, value {step + 1} of {len(entries)})")

    steps = []
    for index, entry in enumerate(entries):
        entry_place = where.key("zip").item(index)
        step = {
            path: value for key, below in entry.items() for path, value in leaves(below, key_path(key, entry_place))
        }
        if not step:
            raise entry_place.error(f"expected a value or a section of values, got {shown(entry)}")
        steps.append(step)
    return RawAxis(name, [], steps, place, designs=True)


def _table(name: str, written: Any, where: Place) -> RawAxis:
    table = read_designs(resolve_file(written, where))
    return RawAxis(name, table.labels, table.rows, partial(table.place, where.folder), designs=True)


def _sampled(
    sample: Mapping[str, Any], axes: list[RawAxis], bounds: Mapping[str, Between], place: Place
) -> list[RawAxis]:
    """The axes with those that are sampled from, all but ``beside``, made one."""
    names = [axis.name for axis in axes]
    for name in sample["beside"]:
        if name not in names:
            raise place.key("sample.beside").error(
                f"{name} is no axis with values of its own{did_you_mean(name, names)}; those are {listed(names)}"
            )
    chosen = [axis for axis in axes if axis.name not in sample["beside"]]
    if not chosen and not bounds:
        raise place.key("sample").error("there is no axis to sample from; give some as {between: [1, 20]} or as lists")
    steps = draw(sample["method"], sample["size"], sample["seed"], [axis.steps for axis in chosen], bounds)

    def place_of_step(step: int) -> Place:
        return place.noted(f" (sweep.sample, design {step + 1} of {len(steps)})")

    # Numbers for names: two designs of a sample may be the same, so that what they set cannot name them.
    labels = range(1, len(steps) + 1)
    name = LABELS if LABELS not in sample["beside"] else "sample"
    designs = RawAxis(name, labels, steps, place_of_step, designs=True, repeats=True)
    return [*(axis for axis in axes if axis.name in sample["beside"]), designs]


def _check_path(path: str, where: Place) -> None:
    keys = split_path(path)
    if keys[0] in FIGURES:
        raise where.error(f"an axis is a whole key path: write deployment.{path}")
    if keys[0] not in SECTIONS:
        raise where.error(f"an axis is a key path below {listed(SECTIONS)}{did_you_mean(keys[0], SECTIONS)}")
    # Rows of different seeds would be ranked against one another as if one design were better than itself.
    if keys[:2] == ("workload", "seeds"):
        raise where.error("seeds are repetitions of one design, not designs: list them in workload.seeds instead")


def _check_overlap(axes: Sequence[RawAxis], bounds: Mapping[str, Between], place: Place) -> None:
    # An axis that is sampled from has no steps yet, and sets its key all the same.
    owner = {path: path for path in bounds}
    for axis in axes:
        for path in axis.keys:
            other = owner.setdefault(path, axis.name)
            if other != axis.name:
                raise place.key(axis.name).error(f"sets {path}, which the axis {other} sets too; put both into one zip")
