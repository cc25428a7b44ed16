"""Pictures of scenarios that compare a few designs over the rate: batching, layouts, drafts, two pools."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"


class Panel(NamedTuple):
    """One statistic over the rate."""

    label: str
    variable: str
    quantile: float | None  # none: the variable has no quantiles
    scale: float
    ticks: tuple[float, ...]  # the first and the last are the ends of the axis
    bound: float | None = None  # the objective
    of: str | None = None  # the class of requests whose it is


POLICIES = (
    Panel("TTFT p90 (s)", "ttft_s", 0.9, 1, (0.2, 0.5, 1, 2, 5), 1.5),
    Panel("TPOT p90 (ms)", "tpot_s", 0.9, 1e3, (10, 20, 50, 100), 70),
    Panel("requests within SLO (%)", "slo_attainment", None, 100, (0, 25, 50, 75, 100), 90),
)
DISAGGREGATION = (
    Panel("TTFT p90 (s)", "ttft_s", 0.9, 1, (0.2, 0.5, 1, 2), 1),
    Panel("TPOT p90 (ms)", "tpot_s", 0.9, 1e3, (10, 20, 50, 100)),
    Panel("gap between tokens, p99 (ms)", "itl_s", 0.99, 1e3, (10, 20, 50, 100, 200), 80),
)
BESIDE = (
    Panel("chat: TTFT p90 (s)", "class_ttft_s", 0.9, 1, (0.05, 0.2, 1, 5, 20), 1, "chat"),
    Panel("document: TTFT p90 (s)", "class_ttft_s", 0.9, 1, (2, 5, 10, 20, 50), 8, "document"),
    Panel("chat: TPOT p90 (ms)", "class_tpot_s", 0.9, 1e3, (5, 10, 20, 50, 100), 30, "chat"),
)
DATA_PARALLEL = (
    Panel("TTFT p90 (s)", "ttft_s", 0.9, 1, (0.1, 0.2, 0.5, 1, 2, 5), 3),
    Panel("TPOT p90 (ms)", "tpot_s", 0.9, 1e3, (20, 50, 100, 200), 100),
    Panel("output tokens/s per GPU", "tok_per_s_per_gpu", None, 1, (0, 200, 400, 600, 800)),
)


SHORTEST_FIRST = (
    Panel("TTFT p90 (s)", "ttft_s", 0.9, 1, (0.05, 0.2, 1, 5, 20), 4),
    Panel("TTFT p99 (s)", "ttft_s", 0.99, 1, (0.2, 1, 5, 20, 100)),
    Panel("whole answer, mean (s)", "e2e_s_mean", None, 1, (2, 3, 5, 7, 12)),
)
AGENTS = (
    (0, Panel("task of one agent, mean (s)", "session_s_mean", None, 1, (30, 50, 100, 200, 300))),
    (1, Panel("task with four sub-agents, mean (s)", "session_s_mean", None, 1, (30, 50, 100, 200, 300))),
    (1, Panel("TTFT p90 with four sub-agents (s)", "ttft_s", 0.9, 1, (0.1, 0.2, 0.5, 1, 2))),
)
"""Panels with the depth of the agents that they show."""
SPECULATIVE = (
    Panel("TPOT p90 (ms)", "tpot_s", 0.9, 1e3, (5, 10, 20, 50, 100), 50),
    Panel("whole answer, mean (s)", "e2e_s_mean", None, 1, (1, 2, 5, 10, 20)),
    Panel("requests within SLO (%)", "slo_attainment", None, 100, (0, 25, 50, 75, 100), 90),
)


def draw_speculative(path: Path) -> None:
    """TPOT, latency and SLO attainment over the rate, a line for each way to draft."""
    _draw(path, "speculative", _drafts, SPECULATIVE, "Who drafts for Llama-3.1-70B, TP 4 on H100, chat")


def _drafts(one: xr.Dataset) -> str:
    """Such as ``draft llama-3.1-8b x 3``."""
    said = dict(re.findall(r"(method|model|tokens)=([^,]+)", str(one["speculative"].item())))
    return (
        " ".join([*(said[key] for key in ("method", "model") if key in said), "x", said["tokens"]]) if said else "plain"
    )


def draw_day(path: Path) -> None:
    """A day of a fleet that follows its load."""
    import evaluator
    from evaluator.report.picture.over_time import plot_over_time

    run = evaluator.simulate(SCENARIOS / "day-of-chat.yaml", select={"target": "12", "replicas": "3"})
    plot_over_time(run.over_time("15min"), path, "A day of chat, and a fleet that follows it")


def draw_outage(path: Path) -> None:
    """Ten minutes, of which a replica is down for three."""
    import evaluator
    from evaluator.report.picture.over_time import plot_over_time

    select = {"noticed_after_s": "30", "router": "round_robin", "requests": "resent"}
    run = evaluator.simulate(SCENARIOS / "outage.yaml", select=select)
    plot_over_time(run.over_time("10s"), path, "A replica of three is down, and is sent requests for 30 s")


def draw_day_apart(path: Path) -> None:
    """A day of a prefill and a decode pool that each have as many replicas as keep an objective."""
    import evaluator
    from evaluator.report.picture.over_time import plot_over_time

    run = evaluator.simulate(SCENARIOS / "day-apart.yaml", select={"prefill.autoscaling.within_s": "1.5"})
    plot_over_time(run.over_time("15min"), path, "A day of prefill and decode that scale apart")


def draw_shortest_first(path: Path) -> None:
    """TTFT and whole answers over the rate, a line for each guess of lengths."""
    _draw(path, "shortest-first", _guess, SHORTEST_FIRST, "Who goes first on an H100 whose 16 seats are full")


def _guess(one: xr.Dataset) -> str:
    if one["packing"].item() == "fcfs":
        return "first come"
    error, aging = one["prediction_error"].item(), one["aging_tokens_per_s"].item()
    known = f"guessed, off by e^{error:g}" if error else "known"
    return known + (f", ageing by {aging:g}/s" if aging else "")


def draw_policies(path: Path) -> None:
    """TTFT, TPOT and SLO attainment over the rate, a line for each batching policy."""
    _draw(path, "policies", _policy, POLICIES, "Five ways of batching: Llama-3.1-70B, TP 4 on H100, chat")


def draw_disaggregation(path: Path) -> None:
    """TTFT, TPOT and the gaps between tokens over the rate, a line for each way to split eight H100."""
    _draw(path, "disaggregation", _link, DISAGGREGATION, "Eight H100 for Llama-3.1-70B: together, or apart over a link")


def draw_mixed_beside_apart(path: Path) -> None:
    """TTFT of both classes and TPOT of chat over the rate, a line for each way to share four H100."""
    _draw(
        path,
        "mixed-beside-apart",
        _pools,
        BESIDE,
        "Four H100 for chat with documents: together, apart, or some of each",
    )


def _pools(one: xr.Dataset) -> str:
    """Such as ``1 mixed, 2 prefill, 1 decode``."""
    if one["prefill_role"].item() == "none":
        return f"{one['deployment_replicas'].item():g} mixed"
    counts = [(one[f"{name}_replicas"].item(), one[f"{name}_role"].item()) for name in ("whole", "prefill", "decode")]
    return ", ".join(f"{1 if np.isnan(count) else count:g} {role}" for count, role in counts if role != "none")


def draw_data_parallel(path: Path) -> None:
    """TTFT, TPOT and output per GPU over the rate, a line for each layout."""
    _draw(path, "data-parallel", _layout, DATA_PARALLEL, "DeepSeek-V3 on eight H200: four ways to share it")


def _layout(one: xr.Dataset) -> str:
    sizes = (
        (name, one[f"{key}_parallel"].item()) for name, key in (("TP", "tensor"), ("DP", "data"), ("EP", "expert"))
    )
    return " ".join(f"{name} {size:g}" for name, size in sizes if size > 1)


def _policy(one: xr.Dataset) -> str:
    tokens = one["max_num_batched_tokens"].item()
    return f"chunked {tokens:g}" if one["policy"].item() == "chunked" else str(one["policy"].item())


def _link(one: xr.Dataset) -> str:
    if one["prefill_role"].item() == "none":
        return "two that do both"
    by_layer, dtype = one["granularity"].item() == "layer", one["dtype"].item()
    how = (", by layer" if by_layer else "") + (f", {dtype}" if dtype != "auto" else "")
    return f"{one['link'].item()}{how}"


def _draw(path: Path, name: str, label: Callable[[xr.Dataset], str], panels: tuple[Panel, ...], title: str) -> None:
    from evaluator.report.picture.canvas import canvas, save
    from evaluator.report.picture.style import COLOURS
    from evaluator.run import sweep
    from evaluator.scenario import load_scenario

    ds = sweep(load_scenario(SCENARIOS / f"{name}.yaml"))
    labels = np.array([label(ds.isel(config=at)) for at in range(ds.sizes["config"])])

    def picture() -> Any:
        figure = canvas(11.0, 4.0)
        figure.set_layout_engine("constrained")
        row = figure.subplots(1, len(panels))
        for axes, panel in zip(row, panels, strict=True):
            for colour, one in zip(COLOURS, dict.fromkeys(labels), strict=False):
                _line(axes, ds.isel(config=labels == one), panel, colour, one)
            _finish(axes, panel)
        handles, names = row[0].get_legend_handles_labels()
        figure.legend(
            handles, names, loc="outside lower center", ncols=len(names) if len(names) < 6 else 3, frameon=False
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        return figure

    save(path, picture)


def draw_agents(path: Path) -> None:
    """How long a task takes over the replicas, of one agent and of one with sub-agents; a line for each design."""
    from evaluator.report.picture.canvas import canvas, save
    from evaluator.report.picture.style import COLOURS
    from evaluator.run import sweep
    from evaluator.scenario import load_scenario

    ds = sweep(load_scenario(SCENARIOS / "agents.yaml"))
    labels = np.array([_cache_and_router(ds.isel(config=at)) for at in range(ds.sizes["config"])])

    def picture() -> Any:
        figure = canvas(11.0, 4.0)
        figure.set_layout_engine("constrained")
        row = figure.subplots(1, len(AGENTS))
        for axes, (depth, panel) in zip(row, AGENTS, strict=True):
            for colour, one in zip(COLOURS, dict.fromkeys(labels), strict=False):
                rows = (labels == one) & (ds["depth"].values == depth)
                _line(axes, ds.isel(config=rows), panel, colour, one, "replicas")
            _finish(axes, panel)
            axes.set_xscale("log", base=2)
            counts = np.unique(ds["replicas"].values)
            axes.set_xticks(counts, [f"{count:g}" for count in counts])
            axes.set_xlabel("replicas of one L40S")
        handles, names = row[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
        figure.suptitle("Twelve tasks at a time, alone or shared with four sub-agents", x=0.01, ha="left", fontsize=12)
        return figure

    save(path, picture)


def _cache_and_router(one: xr.Dataset) -> str:
    return str(one["router"].item()) if one["prefix_caching"].item() else "no prefix cache"


def _line(axes: Any, ds: xr.Dataset, panel: Panel, colour: str, label: str, x: str = "rate_rps") -> None:
    values = ds[panel.variable] if panel.quantile is None else ds[panel.variable].sel(quantile=panel.quantile)
    values = values if panel.of is None else values.sel({"class": panel.of})
    shown, rate = panel.scale * values.values, ds[x].values
    calm = ~ds["saturated"].values
    axes.plot(rate, shown, color=colour, lw=1, alpha=0.4)
    axes.plot(rate[~calm], shown[~calm], "o", color=colour, ms=4, mfc="white")
    axes.plot(rate, np.where(calm, shown, np.nan), "o-", color=colour, ms=4, lw=1.7, label=label)


def _finish(axes: Any, panel: Panel) -> None:
    from evaluator.report.picture.style import GREY, grid_lines

    if panel.ticks[0] > 0:
        axes.set_yscale("log")
        axes.minorticks_off()
    axes.set_yticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    axes.set_ylim(panel.ticks[0], panel.ticks[-1] * (1 if panel.ticks[0] > 0 else 1.04))
    if panel.bound is not None:
        axes.axhline(panel.bound, color=GREY, ls="--", lw=1)
    axes.set_title(panel.label, loc="left", fontsize=10)
    axes.set_xlabel("arrival rate (requests/s)")
    grid_lines(axes)
