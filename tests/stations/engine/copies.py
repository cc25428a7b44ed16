"""What a compiled program copies on every trip of a lane: arrays that XLA could not update in place; and which loops it
could not compile whole."""

from __future__ import annotations

import math
import re

_CALLED = re.compile(r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_COPY = re.compile(r"= (\w+\[([\d,]+)\])\S* copy\(")


def copied_on_a_trip(program: str, cells: int) -> list[str]:
    """The arrays of at least so many cells that a loop within the loop over lanes copies, of a program as HLO text."""
    computations = {text.split(" ", 1)[0].lstrip("%"): text for text in re.split(r"\n(?=%|ENTRY)", program)}
    found: list[str] = []

    def walk(name: str, loops: int) -> None:
        for line in computations[name].splitlines()[1:]:
            copy = _COPY.search(line)
            # The first loop is over lanes, each of which begins with arrays of its own.
            if copy and loops > 1 and math.prod(map(int, copy[2].split(","))) >= cells:
                found.append(f"{copy[1]} in {name}")
            branches = [name.strip().lstrip("%") for some in _BRANCHES.findall(line) for name in some.split(",")]
            for called in (*_CALLED.findall(line), *branches):
                walk(called, loops + (" while(" in line))

    walk("ENTRY", 0)
    return found


def loops_in_pieces(program: str) -> list[str]:
    """The loops of a program as HLO text whose operations are called one by one: those that are compiled whole are in
    functions, which the program itself calls."""
    entry = re.split(r"\n(?=ENTRY)", program)[1]
    return [line.split(" = ")[0].strip() for line in entry.splitlines() if " while(" in line]
