import numpy as np
import pytest
import xarray as xr

import evaluator
from evaluator import results
from evaluator.errors import InputError
from evaluator.report.accessor import ResultAccessor
from tests.results.build import HARDWARE, PARALLEL, RATE, sweep


@pytest.fixture(scope="module")
def ds():
    return sweep(HARDWARE, PARALLEL, RATE)


def test_every_dataset_has_it_and_shows_the_ranked_table(ds):
    assert isinstance(ds.evaluator, ResultAccessor)
    text = repr(ds.evaluator)
    assert text.startswith("Best 10 of") and "72 configurations" in text
    assert text.splitlines()[0] in ds.evaluator._repr_html_()


def test_the_best_are_those_of_the_table(ds):
    best = ds.evaluator.best(3)
    assert best.sizes["config"] == 3 and best.slo_met.all()
    assert (np.diff(best.usd_per_mtok) >= 0).all()
    assert best.config[0] == ds.config[int(np.nanargmin(np.where(ds.slo_met, ds.usd_per_mtok, np.nan)))]


def test_the_best_by_a_measure_knows_which_end_is_better(ds):
    fast = ds.evaluator.best(2, by="ttft_s_p90")
    assert (fast.ttft_s.sel(quantile=0.9) == np.sort(ds.ttft_s.sel(quantile=0.9))[:2]).all()
    full = ds.evaluator.best(by="tok_per_s_per_gpu")
    assert full.tok_per_s_per_gpu.item() == np.nanmax(ds.tok_per_s_per_gpu)
    least = ds.evaluator.best(by="tok_per_s_per_gpu", better="low")
    assert least.tok_per_s_per_gpu.item() == np.nanmin(ds.tok_per_s_per_gpu)


@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True])
def test_how_many_of_the_best_is_a_count(ds, count):
    with pytest.raises(InputError, match="best: expected how many designs, a whole number of at least 1, got"):
        ds.evaluator.best(count)


@pytest.mark.parametrize("name", ["speed", "status"])
def test_a_measure_that_is_none_is_not_asked_for_its_better_end(ds, name):
    for ask in (lambda: ds.evaluator.best(by=name), lambda: ds.evaluator.pareto("ttft_s_p90", name)):
        with pytest.raises(InputError, match=f"^{name}: there is no such measure of a design; allowed: "):
            ask()


def test_no_design_beats_one_of_the_front(ds):
    found = ds.evaluator.pareto("ttft_s_p90", "usd_per_mtok")
    calm = ds.isel(config=np.flatnonzero(~ds.saturated & (ds.status == "ok")))
    for design in range(found.sizes["config"]):
        one = found.isel(config=design)
        faster = calm.ttft_s.sel(quantile=0.9) < one.ttft_s.sel(quantile=0.9)
        assert not (faster & (calm.usd_per_mtok < one.usd_per_mtok)).any()
    assert (np.diff(found.ttft_s.sel(quantile=0.9)) > 0).all() and (np.diff(found.usd_per_mtok) < 0).all()


def test_saturated_designs_are_on_the_front_only_if_asked_for(ds):
    assert not ds.evaluator.pareto().saturated.any()
    assert ds.evaluator.pareto(saturated=True).saturated.any()


def test_the_table_has_a_row_for_each_design_and_a_column_for_each_quantile(ds):
    table = ds.evaluator.table()
    assert len(table) == ds.sizes["config"] and table.index.name == "config"
    assert list(table.columns[:3]) == ["hardware", "tensor_parallel", "rate_rps"]
    assert {"ttft_s_p50", "ttft_s_p99", "ttft_s_mean", "status"} <= set(table.columns)
    assert table.ttft_s_p90.to_numpy() == pytest.approx(
        ds.ttft_s.sel(quantile=0.9).values[table.index.to_numpy()], nan_ok=True
    )
    assert list(ds.evaluator.table(["slo_met"]).columns[3:]) == ["slo_met"]


def test_one_measure_of_a_table_is_a_name(ds):
    listed, named = ds.evaluator.table(["ttft_s_p90"]), ds.evaluator.table("ttft_s_p90")
    assert named.equals(listed)


@pytest.mark.parametrize("change", [lambda ds: ds.evaluator.unstack(), lambda ds: ds.isel(config=0)])
def test_without_the_dimension_of_designs_the_message_says_where_it_is(ds, change):
    with pytest.raises(InputError, match=r"no dimension config; take the dataset of before unstack\(\), a"):
        change(ds).evaluator.best()


def test_what_is_not_there_is_refused_with_what_is(ds):
    with pytest.raises(InputError, match="ttft_s_p91: not among the reported quantiles, which are p50, p90, p95, p99"):
        ds.evaluator.best(by="ttft_s_p91")
    with pytest.raises(InputError, match=r"latency: there is no such measure of a design; allowed: .*ttft_s_p90"):
        ds.evaluator.table(["latency"])
    with pytest.raises(InputError, match="slo_met: say whether low or high values are better"):
        ds.evaluator.best(by="slo_met")
    with pytest.raises(InputError, match="the dataset: not a result of evaluator sweep or optimize"):
        xr.Dataset({"x": 1}).evaluator.best()


def test_a_file_comes_back_with_it(ds, tmp_path):
    results.write(ds, tmp_path / "a.nc")
    assert evaluator.read(tmp_path / "a.nc").evaluator.best().sizes["config"] == 1
    assert evaluator.read(tmp_path / "a.nc").evaluator.unstack().ttft_s.dims == (
        "hardware", "tensor_parallel", "rate_rps", "quantile",
    )  # fmt: skip
