"""Keys that a sweep shadows, so that no design has them: those of ``--set``, and figures of devices or models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.keys import Place, shown, split_path
from evaluator.scenario.axes import RawAxis
from evaluator.scenario.key_paths import FIGURES, MISSING, Tree, get, is_whole, leaves

Override = tuple[str, Any, Place]
"""Key path, value, and the place for messages."""


def refuse_shadowed(axes: Sequence[RawAxis], tree: Tree, overrides: Sequence[Override], place: Place) -> None:
    """Refuses what would do nothing, as an axis sets it or replaces the whole to which it belongs.

    ``tree`` is the scenario with the ``overrides`` in it, ``place`` that of its sweep. Errors: InputError.
    """
    owner = {path: axis.name for axis in axes for path in axis.keys}
    for path, value, where in overrides:
        for key, _ in leaves(value, path):
            if key in owner:
                raise where.error(f"the sweep sets {key}; take its axis away first, with --set sweep.{owner[key]}=null")
            for whole in filter(is_whole, owner):
                if key.startswith(f"{whole}."):
                    raise where.error(_message(f"the axis {owner[whole]}", whole, key, get(tree, split_path(key))))
    for axis in axes:
        for whole in axis.keys:
            # A figure that has an axis of its own is set in every design, after the name.
            lost = [path for path in _figures(tree, whole) if path not in owner and _lost(axis, whole, path)]
            if lost:
                raise place.key(axis.name).error(_message("the axis", whole, lost[0], get(tree, split_path(lost[0]))))


def _figures(tree: Tree, whole: str) -> list[str]:
    """The key paths of what makes a device or model of the scenario another one than that which it is like."""
    figure = get(tree, split_path(whole))
    if split_path(whole)[-1] not in FIGURES or not isinstance(figure, Mapping) or "like" not in figure:
        return []
    given = {key: value for key, value in figure.items() if key != "like" and value is not None}
    return [path for key, value in given.items() for path, _ in leaves(value, f"{whole}.{key}")]


def _lost(axis: RawAxis, whole: str, path: str) -> bool:
    """Whether every design has another device or model, and one that is like another goes without the figure."""
    below = split_path(path)[len(split_path(whole)) :]
    values = [step.get(whole) for step in axis.steps]
    # A step with a bare name takes the figure away in that design; only where all steps replace the whole is it lost,
    # else the base design, or one that is like it, still has it.
    bare = [isinstance(value, str) or ("like" in value and get(value, below) is MISSING) for value in values if value]
    return all(values) and any(bare)


def _message(axis: str, whole: str, path: str, value: Any) -> str:
    """The message: what replaces ``path``, and how to keep it."""
    keys = split_path(path)[len(split_path(whole)) :]
    replaced = f"{axis} replaces {whole} as a whole, so that {path} = {shown(value)} does nothing; "
    if split_path(whole)[-1] not in FIGURES:
        return f"{replaced}set {'.'.join(keys)} in each value of the axis"
    figure = f"{': {'.join(keys)}: {shown(value)}{'}' * (len(keys) - 1)}"
    return (
        f"{replaced}put it into each value of the axis, such as {{like: NAME, {figure}}}, or sweep it beside them: "
        f"sweep.{path}: [{shown(value)}]"
    )
