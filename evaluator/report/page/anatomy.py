"""Where an iteration of one design goes, operator by operator, at the load that it was simulated under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.memory import model_window
from evaluator.errors import InputError
from evaluator.estimation.phases import PhaseEstimate, phase
from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration, plan
from evaluator.replica import passage
from evaluator.report.axes import ShownAxis
from evaluator.report.page.axes import settings
from evaluator.report.page.words import design, number
from evaluator.results.schema import quantities
from evaluator.scenario import load_scenario
from evaluator.yaml import loads_yaml

if TYPE_CHECKING:
    import xarray as xr

    from evaluator.cost.iteration import BatchStatistics

_READ = ("throughput_rps", "output_tok_per_s", "total_tok_per_s", "e2e_s_mean", "ttft_s_mean")
LEAST_SHARE = 0.005
"""Operators that take less of an iteration are added up."""


def anatomy(
    ds: xr.Dataset, axes: Sequence[ShownAxis], row: int, configuration: Configuration | None
) -> dict[str, Any] | None:
    """The prefill of one mean prompt and a decode step with the mean batch of a design, by operators, for the scripts.

    ``row`` is the design's position along ``config``, ``configuration`` its ``configuration_of``. Mean lengths and, by
    Little's law, the mean number of sequences that decode on a replica are those of its simulation. None without a
    member, or where its times are fitted to whole iterations.
    """
    # A result of an earlier version, or one of a selection of its variables, has a page without this section.
    if configuration is None or not set(_READ) <= set(ds.variables):
        return None
    rate, out, total = (float(ds[name].values[row]) for name in _READ[:3])
    decoding_s = float(ds["e2e_s_mean"].values[row] - ds["ttft_s_mean"].values[row])
    # A design that served nothing has no mean request.
    if not np.isfinite([rate, out, total, decoding_s]).all() or rate <= 0.0:
        return None
    # Rates of tokens over the rate of requests are their mean lengths, as they were simulated and not as a formula
    # has them.
    prompt, output = (total - out) / rate, out / rate
    # Little's law: sequences that decode at a time are the rate times how long each decodes, spread over the replicas.
    batch = max(1.0, rate * decoding_s / configuration.answering[-1].deployment.ranks)
    window = model_window(configuration.stations[0].design.model)
    given = float(ds["accepted_per_iteration"].values[row]) if "accepted_per_iteration" in ds else float("nan")
    tokens = 1.0 if np.isnan(given) else given  # without drafts
    steps = [
        (0, "Prefill", f"one prompt of the mean {number(prompt)} tokens alone", prefill_batch(1.0, prompt, window)),
        # The last station: with prefill and decode apart it is the one that decodes, else it is the only one.
        (-1, "Decode step", f"the mean {number(batch)} sequences of a replica, half of their outputs written",
         # Half of the output: the mean over the steps of a request, whose context grows by one a step.
         decode_batch(batch, prompt + output / 2, window)),
    ]  # fmt: skip
    phases = [_described(configuration, *step, tokens) for step in steps]
    return {"design": design(ds, axes, row), "phases": phases} if all(phase["operators"] for phase in phases) else None


def configuration_of(ds: xr.Dataset, row: int) -> Configuration | None:
    """The plan of the design at ``row`` by itself, which says what the scenario leaves to defaults.

    None where the design did not run or where its scenario cannot be read here (a trace or a table that is elsewhere).
    """
    try:
        tree = loads_yaml(ds.attrs.get("scenario", ""), "scenario")
        if ds["status"].values[row] != OK or not isinstance(tree, Mapping):
            return None
        # The one design by itself: planning the sweep to look at a row of it would take as long as the sweep's plan.
        alone = {key: value for key, value in tree.items() if key not in ("sweep", "budget", "demand")}
        configuration = plan(load_scenario(alone, settings(ds, tuple(quantities(ds)), row))).configurations[0]
    except InputError:
        return None
    return configuration if configuration.status == OK else None


def _described(
    configuration: Configuration, station: int, title: str, about: str, batch: BatchStatistics, tokens: float
) -> dict[str, Any]:
    """An iteration of a station, as the page shows it; ``tokens`` are those that it gives a decoding sequence."""
    built = configuration.answering[station].design
    estimated: PhaseEstimate = phase(passage(built), built.hardware, batch, tokens)
    rows = [(op.name, op.time_s, op.share, op.bound) for op in estimated.operators if op.share >= LEAST_SHARE]
    rest = [op for op in estimated.operators if op.share < LEAST_SHARE]
    if sum(op.time_s for op in rest) > 0.0:
        rows.append(("all others", sum(op.time_s for op in rest), sum(op.share for op in rest), ""))
    rows.sort(key=lambda row: -row[1])
    return {
        "title": f"{title}: {number(1e3 * estimated.time_s)} ms",
        "about": f"{about}. MFU {100 * estimated.mfu:.0f} %, MBU {100 * estimated.mbu:.0f} %.",
        "operators": [
            {"name": name, "milliseconds": float(f"{1e3 * time:.4g}"), "share": round(100 * share, 2), "bound": bound}
            for name, time, share, bound in rows
        ],
    }
