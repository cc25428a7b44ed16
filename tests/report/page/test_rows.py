import numpy as np

from evaluator.report.axes import axes_shown
from evaluator.report.page.rows import ranked, sample
from tests.results.build import HARDWARE, PARALLEL, POLICY, RATE, axis, sweep


def test_the_best_come_first_and_what_cannot_run_comes_last():
    ds = sweep(HARDWARE, PARALLEL, RATE)
    order, rule = ranked(ds)
    able = ds["status"].values[order] == "ok"
    assert sorted(order) == list(range(ds.sizes["config"])) and (np.diff(able.astype(int)) <= 0).all()
    assert ds["slo_met"].values[order[0]] and "meet the SLO first" in rule


def test_a_page_of_few_designs_holds_them_all():
    order, _ = ranked(ds := sweep(HARDWARE, RATE))
    assert (sample(axes_shown(ds), order) == np.arange(order.size)).all()


def test_of_many_designs_the_best_and_the_best_of_every_cell_are_held():
    ds = sweep(HARDWARE, PARALLEL, POLICY, RATE)  # 144 designs; cells of two axes: at most 24
    order, _ = ranked(ds)
    places = sample(axes_shown(ds), order, most=100)
    assert places.size == 100 and (np.diff(places) > 0).all()
    assert set(range(20)) <= set(places.tolist())
    hardware, rate = ds["hardware"].values[order], ds["rate_rps"].values[order]
    for kind in np.unique(hardware):
        for each in np.unique(rate):
            assert np.flatnonzero((hardware == kind) & (rate == each))[0] in places


def test_curves_through_the_best_design_are_whole():
    ds = sweep(HARDWARE, PARALLEL, POLICY, RATE)
    order, _ = ranked(ds)
    places = sample(axes_shown(ds), order, most=120)
    others = [axis.at[order] for axis in axes_shown(ds) if axis.key != "rate_rps"]
    same = np.all([at == at[0] for at in others], axis=0)
    assert set(np.flatnonzero(same).tolist()) <= set(places.tolist())


def test_of_a_sample_every_tenth_of_its_numbers_is_held():
    ds = sweep(HARDWARE, axis("workload.arrivals.rate_rps", *np.linspace(1.0, 8.0, 200).tolist()))
    order, _ = ranked(ds)
    places = sample(axes_shown(ds), order, most=60)
    held = ds.isel(config=order[places])
    for kind in ("h100-sxm", "mi300x"):
        rates = held["rate_rps"].values[held["hardware"].values == kind]
        assert (np.histogram(rates, bins=10, range=(1.0, 8.0))[0] > 0).sum() >= 9


def test_never_more_than_asked_for():
    ds = sweep(HARDWARE, PARALLEL, POLICY, RATE)
    order, _ = ranked(ds)
    for most in (1, 7, 50, 143):
        assert sample(axes_shown(ds), order, most).size == most
