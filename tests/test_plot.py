import importlib.util

import numpy as np
import pytest

from evaluator import plot as plot_module
from evaluator.errors import InputError
from evaluator.layout import choose
from evaluator.plot import front, plot
from tests.sweeps import HARDWARE, PARALLEL, POLICY, RATE, axis, sweep

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
MANY = axis("deployment.hardware", *(f"chip-{n:02d}" for n in range(25)))
MODEL = axis("deployment.model", "llama-3.1-70b", "llama-3.1-8b")
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
def test_nothing_feasible_and_everything_saturated(tmp_path):
    plot(sweep(HARDWARE, RATE, room=False), tmp_path / "a.png")
    ds = sweep(HARDWARE, RATE)
    ds["saturated"][:] = True
    plot(ds, tmp_path / "b.png")
    plot(sweep(HARDWARE, POLICY).assign(saturated=("config", np.ones(6, dtype=bool))), tmp_path / "c.png")


@needs_matplotlib
def test_latencies_that_no_request_has(tmp_path):
    ds = sweep(HARDWARE, POLICY)
    for name in ("tpot_s", "tok_per_s_per_user"):
        ds[name][:] = np.nan
    plot(ds, tmp_path / "a.png")


@needs_matplotlib
def test_a_large_sweep(tmp_path):
    ds = sweep(MANY, axis("deployment.batching.max_num_seqs", *range(100, 350)), POLICY, RATE)
    assert ds.sizes["config"] == 100_000
    plot(ds, tmp_path / "a.png")


def test_axes_are_given_the_part_that_suits_them():
    layout = chosen(HARDWARE, PARALLEL, POLICY, RATE)
    assert (layout.x, layout.colour, layout.style, layout.facet) == (
        "rate_rps",
        "hardware",
        "policy",
        "tensor_parallel",
    )
    assert layout.notes == ()


def test_without_a_load_the_finest_scale_is_x():
    seqs = axis("deployment.batching.max_num_seqs", 16, 32, 64, 128)
    assert chosen(HARDWARE, seqs, PARALLEL).x == "max_num_seqs"
    assert chosen(HARDWARE, PARALLEL).x is None


def test_what_cannot_be_shown_is_held_at_the_best_design_and_said():
    layout = chosen(*SWEEPS["five axes"])
    assert layout.notes == ("tensor parallel 2 as in the best design", "replicas 1 as in the best design")
    ds = sweep(*SWEEPS["five axes"])
    assert set(ds["tensor_parallel"].values[layout.rows]) == {2}


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
    monkeypatch.setattr(plot_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pictures need matplotlib; install it with: pip install matplotlib"):
        plot(sweep(), tmp_path / "a.png")
