import sys

import pytest
import xarray as xr

from evaluator.errors import InputError
from evaluator.results import files, read, unstack, write
from tests.results.build import BATCHING, HARDWARE, RATE, axis, measured


def test_round_trip_of_all_kinds_of_coordinates(tmp_path):
    ds = measured((HARDWARE, BATCHING, axis("deployment.flag", True, False), RATE))
    path = write(ds, tmp_path / "deep" / "result.nc")
    back = read(path)
    xr.testing.assert_identical(ds, back)
    for name in ds.variables:
        assert back[name].dtype == ds[name].dtype, name
    assert back["saturated"].dtype == bool
    xr.testing.assert_identical(unstack(ds), unstack(back))
    assert [p.name for p in path.parent.iterdir()] == ["result.nc"]


def test_long_scenarios_and_odd_text_survive(tmp_path):
    ds = measured().assign_attrs(scenario="# größer\n" + "x" * 200_000)
    assert read(write(ds, tmp_path / "a.nc")).attrs["scenario"] == ds.attrs["scenario"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = write(measured(), tmp_path / "a.nc")
    before = path.read_bytes()

    def fail(self, target, **_):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)
    with pytest.raises(InputError, match=r"cannot write .*a\.nc: No space left on device"):
        write(measured(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.nc"]


def test_zarr_is_refused_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"Zarr needs the package zarr \(pip install 'evaluator\[zarr\]'\); or write .*a\.nc"
    ):
        write(measured(), tmp_path / "a.zarr")


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of result file '\.csv'; use \.nc"):
        write(measured(), tmp_path / "a.csv")


def test_reading_what_is_not_there_or_not_ours(tmp_path):
    with pytest.raises(InputError, match=r"a\.nc: no such file"):
        read(tmp_path / "a.nc")
    (tmp_path / "b.nc").write_text("not HDF5")
    with pytest.raises(InputError, match=r"b\.nc: not a readable result file"):
        read(tmp_path / "b.nc")
    write(measured().assign_attrs(schema_version="99"), tmp_path / "c.nc")
    with pytest.raises(InputError, match="written with schema 99, this version reads 1"):
        read(tmp_path / "c.nc")


def test_no_jax_is_imported():
    import subprocess

    modules = "evaluator.results, evaluator.metrics, evaluator.report"
    code = f"import sys, {modules}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
