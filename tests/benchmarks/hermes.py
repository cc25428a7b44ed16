"""HERMES' studies of batching, of the number of clients and of reasoning (arXiv:2504.09775v3, sections V-A and IV-A).

``python -m tests.benchmarks.hermes batching FILE.png``, ``... scaling FILE.png`` and ``... reasoning FILE.png`` draw
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.scenario import load_scenario
from evaluator.yaml import load_yaml
from tests.benchmarks.registry import Row, benchmark

if TYPE_CHECKING:
    import xarray as xr

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
CLIENTS = 32
GPUS = 2
"""Of a client."""
SERVED = 0.85
"""A line of the picture ends where less than this part of the arrivals is served."""
RATE = "workload.arrivals.rate_rps"
TRACES = ("azure-conv-2023", "azure-code-2023")
ROUTERS = ("round_robin", "least_outstanding", "least_work")
SECONDS, MILLISECONDS, ENERGIES = (0.2, 0.5, 1, 2, 5), (15, 20, 30, 50, 100, 200), (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
TICKS = (SECONDS, MILLISECONDS, ENERGIES)
"""Ticks of the pictures: TTFT, TPOT, tokens per joule."""
REASONING_TICKS = ((0.1, 0.2, 0.5, 1, 2), (10, 20, 50, 100), (0.2, 0.5, 1, 2, 3))
REASONING_CLIENTS = 8
KINDS = ("continuous", "chunked", "disaggregated")


def names(ds: xr.Dataset) -> np.ndarray:
    """What the clients of each design do, (config,): ``continuous``, ``chunked 512``, ``20P/12D``."""
    columns = ("deployment_batching_policy", "deployment_batching_max_num_batched_tokens", "prefill_replicas")
    policy, tokens, prefill = (ds[column].values for column in columns)
    decode = ds["decode_replicas"].values
    apart = [f"{p:.0f}P/{d:.0f}D" for p, d in zip(prefill, decode, strict=True)]
    together = [f"chunked {b:.0f}" if p == "chunked" else p for p, b in zip(policy, tokens, strict=True)]
    return np.where(np.isfinite(prefill), apart, together)


def goodput_by_size(source: str) -> xr.Dataset:
    """The highest rate of each number of clients behind a round robin, which splits arrivals before the run."""
    from evaluator.search import optimize

    tree = load_yaml(SCENARIOS / "client-scaling.yaml")
    tree["deployment"]["router"] = "round_robin"
    tree["workload"]["lengths"] = {"source": source}
    sizes = [{key: value for key, value in step.items() if key != RATE} for step in tree["sweep"]["clients"]["zip"]]
    tree["sweep"] = {"clients": {"zip": sizes}}
    return optimize(load_scenario(tree))


@benchmark("hermes")
def hermes(quick: bool) -> Iterator[Row]:
    """Goodput of a client, by HERMES' batching strategies, and for 2 to 32 clients."""
    from evaluator.search import optimize

    found = optimize(load_scenario(SCENARIOS / "hermes-batching.yaml"))
    for at, name in enumerate(names(found)):
        one = found.isel(config=at)
        label = f"{one['source'].item()}, {one['weights'].item()}, {name}"
        note = f"{one['tok_per_joule'].item():.3f} tokens/J, limited by {one['goodput_limit'].item()}"
        yield Row(label, one["goodput_rps"].item() / CLIENTS, "1/s", note)
    for source in TRACES[:1] if quick else TRACES:
        found = goodput_by_size(source)
        for at, name in enumerate(names(found)):
            one = found.isel(config=at)
            clients = int(one["devices"].item()) // GPUS
            note = f"{one['tok_per_joule'].item():.3f} tokens/J, limited by {one['goodput_limit'].item()}"
            yield Row(f"{source}, {clients} clients, {name}", one["goodput_rps"].item() / clients, "1/s", note)


def draw_batching(path: Path) -> None:
    """TTFT, TPOT and tokens per joule over the rate of a client; a column for each trace and number format."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import SETTINGS
    from evaluator.run import sweep

    ds = sweep(load_scenario(SCENARIOS / "hermes-batching.yaml"))
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(3, 4, figsize=(13, 8.5), layout="constrained", sharex=True, sharey="row")
        columns = [(source, weights) for source in TRACES for weights in ("bf16", "fp8")]
        for column, (source, weights) in zip(panels.T, columns, strict=True):
            _column(column, ds.isel(config=(ds["source"] == source) & (ds["weights"] == weights)))
            column[0].set_title(f"{source.split('-')[1]}, {weights}", loc="left", fontsize=10)
            column[-1].set_xlabel("requests/s for each client")
        for axes, label in zip(panels[:, 0], ("TTFT p90 (s)", "TPOT p90 (ms)", "output tokens per joule"), strict=True):
            axes.set_ylabel(label)
        _finish(figure, panels[0, 0], "HERMES' batching study: 32 clients of two H100, Llama-3.1-70B", path)


def draw_reasoning(path: Path) -> None:
    """The same for requests on several branches; a column for each kind of request."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import SETTINGS
    from evaluator.run import sweep

    ds = sweep(load_scenario(SCENARIOS / "reasoning.yaml"))
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(3, 2, figsize=(9, 8.5), layout="constrained", sharex=True, sharey="row")
        for column, branches, name in zip(panels.T, (8, 4), ("conversation", "code"), strict=True):
            _column(column, ds.isel(config=ds["branches"] == branches), REASONING_CLIENTS, REASONING_TICKS)
            column[0].set_title(f"{name}, {branches} branches", loc="left", fontsize=10)
            column[-1].set_xlabel("requests/s for each client")
        for axes, label in zip(panels[:, 0], ("TTFT p90 (s)", "TPOT p90 (ms)", "output tokens per joule"), strict=True):
            axes.set_ylabel(label)
        _finish(figure, panels[0, 0], "Reasoning on branches: 8 clients of eight H100, Llama-3.1-70B", path)


def _column(column: Any, ds: xr.Dataset, clients: int = CLIENTS, ticks: tuple[tuple[float, ...], ...] = TICKS) -> None:
    from evaluator.report.picture.style import COLOURS, GREY, grid_lines

    kinds = names(ds)
    for colour, name in zip(COLOURS, dict.fromkeys(kinds), strict=False):
        one = ds.isel(config=kinds == name)
        rate, met = one["rate_rps"].values / clients, one["slo_met"].values
        full = one["throughput_rps"].values < SERVED * one["rate_rps"].values
        energy = 1 / one["joule_per_tok"].values
        at = one.sel(quantile=0.9)
        for axes, values in zip(column, (at["ttft_s"].values, 1e3 * at["tpot_s"].values, energy), strict=True):
            shown = np.where(full, np.nan, values)
            axes.plot(rate, shown, color=colour, lw=1.2, label=name)
            axes.plot(rate[met], shown[met], "o", color=colour, ms=4.5)
            axes.plot(rate[~met], shown[~met], "o", color=colour, ms=4.5, mfc="white")
    for axes, bound, marks in zip(column, (0.75, 37.5, None), ticks, strict=True):
        _plain(axes, marks)
        axes.set_ylim(marks[0], marks[-1])
        if bound is not None:
            axes.axhline(bound, color=GREY, ls="--", lw=1)
    for axes in column:
        grid_lines(axes, "y")


def draw_scaling(path: Path) -> None:
    """TTFT and TPOT over the number of clients by router, and the goodput for each client."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import COLOURS, GREY, SETTINGS, grid_lines
    from evaluator.run import sweep

    ds, found = sweep(load_scenario(SCENARIOS / "client-scaling.yaml")), goodput_by_size(TRACES[0])
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(2, 4, figsize=(13, 6), layout="constrained", sharex=True)
        for column, kind in zip(panels.T, KINDS, strict=False):
            for colour, router in zip(COLOURS, ROUTERS, strict=False):
                one = ds.isel(config=(_kinds(ds) == kind) & (ds["router"].values == router))
                clients = one["devices"].values // GPUS
                column[0].plot(clients, one["ttft_s"].sel(quantile=0.9), "o-", color=colour, label=router)
                column[1].plot(clients, 1e3 * one["tpot_s"].sel(quantile=0.9), "o-", color=colour)
            column[0].set_title(f"{kind}, 3/s a client", loc="left", fontsize=10)
            for axes, bound in zip(column, (0.75, 37.5), strict=True):
                axes.axhline(bound, color=GREY, ls="--", lw=1)
        for row, (label, low, high) in zip(panels, (("TTFT p90 (s)", 0.2, 3), ("TPOT p90 (ms)", 15, 45)), strict=True):
            row[0].set_ylabel(label)
            for axes in row[:3]:
                axes.set_ylim(low, high)
        for axes in panels[0, :3]:
            _plain(axes, SECONDS[:-1])
        _goodputs(panels[:, 3], found)
        for axes in panels.flat:
            axes.set_xscale("log", base=2)
            axes.set_xticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
            grid_lines(axes, "y")
        for axes in panels[1]:
            axes.set_xlabel("clients")
        _finish(figure, panels[0, 0], "2 to 32 clients of two H100, Llama-3.1-70B in fp8, conversation", path)


def _goodputs(column: Any, found: xr.Dataset) -> None:
    from evaluator.report.picture.style import GREY

    for marker, kind in zip("os^", KINDS, strict=True):
        one = found.isel(config=_kinds(found) == kind)
        clients = one["devices"].values // GPUS
        column[0].plot(clients, one["goodput_rps"].values / clients, f"{marker}-", color=GREY, label=kind)
        column[1].plot(clients, one["tok_per_joule"].values, f"{marker}-", color=GREY)
    column[0].set_title("goodput of a client (requests/s)", loc="left", fontsize=10)
    column[1].set_title("output tokens per joule there", loc="left", fontsize=10)
    column[0].legend(frameon=False, fontsize=8)
    for axes in column:
        axes.set_ylim(bottom=0)


def _kinds(ds: xr.Dataset) -> np.ndarray:
    apart = np.isfinite(ds["prefill_replicas"].values)
    return np.where(apart, "disaggregated", ds["deployment_batching_policy"].values)


def _plain(axes: Any, ticks: tuple[float, ...]) -> None:
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _finish(figure: Any, first: Any, title: str, path: Path) -> None:
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    {"batching": draw_batching, "scaling": draw_scaling, "reasoning": draw_reasoning}[sys.argv[1]](Path(sys.argv[2]))
