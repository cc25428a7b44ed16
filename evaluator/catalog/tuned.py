"""Shapes of routed experts for which an engine has tuned kernels, as YAML: models/experts/ENGINE.yaml.

Triton's kernel for routed experts takes its tiles from a table that the engine ships for a device, the number of
experts held and their width, and default tiles where there is none. These are up to twice as slow, so that a set of an
engine may have figures for both (``grouped_gemm``, ``grouped_gemm_tuned``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from evaluator.catalog.fields import Fields, load
from evaluator.catalog.store import has, names, suggestion
from evaluator.errors import InputError


class ExpertShape(NamedTuple):
    """What engines look their tables up by: routed experts that a device holds, and the width of its part of each."""

    experts: int
    width: int


def tuned_experts(engine: str, hardware: str) -> frozenset[ExpertShape]:
    """Shapes for which ``engine`` has tuned kernels on ``hardware``, names of the catalog; none where it has no list.

    Errors: InputError for a file that is not as it should be.
    """
    return load("experts", engine, _read).get(hardware, frozenset()) if has("experts", engine) else frozenset()


def _read(document: Any, where: str, expected_name: str) -> Mapping[str, frozenset[ExpertShape]]:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    given.sources(("tuned",))
    listed = given.inner("tuned")
    given.finish()
    for device in listed.values:
        if not has("hardware", str(device)):
            raise InputError(f"{listed.place(str(device))}: no such device{suggestion(str(device), names('hardware'))}")
    return {str(device): _shapes(listed.inner(device)) for device in listed.values}


def _shapes(listed: Fields) -> frozenset[ExpertShape]:
    # All are checked before any is made: `true` is an int in Python, and a width of 0 would match
    # no model and say nothing.
    for experts, widths in listed.values.items():
        numbers = [experts, *(widths if isinstance(widths, list) and widths else [None])]
        if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in numbers):
            raise InputError(
                f"{listed.place(str(experts))}: expected experts and a list of their widths, such as 8: [1792, 3584]"
            )
    return frozenset(ExpertShape(experts, width) for experts, widths in listed.values.items() for width in widths)
