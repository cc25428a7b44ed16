"""Our own netCDF files, read by HDF5 variable by variable.

h5netcdf looks a variable up in the file each time that it is asked for one of its properties, some thirty times;
without it a dataset of 73 variables is read in a quarter of the time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

# What netCDF-4 says of dimensions by attributes of HDF5 (h5netcdf ``_HIDDEN_ATTRS``).
_OF_THE_FORMAT = (
    "CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties",
)  # fmt: skip
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


class OtherForm(ValueError):
    """The file has something that ``results.write`` does not make, or is damaged."""


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
                variables[name] = (_dimensions(file, stored, attrs), _values(stored), _told(attrs))
        raw = xr.Dataset(variables, attrs=_told(dict(file.attrs)))
    ds = xr.decode_cf(raw).load()  # else numbers are decoded each time that somebody looks at them
    ds.encoding["source"] = str(path)
    return ds


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


def _values(stored: Any) -> np.ndarray:
    import h5py

    if h5py.check_string_dtype(stored.dtype) is not None and stored.dtype.kind == "O":
        return np.asarray(stored.asstr()[()], dtype=object)
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
