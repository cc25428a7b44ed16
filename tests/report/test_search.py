"""Ranking, table and picture of a search, on datasets that are small enough to follow by hand."""

from __future__ import annotations

import json

import matplotlib
import numpy as np
import pytest
import xarray as xr

from evaluator.errors import InputError
from evaluator.report import plot_search, search_table
from evaluator.report.page.rows import ranked
from evaluator.report.picture.search import _layout as layout_of
from evaluator.report.picture.search import figure_of
from evaluator.report.picture.style import SETTINGS
from evaluator.report.search import ranking, serves
from evaluator.results.dataset import to_dataset
from evaluator.scenario import Axis

HARDWARE = ("h100-sxm", "l40s", "b200-sxm", "a100-sxm", "tpu-v5e")
LEVELS = np.array([0.5, 0.9])


def dataset(rate_rps: float | None = None, **changes) -> xr.Dataset:
    """Five designs: three serve something, one meets its objectives at no rate, one is over the budget."""
    ones = np.ones(5)
    quantiles = np.full((5, 2), 0.02)
    goodput = np.array([10.0, 4.0, 20.0, 0.0, np.nan])
    values = {
        "status": np.array(["ok"] * 4 + ["over budget: 16 devices, and the budget is 8"]),
        "search_status": np.array(
            [
                "bracketed",
                "bracketed",
                "bracketed",
                "no rate meets the objectives: at 0.1 requests/s ttft p90 is 2 s",
                "",
            ]
        ),
        "goodput_limit": np.array(["ttft p90", "tpot p90", "saturation", "", ""]),
        "goodput_rps": goodput,
        "goodput_high_rps": 1.02 * goodput,
        "goodput_rps_stderr": 0.01 * goodput,
        "goodput_rps_per_gpu": goodput / 8,
        "goodput_per_usd": 3600 * goodput / np.array([26.8, 10.7, 54.7, 17.3, np.nan]),
        "tok_per_joule": np.array([0.5, 0.8, 0.4, 0.1, np.nan]),
        "usd_per_hour": np.array([26.8, 10.7, 54.7, 17.3, np.nan]),
        "devices": np.array([8.0, 8.0, 8.0, 8.0, 16.0]),
        "tok_per_s_per_user": np.array([40.0, 30.0, 60.0, 20.0, np.nan]),
        "tok_per_s_per_gpu": 100 * ones,
        "utilisation": 0.9 * ones,
        "saturated": np.zeros(5, dtype=bool),
        "slo_met": np.array([True, True, True, False, False]),
        "slo_attainment": 0.95 * ones,
        "ttft_s": quantiles,
        "tpot_s": quantiles,
        "provenance": np.full(5, "calibrated"),
        "pool_layout": np.array(["8 x tp1", "4 x tp2", "8 x tp1", "8 x tp1", "16 x tp1"]),
        **changes,
    }
    if rate_rps is not None:
        values = {name: value for name, value in values.items() if not name.startswith("goodput")}
        values["search_status"] = np.array(["met", "met", "met", "missed with 8 replicas: ttft p90 is 9 s", ""])
    axis = Axis("deployment.hardware", HARDWARE, tuple({"deployment.hardware": name} for name in HARDWARE))
    question = {"rate_rps": rate_rps, "bracket": 0.02, "devices": 8, "usd_per_hour": None, "fill": False}
    attrs = {"title": "five", "search": json.dumps(question), "seeds": "0", "calibration": "datasheet"}
    return to_dataset(values, LEVELS, (axis,), attrs)


@pytest.mark.parametrize(
    ("by", "order"), [("goodput", [2, 0, 1]), ("gpu", [2, 0, 1]), ("usd", [1, 0, 2]), ("joule", [1, 0, 2])]
)
def test_the_best_come_first(by, order):
    ds = dataset()
    assert serves(ds).tolist() == [True, True, True, False, False]
    assert ranking(ds, by)[0].tolist() == order


def test_a_result_is_ranked_as_its_search_ranked_it_where_that_can_be():
    ranked_by = dataset().assign_attrs(ranked_by="usd")
    assert ranking(ranked_by)[1] == "requests per dollar" and ranking(ranked_by)[0].tolist() == [1, 0, 2]
    assert search_table(ranked_by).splitlines()[0].endswith("by requests per dollar")
    assert ranked(ranked_by)[0].tolist()[:3] == [1, 0, 2]  # of a page and of pandas
    unpriced = dataset(goodput_per_usd=np.full(5, np.nan)).assign_attrs(ranked_by="usd")
    assert ranking(unpriced)[1] == "goodput" and ranking(dataset().assign_attrs(ranked_by="new"))[1] == "goodput"


@pytest.mark.parametrize(("by", "best"), [("goodput", [0, 2]), ("usd", [0, 1])])
def test_of_too_many_levels_the_picture_has_the_best_by_the_rule_of_the_search(by, best, monkeypatch):
    monkeypatch.setattr("evaluator.report.picture.layout.MOST_COLOURS", 2)
    ds = dataset().assign_attrs(ranked_by=by)
    assert layout_of(ds, np.flatnonzero(serves(ds))).rows.tolist() == best


def test_designs_for_a_rate_are_ranked_by_what_they_take():
    ds = dataset(rate_rps=5.0)
    order, rule = ranking(ds)
    assert order.tolist() == [1, 0, 2] and rule == "lowest price per hour"
    unpriced = dataset(rate_rps=5.0, usd_per_hour=np.array([26.8, np.nan, 54.7, 17.3, np.nan]))
    assert ranking(unpriced)[1] == "fewest devices"


def test_what_cannot_be_ranked():
    with pytest.raises(InputError, match="cannot be ranked by 'speed'; use goodput, gpu, usd, joule"):
        ranking(dataset(), "speed")
    with pytest.raises(InputError, match="cannot be ranked by joule: no power of their hardware is known"):
        ranking(dataset(tok_per_joule=np.full(5, np.nan)), "joule")


def test_the_table_says_what_became_of_all():
    text = search_table(dataset(), top=2, width=120)
    lines = text.splitlines()
    assert lines[0] == "Best 2 of 3 designs that meet the objectives at some rate, by goodput"
    assert lines[2].split()[:5] == ["#", "hardware", "goodput", "±", "limit"] and "per GPU" not in text
    assert lines[5].split()[:4] == ["1", "b200-sxm", "20.0", "1%"]
    assert lines[8:] == [
        "5 designs: 3 have a goodput, 1 do not meet the objectives, 1 over budget, 0 infeasible.",
        "  1 x over budget: 16 devices, and the budget is 8",
        "  1 x e.g. no rate meets the objectives: at 0.1 requests/s ttft p90 is 2 s",
    ]
    assert max(map(len, search_table(dataset(), width=80).splitlines())) <= 100


def test_a_goodput_without_a_bound_is_a_least_one():
    lines = search_table(dataset(goodput_high_rps=np.array([10.2, np.inf, 20.4, 0.1, np.nan])), width=120).splitlines()
    assert [line.split()[2] for line in lines[5:8]] == ["20.0", "10.0", "≥4.0"]


def test_the_table_without_a_design_that_serves():
    none = dataset(goodput_rps=np.zeros(5))
    assert search_table(none).splitlines()[0].startswith("5 designs: 0 have a goodput, 4 do not meet")


def test_the_picture_has_a_panel_for_speed_and_one_for_price(tmp_path):
    ds = dataset()
    assert plot_search(ds, tmp_path / "s.png").stat().st_size > 10_000
    panels = figure_of(ds).axes
    assert [axes.get_xlabel() for axes in panels] == ["output tokens/s per user (1 / mean TPOT)", "price (USD/h)"]
    points = [np.concatenate([each.get_offsets() for each in axes.collections]) for axes in panels]
    assert all(len(each) == 3 for each in points)
    front = panels[1].lines[0].get_xydata()
    assert front.tolist() == [[10.7, 4.0], [26.8, 10.0], [54.7, 20.0]]
    assert len(figure_of(dataset(usd_per_hour=np.full(5, np.nan))).axes) == 1


def test_designs_of_the_front_with_the_same_name_are_named_once():
    ds = dataset().assign_coords(hardware=("config", ["b200-sxm", "l40s", "b200-sxm", "b200-sxm", "b200-sxm"]))
    front, texts = (getattr(figure_of(ds).axes[1], name) for name in ("lines", "texts"))
    assert len(front[0].get_xydata()) == 3
    assert [each.get_text() for each in texts] == ["b200-sxm", "l40s"]


def test_labels_lie_inside_the_panel_and_over_no_design():
    """A design of the front on the far right has a long name, and to the left of it are others."""
    ds = dataset(
        status=np.full(5, "ok"),
        search_status=np.full(5, "bracketed"),
        goodput_rps=np.array([20.0, 12.0, 13.0, 13.1, 3.0]),
        goodput_rps_per_gpu=np.array([20.0, 12.0, 13.0, 13.1, 3.0]) / 8,
        tok_per_s_per_user=np.array([30.0, 60.0, 50.0, 40.0, 65.0]),
        usd_per_hour=np.array([50.0, 30.0, 40.0, 52.0, 17.0]),
    )
    names = ["b200-sxm", "a device with a long name", "b200-sxm", "b200-sxm", "l40s"]
    with matplotlib.rc_context(SETTINGS):
        panels = figure_of(ds.assign_coords(hardware=("config", names))).axes
        for axes in panels:
            points = axes.transData.transform(np.concatenate([each.get_offsets() for each in axes.collections]))
            frame = axes.get_window_extent()
            for box in (label.get_window_extent() for label in axes.texts):
                assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1
                assert not any(box.contains(*point) for point in points)
    assert [len(axes.texts) for axes in panels] == [3, 3]


def test_the_legend_lies_inside_the_picture():
    names = ["like=a100-sxm,memory_bytes=141GB", "l40s", "b200-sxm", "a100-sxm", "tpu-v5e"]
    with matplotlib.rc_context(SETTINGS):
        figure = figure_of(dataset().assign_coords(hardware=("config", names)))
        figure.canvas.draw()
        (legend,) = figure.legends
        assert legend.get_window_extent().x1 <= figure.bbox.x1
        assert [label.get_text() for label in legend.get_texts()][:2] == [
            "like=a100-sxm,\nmemory_bytes=\n141GB",
            "l40s",
        ]


def test_the_picture_for_a_rate_is_over_what_it_takes(tmp_path):
    panels = figure_of(dataset(rate_rps=5.0)).axes
    assert [axes.get_xlabel() for axes in panels] == ["devices", "price (USD/h)"]


def test_the_picture_of_nothing_says_why(tmp_path):
    none = dataset(goodput_rps=np.zeros(5))
    assert plot_search(none, tmp_path / "none.png").stat().st_size > 5_000


def test_a_narrow_table_keeps_what_was_asked_for():
    """What is ranked by, then what is bounded; what nobody asked for goes first."""

    def head(width, rate_rps=None, by=None):
        lines = search_table(dataset(rate_rps), by=by, width=width).splitlines()
        return next(line for line in lines if line.startswith("#"))

    assert "per joule" in head(60, by="joule") and "per joule" not in head(60, by="gpu")
    assert "TTFT" in head(68) and "price" not in head(68)
    assert "price" in head(60, 20.0)  # all have as many devices, which is no column
