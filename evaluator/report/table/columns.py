"""Columns of a table for a terminal, fitted to its width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100
TEXT_WIDTH = 8  # text is not shortened below this
KEPT = 90  # columns of this rank and above are never left out
_GAP = "  "


@dataclass(frozen=True)
class Column:
    """``head`` and ``unit`` stand above the cells; a column of lower ``rank`` goes first when the table is too wide."""

    head: str
    unit: str
    cells: tuple[str, ...]
    rank: int
    text: bool = False

    @property
    def width(self) -> int:
        """Characters of the widest cell or heading."""
        return max(map(len, (self.head, self.unit, *self.cells)))


def lines_of(columns: list[Column], width: int) -> list[str]:
    """Heading in two lines and the cells. Too wide: text is shortened, then measures are left out, and named below."""
    columns, dropped = list(columns), []
    # A step at a time, since each changes what is the widest: the loop ends when it fits, or nothing more may go.
    while _width(columns) > width:
        longest = max((c for c in columns if c.text and c.width > TEXT_WIDTH), key=lambda c: c.width, default=None)
        weakest = min(columns, key=lambda column: column.rank)
        # Measures go before names are cut: a page or the dataset has the measure, and a cut name may be that of two
        # designs.
        if weakest.rank < KEPT:
            columns.remove(weakest)
            dropped.append(weakest.head)
        elif longest:
            columns[columns.index(longest)] = _shortened(longest, longest.width - 1)
        else:  # which design a row is matters more than the width
            break
    heads = [_line(columns, [c.head for c in columns]), _line(columns, [c.unit for c in columns])]
    body = [_line(columns, list(cells)) for cells in zip(*(c.cells for c in columns), strict=True)]
    note = [f"(not shown for want of room: {', '.join(dropped)})"] if dropped else []
    return [*heads, "-" * len(max(heads + body, key=len)), *body, *note]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _shortened(column: Column, width: int) -> Column:
    def cut(text: str) -> str:
        return text if len(text) <= width else f"{text[: width - 1]}…"

    return Column(cut(column.head), column.unit, tuple(map(cut, column.cells)), column.rank, text=True)


def _line(columns: Sequence[Column], texts: Sequence[str]) -> str:
    aligned = [t.ljust(c.width) if c.text else t.rjust(c.width) for c, t in zip(columns, texts, strict=True)]
    return _GAP.join(aligned).rstrip()
