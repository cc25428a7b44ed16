"""MIST's study of KV storage (section V-B): where to keep the KV of past contexts.

``python -m tests.benchmarks.kv_storage FILE.png`` draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.scenario import load_scenario
from tests.benchmarks.registry import Row, benchmark

if TYPE_CHECKING:
    import xarray as xr

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "kv-storage.yaml"
CASES = ("A", "B", "B, queueing", "C", "C, 32 at a time", "C, queueing", "D", "E")
"""The storage of the scenario's designs, in its order."""
DRAWN = {"A": "o", "B": "s", "C": "^", "C, queueing": "v", "D": "D", "E": "x"}
RATES = (24, 240)
TOKENS = {4096: "4K tokens", 24576: "24K tokens"}


def swept() -> xr.Dataset:
    """(rate, contexts, case) in the order of the scenario, as dimensions; statistics at the 90th percentile."""
    from evaluator.run import sweep

    ds = sweep(load_scenario(SCENARIO)).sel(quantile=0.9)
    shape = {"rate": len(RATES), "asked": ds.sizes["config"] // len(RATES) // len(CASES), "case": len(CASES)}
    names = ("ttft_s", "e2e_s", "prefix_hit_rate", "saturated", "tokens", "popularity_contexts", "zipf")
    cube = {name: (tuple(shape), ds[name].values.reshape(tuple(shape.values()))) for name in names}
    return ds.__class__(cube, coords={"rate": list(RATES), "case": list(CASES)})


def asked(ds: xr.Dataset) -> list[str]:
    """What each set of contexts is, (asked,)."""
    first = ds.isel(rate=0, case=0)
    return [
        f"{n / 1e3:.0f}k users" if zipf == 0 else "documents, Zipf"
        for n, zipf in zip(first["popularity_contexts"].values, first["zipf"].values, strict=True)
    ]


@benchmark("kv_storage")
def kv_storage(quick: bool) -> Iterator[Row]:
    """P90 of TTFT and of the whole answer, by storage, contexts and rate."""
    ds = swept()
    for rate in RATES[1:] if quick else RATES:
        for at, name in enumerate(asked(ds)):
            for case in CASES:
                one = ds.sel(rate=rate, case=case).isel(asked=at)
                if not one["saturated"].item():
                    label = f"{rate}/s, {TOKENS[int(one['tokens'].item())]}, {name}, {case}"
                    note = f"TTFT {one['ttft_s'].item():.3f} s, {one['prefix_hit_rate'].item():.0%} of the tokens found"
                    yield Row(label, one["e2e_s"].item(), "s", note)


def draw(path: Path) -> None:
    """Both latencies by the contexts that are asked for; a row for each rate, a panel for each length."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import SETTINGS

    ds = swept()
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(2, 4, figsize=(13, 6.5), layout="constrained", sharey="col")
        for row, rate in zip(panels, RATES, strict=True):
            columns = [(tokens, name) for tokens in TOKENS for name in ("ttft_s", "e2e_s")]
            for axes, (tokens, name) in zip(row, columns, strict=True):
                _panel(axes, ds.sel(rate=rate), tokens, name)
                label = "TTFT" if name == "ttft_s" else "whole answer"
                axes.set_title(f"{TOKENS[tokens]}, {rate}/s: {label} p90 (s)", loc="left", fontsize=10)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        title = "MIST's study of KV storage: 128 clients of two H100, Llama-3.1-70B in fp8"
        title += " (hollow or pale: more comes than is served; at the upper edge: above it)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        figure.savefig(path, dpi=90)


LIMITS = {(4096, "ttft_s"): (0.2, 4), (4096, "e2e_s"): (6, 80), (24576, "ttft_s"): (0.2, 8), (24576, "e2e_s"): (6, 40)}


def _panel(axes: Any, ds: xr.Dataset, tokens: int, name: str) -> None:
    from evaluator.report.picture.style import COLOURS, grid_lines

    here = np.flatnonzero(ds["tokens"].values[:, 0] == tokens)
    low, high = LIMITS[tokens, name]
    for place, (colour, (case, marker)) in enumerate(zip(COLOURS, DRAWN.items(), strict=False)):
        one = ds.sel(case=case).isel(asked=here)
        x = np.arange(len(here)) + 0.11 * (place - 2.5)
        full = one["saturated"].values
        y = np.clip(one[name].values, low, high * 0.94)
        axes.plot(x[~full], y[~full], marker, color=colour, ms=6, label=case)
        axes.plot(x[full], y[full], marker, color=colour, ms=6, mfc="white", alpha=1.0 if marker != "x" else 0.35)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 40, 80) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(here)), [asked(ds.expand_dims("rate"))[at].replace(", ", "\n") for at in here])
    grid_lines(axes, "y")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
