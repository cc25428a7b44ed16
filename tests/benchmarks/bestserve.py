"""BestServe's section 4 on both engines: goodput per device of 30 strategies under four mixes of lengths.

``python -m tests.benchmarks.bestserve FILE.png`` draws it, as the paper's figure 11 has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from evaluator.scenario import load_scenario
from tests.benchmarks.registry import Row, benchmark

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "bestserve.yaml"
OPERATING = {"OP1": (8192, 512), "OP2": (2048, 64), "OP3": (1024, 64), "OP4": (256, 2048)}
"""Prompt and output tokens."""
PAPER = {"OP1": 11.2, "OP2": 12.1, "OP3": 8.6, "OP4": 30.1}
"""Mean error of the paper's predictions against measurements, %; the text has no numbers of single strategies."""
PROMPTS = 4  # of a batch
SHARED = "deployment.router=shared_queue"


class Strategies(NamedTuple):
    """Of both tensor parallelisms, (strategy,): names such as ``3p2d tp4``, and goodput per device, 0 where there is
    none.
    """

    names: list[str]
    goodput: np.ndarray

    @property
    def collocated(self) -> np.ndarray:
        return np.array(["m" in name for name in self.names])

    def best(self) -> str:
        """The winner, and the best of the other kind."""
        first = int(np.argmax(self.goodput))
        others = np.where(self.collocated == self.collocated[first], -1.0, self.goodput)
        second = int(np.argmax(others))
        return f"{self.names[first]}, before {self.names[second]} with {self.goodput[second]:.3g}"


def strategies(operating: str, simulator: str, *overrides: str) -> Strategies:
    """The search of the scenario's question."""
    from evaluator.search import optimize

    prompt, output = OPERATING[operating]
    lengths = [f"workload.lengths.prompt_tokens={prompt}", f"workload.lengths.output_tokens={output}"]
    batch = f"deployment.batching.max_num_batched_tokens={PROMPTS * prompt}"
    found = optimize(load_scenario(SCENARIO, (*lengths, batch, *overrides)), simulator=simulator)
    return Strategies([_name(layout) for layout in found["pool_layout"].values], _goodput(found))


def _goodput(found: xr.Dataset) -> np.ndarray:
    return np.nan_to_num(found["goodput_rps_per_gpu"].values)


def _name(layout: str) -> str:
    counts, devices = re.findall(r"(\d+) x tp", layout), re.findall(r"x tp(\d+)", layout)[0]
    return ("{}p{}d" if len(counts) == 2 else "{}m").format(*counts) + f" tp{devices}"


@benchmark("bestserve")
def bestserve(quick: bool) -> Iterator[Row]:
    """Winners and goodputs of BestServe's strategies by its engine and the exact one, and the errors of the first."""
    for limit in (16,) if quick else (16, 64):
        most = f"deployment.batching.max_num_seqs={limit}"
        for name, (prompt, output) in OPERATING.items():
            exact = strategies(name, "iteration", most)
            label = f"{name} {prompt}/{output}, {limit} decodes"
            yield Row(f"{label}: iteration", exact.goodput.max(), "1/s per device", exact.best())
            for which, overrides in {
                "the paper's": (most, SHARED),
                "tau 1": (most, "deployment.batching.tau=1"),
            }.items():
                fast = strategies(name, "request", *overrides)
                yield Row(f"{label}: request, {which}", fast.goodput.max(), "1/s per device", fast.best())
                yield _error(f"{label}: error of request, {which}", fast, exact, name)


def _error(label: str, fast: Strategies, exact: Strategies, operating: str) -> Row:
    there = exact.goodput > 0
    relative = 100 * (fast.goodput[there] / exact.goodput[there] - 1)
    sides = (relative[exact.collocated[there]].mean(), relative[~exact.collocated[there]].mean())
    order = np.corrcoef(*(np.argsort(np.argsort(each.goodput[there])) for each in (fast, exact)))[0, 1]
    note = "collocated {:+.0f} %, disaggregated {:+.0f} %; ranks agree by {:.2f}; the paper against measurements {} %"
    return Row(label, float(np.abs(relative).mean()), "%", note.format(*sides, order, PAPER[operating]))


def draw(path: Path) -> None:
    """A panel for each operating scenario: both engines' goodputs, sorted by the first, and the relative error."""
    import matplotlib.pyplot as plt

    from evaluator.report.picture.style import COLOURS, GREY, SETTINGS, SMALL, grid_lines

    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(2, 2, figsize=(13, 8), layout="constrained")
        for axes, (name, (prompt, output)) in zip(panels.flat, OPERATING.items(), strict=True):
            _panel(axes, strategies(name, "request", SHARED), strategies(name, "iteration"), COLOURS)
            axes.set_title(f"{name}: {prompt} prompt and {output} output tokens", loc="left", fontsize=10)
            axes.set_ylabel("goodput per device (requests/s)")
            axes.tick_params(axis="x", labelrotation=90, labelsize=SMALL, length=0)
            grid_lines(axes, "y")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
        figure.suptitle(
            "BestServe's operating scenarios: CodeLlama-34B on Ascend 910B3", x=0.01, ha="left", fontsize=13
        )
        figure.supxlabel(
            "strategies, sorted by simulator request: 5m are five replicas that do both, 3p2d three for prompts and "
            "two for decodes; 16 decodes at most",
            fontsize=SMALL + 1,
            color=GREY,
        )
        figure.savefig(path, dpi=110)


def _panel(axes: Any, fast: Strategies, exact: Strategies, colours: tuple[str, ...]) -> None:
    order = [at for at in np.argsort(-fast.goodput, kind="stable") if exact.goodput[at] > 0]
    places = np.arange(len(order))
    axes.bar(
        places - 0.2, fast.goodput[order], 0.4, color=colours[5], label="simulator request, the paper's algorithms"
    )
    axes.bar(places + 0.2, exact.goodput[order], 0.4, color=colours[0], label="simulator iteration, exact")
    axes.set_xticks(places, [fast.names[at] for at in order])
    axes.margins(x=0.01)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
