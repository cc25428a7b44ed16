"""Datasets as files: netCDF-4 or Zarr, written whole or not at all."""

from __future__ import annotations

import gc
import glob
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evaluator.errors import InputError
from evaluator.records import without_collecting
from evaluator.results.netcdf import read_own, write_own
from evaluator.results.schema import SCHEMA_VERSION, problem_of
from evaluator.results.texts import as_objects, is_text, text_bytes, text_variable
from evaluator.results.zarr_store import ROWS, WHOLE, create, finish, lost_pieces, piece_rows, write_rows

if TYPE_CHECKING:
    import xarray as xr

ENGINE: Literal["h5netcdf"] = "h5netcdf"
_ROOM, _LEAST_ROOM = 1.2, 400_000
"""Bytes of a netCDF file, at most: by those of the dataset, and of all that its variables say of themselves."""
_TEXT_BYTES = 40  # of a text in HDF5 beside its characters: where it is, its header, and what fills it up
NETCDF_SUFFIXES = (".nc", ".nc4", ".h5")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to, which takes its place only when all is written. InputError if it cannot."""
    # With the process's number: two runs that write one file do not write into one another's part.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        # A rename replaces a file at once, but no folder with files in it.
        if part.is_dir() and path.is_dir():
            shutil.rmtree(path)
        # Atomic on one file system, which ``part`` is on since it lies beside ``path``.
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def clear_parts(path: Path) -> None:
    """Remove half-written files of ``path`` that killed runs left; the caller holds its lock: no other writes."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def _format(path: Path) -> str:
    """netcdf or zarr by the suffix; InputError for another one, or for Zarr without its package."""
    if path.suffix == ".zarr":
        if find_spec("zarr") is None:
            raise InputError(
                f"{path}: Zarr needs the package zarr (pip install 'evaluator[zarr]'); "
                f"or write {path.with_suffix('.nc')}"
            )
        return "zarr"
    if path.suffix not in NETCDF_SUFFIXES:
        raise InputError(f"{path}: unknown kind of result file {path.suffix!r}; use .nc (netCDF-4) or .zarr")
    return "netcdf"


def check_output(path: str | Path) -> Path:
    """The path, if ``write`` can write there: to be asked before hours of work, not after.

    Errors: InputError for a suffix of no kind of file, and for a folder, unless it is a Zarr store that another takes
    the place of.
    """
    path = Path(path)
    kind = _format(path)
    if path.is_dir() and kind == "netcdf":
        raise InputError(f"{path}: is a folder; the result would be a file")
    # Replacing removes what was there, which must not be somebody's folder of other files.
    if path.is_dir() and any(path.iterdir()) and not (path / "zarr.json").exists():
        raise InputError(f"{path}: is a folder with other files in it, not a Zarr store")
    return path


def write(ds: xr.Dataset, path: str | Path) -> Path:
    """Write a dataset as netCDF-4 (.nc) or Zarr (.zarr); a killed run leaves the old file, never half of a new one."""
    path = check_output(path)
    with replacing(path) as part:
        if _format(path) == "zarr":
            _write_zarr(ds, part)
        else:
            # Asked for before HDF5 begins, which ends the process on a full disk.
            _reserve(part, _most_bytes(ds))
            if not write_own(ds, part):
                ds.to_netcdf(part, format="NETCDF4", engine=ENGINE)
    return path


def _most_bytes(ds: xr.Dataset) -> int:
    """What a netCDF file of a dataset takes at most."""
    texts = [variable.values for variable in ds.variables.values() if is_text(variable.values)]
    size = ds.nbytes + sum(_TEXT_BYTES * text.size + text_bytes(text) for text in texts)
    return int(_ROOM * size) + _LEAST_ROOM + sum(len(str(text)) for text in ds.attrs.values())


def _reserve(path: Path, size: int) -> None:
    """OSError where the disk, a quota or a limit has no room for a file of so many bytes.

    HDF5 that meets a full disk while it writes ends the process when this closes the file.
    """
    try:
        with path.open("wb") as file:
            # Where the system has no such call a full disk is met by HDF5 itself.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)


def _write_zarr(ds: xr.Dataset, path: Path) -> None:
    rows = ds.sizes.get(ROWS, 0)
    create(path)
    write_rows(path, ds, 0, rows, piece_rows(rows))
    finish(path, dict(ds.attrs), [str(name) for name in ds.coords if name not in ds.dims])


def _let_go(error: BaseException | None) -> None:
    """Free what an error still holds: h5netcdf's half opened files complain when they are closed.

    Of objects made since collecting rests, as all of these are: to go through the others takes as long as there are.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        while error is not None:
            # Frames of a traceback keep their locals, and these the open file, whose `__del__` then prints to stderr.
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        gc.collect(0)
    finally:
        sys.unraisablehook = hook


def _loaded(opened: xr.Dataset) -> xr.Dataset:
    with opened as lazy:
        return lazy.load()


def _netcdf(path: Path) -> xr.Dataset:
    import xarray as xr

    try:
        return read_own(path)
    except Exception as error:  # of somebody else's form, or damaged: what is the matter xarray says
        _let_go(error)
    return _loaded(xr.open_dataset(path, engine=ENGINE))


@without_collecting()  # for `_let_go`
def read(path: str | Path) -> xr.Dataset:
    """A dataset written by ``write``, wholly in memory. Errors: InputError where it is not there or not one of ours."""
    import xarray as xr

    path = Path(path)
    kind = _format(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    problem = None
    try:
        problem = lost_pieces(path) if kind == "zarr" else None
        # In memory, so that the file may be replaced, by the same sweep for instance, while its dataset is in use.
        ds = _netcdf(path) if kind == "netcdf" else _loaded(xr.open_zarr(path, consolidated=False))
        ds.attrs.pop(WHOLE, None)  # of the store, not of the dataset, which others may write in other pieces
    except Exception as error:  # damaged files make HDF5 and Zarr fail in all ways
        problem = " ".join(str(error).split())
        _let_go(error)
    if problem is not None:
        raise InputError(f"{path}: not a readable result file ({problem})")
    schema = ds.attrs.get("schema_version", SCHEMA_VERSION)
    if schema != SCHEMA_VERSION:
        raise InputError(f"{path}: written with schema {schema}, this version reads {SCHEMA_VERSION}")
    problem = problem_of(ds)
    if problem is not None:
        raise InputError(f"{path}: not a readable result file ({problem})")
    # Texts come back in as many types as libraries have for them; here they become objects, one for equal ones.
    text = {name: v for name, v in ds.variables.items() if v.dtype.kind not in "biuf"}
    return ds.assign(
        {name: text_variable(v.dims, as_objects(v.values), v.attrs) for name, v in text.items() if name in ds.data_vars}
    ).assign_coords(
        {
            name: text_variable(v.dims, v.values.astype(object).astype(str), v.attrs)
            for name, v in text.items()
            if name in ds.coords
        }
    )
