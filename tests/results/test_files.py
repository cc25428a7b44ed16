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


def test_a_piece_that_is_lost_is_told(tmp_path):
    path = write(measured(), tmp_path / "a.zarr")
    assert "every_piece_is_written" not in read(path).attrs
    piece = next(file for file in (path / "ttft_s" / "c").rglob("*") if file.is_file())
    piece.unlink()
    with pytest.raises(InputError, match=r"a\.zarr: not a readable result file \(1 of \d+ pieces of ttft_s are lost\)"):
        read(path)


def test_what_is_unknown_throughout_is_not_lost(tmp_path):
    ds = measured()
    ds["usd_per_mtok"] = ("config", [float("nan")] * ds.sizes["config"])
    xr.testing.assert_identical(read(write(ds, tmp_path / "a.zarr")), ds)
    ds.to_zarr(tmp_path / "by-xarray.zarr", consolidated=False)  # which leaves out what is absent
    assert read(tmp_path / "by-xarray.zarr")["usd_per_mtok"].isnull().all()


@pytest.mark.parametrize(
    ("name", "told"), [("a.nc", "is a folder; the result"), ("a.zarr", "a folder with other files")]
)
def test_a_folder_of_others_is_not_written_over(tmp_path, name, told):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.txt").touch()
    with pytest.raises(InputError, match=told):
        files.check_output(tmp_path / name)
    with pytest.raises(InputError, match=told):
        write(measured(), tmp_path / name)
    assert (tmp_path / name / "mine.txt").exists()
