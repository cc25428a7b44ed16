"""Datasets as files: netCDF-4 or Zarr, written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evaluator.errors import InputError
from evaluator.results.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import xarray as xr

ENGINE: Literal["h5netcdf"] = "h5netcdf"
NETCDF_SUFFIXES = (".nc", ".nc4", ".h5")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to, which takes its place only when all is written. InputError if it cannot."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if part.is_dir() and path.is_dir():
            shutil.rmtree(path)
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


def _format(path: Path) -> str:
    """netcdf or zarr by the suffix; InputError for another one, or for Zarr without its package."""
    if path.suffix == ".zarr":
        if find_spec("zarr") is None:
            raise InputError(
                f"{path}: Zarr needs the package zarr (pip install zarr); or write {path.with_suffix('.nc')}"
            )
        return "zarr"
    if path.suffix not in NETCDF_SUFFIXES:
        raise InputError(f"{path}: unknown kind of result file {path.suffix!r}; use .nc (netCDF-4) or .zarr")
    return "netcdf"


def check_output(path: str | Path) -> Path:
    """The path, if ``write`` takes its suffix: to be asked before hours of work, not after."""
    _format(Path(path))
    return Path(path)


def write(ds: xr.Dataset, path: str | Path) -> Path:
    """Write a dataset as netCDF-4 (.nc) or Zarr (.zarr); a killed run leaves the old file, never half of a new one."""
    path = check_output(path)
    with replacing(path) as part:
        if _format(path) == "zarr":
            ds.to_zarr(part, consolidated=False)
        else:
            ds.to_netcdf(part, format="NETCDF4", engine=ENGINE)
    return path


def read(path: str | Path) -> xr.Dataset:
    """A dataset written by ``write``, wholly in memory. Errors: InputError where it is not there or not one of ours."""
    import xarray as xr

    path = Path(path)
    kind = _format(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        opened = xr.open_zarr(path, consolidated=False) if kind == "zarr" else xr.open_dataset(path, engine=ENGINE)
        with opened as lazy:
            ds = lazy.load()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable result file ({error})") from error
    found = ds.attrs.get("schema_version", SCHEMA_VERSION)
    if found != SCHEMA_VERSION:
        raise InputError(f"{path}: written with schema {found}, this version reads {SCHEMA_VERSION}")
    text = {name: v.astype(str) for name, v in ds.variables.items() if v.dtype.kind not in "biuf"}
    return ds.assign({name: v for name, v in text.items() if name in ds.data_vars}).assign_coords(
        {name: v for name, v in text.items() if name in ds.coords}
    )
