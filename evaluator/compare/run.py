"""Experiments -> the engine -> predictions beside measurements, one row per experiment, stage and metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.store import find
from evaluator.compare.experiments import POOLED, Experiment
from evaluator.compare.servers import Server, server
from evaluator.compare.traffic import Requests, requests
from evaluator.cost.fitted import verdict
from evaluator.cost.lanes import stack
from evaluator.cost.memory import kv_units
from evaluator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LATENCIES = ("ttft", "itl", "tpot", "e2e")
OK = "ok"


@dataclass(frozen=True, eq=False)
class Times:
    """What the client of one seed saw, each (request,) in seconds."""

    requests: Requests
    ttft_s: np.ndarray
    e2e_s: np.ndarray


def compare_experiments(
    experiments: Sequence[Experiment],
    calibration: str | Calibration = "auto",
    seeds: Iterable[int] = (0, 1, 2),
) -> pd.DataFrame:
    """Predictions of every experiment beside its measurements.

    Columns: what was run, ``stage_index`` (-1: all stages pooled), ``metric``, ``unit`` (ms or 1/s), ``predicted``
    (mean over the seeds), ``predicted_stderr``, ``measured``, ``error_pct`` (signed), ``concurrency`` (predicted, by
    Little's law), ``calibration``, ``provenance``, ``status``. An experiment that cannot run is one row with its
    reason as ``status``.
    """
    import pandas as pd

    if isinstance(calibration, str) and calibration != "auto" and "GPU" not in calibration:
        find("calibrations", calibration)  # a name that is none is the user's mistake, not an experiment's
    seeds = tuple(seeds)
    rows: list[dict] = []
    for experiment in experiments:
        try:
            replica = server(experiment, calibration)
            runs = [simulate_server(replica, requests(experiment, seed)) for seed in seeds]
        except InputError as error:
            rows.append(_described(experiment, None) | {"status": f"cannot run: {error}"})
            continue
        rows += _rows(replica, runs)
    return pd.DataFrame(rows, columns=COLUMNS)


COLUMNS = (
    "exp_id", "experiment_name", "model", "gpu", "hardware", "tensor_parallel", "workload", "stage_index", "rate_rps",
    "concurrency", "metric", "unit", "predicted", "predicted_stderr", "measured", "error_pct", "calibration",
    "provenance", "status",
)  # fmt: skip


def simulate_server(replica: Server, load: Requests) -> Times:
    """Run the requests through the engine; times as the client sees them, NaN where a request was never served.

    InputError where the run leaves the range of a cost that was fitted to measured iterations, and where prompts that
    are computed in one piece are too long for an iteration.
    """
    import jax

    from evaluator.device import configure
    from evaluator.simulation.frontend import client_times
    from evaluator.stations.engine import Structure, run_lanes

    limits, prompt = replica.experiment, int(load.compute_tokens.max())
    if not limits.chunked_prefill and prompt > limits.max_num_batched_tokens:
        raise InputError(
            f"prompts of {prompt} tokens exceed max_num_batched_tokens {limits.max_num_batched_tokens}, and "
            f"chunked_prefill is off"
        )
    configure()
    longest, ring = int(load.output_tokens.max()), 256
    while ring < longest + 2:
        ring *= 2
    lane, waiting = _lane(replica, len(load.arrival_s)), _waiting(replica, load)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (lane, waiting))
    found = run_lanes(*batch, Structure(ring, replica.kv.window is not None))
    problem, _ = verdict(replica.calibration, replica.fit, np.asarray(found.peaks)[0].tolist())
    if problem is not None:
        raise InputError(problem)
    count = len(load.arrival_s)
    first, last = (np.asarray(times)[0][:count] for times in (found.first_token_s, found.last_token_s))
    served = np.isfinite(last)
    first, last = np.where(served, first, np.nan), np.where(served, last, np.nan)
    first, last = client_times(replica.calibration, first, last, load.output_tokens)
    return Times(load, first - load.arrival_s, last - load.arrival_s)


def _lane(replica: Server, count: int):  # type: ignore[no-untyped-def]
    import jax

    from evaluator.stations.engine import POLICIES, Lane, Policy

    limits = replica.experiment
    cost = jax.tree.map(lambda values: values[..., 0], stack([replica.cost]))
    policy = POLICIES["chunked" if limits.chunked_prefill else "mixed"]
    return Lane(
        cost=cost,
        policy=Policy(*(np.array(flag, dtype=bool) for flag in policy)),
        prompts_resident=np.array(False),
        max_num_seqs=np.float64(limits.max_num_seqs),
        max_num_batched_tokens=np.float64(limits.max_num_batched_tokens),
        kv_units=np.float64(replica.kv_capacity),
        window=np.float64(replica.kv.window or 0),
        users=np.int32(1 << 30),
        requests=np.int32(count),
        measured_from=np.int32(0),
    )


def _waiting(replica: Server, load: Requests):  # type: ignore[no-untyped-def]
    from evaluator.stations.engine import Requests as EngineRequests

    width = len(load.arrival_s) + 1
    arrival = np.full(width, np.inf)
    arrival[:-1] = np.maximum(load.arrival_s, load.arrival_s[0] + replica.warm_up_s)
    tokens = np.zeros((4, width), dtype=np.int32)
    units = kv_units(replica.kv, load.prompt_tokens + load.output_tokens - 1)
    for row, values in enumerate((load.compute_tokens, load.prompt_tokens, load.output_tokens, units)):
        tokens[row, :-1] = values
    return EngineRequests(arrival, *tokens)


def predictions(times: Times, stage: int, counted_tokens: float | None = None) -> dict[str, float]:
    """Every metric of a stage, seconds or 1/s.

    ``itl_mean`` is (mean E2E - mean TTFT) / (mean output - 1), as the measurements have it; quantiles of ITL are those
    of the requests' own means, as ``tpot``. Both are per token that the client counts (None: all that are generated).
    """
    taken = slice(None) if stage == POOLED else times.requests.stage == stage
    ttft, e2e, output = times.ttft_s[taken], times.e2e_s[taken], times.requests.output_tokens[taken]
    arrival = times.requests.arrival_s[taken]
    longer = output > 1
    steps = output - 1 if counted_tokens is None else (output - 1) * ((counted_tokens - 1) / (output.mean() - 1))
    tpot = (e2e - ttft)[longer] / steps[longer] if longer.any() else np.array([np.nan])
    found = {"itl_mean": float((e2e.mean() - ttft.mean()) / max(steps.mean(), 1e-9))}
    for name, values in (("ttft", ttft), ("itl", tpot), ("tpot", tpot), ("e2e", e2e)):
        found.setdefault(f"{name}_mean", float(values.mean()))
        for percent in (50, 90, 95, 99):
            found[f"{name}_p{percent}"] = float(np.quantile(values, percent / 100))
    found["throughput_rps"] = len(ttft) / float((arrival + e2e).max() - arrival.min())
    return found


def _rows(replica: Server, runs: Sequence[Times]) -> list[dict]:
    experiment = replica.experiment
    by_index = {stage.index: stage for stage in experiment.workload.stages}
    rates = {stage.index: stage.rate_rps for stage in by_index.values()}
    duration = sum(stage.duration_s for stage in by_index.values())
    rates[POOLED] = sum(stage.requests for stage in by_index.values()) / duration
    rows = []
    for stage in experiment.stages:
        measured = experiment.row(stage)
        found = [predictions(times, stage, measured.counted_tokens if measured else None) for times in runs]
        known: Mapping[str, float] = {} if measured is None else measured.values
        concurrency = rates[stage] * float(np.mean([each["e2e_mean"] for each in found]))
        common = _described(experiment, replica) | {
            "stage_index": stage, "rate_rps": rates[stage], "concurrency": concurrency,
        }  # fmt: skip
        rows += [common | _beside(metric, found, known[metric]) for metric in known if metric in found[0]]
        if not known:
            rows += [common | _beside(metric, found, None) for metric in ("ttft_mean", "itl_mean", "e2e_mean")]
    return rows


def _beside(metric: str, found: Sequence[Mapping[str, float]], measured: float | None) -> dict:
    values = np.array([each[metric] for each in found])
    scale, unit = (1.0, "1/s") if metric == "throughput_rps" else (1e3, "ms")
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    predicted = float(values.mean())
    row = {"metric": metric, "unit": unit, "predicted": scale * predicted, "predicted_stderr": scale * float(error)}
    if measured is None:
        return row | {"status": "not measured"}
    unserved = not np.isfinite(predicted)
    status = "cannot run: some requests need more KV cache than there is" if unserved else OK
    return row | {
        "measured": scale * measured, "error_pct": 100 * (predicted / measured - 1), "status": status,
    }  # fmt: skip


def _described(experiment: Experiment, replica: Server | None) -> dict:
    described = {
        "exp_id": experiment.id,
        "experiment_name": experiment.name,
        "model": experiment.model,
        "gpu": experiment.gpu,
        "tensor_parallel": experiment.tensor_parallel,
        "workload": experiment.workload.name,
    }
    if replica is None:
        return described
    set_ = replica.calibration
    return described | {"hardware": replica.hardware, "calibration": set_.name, "provenance": set_.provenance}
