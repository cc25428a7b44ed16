"""Shapes of routed experts for which an engine has tuned kernels, as YAML: models/experts/ENGINE.yaml.

Triton's kernel for routed experts takes its tiles from a table that the engine ships for a device, the number of
experts held and their width, and default tiles where there is none. These are up to twice as slow, so that a set of an
engine may have figures for both (``grouped_gemm``, ``grouped_gemm_tuned``). Of releases whose default tiles differ
from those that a set was fitted to, the list says how much of the bandwidth they reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from evaluator.catalog.engine_rules import Release, release_of
from evaluator.catalog.fields import Fields, device_names, load_if_any
from evaluator.errors import InputError


class ExpertShape(NamedTuple):
    """What engines look their tables up by: routed experts that a device holds, and the width of its part of each."""

    experts: int
    width: int


class ExpertTiles(NamedTuple):
    """What an engine's list says of each device, by its name; ``any``: of NVIDIA's that are not named."""

    tuned: Mapping[str, frozenset[ExpertShape]]
    before: Release  # of earlier releases the default tiles are others; (): of none
    crowded_bandwidth: Mapping[str, float]  # what these reach with more tokens than experts


_NO_LIST = ExpertTiles({}, (), {})


def tuned_experts(engine: str, hardware: str) -> frozenset[ExpertShape]:
    """Shapes for which ``engine`` has tuned kernels on ``hardware``, names of the catalog; none where it has no list.

    Errors: InputError for a file that is not as it should be.
    """
    return _tiles(engine).tuned.get(hardware, frozenset())


def crowded_bandwidth(engine: str, hardware: str, release: Release) -> float | None:
    """Of the bandwidth, what the default tiles of a release read weights with, once more tokens than it holds experts
    come to a device; None where it has the tiles that sets are fitted to. Errors: as of ``tuned_experts``."""
    tiles = _tiles(engine)
    if release[: len(tiles.before)] >= tiles.before:
        return None
    return tiles.crowded_bandwidth.get(hardware, tiles.crowded_bandwidth["any"])


def _tiles(engine: str) -> ExpertTiles:
    return load_if_any("experts", engine, _read, _NO_LIST)


def _read(document: Any, where: str, expected_name: str) -> ExpertTiles:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    earlier = given.inner("default_tiles") if "default_tiles" in given.values else None
    given.sources(("tuned",) if earlier is None else ("tuned", "default_tiles"))
    listed = given.inner("tuned")
    given.finish()
    shapes = {str(device): _shapes(listed.inner(device)) for device in device_names(listed)}
    if earlier is None:
        return ExpertTiles(shapes, (), {})
    before, share = release_of(earlier, "before"), earlier.inner("crowded_bandwidth")
    earlier.finish()
    reached = {device: share.number(device, high=1.0) for device in ("any", *device_names(share, "any"))}
    return ExpertTiles(shapes, before, reached)


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
