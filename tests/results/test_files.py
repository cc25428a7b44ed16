import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from evaluator.errors import InputError
from evaluator.results import files, netcdf, read, unstack, write
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


def _by_xarray(path, monkeypatch):
    """The file as it is read where ``read_own`` cannot."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "read_own", lambda path: 1 / 0)
        return read(path)


def test_a_file_of_ours_is_read_as_xarray_reads_it(tmp_path, monkeypatch):
    ds = measured((HARDWARE, BATCHING, axis("deployment.flag", True, False), RATE))
    ds["counts"] = xr.Variable("config", np.arange(ds.sizes["config"]), {"limits": np.array([1.5, 2.5]), "level": 3})
    ds["größe"] = xr.Variable((), "ein Wort", {"units": ""})
    path = write(ds, tmp_path / "a.nc")
    own, by_xarray = netcdf.read_own(path), _by_xarray(path, monkeypatch)
    assert own.encoding["source"] == str(path)
    monkeypatch.setattr(xr, "open_dataset", None)  # not asked
    found = read(path)
    xr.testing.assert_identical(found, by_xarray)
    assert [*found.data_vars] == [*by_xarray.data_vars] and [*found.coords] == [*by_xarray.coords]
    for name, variable in by_xarray.variables.items():
        assert found[name].dtype == variable.dtype, name
        assert [*found[name].attrs] == [*variable.attrs], name
        assert list(map(type, found[name].attrs.values())) == list(map(type, variable.attrs.values())), name


def test_a_file_is_written_as_xarray_writes_it(tmp_path):
    """Also where equal texts are different objects, where texts are of a fixed width, and for other numbers."""
    ds = measured((HARDWARE, BATCHING, axis("deployment.flag", True, False), RATE))
    rows = ds.sizes["config"]
    ds["counts"] = xr.Variable("config", np.arange(rows, dtype=np.int16), {"limits": np.array([1.5, 2.5]), "level": 3})
    ds["half"] = xr.Variable(("config", "quantile"), np.ones((rows, ds.sizes["quantile"]), dtype=np.float32))
    ds["größe"] = xr.Variable((), "ein Wort", {"units": ""})
    ds["words"] = xr.Variable("config", np.array([f"größer {row % 3}" for row in range(rows)], dtype=object))
    assert netcdf.write_own(ds, tmp_path / "own.nc")
    ds.to_netcdf(tmp_path / "xarray.nc", engine="h5netcdf")
    own, by_xarray = (xr.load_dataset(tmp_path / name, engine="h5netcdf") for name in ("own.nc", "xarray.nc"))
    xr.testing.assert_identical(own, by_xarray)
    assert [*own.variables] == [*by_xarray.variables]
    for name, variable in by_xarray.variables.items():
        assert [*own[name].attrs] == [*variable.attrs] and own[name].dtype == variable.dtype, name
        assert own[name].encoding.keys() == variable.encoding.keys(), name


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.assign(other=("config", np.array(["2026-01-01"] * ds.sizes["config"], "M8[ns]"))),
        lambda ds: ds.assign(other=("config", np.array([None] * ds.sizes["config"], dtype=object))),
        lambda ds: ds.assign(other=(("config", "free"), np.ones((ds.sizes["config"], 3)))),
        lambda ds: ds.assign(other=("config", np.ones(ds.sizes["config"]), {"words": ["a", "b"]})),
        lambda ds: ds.assign_attrs(words=["a", "b"]),
        lambda ds: ds.isel(config=slice(0)),
    ],
    ids=["dates", "nothing", "no coordinate", "lists of a variable", "lists", "no rows"],
)
def test_what_is_of_another_form_is_left_to_xarray(tmp_path, change):
    assert not netcdf.write_own(change(measured()), tmp_path / "a.nc")
    assert not (tmp_path / "a.nc").exists()


@pytest.mark.parametrize(
    ("change", "encoding"),
    [
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]) * 1.5)), {"_FillValue": -1.0}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]) * 1.5)), {"zlib": True}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]) > 1)), {}),
        (lambda ds: ds.assign(other=("config", [b"ab"] * ds.sizes["config"])), {}),
        (lambda ds: ds.assign(other=("config", np.array(["2026-01-01"] * ds.sizes["config"], "M8[ns]"))), {}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]).astype("m8[ns]"))), {}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]), {"dtype": "of the user"})), {}),
        (lambda ds: ds.assign(other=(("config", "free"), np.ones((ds.sizes["config"], 3)))), {}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]), {"units": "days since 2026-01-01"})), {}),
        (lambda ds: ds.assign(other=("config", np.arange(ds.sizes["config"]), {"scale_factor": 2.0})), {}),
        (lambda ds: ds.assign_attrs(words=["a", "b"], nothing=np.array([])), {}),
    ],
    ids=[
        "another fill value",
        "compressed",
        "truth",
        "bytes",
        "dates",
        "timedelta",
        "dtype",
        "no coordinate",
        "days",
        "scaled",
        "lists",
    ],
)
def test_what_others_put_in_is_read_all_the_same(tmp_path, monkeypatch, change, encoding):
    ds = change(measured())
    ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding={"other": encoding} if encoding else {})
    found, by_xarray = read(tmp_path / "a.nc"), _by_xarray(tmp_path / "a.nc", monkeypatch)
    xr.testing.assert_identical(found, by_xarray)
    assert [found[name].dtype for name in by_xarray.variables] == [
        by_xarray[name].dtype for name in by_xarray.variables
    ]


def test_long_scenarios_and_odd_text_survive(tmp_path):
    ds = measured().assign_attrs(scenario="# größer\n" + "x" * 200_000)
    assert read(write(ds, tmp_path / "a.nc")).attrs["scenario"] == ds.attrs["scenario"]


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = write(measured(), tmp_path / "a.nc")
    before = path.read_bytes()

    def fail(ds, target, **_):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_own", fail)
    with pytest.raises(InputError, match=r"cannot write .*a\.nc: No space left on device"):
        write(measured(), path)
    monkeypatch.setattr(files, "write_own", lambda ds, target: False)  # what is of another form, xarray writes
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


def test_reading_and_a_page_load_no_dask(tmp_path):
    """Where it is installed, xarray loads it for each array that it looks through: as long as to read a large file."""
    pytest.importorskip("plotly")
    path = write(measured(), tmp_path / "a.nc")
    code = (
        "import sys; from evaluator.results import read; from evaluator.report.page import write_page; "
        f"write_page(read({str(path)!r}), {str(tmp_path / 'a.html')!r}); print('dask.array' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
