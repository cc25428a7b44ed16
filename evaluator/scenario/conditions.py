"""Conditions on the points of a sweep: ``tensor_parallel * replicas <= 8``, parsed as Python and nothing else of it.

Arithmetic, comparisons, ``and``, ``or``, ``not``, ``in``, ``min``, ``max``, numbers, texts, true and false, on keys by
their path or by a short name that is theirs alone. A condition is computed for all points at once, on the values of the
axes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from evaluator.keys import Place, shown

# Python's parser and ``unparse`` recurse: far deeper texts would end in a RecursionError of ours.
LONGEST, DEEPEST = 2000, 50

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FLAGS = {"true": True, "false": False}  # as YAML writes them
_CALLS = {"min": np.minimum, "max": np.maximum}

Values = Callable[[str, Place], np.ndarray]


def fulfilled(condition: str, values: Values, place: Place) -> tuple[np.ndarray, np.ndarray]:
    """Where a condition holds, and where numbers in it have no result: booleans of the shape to which these broadcast.

    ``values`` gives those of a key by the name that the condition writes: floats (NaN where a point has none) or
    texts as objects. A comparison with NaN is false, and what is divided by zero is NaN. Errors: InputError for
    anything but a condition.
    """
    if len(condition) > LONGEST:
        raise place.error(f"the condition has {len(condition):,} characters; the limit is {LONGEST:,}")
    try:
        # Parsed, never evaluated: ``eval`` of a text from a file would run whatever it says. What is not listed above
        # is refused by name.
        tree = ast.parse(condition.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
        raise place.error(f"{shown(condition)} is not a condition: {reason}") from None
    with np.errstate(all="ignore"):  # what overflows or is divided by zero is NaN
        read = _Condition(values, place)
        return read.truth(tree, 0), read.undefined


class _Condition:
    def __init__(self, values: Values, place: Place) -> None:
        self.values, self.place = values, place
        self.undefined = np.array(False)

    def value(self, node: ast.AST, depth: int) -> np.ndarray:
        """Floats, booleans or texts."""
        if depth > DEEPEST:
            raise self.place.error(f"the condition is nested more than {DEEPEST} levels deep")
        name = _dotted(node)
        # Before keys: a key that was called ``true`` could not be told from the word.
        if name in _FLAGS:
            return np.array(_FLAGS[name])
        if name is not None:
            return self.values(name, self.place)
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return reduce(join, [self.truth(part, depth + 1) for part in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.truth(node.operand, depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            operand = self.number(node.operand, depth + 1)
            return -operand if isinstance(node.op, ast.USub) else operand
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self.number(node.left, depth + 1), self.number(node.right, depth + 1)
            result = np.asarray(_ARITHMETIC[type(node.op)](left, right), dtype=np.float64)
            # What is divided by zero is no number: as infinity it would be above everything.
            undefined = np.isfinite(left) & np.isfinite(right) & ~np.isfinite(result)
            self.undefined = self.undefined | undefined
            return np.where(undefined, np.nan, result)
        if isinstance(node, ast.Compare):
            return self._comparison(node, depth + 1)
        if isinstance(node, ast.Call):
            return self._call(node, depth + 1)
        raise self.place.error(
            f"{_source(node)} is not allowed in a condition; it has arithmetic, comparisons, and, or, not, in, min, max"
        )

    def truth(self, node: ast.AST, depth: int) -> np.ndarray:
        """A value that is true or false."""
        value = self.value(node, depth)
        # Python would take any number for a truth: ``where: replicas`` is a condition that someone left
        # unfinished.
        if value.dtype != bool:
            raise self.place.error(f"{_source(node)} is neither true nor false; compare it with something")
        return value

    def number(self, node: ast.AST, depth: int) -> np.ndarray:
        """A value to compute with."""
        value = self.value(node, depth)
        if value.dtype != np.float64:
            raise self.place.error(f"{_source(node)} is no number")
        return value

    def _constant(self, node: ast.Constant) -> np.ndarray:
        if isinstance(node.value, bool):
            return np.array(node.value)
        if isinstance(node.value, int | float):
            try:
                return np.array(float(node.value))
            except OverflowError:
                raise self.place.error("a number of the condition is too large") from None
        if isinstance(node.value, str):
            return np.array(node.value, dtype=object)
        raise self.place.error(f"{_source(node)} is not allowed in a condition")

    def _comparison(self, node: ast.Compare, depth: int) -> np.ndarray:
        left, source = self.value(node.left, depth), node.left
        parts = []
        for sign, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(sign, ast.In | ast.NotIn):
                if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
                    raise self.place.error("after in there is a list, such as hardware in ['h100-sxm', 'l40s']")
                equal = [self._compare(ast.Eq(), left, self.value(item, depth), source, item) for item in right.elts]
                inside = reduce(np.logical_or, equal)
                parts.append(inside if isinstance(sign, ast.In) else ~inside)
                continue
            value = self.value(right, depth)
            parts.append(self._compare(sign, left, value, source, right))
            # ``1 < a < 4`` is two comparisons that share their middle, as in Python.
            left, source = value, right
        return reduce(np.logical_and, parts)

    def _compare(self, sign: ast.cmpop, left: np.ndarray, right: np.ndarray, *sources: ast.AST) -> np.ndarray:
        if type(sign) not in _COMPARISONS:
            raise self.place.error("'is' is not allowed in a condition; use ==")
        # Python compares 1 == "1" without a word: here it is a slip, such as a name without quotes.
        if left.dtype != right.dtype:
            kinds = {np.bool_: "true or false", np.float64: "a number"}
            types = [
                f"{_source(s)} is {kinds.get(v.dtype.type, 'a text')}"
                for s, v in zip(sources, (left, right), strict=True)
            ]
            raise self.place.error(f"cannot compare: {' and '.join(types)}")
        if left.dtype == object and not isinstance(sign, ast.Eq | ast.NotEq):
            raise self.place.error(f"{_source(sources[0])} is a text, which is compared with == or != or in only")
        return np.asarray(_COMPARISONS[type(sign)](left, right), dtype=bool)

    def _call(self, node: ast.Call, depth: int) -> np.ndarray:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _CALLS or node.keywords or len(node.args) < 2:
            raise self.place.error(f"{_source(node)} is not allowed in a condition; functions are min(a, b), max(a, b)")
        return reduce(_CALLS[name], [self.number(argument, depth) for argument in node.args])


def _dotted(node: ast.AST) -> str | None:
    """``a.b.c``, or None for anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else None


def _source(node: ast.AST) -> str:
    return shown(ast.unparse(node))[1:-1]  # without the quotes around it


def column(values: Sequence[Any]) -> np.ndarray:
    """Values of a key as a condition computes with them: booleans, floats where none is a text, else texts.

    None is NaN among numbers, and the text none among others.
    """
    if all(isinstance(value, bool) for value in values):
        return np.array(values, dtype=bool)
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return np.array([np.nan if value is None else float(value) for value in values])
    # Objects, since the dtype tells texts from numbers and flags where values are compared.
    texts = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        texts[index] = "none" if value is None else str(value)
    return texts
