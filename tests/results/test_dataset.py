import hashlib
import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from evaluator.errors import InputError
from evaluator.metrics import measure, quantile_levels
from evaluator.metrics.variables import VARIABLES, coordinate_units
from evaluator.results import dataset
from evaluator.results.coordinates import axis_coordinates
from evaluator.results.dataset import (
    attributes,
    combine,
    fingerprint_of,
    objectives_of,
    read,
    read_chunks,
    requests_table,
    to_dataset,
    unstack,
    write,
    write_chunk,
    write_requests,
)
from tests.metrics.build import outcomes
from tests.results.build import HARDWARE, OBJECTIVES, PARALLEL, RATE, Axis, axis, sweep

BATCHING = Axis(
    "deployment.batching",
    ("policy=chunked,max_num_batched_tokens=512", "policy=continuous,max_num_batched_tokens=none"),
    (
        {"deployment.batching.policy": "chunked", "deployment.batching.max_num_batched_tokens": 512},
        {"deployment.batching.policy": "continuous", "deployment.batching.max_num_batched_tokens": None},
    ),
)


def measured(axes=(), **changes):
    count = int(np.prod([len(a.values) for a in axes])) if axes else 1
    metrics = measure(outcomes(configs=count, requests=60, warmup=10, **changes), quantile_levels(()))
    return to_dataset(metrics, quantile_levels(()), axes, attributes("t", "name: t\n", (0, 1), "datasheet"))


# ---- coordinates


def test_coordinates_have_short_names_units_and_types():
    ds = sweep(HARDWARE, PARALLEL, RATE)
    assert list(ds["hardware"].values[:2]) == ["h100-sxm", "h100-sxm"]
    assert ds["tensor_parallel"].dtype == np.int64
    assert ds["rate_rps"].dtype == np.float64
    assert ds["rate_rps"].attrs["units"] == "1/s"
    assert ds["rate_rps"].attrs["description"] == "swept: workload.arrivals.rate_rps"


def test_a_zip_has_a_label_and_every_quantity():
    (columns,) = axis_coordinates([BATCHING])
    assert list(columns) == ["batching", "policy", "max_num_batched_tokens"]
    np.testing.assert_array_equal(columns["max_num_batched_tokens"][1], [512.0, np.nan])
    assert columns["batching"][1][0] == "policy=chunked,max_num_batched_tokens=512"


def test_defaults_that_follow_from_an_axis_are_no_quantities_of_it():
    changes = ({"workload.requests": 100}, {"workload.requests": 1000, "workload.warmup_requests": 100})
    (columns,) = axis_coordinates([Axis("workload.requests", (100, 1000), changes)])
    assert list(columns) == ["requests"]


def test_names_that_clash_are_made_longer():
    axes = [
        axis("slo.ttft.p90", 1.0, 2.0),
        axis("slo.tpot.p99.9", 0.1, 0.2),
        axis("deployment.precision.kv", "fp8", "bf16"),
        axis("deployment.other.kv", "a", "b"),
        axis("workload.devices", 1, 2),
    ]
    names = [next(iter(columns)) for columns in axis_coordinates(axes)]
    assert names == ["ttft_p90", "tpot_p99.9", "precision_kv", "other_kv", "workload_devices"]


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("slo.ttft.p90", ("500ms", 2.0), [0.5, 2.0]),
        ("deployment.kv.memory_fraction", (0.5, None), [0.5, np.nan]),
        ("deployment.calibration", ("auto", None, True), ["auto", "none", "true"]),
        ("deployment.flag", (True, False), [True, False]),
        ("workload.requests", (10, 20), [10, 20]),
        ("workload.arrivals.rate_rps", ("auto", 2.0), ["auto", "2.0"]),
    ],
)
def test_values_are_numbers_where_all_of_them_are(path, values, expected):
    ((_, column),) = axis_coordinates([axis(path, *values)])[0].values()
    np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize(
    ("path", "unit"), [("a.rate_rps", "1/s"), ("slo.ttft.p90", "s"), ("a.block_tokens", "token"), ("a.hardware", "1")]
)
def test_units_of_coordinates(path, unit):
    assert coordinate_units(path) == unit


# ---- dataset


def test_every_variable_and_coordinate_says_what_it_is():
    ds = measured((HARDWARE, PARALLEL))
    for name in (*ds.data_vars, *ds.coords):
        for key in ("units", "long_name", "description"):
            assert ds[name].attrs[key], f"{name} has no {key}"
    assert ds["ttft_s"].dims == ("config", "quantile")
    assert ds["ttft_s"].attrs["units"] == "s"


def test_the_table_of_variables_is_whole():
    for name, variable in VARIABLES.items():
        assert variable.units and variable.long_name and variable.description, name
        if name.endswith(("ttft_s", "wait_s", "tpot_s", "e2e_s", "itl_s")):
            assert variable.units == "s"


def test_attributes_are_text():
    ds = measured()
    assert all(isinstance(value, str) for value in ds.attrs.values())
    assert ds.attrs["scenario_sha256"] == hashlib.sha256(b"name: t\n").hexdigest()
    assert ds.attrs["seeds"] == "0, 1"
    assert json.loads(attributes("t", "", [0], "c", OBJECTIVES)["objectives"])[0]["bound_s"] == 1.5
    assert objectives_of(sweep(RATE))[1] == {"metric": "tpot", "statistic": "p90", "bound_s": 0.07}


def test_an_unknown_variable_is_a_mistake():
    with pytest.raises(KeyError, match="speed"):
        to_dataset({"speed": np.ones(2)}, np.array([0.5]))


def test_unstack_gives_one_dimension_per_axis():
    axes = (HARDWARE, BATCHING, RATE)
    ds = measured(axes)
    grid = unstack(ds)
    assert dict(grid.sizes) == {"hardware": 3, "batching": 2, "rate_rps": 8, "quantile": 4}
    assert grid["policy"].dims == ("batching",)
    row = ds.isel(config=1 * 16 + 1 * 8 + 5)
    cell = grid.sel(hardware="l40s", rate_rps=6.0).isel(batching=1)
    np.testing.assert_array_equal(cell["ttft_s"], row["ttft_s"])
    assert str(cell["policy"].values) == str(row["policy"].values) == "continuous"
    assert grid["ttft_s"].attrs == ds["ttft_s"].attrs


def test_unstack_of_one_configuration_has_no_config():
    assert unstack(measured())["throughput_rps"].dims == ()


def test_unstack_needs_every_row():
    with pytest.raises(InputError, match=r"unstack needs the full grid \{'hardware': 3\}, got 2 rows of it"):
        unstack(measured((HARDWARE,)).isel(config=[0, 2]))


# ---- files


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
    monkeypatch.setattr(dataset, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Zarr needs the package zarr \(pip install zarr\); or write .*a\.nc"):
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

    modules = "evaluator.results.dataset, evaluator.metrics, evaluator.report.table, evaluator.report.plot"
    code = f"import sys, {modules}; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---- chunks


def chunk(*rows):
    values = np.array(rows, dtype=np.int64)
    return {"config": values, "ttft_s": np.outer(values, [1.0, 2.0]), "status": np.array([f"row {r}" for r in rows])}


def test_chunks_come_back_in_the_order_of_the_grid(tmp_path):
    mark = fingerprint_of("scenario")
    write_chunk(tmp_path / "c", 1, chunk(0, 3), mark)
    write_chunk(tmp_path / "c", 0, chunk(2, 1), mark)
    chunks = read_chunks(tmp_path / "c", mark)
    assert sorted(chunks) == [0, 1]
    whole = combine(chunks.values())
    np.testing.assert_array_equal(whole["config"], [0, 1, 2, 3])
    np.testing.assert_array_equal(whole["ttft_s"][:, 1], [0.0, 2.0, 4.0, 6.0])
    assert whole["status"][3] == "row 3"


def test_half_written_chunks_are_passed_over(tmp_path):
    mark = fingerprint_of("scenario")
    path = write_chunk(tmp_path, 0, chunk(0), mark)
    (tmp_path / "chunk-000001.npz").write_bytes(path.read_bytes()[:200])
    (tmp_path / "chunk-000002.npz").write_bytes(b"")
    (tmp_path / ".chunk-000003.npz.77.part").write_bytes(path.read_bytes())
    assert list(read_chunks(tmp_path, mark)) == [0]


def test_chunks_of_another_scenario_are_refused(tmp_path):
    write_chunk(tmp_path, 0, chunk(0), fingerprint_of("one"))
    with pytest.raises(InputError, match=r"holds chunks of another scenario or version \(chunk-000000\.npz\); remove"):
        read_chunks(tmp_path, fingerprint_of("two"))


def test_there_may_be_no_chunks(tmp_path):
    assert read_chunks(tmp_path / "absent", "x") == {}


def test_a_variable_that_a_chunk_lacks_is_nan():
    other = chunk(1) | {"itl_s": np.ones((1, 2))}
    whole = combine([chunk(0), other])
    np.testing.assert_array_equal(whole["itl_s"], [[np.nan, np.nan], [1.0, 1.0]])


# ---- per request


def test_one_row_per_request(tmp_path):
    o = outcomes(configs=2, seeds=2, requests=30, warmup=5)
    o = replace(
        o, replica=np.arange(30)[None] % 3 * np.ones((2, 1), dtype=int), status=np.array(["ok", "infeasible: x"])
    )
    table = requests_table(o, configs=[7, 8], seeds=[10, 11])
    assert len(table) == 60
    assert set(table["config"]) == {7}
    assert list(table.columns) == [
        *("config", "seed", "request", "replica", "arrival_s", "scheduled_s", "first_token_s", "last_token_s"),
        *("queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens", "cached_tokens", "measured"),
    ]
    row = table.iloc[41]
    assert (row["seed"], row["request"], row["replica"]) == (11, 11, 2)
    assert row["ttft_s"] == pytest.approx(o.first_token_s[0, 1, 11] - o.arrival_s[0, 1, 11])
    for name in ("a.csv", "a.parquet"):
        path = write_requests(table, tmp_path / name)
        back = pd.read_csv(path) if name.endswith("csv") else pd.read_parquet(path)
        pd.testing.assert_frame_equal(back, table)


def test_other_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of table '\.xlsx'; use \.csv or \.parquet"):
        write_requests(pd.DataFrame(), tmp_path / "a.xlsx")
