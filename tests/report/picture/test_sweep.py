import importlib.util

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.report import plot
from evaluator.report.picture import canvas, curves
from evaluator.report.picture.layout import choose, with_steps_joined
from evaluator.report.picture.measures import log_limits
from evaluator.report.picture.sweep import figure_of
from evaluator.report.ranking import front
from tests.results.build import HARDWARE, PARALLEL, POLICY, RATE, Axis, axis, sweep

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
MANY = axis("deployment.hardware", *(f"chip-{n:02d}" for n in range(25)))
MODEL = axis("deployment.model", "llama-3.1-70b", "llama-3.1-8b")
SPLITS = ("deployment.tensor_parallel", "deployment.prefill_context_parallel")
REPLICAS = axis("deployment.replicas", 1, 2)

SWEEPS = {
    "one configuration": (),
    "curves": (HARDWARE, RATE),
    "facets": (HARDWARE, PARALLEL, POLICY, RATE),
    "five axes": (HARDWARE, PARALLEL, POLICY, MODEL, REPLICAS, RATE),
    "many names": (MANY, RATE),
    "names only": (HARDWARE, MODEL, POLICY),
    "one point on x": (HARDWARE, axis("workload.arrivals.rate_rps", 2.0)),
}


def chosen(*axes, **options):
    ds = sweep(*axes, **options)
    return choose(ds, np.flatnonzero(ds["status"].values == "ok"))


def texts(figure):
    """Headings and footnotes, each on one line."""
    return [" ".join(text.get_text().split()) for text in figure.texts]


@needs_matplotlib
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("objectives", [True, False])
def test_every_kind_of_sweep_gives_a_picture(tmp_path, name, objectives):
    ds = sweep(*SWEEPS[name]) if objectives else sweep(*SWEEPS[name], objectives=())
    path = plot(ds, tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


@needs_matplotlib
@pytest.mark.parametrize("suffix", [".pdf", ".svg"])
def test_vector_pictures(tmp_path, suffix):
    assert plot(sweep(HARDWARE, RATE), tmp_path / f"a{suffix}").stat().st_size > 1000


@needs_matplotlib
def test_where_nothing_can_run_the_picture_says_why(tmp_path):
    ds = sweep(HARDWARE, RATE, room=False)
    figure = figure_of(ds)
    told = " ".join(texts(figure))
    assert not figure.axes and "None of the 24 configurations can run" in told
    assert "24 x weights of 35.0 GB per device do not fit in 43.2 GB" in told
    assert plot(ds, tmp_path / "a.png").stat().st_size > 10_000


@needs_matplotlib
def test_where_everything_is_saturated_all_marks_are_hollow_and_the_limits_hold_them(tmp_path):
    ds = sweep(HARDWARE, RATE)
    ds["saturated"][:] = True
    figure = figure_of(ds)
    assert any("Hollow: saturated (the queue grows without bound)" in told for told in texts(figure))
    for axes in figure.axes:
        faint = [line for line in axes.lines if line.get_alpha() is not None]
        full = [line for line in axes.lines if line.get_alpha() is None and len(line.get_xdata()) == 8]
        assert len(faint) == len(full) == 3
        assert all(np.isfinite(line.get_ydata()).all() and line.get_markerfacecolor() == "white" for line in faint)
        assert all(np.isnan(line.get_ydata()).all() for line in full)
        assert axes.get_ylim()[0] < min(line.get_ydata().min() for line in faint)
    assert plot(ds, tmp_path / "a.png").stat().st_size > 10_000


@needs_matplotlib
def test_where_everything_is_saturated_there_is_no_front(tmp_path):
    ds = sweep(HARDWARE, POLICY).assign(saturated=("config", np.ones(6, dtype=bool)))
    (axes,) = figure_of(ds).axes
    assert not axes.lines and not axes.texts
    drawn = [spots for spots in axes.collections if len(spots.get_offsets())]
    assert sum(len(spots.get_offsets()) for spots in drawn) == 6
    assert not any(spots.get_facecolor().size for spots in drawn)
    assert plot(ds, tmp_path / "a.png").stat().st_size > 10_000


@needs_matplotlib
def test_latencies_that_no_request_has_are_left_out(tmp_path):
    """Requests of one token have no time per token: no speed for the user to draw, and over a load no panel of it."""
    ds = sweep(HARDWARE, POLICY)
    for name in ("tpot_s", "tok_per_s_per_user"):
        ds[name][:] = np.nan
    (axes,) = figure_of(ds).axes
    assert sum(len(spots.get_offsets()) for spots in axes.collections) == 0 and not axes.lines
    assert plot(ds, tmp_path / "a.png").stat().st_size > 10_000
    ds = sweep(HARDWARE, RATE)
    ds["tpot_s"][:] = np.nan
    labels = [axes.get_ylabel() for axes in figure_of(ds).axes]
    assert labels == ["TTFT p90 (s)", "requests within SLO (%)"]
    one = sweep()
    one["tpot_s"][:] = np.nan
    assert [axes.get_title(loc="left") for axes in figure_of(one).axes] == ["TTFT (s)", "end to end (s)"]


@needs_matplotlib
def test_sessions_without_objectives_are_drawn_by_how_long_they_take():
    ds = sweep(HARDWARE, RATE, objectives=())
    assert [axes.get_ylabel() for axes in figure_of(ds).axes][-1] == "output tokens/s per GPU"
    ds = ds.assign(session_s_mean=("config", 10.0 + np.arange(24.0)))
    assert [axes.get_ylabel() for axes in figure_of(ds).axes][-1] == "session, mean (s)"


@needs_matplotlib
def test_a_large_sweep_is_drawn_of_its_best_designs(tmp_path):
    ds = sweep(MANY, axis("deployment.batching.max_num_seqs", *range(100, 350)), POLICY, RATE)
    assert ds.sizes["config"] == 100_000
    figure = figure_of(ds)
    assert all(len(axes.lines) <= 2 * 8 * 2 + 1 for axes in figure.axes)  # twice 8 colours of 2 styles, the objective
    assert any("the best 8 of 25 values of hardware" in told for told in texts(figure))
    assert plot(ds, tmp_path / "a.png").stat().st_size > 10_000


def test_axes_are_given_the_part_that_suits_them():
    layout = chosen(HARDWARE, PARALLEL, POLICY, RATE)
    assert (layout.x, layout.colour, layout.style, layout.facet) == (
        "rate_rps",
        "hardware",
        "policy",
        "tensor_parallel",
    )
    assert layout.notes == ()


def test_an_axis_that_sets_several_keys_a_step_is_one_colour_in_the_words_of_the_page():
    steps = (
        {"deployment.replicas": 2, "deployment.tensor_parallel": 2},
        {"deployment.tensor_parallel": 4, "deployment.prefill_context_parallel": 2},
    )
    ds = sweep(Axis("layout", ("two", "split"), steps, ("deployment.replicas", *SPLITS)), RATE)
    joined = with_steps_joined(ds)
    assert list(dict.fromkeys(joined["layout"].values)) == ["tp2, replicas 2", "tp4 pcp2"]
    layout = choose(joined, np.arange(ds.sizes["config"]))
    assert (layout.x, layout.colour, layout.style, layout.notes) == ("rate_rps", "layout", None, ())
    # Where the steps hold the load itself it stays the scale of x.
    loads = tuple({"workload.arrivals.rate_rps": float(n), "deployment.replicas": n} for n in (1, 2))
    with_load = sweep(Axis("load", ("a=1", "b=2"), loads, tuple(loads[0])))
    assert with_steps_joined(with_load) is with_load


@needs_matplotlib
def test_long_notes_make_the_sheet_taller_and_stay_below_the_axes(monkeypatch):
    plain = figure_of(sweep(HARDWARE, RATE))
    monkeypatch.setattr(curves, "footnotes", lambda ds, layout: ["what is told of designs " * 12] * 5)
    long = figure_of(sweep(HARDWARE, RATE))
    heights = [figure.get_size_inches()[1] for figure in (plain, long)]
    panels = [figure.axes[0].get_position() for figure in (plain, long)]
    assert heights[1] > heights[0] + 0.5
    assert panels[1].height * heights[1] == pytest.approx(panels[0].height * heights[0])
    long.canvas.draw()
    notes = max(long.texts, key=lambda text: len(text.get_text())).get_window_extent()
    label = long.axes[0].xaxis.label.get_window_extent()
    assert notes.y1 < label.y0


@needs_matplotlib
def test_long_legends_make_the_sheet_taller_and_stay_above_the_notes():
    figures = []
    for count in (2, 40):
        figure = figure_of(sweep(HARDWARE, RATE))
        figure.legends.clear()
        levels = [f"level {number}" for number in range(count)]
        canvas.legend(figure, [("hardware", levels, [curves.lines(1)[0]] * count)], 0.8)
        figure.canvas.draw()
        figures.append(figure)
    heights = [figure.get_size_inches()[1] for figure in figures]
    panels = [figure.axes[0].get_position() for figure in figures]
    assert heights[1] > heights[0] + 2
    assert panels[1].height * heights[1] == pytest.approx(panels[0].height * heights[0])
    head, _, notes = (label.get_window_extent() for label in figures[1].texts)
    assert (heights[1] - head.y0 / figures[1].dpi) == pytest.approx(
        heights[0] - figures[0].texts[0].get_window_extent().y0 / figures[0].dpi
    )
    assert figures[1].legends[0].get_window_extent().y0 > notes.y1


def test_without_a_load_the_finest_scale_is_x():
    seqs = axis("deployment.batching.max_num_seqs", 16, 32, 64, 128)
    assert chosen(HARDWARE, seqs, PARALLEL).x == "max_num_seqs"
    assert chosen(HARDWARE, PARALLEL).x is None


def test_what_cannot_be_shown_is_held_at_the_best_design_and_said():
    layout = chosen(*SWEEPS["five axes"])
    assert layout.notes == ("tensor parallel 2 as in the best design", "replicas 1 as in the best design")
    ds = sweep(*SWEEPS["five axes"])
    assert set(ds["tensor_parallel"].values[layout.rows]) == {2}


def test_without_a_curve_a_third_axis_is_a_size_and_a_fourth_is_named():
    layout = chosen(HARDWARE, PARALLEL, POLICY)
    assert (layout.x, layout.colour, layout.style, layout.facet) == (None, "hardware", "policy", "tensor_parallel")
    assert layout.notes == ()
    assert chosen(HARDWARE, PARALLEL, POLICY, REPLICAS, MODEL).notes == (
        "all values of tensor parallel, replicas, with no mark of their own",
    )


@needs_matplotlib
def test_the_marks_of_three_axes_are_told_apart():
    figure = figure_of(sweep(HARDWARE, PARALLEL, POLICY))
    assert [legend.get_title().get_text() for legend in figure.legends] == ["hardware", "policy", "tensor parallel"]
    areas = {float(size) for spots in figure.axes[0].collections for size in spots.get_sizes()}
    assert len(areas) == 3
    heights = sorted(label.xy[1] for label in figure.axes[0].texts)
    assert heights and (np.diff(heights) > 0.05 * figure.axes[0].get_ylim()[1]).all()


@needs_matplotlib
def test_hopeless_designs_do_not_set_the_scale():
    ds = sweep(HARDWARE, PARALLEL, POLICY, RATE)
    ds["tpot_s"][::7] *= 50
    figure = figure_of(ds)
    tpot = next(axes for axes in figure.axes if axes.get_ylabel().startswith("TPOT"))
    assert tpot.get_yscale() == "log" and tpot.get_ylim()[1] == pytest.approx(5 * 70.0)
    assert any("Latencies beyond 5 times the SLO are cut off" in text.get_text() for text in figure.texts)


@needs_matplotlib
@pytest.mark.parametrize("axes", [(HARDWARE, RATE), (HARDWARE, PARALLEL, POLICY, RATE)])
def test_objectives_are_labelled_with_their_unit_outside_the_curves(axes):
    figure = figure_of(sweep(*axes))
    figure.canvas.draw()
    labels = [(axes, text) for axes in figure.axes for text in axes.texts]
    assert [text.get_text() for _, text in labels] == ["SLO 1.5 s", "SLO 70 ms"]
    boxes = [text.get_window_extent() for _, text in labels]
    for box in boxes:
        for other in [*figure.axes, *figure.legends]:
            assert not box.overlaps(other.get_window_extent())


def test_limits_hold_the_objective_and_at_least_one_point():
    assert log_limits(np.array([1.0, 100.0]), None) == pytest.approx((0.7, 400.0))
    assert log_limits(np.array([1.0, 100.0]), 10.0) == pytest.approx((0.7, 50.0))
    assert log_limits(np.array([0.1, 0.2]), 10.0) == pytest.approx((0.07, 40.0))
    assert log_limits(np.array([80.0, 100.0]), 10.0) == pytest.approx((7.0, 160.0))


def test_more_names_than_colours_keeps_the_best():
    layout = chosen(MANY, RATE)
    assert layout.notes == ("the best 8 of 25 values of hardware",)
    assert layout.rows.size == 8 * 8


def test_the_front_is_what_no_other_beats():
    user = np.array([1.0, 2.0, 3.0, 2.0, 0.5])
    gpu = np.array([9.0, 8.0, 1.0, 5.0, 9.0])
    assert list(front(user, gpu)) == [2, 1, 0]


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of picture '\.gif'; use \.png, \.pdf, \.svg"):
        plot(sweep(), tmp_path / "a.gif")


def test_matplotlib_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(canvas, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pictures need matplotlib; install it with: pip install matplotlib"):
        plot(sweep(), tmp_path / "a.png")
