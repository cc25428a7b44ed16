"""Datasets as Zarr, written whole, or region by region by processes that know nothing of one another.

Every array along ``config`` is cut into pieces of so many rows, and a region begins and ends where pieces do: then no
two processes write the same file. What an array is (shape, type, attributes) follows from its name and the sweep alone,
so that it does not matter which process creates it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

ROWS = "config"
WHOLE = "every_piece_is_written"
"""An attribute of the stores that ``finish`` has seen: a piece that is missing there was lost. In a store that somebody
else wrote it may stand for values that are all absent, as Zarr allows."""
MOST_ROWS = 65_536
"""Rows in a piece of an array: a megabyte or two, of which a reader of some columns reads no more than it needs."""
_TYPES = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}


def piece_rows(rows: int) -> int:
    """Rows of a piece, where a region has so many: all, or as even a part of them as ``MOST_ROWS`` allows."""
    # Even pieces: 65,537 rows are two of 32,769 and not one of 65,536 and a single row.
    return max(1, math.ceil(rows / max(1, math.ceil(rows / MOST_ROWS))))


def create(path: Path) -> None:
    """An empty store."""
    with _quiet():
        _zarr().open_group(path, mode="w")


def write_rows(path: Path, ds: xr.Dataset, first: int, total: int, piece: int) -> list[str]:
    """Write ``ds`` as the rows from ``first`` on of a store with ``total``; returns the arrays along ``config``.

    ``first`` is a multiple of ``piece``. Variables without that dimension are written whole, the same by everybody.
    """
    names = []
    with _quiet():
        group = _zarr().open_group(path, mode="r+")
        for name, variable in ((str(name), variable) for name, variable in ds.variables.items()):
            along = ROWS in variable.dims
            shape = tuple(total if dim == ROWS else size for dim, size in variable.sizes.items())
            # Zarr has no pieces without rows, as of a dimension that nothing is along.
            chunks = tuple(piece if dim == ROWS else max(size, 1) for dim, size in variable.sizes.items())
            array = _array(group, name, variable, shape, chunks)
            region = tuple(
                slice(first, first + size) if dim == ROWS else slice(None) for dim, size in variable.sizes.items()
            )
            array[region] = _plain(variable.values)
            names += [name] if along else []
    return names


def finish(path: Path, attributes: dict[str, Any], coordinates: list[str]) -> None:
    """Say what the dataset says of itself, and put what all arrays say of themselves into one file."""
    with _quiet():
        group = _zarr().open_group(path, mode="r+")
        group.update_attributes({**attributes, WHOLE: 1, "coordinates": " ".join(coordinates)})
        _zarr().consolidate_metadata(path)


def overwrite(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Put other values into arrays of a store, all rows."""
    with _quiet():
        group = _zarr().open_group(path, mode="r+")
        for name, values in arrays.items():
            group[name][...] = values


def lost_pieces(path: Path) -> str | None:
    """What of a store is lost, in words; None: nothing, or it is not known."""
    with _quiet():
        group = _zarr().open_group(path, mode="r")
        if WHOLE not in group.attrs:
            return None
        for name, array in sorted(group.arrays()):
            # ``finish`` saw all pieces written, so that one without a file was lost and does not stand for fill values.
            lost = array.nchunks - array.nchunks_initialized
            if lost:
                return f"{lost:,} of {array.nchunks:,} pieces of {name} are lost"
    return None


def pieces_of(path: Path, name: str, first: int, rows: int, piece: int) -> list[Path]:
    """The files, relative to the store, that hold rows of an array along ``config``."""
    places = range(first // piece, math.ceil((first + rows) / piece))
    # Zarr 3 names the piece i of the first dimension ``c/i``, a file, or a folder where there are more dimensions.
    below = [path / name / "c" / str(number) for number in places]
    files = [
        file for chunk in below for file in ([chunk] if chunk.is_file() else sorted(chunk.rglob("*"))) if file.is_file()
    ]
    return [file.relative_to(path) for file in files]


def _array(group: Any, name: str, variable: xr.Variable, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    from zarr.errors import ContainsArrayError

    if name not in group:
        kind = variable.dtype.kind
        with suppress(ContainsArrayError):  # another process was faster; it made the same
            group.create_array(
                name,
                shape=shape,
                chunks=chunks,
                dtype=_TYPES.get(kind, str),
                fill_value=math.nan if kind == "f" else None,
                dimension_names=[str(dim) for dim in variable.dims],
                attributes=dict(variable.attrs),
            )
    array = group[name]
    if array.shape != shape:
        raise AssertionError(f"{name}: {array.shape} in the store, {shape} in the sweep")
    return array


def _plain(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind in _TYPES else values.astype(np.dtypes.StringDType())


def _zarr() -> Any:
    import zarr

    return zarr


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings that one file for all metadata, and text, are no part of Zarr's specification yet.

    Pieces in which nothing is known are written as well, so that one that is not there is known to be lost. An array
    that is opened again forgets what it was created with, so that it is set here.
    """
    with warnings.catch_warnings(), _zarr().config.set({"array.write_empty_chunks": True}):
        warnings.simplefilter("ignore")
        yield
