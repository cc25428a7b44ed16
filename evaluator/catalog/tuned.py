"""Shapes of routed experts for which an engine has tuned kernels, as YAML: models/experts/ENGINE.yaml.

Triton's kernel for routed experts takes its tiles from a table that the engine ships for a device, the number of
experts held and their width, and default tiles where there is none. These are up to twice as slow, so that a set of an
engine may have figures for both (``grouped_gemm``, ``grouped_gemm_tuned``). Of releases whose default tiles differ
from those that a set was fitted to, the list says how much of the bandwidth they reach.

Where weights have block scales, some releases leave the products to a library whose kernel walks through whole tiles
of rows, each of one expert (DeepGEMM, ``m_grouped_fp8_gemm_nt_contiguous``). The host does not know how many rows come
to an expert, so it makes room for the most, and the kernel computes all of it: ``FilledExperts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from evaluator.catalog.engine_rules import Release, release_of
from evaluator.catalog.fields import Fields, device_names, devices_of, load_if_any
from evaluator.errors import InputError


class ExpertShape(NamedTuple):
    """What engines look their tables up by: routed experts that a device holds, and the width of its part of each."""

    experts: int
    width: int


class ExpertProducts(NamedTuple):
    """Figures of a library's kernel on one device, as ``OperatorEfficiency`` has them."""

    flops_efficiency: float
    bandwidth_efficiency: float
    knee: float


class FilledExperts(NamedTuple):
    """A kernel that computes so many rows more for every expert that a device holds, touched or not, on ``devices``."""

    rows: float
    since: Release
    before: Release
    most_shards: int  # devices that share an expert, beyond which another kernel runs
    devices: Mapping[str, ExpertProducts]

    def runs(self, release: Release, shards: int) -> bool:
        """Whether a release takes it where so many devices share an expert."""
        since, before = (release[: len(bound)] >= bound for bound in (self.since, self.before))
        return since and not before and shards <= self.most_shards


class ExpertTiles(NamedTuple):
    """What an engine's list says of each device, by its name; ``any``: of NVIDIA's that are not named."""

    tuned: Mapping[str, frozenset[ExpertShape]]
    before: Release  # of earlier releases the default tiles are others; (): of none
    crowded_bandwidth: Mapping[str, float]  # what these reach with more tokens than experts
    filled: FilledExperts | None = None  # with block scales; None: in no release


_NO_LIST = ExpertTiles({}, (), {})


def tuned_experts(engine: str, hardware: str) -> frozenset[ExpertShape]:
    """Shapes for which ``engine`` has tuned kernels on ``hardware``, names of the catalog; none where it has no list.

    Errors: InputError for a file that is not as it should be.
    """
    return _tiles(engine).tuned.get(hardware, frozenset())


def crowded_bandwidth(engine: str, hardware: str, release: Release) -> float | None:
    """The part of the bandwidth with which a release's default tiles read weights, once more tokens come to a device
    than it holds experts; None where it has the tiles that sets are fitted to. Errors: as of ``tuned_experts``."""
    tiles = _tiles(engine)
    if release[: len(tiles.before)] >= tiles.before:
        return None
    return tiles.crowded_bandwidth.get(hardware, tiles.crowded_bandwidth["any"])


def filled_experts(engine: str, release: Release, shards: int) -> FilledExperts | None:
    """The kernel that a release takes for experts with block scales, each shared by so many devices, where it fills
    them up; None where it does not. Errors: as of ``tuned_experts``."""
    filled = _tiles(engine).filled
    return filled if filled is not None and filled.runs(release, shards) else None


def _tiles(engine: str) -> ExpertTiles:
    return load_if_any("experts", engine, _read, _NO_LIST)


def _read(document: Any, where: str, expected_name: str) -> ExpertTiles:
    given = Fields(document, where)
    given.named(expected_name)
    given.text("note", None)
    earlier, filled = (given.inner(name) if name in given.values else None for name in ("default_tiles", "filled"))
    given.sources([name for name in ("tuned", "default_tiles", "filled") if name in given.values])
    listed = given.inner("tuned")
    given.finish()
    shapes = {str(device): _shapes(listed.inner(device)) for device in device_names(listed)}
    tiles = _default_tiles(shapes, earlier)
    return tiles if filled is None else tiles._replace(filled=_filled(filled))


def _default_tiles(shapes: Mapping[str, frozenset[ExpertShape]], earlier: Fields | None) -> ExpertTiles:
    if earlier is None:
        return ExpertTiles(shapes, (), {})
    before, share = release_of(earlier, "before"), earlier.inner("crowded_bandwidth")
    earlier.finish()
    reached = {device: share.number(device, high=1.0) for device in ("any", *device_names(share, "any"))}
    return ExpertTiles(shapes, before, reached)


def _filled(given: Fields) -> FilledExperts:
    devices = given.inner("devices")
    filled = FilledExperts(
        given.number("rows", low=1.0),
        release_of(given, "since"),
        release_of(given, "before"),
        given.integer("most_shards"),
        {device: _products(section) for device, section in devices_of(devices)},
    )
    given.finish()
    return filled


def _products(given: Fields) -> ExpertProducts:
    products = ExpertProducts(*(given.number(name, high=1.0) for name in ExpertProducts._fields))
    # For whoever reads the file: what the fit misses.
    given.inner("errors", {})
    given.finish()
    return products


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
