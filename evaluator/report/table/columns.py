"""Columns of a table for a terminal, fitted to its width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """Heading in two lines and the cells. Too wide: headings of designs take both lines, then measures are left out,
    and named below, then text is shortened."""
    columns, dropped = list(columns), []
    if _width(columns) > width:
        columns = [_on_two_lines(column) for column in columns]
    # A step at a time, since each changes what is the widest: the loop ends when it fits, or nothing more may go.
    while _width(columns) > width:
        weakest = min(columns, key=lambda column: column.rank)
        # Measures go before names are cut: a page or the dataset has the measure, and a cut name may be that of two
        # designs.
        if weakest.rank < KEPT:
            columns.remove(weakest)
            dropped.append(weakest.head)
        elif shorter := _shorter(columns):
            columns = shorter
        else:  # which design a row is matters more than the width
            break
    heads = [_line(columns, [c.head for c in columns]), _line(columns, [c.unit for c in columns])]
    body = [_line(columns, list(cells)) for cells in zip(*(c.cells for c in columns), strict=True)]
    note = [f"(not shown for want of room: {', '.join(dropped)})"] if dropped else []
    return [*heads, "-" * len(max(heads + body, key=len)), *body, *note]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _on_two_lines(column: Column) -> Column:
    """The heading of a design's column without a unit over both lines, where it is what makes the column wide."""
    words = column.head.split()
    if column.unit or column.rank < KEPT or len(words) < 2 or len(column.head) <= max(map(len, column.cells)):
        return column
    halves = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    head, below = min(halves, key=lambda both: max(map(len, both)))
    return replace(column, head=head, unit=below)


def _shorter(columns: Sequence[Column]) -> list[Column] | None:
    """The columns with the widest text cut by a character; None where none can be cut."""
    for column in sorted(columns, key=lambda column: -column.width):
        if column.text and column.width > TEXT_WIDTH and (cut := _shortened(column, column.width - 1)):
            return [cut if candidate is column else candidate for candidate in columns]
    return None


def _shortened(column: Column, width: int) -> Column | None:
    """The column with its texts cut at their ends, or in their middles where names that begin alike would become one;
    None where these would, too."""
    for tail in (0, width // 2):
        cells = tuple(_cut(text, width, tail) for text in column.cells)
        if len(set(cells)) == len(set(column.cells)):
            return replace(column, head=_cut(column.head, width), unit=_cut(column.unit, width), cells=cells)
    return None


def _cut(text: str, width: int, tail: int = 0) -> str:
    return text if len(text) <= width else f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _line(columns: Sequence[Column], texts: Sequence[str]) -> str:
    aligned = [t.ljust(c.width) if c.text else t.rjust(c.width) for c, t in zip(columns, texts, strict=True)]
    return _GAP.join(aligned).rstrip()
