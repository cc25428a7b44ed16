"""The labelled dataset: built from the measures of a sweep, and unstacked into its grid. No JAX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.variables import INPUTS, VARIABLES, Variable, coordinate_units
from evaluator.results.coordinates import SweepAxis, axis_coordinates
from evaluator.results.schema import axes_of
from evaluator.results.texts import shared, text_variable

if TYPE_CHECKING:
    import xarray as xr

_CONFIG = Variable("1", "configuration", "row of the grid")
_STAGE = Variable("1", "stage", "stage of the pipeline, STAGE.STEP for a step of a stage that has several")
_CLASS = Variable("1", "class", "class of requests")
_POOL = Variable("1", "pool", "pool of replicas")
_OBJECTIVE = Variable("1", "objective", "what is bounded: metric and statistic, and of which class")
_QUANTILE = Variable("1", "quantile", "fraction of the requests")
_SEED = Variable("1", "seed", "of the requests")
# What stands as a coordinate where it is not swept, too: one value where all designs have the same.
_OF_ALL = {
    "model": Variable("1", "model", "what is served; of several pools all, joined by +"),
    "hardware": Variable("1", "hardware", "on what; of several pools all, joined by +"),
}


def to_dataset(
    metrics: Mapping[str, np.ndarray],
    levels: np.ndarray,
    axes: Sequence[SweepAxis] = (),
    attrs: Mapping[str, str] | None = None,
    inputs: Sequence[str] = (),
    seeds: Sequence[int] = (),
    stages: Sequence[str] = (),
    classes: Sequence[str] = (),
    pools: Sequence[str] = (),
    objectives: Sequence[str] = (),
) -> xr.Dataset:
    """The variables of ``metrics.summarise`` as labelled arrays, with the swept quantities along ``config``.

    ``metrics`` hold (config,) or (config, quantile) arrays, elasticities (config, input) or (config, input, quantile)
    where ``inputs`` name what they are to, and times by stage (config, stage) or (config, stage, quantile) where there
    are ``stages``, likewise by class, pool and objective where there are ``classes``, ``pools`` and ``objectives``.
    Rows are configurations of the grid of ``axes`` in C order; ``metrics["config"]``, where given, says which ones;
    ``model`` and ``hardware``, (config,), become coordinates where they are not swept. ``levels``, (quantile,), are
    fractions; ``seeds`` name the dimension of variables by seed.
    Errors: KeyError for a variable that the table of variables does not know.
    """
    import xarray as xr

    shape = tuple(len(axis.values) for axis in axes)
    # Rows may be a part of the grid: a shard, a search, a selection.
    config = np.asarray(metrics["config"] if "config" in metrics else np.arange(len(next(iter(metrics.values())))))
    columns = axis_coordinates(axes)
    coords = {
        "config": _described(("config",), config.astype(np.int64), _CONFIG),
        "quantile": _described(("quantile",), np.asarray(levels, dtype=np.float64), _QUANTILE),
        # C order, as ``Grid`` lists its points: the last axis varies the fastest.
        **_swept(columns, np.unravel_index(config, shape) if shape else ()),
        **_trailing(inputs, seeds, stages, classes, pools, objectives),
    }
    for name, variable in _OF_ALL.items():
        if name in metrics and name not in coords:
            # A constant needs no row per design: a scalar coordinate.
            values = np.asarray(metrics[name], dtype=np.str_)
            same = values.size > 0 and (values == values[0]).all()
            coords[name] = _described((), values[0], variable) if same else _described(("config",), values, variable)
    variables = {
        # A variable may come without its trailing dimension (a mean where quantiles are also known): as many
        # names as it has axes.
        name: _described(VARIABLES[name].dims[: np.ndim(values)], values, VARIABLES[name])
        # Texts become objects that equal rows share (`results.texts`).
        for name, values in shared({name: np.asarray(values) for name, values in metrics.items()}).items()
        if name != "config" and name not in _OF_ALL
    }
    return xr.Dataset(variables, coords, {**(attrs or {}), **_grid(columns, shape)})


def _described(dims: tuple[str, ...], values: np.ndarray, variable: Variable) -> tuple | xr.Variable:
    attrs = {"units": variable.units, "long_name": variable.long_name, "description": variable.description}
    return text_variable(dims, values, attrs) if values.dtype == object else (dims, values, attrs)


def _trailing(
    inputs: Sequence[str],
    seeds: Sequence[int],
    stages: Sequence[str],
    classes: Sequence[str],
    pools: Sequence[str],
    objectives: Sequence[str],
) -> dict[str, tuple | xr.Variable]:
    """The coordinates of the dimensions after ``config`` that only some results have."""
    labels = {}
    if inputs:
        meaning = "; ".join(f"{name}: {INPUTS[name]}" for name in inputs)
        labels["input"] = _described(("input",), np.array(inputs), Variable("1", "input", meaning))
    if stages:
        labels["stage"] = _described(("stage",), np.array(stages), _STAGE)
    if classes:
        labels["class"] = _described(("class",), np.array(classes), _CLASS)
    if pools:
        labels["pool"] = _described(("pool",), np.array(pools), _POOL)
    if objectives:
        labels["objective"] = _described(("objective",), np.array(objectives), _OBJECTIVE)
    if seeds:
        labels["seed"] = _described(("seed",), np.array(seeds, dtype=np.int64), _SEED)
    return labels


def _swept(
    columns: Sequence[Mapping[str, tuple[str, np.ndarray]]], steps: Sequence[np.ndarray]
) -> dict[str, tuple | xr.Variable]:
    """The swept quantities of every row; ``steps`` are the row's positions along each axis, (axis, config)."""
    swept: dict[str, tuple | xr.Variable] = {}
    for axis_columns, step in zip(columns, steps, strict=True):
        for name, (path, values) in axis_columns.items():
            variable = Variable(coordinate_units(path), name.replace("_", " "), f"swept: {path}")
            swept[name] = _described(("config",), values[step], variable)
    return swept


def _grid(columns: Sequence[Mapping[str, Any]], shape: tuple[int, ...]) -> dict[str, str]:
    """The grid as attributes: the size of each axis, and its coordinates, of which the first names the dimension."""
    # JSON, since attributes of netCDF take neither lists of lists nor mappings.
    grid = [{"dimension": next(iter(names)), "size": size} for names, size in zip(columns, shape, strict=True)]
    return {"grid": json.dumps(grid), "coordinates_of": json.dumps([list(names) for names in columns])}


def unstack(ds: xr.Dataset) -> xr.Dataset:
    """The full grid with one dimension per swept axis instead of ``config``.

    Errors: InputError where rows of the grid are missing, as after a selection.
    """
    import xarray as xr

    grid = json.loads(ds.attrs.get("grid", "[]"))
    shape = tuple(axis["size"] for axis in grid)
    dims = tuple(axis["dimension"] for axis in grid)
    config = ds["config"].values
    # ``reshape`` puts row i into the i-th cell of the grid, which is right only of all rows in their order.
    if not np.array_equal(config, np.arange(np.prod(shape, dtype=int))):
        raise InputError(
            f"unstack needs the full grid {dict(zip(dims, shape, strict=True))}, got {config.size} rows of it"
        )
    along = {name: axis for axis, columns in enumerate(axes_of(ds)) for name in columns}
    arrays: dict[str, Any] = {}
    for name, variable in ((str(name), variable) for name, variable in ds.variables.items()):
        if name == "config":
            continue
        if "config" not in variable.dims:
            arrays[name] = variable
            continue
        values = variable.values.reshape((*shape, *variable.shape[1:]))
        if name in along:
            # A coordinate of one axis is the same along all others: their first steps stand for it.
            first = tuple(slice(None) if axis == along[name] else 0 for axis in range(len(shape)))
            arrays[name] = ((dims[along[name]],), values[first], variable.attrs)
        else:
            arrays[name] = ((*dims, *variable.dims[1:]), values, variable.attrs)
    # Coordinates stay such, also those that lost `config`: else they would come back as variables.
    coords = {str(name): arrays.pop(str(name)) for name in ds.coords if str(name) in arrays}
    return xr.Dataset(arrays, coords, ds.attrs)
