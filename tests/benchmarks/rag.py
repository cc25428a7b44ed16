"""HERMES' study of where a retrieval runs (arXiv:2504.09775v3, section IV-B), and the speed of batch servers.

``python -m tests.benchmarks.rag FILE.png`` draws the former.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.registry import Row, benchmark

if TYPE_CHECKING:
    import xarray as xr

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "rag-placement.yaml"
MODELS = {"e5-base": "E5-base", "e5-mistral-7b": "Mistral-7B"}
PLACES = ("large CPU", "small CPU", "A100 + large CPU", "small CPU with AMX")
PARTS = {"retrieve.embed": "embed", "retrieve.search": "search", "retrieve.transfer": "send", "prefill": "prefill"}


def seconds(ds: xr.Dataset) -> np.ndarray:
    """Mean time to the first token by part, waiting included, (config, part) in the order of PARTS."""
    whole = ds["stage_wait_s_mean"] + ds["stage_service_s_mean"]
    return np.stack([whole.sel(stage=name).values for name in PARTS], axis=1)


@benchmark("rag")
def rag(quick: bool) -> Iterator[Row]:
    """A retrieval on CPUs and GPUs as HERMES places it, and batch servers by themselves."""
    yield from _batches(quick)
    from evaluator.run import sweep
    from evaluator.scenario import load_scenario

    start = time.perf_counter()
    ds = sweep(load_scenario(SCENARIO))
    yield Row("rag-placement", time.perf_counter() - start, "s", "8 designs, two seeds of 1,000 requests")
    names = [f"{MODELS[str(model)]}, {place}" for model, place in zip(ds["embedding"].values, PLACES * 2, strict=True)]
    for name, parts, ttft_s in zip(names, seconds(ds), ds["ttft_s_mean"].values, strict=True):
        told = ", ".join(f"{part} {1e3 * part_s:.3g} ms" for part, part_s in zip(PARTS.values(), parts, strict=True))
        yield Row(name, 1e3 * ttft_s, "ms TTFT", told)


def _batches(quick: bool) -> Iterator[Row]:
    from evaluator.stations.batch import BatchServers, batch
    from tests.simulation.build import jobs

    lanes, count = 1_000, 300 if quick else 2_000
    for most, servers in ((1, 1), (8, 1), (32, 4)):
        rng = np.random.default_rng(0)
        chunk = [[jobs(np.cumsum(rng.exponential(1.25 / (most * servers), count)))] for _ in range(lanes)]
        station = batch("batch", lambda config, n=most, c=servers: BatchServers(np.ones(n), c))  # type: ignore[misc]
        start = time.perf_counter()
        station.serve(chunk)
        rate = lanes * count / (time.perf_counter() - start)
        yield Row(f"batch servers: {servers} x up to {most}", rate / 1e6, "M jobs/s", f"{lanes:,} lanes, load 0.8")


def draw(path: Path) -> None:
    """Where the time to the first token goes, by placement, for both embedding models."""
    from evaluator.report.picture.canvas import canvas, save
    from evaluator.report.picture.style import COLOURS, GREY, grid_lines
    from evaluator.run import sweep
    from evaluator.scenario import load_scenario

    ds = sweep(load_scenario(SCENARIO))

    def picture() -> Any:
        figure = canvas(9.0, 3.6)
        panels = figure.subplots(1, 2, sharey=True)
        figure.subplots_adjust(left=0.16, right=0.97, bottom=0.26, top=0.8, wspace=0.12)
        for axes, (model, label) in zip(panels, MODELS.items(), strict=True):
            left = np.zeros(len(PLACES))
            one = ds.isel(config=ds["embedding"].values == model)
            parts = seconds(one)
            frontend = one["ttft_s_mean"].values - parts.sum(axis=1)
            bars = [*zip(PARTS.values(), parts.T, COLOURS, strict=False), ("frontend", frontend, GREY)]
            for part, width, colour in bars:
                axes.barh(range(len(PLACES)), width, left=left, color=colour, label=part, height=0.62)
                left += width
            for place, total in enumerate(left):
                axes.text(total + 0.01 * left.max(), place, f"{total:.2f}", va="center", color=GREY)
            axes.set_title(f"{label} embeds", loc="left", fontsize=10)
            axes.set_xlim(0, 1.12 * left.max())
            grid_lines(axes, "x")
        panels[0].set_yticks(range(len(PLACES)), PLACES)
        panels[0].invert_yaxis()
        figure.supxlabel("mean seconds to the first token", fontsize=9, y=0.1)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
        figure.suptitle(
            "Where a retrieval runs: 20 documents for Llama-3.1-8B on an H100", x=0.02, ha="left", fontsize=12
        )
        return figure

    save(path, picture)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
