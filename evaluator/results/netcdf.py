"""Our own netCDF files, written and read by HDF5 variable by variable.

h5netcdf looks a variable up in the file each time that it is asked for one of its properties, some thirty times;
without it a dataset of 73 variables is read in a quarter of the time, and one of 88 written in a fifth. xarray also
loads all of Dask to write, where that is installed, and has several copies of all texts in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.results.texts import as_objects, decoded, is_text

if TYPE_CHECKING:
    import xarray as xr

# What netCDF-4 says of dimensions by attributes of HDF5 (h5netcdf ``_HIDDEN_ATTRS``).
_OF_THE_FORMAT = (
    "CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties",
)  # fmt: skip
# What xarray decodes values by, and ``write_own`` leaves to it.
_DECODED = {"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding", "calendar", "dtype"}
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


_ROWS = 1 << 16
"""Of texts that are written at a time."""


class OtherForm(ValueError):
    """The file has something that ``results.write`` does not make, or is damaged."""


def write_own(ds: xr.Dataset, path: Path) -> bool:
    """Write a dataset of numbers and texts whose dimensions all have coordinates, as xarray does by h5netcdf; False,
    and nothing is written, where it has anything else, which xarray then writes."""
    import h5py
    import xarray as xr

    variables, attrs = xr.conventions.encode_dataset_coordinates(ds)
    if not _is_own(ds) or not all(_is_attribute(value) for value in attrs.values()):
        return False
    numbers = {str(name): number for number, name in enumerate(ds.dims)}
    with h5py.File(path, "w", track_order=True) as file:
        for name, variable in variables.items():
            _store(file, str(name), variable, numbers)
        for name, variable in variables.items():
            for axis, dimension in enumerate(variable.dims):
                if name != dimension:
                    file[name].dims[axis].attach_scale(file[dimension])
        _tell(file, attrs)
        writer = f"version=2,hdf5={h5py.version.hdf5_version},h5py={h5py.__version__}"
        file.attrs["_NCProperties"] = np.array(writer, dtype=h5py.string_dtype("ascii", len(writer)))
    return True


def _is_own(ds: xr.Dataset) -> bool:
    """Whether ``write_own`` knows all that a dataset has."""
    return all(name in ds.variables and size > 0 for name, size in ds.sizes.items()) and all(
        isinstance(name, str)
        and "/" not in name
        and not variable.encoding
        and (name not in ds.dims or variable.dims == (name,))
        and (variable.dtype.kind in "biufU" or (variable.dtype == object and _are_texts(variable.values)))
        and not {"_FillValue", "coordinates", "dtype"} & variable.attrs.keys()
        and all(_is_attribute(value) for value in variable.attrs.values())
        for name, variable in ds.variables.items()
    )


def _are_texts(objects: np.ndarray) -> bool:
    return all(type(text) is str for text in set(objects.ravel().tolist()))


def _is_attribute(value: Any) -> bool:
    return type(value) in (str, int, float) or (isinstance(value, np.ndarray | np.number) and value.dtype.kind in "iuf")


def _store(file: Any, name: str, variable: xr.Variable, numbers: dict[str, int]) -> None:
    """One variable with its attributes; ``numbers`` are those of the dimensions."""
    import h5py

    values, fill = variable.values, None
    told: dict[str, Any] = dict(variable.attrs)
    if values.dtype == bool:  # which netCDF has not
        values, told = values.astype(np.int8), {**told, "dtype": "bool"}
    elif values.dtype.kind == "f":
        fill, told = np.nan, {"_FillValue": values.dtype.type(np.nan), **told}
    kind = h5py.string_dtype() if is_text(values) else values.dtype
    stored = file.create_dataset(name, values.shape, kind, fillvalue=fill, track_order=True)
    if name in variable.dims:
        stored.make_scale(name)
    if variable.dims:
        stored.attrs["_Netcdf4Coordinates"] = np.array([numbers[str(axis)] for axis in variable.dims], dtype=np.int32)
        stored.attrs["_Netcdf4Dimid"] = np.int32(numbers[str(variable.dims[0])])
    _tell(stored, told)
    if not is_text(values) or not variable.dims:
        stored[...] = values
        return
    # As objects which equal texts share, and not all at a time: every row would have its own.
    for start in range(0, len(values), _ROWS):
        stored[start : start + _ROWS] = as_objects(values[start : start + _ROWS])


def _tell(stored: Any, attrs: Mapping[Any, Any]) -> None:
    for key, value in attrs.items():
        stored.attrs[key] = value if isinstance(value, str) else np.atleast_1d(value)  # as netCDF has single numbers


def read_own(path: Path) -> xr.Dataset:
    """The dataset of a file in the form in which ``results.write`` leaves it, wholly in memory.

    Errors: OtherForm, or whatever HDF5 makes of a damaged file. xarray then reads it, or says what is the matter.
    """
    import h5py
    import xarray as xr

    with h5py.File(path) as file:
        variables = {}
        for name, stored in file.items():
            if not isinstance(stored, h5py.Dataset) or name.startswith("_nc4_non_coord_"):
                raise OtherForm(name)
            attrs = dict(stored.attrs)
            if not attrs.get("NAME", b"").startswith(_NO_VARIABLE):
                variables[name] = _variable(_dimensions(file, stored, attrs), _values(stored), _told(attrs))
        attrs = _told(dict(file.attrs))
    coordinates = _coordinates(variables, attrs)
    ds = xr.Dataset(variables, attrs=attrs).set_coords(coordinates)
    ds.encoding["source"] = str(path)
    return ds


def _coordinates(variables: Mapping[str, xr.Variable], attrs: dict[str, Any]) -> set[str]:
    """The coordinates beside those of dimensions, which attributes of the variables and of the whole tell by name."""
    texts = [of.pop("coordinates", "") for of in (attrs, *(variable.attrs for variable in variables.values()))]
    names = {name for text in texts for name in text.split()}
    if not names <= variables.keys():
        raise OtherForm("coordinates")
    return names


def _dimensions(file: Any, stored: Any, attrs: dict[str, Any]) -> tuple[str, ...]:
    if not stored.shape:
        return ()
    name = stored.name.removeprefix("/")
    if attrs.get("CLASS") == b"DIMENSION_SCALE":  # the coordinate of a dimension, which has its name
        if len(stored.shape) > 1:
            raise OtherForm(name)
        return (name,)
    scales = attrs["DIMENSION_LIST"]
    if any(len(of_axis) != 1 for of_axis in scales):
        raise OtherForm(name)
    return tuple(file[reference].name.removeprefix("/") for (reference,) in scales)


def _variable(dims: tuple[str, ...], values: np.ndarray, attrs: dict[str, Any]) -> xr.Variable:
    import xarray as xr

    if attrs.get("dtype") == "bool":
        del attrs["dtype"]
        values = values.astype(bool)
    if _DECODED & attrs.keys() or " since " in str(attrs.get("units")):
        raise OtherForm(", ".join(attrs))
    # As it is: xarray would look through texts for other objects, and for arrays of Dask, which it would load for that.
    return xr.Variable(dims, values, attrs, fastpath=True)


def _values(stored: Any) -> np.ndarray:
    import h5py

    if h5py.check_string_dtype(stored.dtype) is not None and stored.dtype.kind == "O":
        return decoded(np.asarray(stored[()], dtype=object))
    if stored.dtype.kind not in "iuf" or stored.dtype.metadata:
        raise OtherForm(stored.name)
    return np.asarray(stored[()])


def _told(attrs: dict[str, Any]) -> dict[str, Any]:
    """What the file says of a variable or of the whole, beside what is of the format; one number is no array."""
    found = {}
    for key, value in attrs.items():
        if key in _OF_THE_FORMAT:
            continue
        if not isinstance(value, str) and np.asarray(value).dtype.kind not in "iuf":
            raise OtherForm(key)
        value = value[0] if isinstance(value, np.ndarray) and value.shape == (1,) else value
        # What is missing is NaN: to put NaN for NaN would copy all that has been read.
        if not (key == "_FillValue" and np.isnan(value)):
            found[key] = value
    return found
