"""Results as labelled arrays: building, writing and reading datasets, chunk files and per-request tables. No JAX."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.latency import latencies
from evaluator.metrics.outcomes import OK, Objective, Outcomes
from evaluator.metrics.variables import INPUTS, VARIABLES, Variable, coordinate_units
from evaluator.results.coordinates import SweepAxis, axis_coordinates
from evaluator.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SCHEMA_VERSION = "1"
ENGINE: Literal["h5netcdf"] = "h5netcdf"
NETCDF_SUFFIXES = (".nc", ".nc4", ".h5")

_UNREADABLE_CHUNK = (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError)


# ---- attributes -----------------------------------------------------------------------------------------------------


def attributes(
    name: str, scenario_text: str, seeds: Sequence[int], calibration: str, objectives: Iterable[Objective] = ()
) -> dict[str, str]:
    """Global attributes, all text: versions, the scenario with its hash, seeds, calibration set, objectives, time."""
    bounds = [{"metric": o.metric, "statistic": o.statistic, "bound_s": o.bound_s} for o in objectives]
    return {
        "title": name,
        "schema_version": SCHEMA_VERSION,
        "evaluator_version": __version__,
        "jax_version": _installed("jax"),
        "scenario": scenario_text,
        "scenario_sha256": hashlib.sha256(scenario_text.encode()).hexdigest(),
        "seeds": ", ".join(map(str, seeds)),
        "calibration": calibration,
        "objectives": json.dumps(bounds),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


# ---- dataset --------------------------------------------------------------------------------------------------------


def _described(dims: tuple[str, ...], values: np.ndarray, variable: Variable) -> tuple:
    attrs = {"units": variable.units, "long_name": variable.long_name, "description": variable.description}
    return dims, values, attrs


def to_dataset(
    metrics: Mapping[str, np.ndarray],
    levels: np.ndarray,
    axes: Sequence[SweepAxis] = (),
    attrs: Mapping[str, str] | None = None,
    inputs: Sequence[str] = (),
) -> xr.Dataset:
    """The variables of ``metrics.summarise``, (config,) or (config, quantile); the swept quantities along ``config``.

    ``inputs`` name what elasticities, (config, input) or (config, input, quantile), are to.

    Rows are configurations of the grid of ``axes`` in C order; ``metrics["config"]``, where there, says which ones.
    Errors: KeyError for a variable that the table of variables does not know.
    """
    import xarray as xr

    shape = tuple(len(axis.values) for axis in axes)
    config = np.asarray(metrics["config"] if "config" in metrics else np.arange(_rows(metrics)))
    steps = np.unravel_index(config, shape) if shape else ()
    coordinates = axis_coordinates(axes)
    coords: dict[str, Any] = {
        "config": _described(("config",), config.astype(np.int64), Variable("1", "configuration", "row of the grid")),
        "quantile": _described(
            ("quantile",), np.asarray(levels, dtype=np.float64), Variable("1", "quantile", "fraction of the requests")
        ),
    }
    for columns, step in zip(coordinates, steps, strict=True):
        for name, (path, values) in columns.items():
            swept = Variable(coordinate_units(path), name.replace("_", " "), f"swept: {path}")
            coords[name] = _described(("config",), values[step], swept)
    if inputs:
        meaning = "; ".join(f"{name}: {INPUTS[name]}" for name in inputs)
        coords["input"] = _described(("input",), np.array(inputs), Variable("1", "input", meaning))
    variables = {}
    for name, values in metrics.items():
        if name != "config":
            variable = VARIABLES[name]
            variables[name] = _described(variable.dims[: np.ndim(values)], np.asarray(values), variable)
    grid = [{"dimension": next(iter(columns)), "size": size} for columns, size in zip(coordinates, shape, strict=True)]
    own = {"grid": json.dumps(grid), "coordinates_of": json.dumps([list(columns) for columns in coordinates])}
    return xr.Dataset(variables, coords, {**(attrs or {}), **own})


def _rows(metrics: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(metrics.values())))


def axes_of(ds: xr.Dataset) -> list[list[str]]:
    """The coordinates of every swept axis; the first of each names the axis. Empty for a single configuration."""
    return json.loads(ds.attrs.get("coordinates_of", "[]"))


def objectives_of(ds: xr.Dataset) -> list[dict[str, Any]]:
    """The scenario's objectives as dictionaries with metric, statistic and bound_s."""
    return json.loads(ds.attrs.get("objectives", "[]"))


def unstack(ds: xr.Dataset) -> xr.Dataset:
    """The full grid with one dimension per swept axis instead of ``config``.

    Errors: InputError where rows of the grid are missing, as after a selection.
    """
    import xarray as xr

    grid = json.loads(ds.attrs.get("grid", "[]"))
    shape = tuple(axis["size"] for axis in grid)
    dims = tuple(axis["dimension"] for axis in grid)
    config = ds["config"].values
    if not np.array_equal(config, np.arange(np.prod(shape, dtype=int))):
        raise InputError(
            f"unstack needs the full grid {dict(zip(dims, shape, strict=True))}, got {config.size} rows of it"
        )
    along = {name: place for place, columns in enumerate(axes_of(ds)) for name in columns}
    arrays: dict[str, Any] = {}
    for name, variable in ((str(name), variable) for name, variable in ds.variables.items()):
        if name == "config":
            continue
        if "config" not in variable.dims:
            arrays[name] = variable
            continue
        values = variable.values.reshape((*shape, *variable.shape[1:]))
        if name in along:
            first = tuple(slice(None) if place == along[name] else 0 for place in range(len(shape)))
            arrays[name] = ((dims[along[name]],), values[first], variable.attrs)
        else:
            arrays[name] = ((*dims, *variable.dims[1:]), values, variable.attrs)
    coords = {str(name): arrays.pop(str(name)) for name in ds.coords if str(name) in arrays}
    return xr.Dataset(arrays, coords, ds.attrs)


# ---- files ----------------------------------------------------------------------------------------------------------


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


# ---- chunks of an unfinished sweep ----------------------------------------------------------------------------------


def write_chunk(folder: str | Path, index: int, metrics: Mapping[str, np.ndarray], fingerprint: str) -> Path:
    """Keep the results of one chunk (``metrics["config"]`` says which rows) until the sweep is whole.

    ``fingerprint`` is all that the numbers depend on (``fingerprint_of``). Plain .npz, because a netCDF file of seventy
    variables costs as much time as computing the chunk.
    """
    path = Path(folder) / f"chunk-{index:06d}.npz"
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, **metrics, fingerprint=np.array(fingerprint))  # type: ignore[arg-type]
    return path


def fingerprint_of(*parts: str) -> str:
    """SHA-256 over the texts and the package's version: results of another scenario or version are not mixed in."""
    return hashlib.sha256("\0".join((__version__, SCHEMA_VERSION, *parts)).encode()).hexdigest()


def read_chunks(folder: str | Path, fingerprint: str) -> dict[int, dict[str, np.ndarray]]:
    """Finished chunks by index; what a killed run left half written is passed over, to be computed again.

    Errors: InputError where the folder holds chunks of another scenario.
    """
    chunks = {}
    for path in sorted(Path(folder).glob("chunk-*.npz")):
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                values = {name: file[name] for name in file.files}
            found = str(values.pop("fingerprint"))
            index = int(path.stem.removeprefix("chunk-"))
        except _UNREADABLE_CHUNK:
            continue
        if found != fingerprint:
            raise InputError(
                f"{folder}: holds chunks of another scenario or version ({path.name}); "
                "remove the folder, choose another --out, or run without --resume"
            )
        chunks[index] = values
    return chunks


def combine(chunks: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Chunks one after the other, in the order of their ``config``; a variable that some lack is NaN there."""
    pieces = list(chunks)
    names = dict.fromkeys(name for piece in pieces for name in piece)
    shapes = {name: piece[name].shape[1:] for piece in pieces for name in piece}

    def part(piece: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        return piece[name] if name in piece else np.full((_rows(piece), *shapes[name]), np.nan)

    joined = {name: np.concatenate([part(piece, name) for piece in pieces]) for name in names}
    order = np.argsort(joined["config"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


# ---- per request ----------------------------------------------------------------------------------------------------


def requests_table(
    outcomes: Outcomes, configs: Sequence[int] | None = None, seeds: Sequence[int] | None = None
) -> pd.DataFrame:
    """One row per request, warm-up included (``measured`` tells), of every configuration that ran.

    ``configs`` and ``seeds`` name the entries of the first two axes; their positions by default.
    """
    import pandas as pd

    config_count, seed_count, request_count = shape = outcomes.arrival_s.shape
    columns: dict[str, np.ndarray] = {
        "config": np.asarray(range(config_count) if configs is None else configs)[:, None, None],
        "seed": np.asarray(range(seed_count) if seeds is None else seeds)[None, :, None],
        "request": np.arange(request_count),
    }
    if outcomes.replica is not None:
        columns["replica"] = outcomes.replica
    columns |= {name: getattr(outcomes, name) for name in ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")}
    columns |= latencies(outcomes)
    cached = np.zeros(1, dtype=np.int64) if outcomes.cached_tokens is None else outcomes.cached_tokens
    columns |= {
        "prompt_tokens": outcomes.prompt_tokens,
        "output_tokens": outcomes.output_tokens,
        "cached_tokens": cached,
    }
    columns["measured"] = outcomes.measured
    ran = outcomes.status == OK
    return pd.DataFrame({name: np.broadcast_to(values, shape)[ran].ravel() for name, values in columns.items()})


def write_requests(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a per-request table as .csv or .parquet, by the suffix."""
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: unknown kind of table {path.suffix!r}; use .csv or .parquet")
    with replacing(path) as part:
        if path.suffix == ".csv":
            table.to_csv(part, index=False)
        else:
            table.to_parquet(part, index=False, engine="pyarrow")
    return path
