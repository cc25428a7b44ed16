"""Results of load generators -> the same load on a scenario's deployment, and the errors in the generators' terms."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.catalog.store import names
from evaluator.compare.report import load_band, summarise
from evaluator.compare.run import COLUMNS, EXPECTED, OK, expected_pct, of_deployment
from evaluator.errors import InputError
from evaluator.experiments.generators import MeasuredRun
from evaluator.experiments.generators.measured_run import latencies_of_requests
from evaluator.experiments.names import hardware_name, model_name
from evaluator.experiments.precisions import precision
from evaluator.scenario import Arrivals, Deployment, Lengths, Reasoning, Scenario, Sessions, load_scenario

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.run.single import Simulation

AS_SENT = "the throughput of an open loop that keeps up is the rate that was sent: nothing is predicted (expected ± -)"
_PERCENTILE = re.compile(r"[a-z0-9]+_p(\d+(?:\.\d+)?)")
LEAST_PERCENT = 50.0
"""Percentiles below the median, which AIPerf writes, are not compared: nobody asks for them."""
_JUDGED_BY = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2e": "e2e_s"}


def compare_results(
    runs: Sequence[MeasuredRun], scenario: Scenario | None, overrides: Sequence[str] = ()
) -> pd.DataFrame:
    """Predictions of every run beside what was measured, with the columns of ``compare_experiments``, EXPECTED and
    ``engine`` with its release.

    What a run does not say of its server (device, layout, precision, limits) is the scenario's, or that of
    ``overrides``; without a scenario there must be at least ``deployment.hardware`` among them. A run that cannot be
    predicted is a row with its reason as ``status``. Errors: InputError where a run and the scenario contradict each
    other, or where nobody says what is needed.
    """
    import pandas as pd

    rows: list[dict] = []
    for run in runs:
        served_by = serving_scenario(run, scenario, overrides)
        try:
            # Traces of requests are written where they vanish with the comparison.
            with tempfile.TemporaryDirectory() as folder:
                rows += _rows(run, served_by, simulated(run, served_by, Path(folder)))
        except InputError as error:
            rows.append(_common(run, served_by) | {"status": f"cannot run: {error}"})
    return pd.DataFrame(rows, columns=[*COLUMNS, EXPECTED, "engine"])


def serving_scenario(run: MeasuredRun, scenario: Scenario | None, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario whose deployment served a run; InputError names what is missing or contradicts."""
    if scenario is None:
        return _from_options(run, overrides)
    if scenario.sweep:
        raise InputError(f"{scenario.path or scenario.name}: a comparison takes one deployment, without a sweep")
    deployment = scenario.deployment
    stated_by_run: dict[str, Any] = dict(run.deployment)
    for key, name in (("model", _known(model_name, run.model)), ("hardware", _known(hardware_name, run.gpu))):
        if name is not None:
            stated_by_run[key] = name
    stated_by_run |= _formats(run, stated_by_run.get("model", deployment.model))
    pools = stated_by_run.pop("pools", None)
    if pools is not None and deployment.pools:
        _check_pools(run, pools, deployment)
    elif pools is not None:
        stated_by_run["pools"] = pools
    # A default says nothing: the run's own figure takes its place; only what somebody wrote can contradict it.
    for key, value in stated_by_run.items():
        stated = _stated(deployment, key)
        default = stated in (None, 1, "auto", "checkpoint", "bf16") and key not in ("model", "hardware")
        if str(stated) != str(value) and not default:
            raise InputError(
                f"{run.label}: was measured with {key} {value}, and the scenario has {stated}; remedy: "
                f"--set deployment.{key}={value}, or the scenario of this server"
            )
    differing = {key: value for key, value in stated_by_run.items() if str(_stated(deployment, key)) != str(value)}
    changed = [f"deployment.{key}={_quoted(value)}" for key, value in differing.items()]
    # Read again with the run's figures, so that defaults that depend on them are those of this server.
    return load_scenario(scenario.path or _tree(scenario), [*overrides, *changed]) if changed else scenario


def _stated(deployment: Deployment, key: str) -> Any:
    """What a deployment has under a key, which may be one of a section: ``precision.weights``."""
    stated: Any = deployment
    for name in key.split("."):
        stated = getattr(stated, name)
    return stated


def _formats(run: MeasuredRun, model: Any) -> dict[str, str]:
    """Number formats by the run's own word for them, of a model that the catalog has."""
    if run.weights is None or not isinstance(model, str):
        return {}
    formats = precision(run.model or model, model, run.weights, "auto")
    return {"precision.weights": formats.weights, "precision.activations": formats.activations}


_OF_POOL = ("tensor_parallel", "data_parallel", "expert_parallel", "replicas")


def _check_pools(run: MeasuredRun, measured: Mapping[str, Mapping[str, Any]], deployment: Deployment) -> None:
    """InputError where the scenario's pools have another layout than the one measured pool of their role."""
    for pool in (deployment.pools or {}).values():
        for key in _OF_POOL if pool.role in measured else ():
            # Of one of several pools a key that is absent is what the deployment says beside the pools.
            stated = getattr(pool, key) or getattr(deployment, key)
            value = measured[pool.role].get(key, 1)
            if stated != value:
                raise InputError(
                    f"{run.label}: was measured with {key} {value} of the {pool.role} pool, and the scenario has "
                    f"{stated}; remedy: the scenario of this server"
                )


def _quoted(value: Any) -> str:
    """A value as YAML reads it: in quotes where it would be taken for a number, as the release 0.20."""
    return str(value) if isinstance(value, int | float) else json.dumps(value)


def _tree(scenario: Scenario) -> Mapping[str, Any]:
    from evaluator.yaml import loads_yaml

    return loads_yaml(scenario.text or "", scenario.name)


def _known(catalog_name: Callable[[str], str], published: str | None) -> str | None:
    """The catalog's name; None where a file says nothing that the catalog knows, as a server's alias."""
    try:
        return None if published is None else catalog_name(published)
    except InputError:
        return None


def _from_options(run: MeasuredRun, overrides: Sequence[str]) -> Scenario:
    keys = {override.partition("=")[0].strip() for override in overrides}
    deployment: dict[str, Any] = dict(run.deployment)
    for key, published, catalog_name in (("model", run.model, model_name), ("hardware", run.gpu, hardware_name)):
        if f"deployment.{key}" in keys:
            deployment[key] = "?"  # set by the option before it is read
        elif published is None:
            raise InputError(
                f"{run.label}: says nothing of the {key}; say it: --set deployment.{key}=NAME, or --scenario with the "
                "deployment that was measured"
            )
        else:
            try:
                deployment[key] = catalog_name(published)
            except InputError as error:
                raise InputError(f"{run.label}: {error}") from None
    stated = dict(override.partition("=")[::2] for override in overrides)
    model = stated.get("deployment.model", deployment["model"])
    if model in names("models"):  # else the loader says that there is none
        formats = {key.partition(".")[2]: value for key, value in _formats(run, model).items()}
        deployment |= {"precision": formats} if formats else {}
    has_lengths = any(key.startswith("workload.lengths") for key in keys)
    if run.prompt_tokens is None and not has_lengths:
        raise InputError(f"{run.label}: says nothing of the lengths of prompts; give --scenario with workload.lengths")
    # A stand-in, since a scenario must have lengths: those of the run take its place when it is simulated.
    lengths = {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1}
    tree = {"name": "measured", "workload": {"arrivals": {"process": "all_at_once"}, "lengths": lengths},
            "deployment": deployment}  # fmt: skip
    try:
        return load_scenario(tree, overrides)
    except InputError as error:
        # Of which run: a table may have an engine that is none in its last row.
        raise InputError(f"{run.label}: {error}") from None


def simulated(run: MeasuredRun, scenario: Scenario, folder: Path) -> Simulation:
    """The run's load through the deployment: all of its requests count, as generators count all that they send.

    ``folder`` is where a trace of its requests may be written.
    """
    from evaluator.run import simulate

    # Each request's own lengths where the file has them, else the means it tells, else the scenario's.
    lengths, arrivals = scenario.workload.lengths, Arrivals(**_arrivals(run))
    trace = folder / "requests.csv"
    if isinstance(run.prompt_tokens, np.ndarray) and isinstance(run.output_tokens, np.ndarray):
        _write_trace(trace, run)
        lengths = Lengths("trace", file=str(trace))
        if run.arrival_s is not None:
            arrivals = Arrivals("trace", file=str(trace))
    elif run.prompt_tokens is not None and run.output_tokens is not None:
        lengths = Lengths(
            "fixed", {"prompt_tokens": _whole(run.prompt_tokens), "output_tokens": _whole(run.output_tokens)}
        )
    # What a generator does not do: warm-up, several models, turns after answers.
    workload = replace(
        scenario.workload, arrivals=arrivals, lengths=lengths, requests=run.requests, warmup_requests=0,
        cooldown_requests=0, find_warmup=False, seeds=(0,), models={},
        # Nor classes: a file does not say which request is of which, and their lengths would take the place of its own.
        classes={},
        # Measured lengths are what was generated, thoughts included: a scale would count these twice.
        reasoning=Reasoning() if run.prompt_tokens is not None else scenario.workload.reasoning,
        # System prompts stay: they are of the prompts, not of who sends them when.
        sessions=replace(
            scenario.workload.sessions, turns=Sessions().turns, think_s=Sessions().think_s, agents=None
        ),
    )  # fmt: skip
    try:
        return simulate(replace(scenario, workload=workload))
    except InputError as error:
        raise InputError(str(error).replace(str(trace), run.label)) from None


def _arrivals(run: MeasuredRun) -> dict[str, Any]:
    """A closed loop of more users than requests is all at once."""
    # Nobody waits for an answer then, and a closed loop would need more requests than users.
    users = run.arrivals.get("users")
    return {"process": "all_at_once"} if users is not None and users >= run.requests else dict(run.arrivals)


def _whole(tokens: np.ndarray | float) -> int:
    return max(1, round(float(np.mean(tokens))))


def _write_trace(path: Path, run: MeasuredRun) -> None:
    assert isinstance(run.prompt_tokens, np.ndarray) and isinstance(run.output_tokens, np.ndarray)
    begun = np.zeros(run.requests) if run.arrival_s is None else run.arrival_s
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
        tokens = zip(run.prompt_tokens.astype(int).tolist(), run.output_tokens.astype(int).tolist(), strict=True)
        writer.writerows((begun_s, *both) for begun_s, both in zip(begun.tolist(), tokens, strict=True))


def predicted(simulation: Simulation, percents: Sequence[float] = (50, 90, 95, 99)) -> dict[str, float]:
    """Every metric as a generator computes it of what its client saw: over all requests, to the last answer."""
    table = simulation.requests
    if "refused" in table:  # an error to a generator, which neither its latencies nor its throughput have
        table = table[~table["refused"]]
    ttft, e2e, output = (table[name].to_numpy(dtype=float) for name in ("ttft_s", "e2e_s", "output_tokens"))
    values = latencies_of_requests(ttft, e2e, output, percents)
    # The first token ends no gap.
    steps = output - 1
    if steps.sum() > 0:
        # The mean over all gaps between tokens: those of long answers weigh more than in the mean of requests' TPOTs.
        values["itl_mean"] = float((e2e - ttft)[steps > 0].sum() / steps.sum())
    begun = table["arrival_s"].to_numpy(dtype=float)
    # From the first request sent to the last answer, as generators divide.
    span = float((begun + e2e).max() - begun.min())
    values["throughput_rps"] = len(table) / span
    values["output_tok_per_s"] = float(output.sum()) / span
    values["total_tok_per_s"] = float(output.sum() + table["prompt_tokens"].sum()) / span
    return values


def _rows(run: MeasuredRun, scenario: Scenario, simulation: Simulation) -> list[dict]:
    percentiles = [_PERCENTILE.fullmatch(name) for name in run.metrics]
    percents = sorted(
        {
            float(percentile[1])
            for percentile in percentiles
            if percentile is not None and float(percentile[1]) >= LEAST_PERCENT
        }
    )
    values = predicted(simulation, percents)
    summary = simulation.summary.isel(config=0)
    # Little's law, which holds for any run from empty to empty.
    concurrency = values["throughput_rps"] * values["e2e_mean"]
    common = _common(run, scenario) | {
        "concurrency": concurrency,
        "calibration": str(summary["calibration_set"].item()),
        "provenance": str(summary["provenance"].item()),
    }
    rows = []
    for metric, measured in run.metrics.items():
        # A file may tell metrics that a simulation has not, such as those of other tokens.
        if metric not in values or not measured:
            continue
        scale, unit = (1e3, "ms") if metric.split("_")[0] in _JUDGED_BY else (1.0, "1/s")
        rows.append(
            common
            | {
                "metric": metric,
                "unit": unit,
                "predicted": scale * values[metric],
                "measured": scale * measured,
                "error_pct": 100 * (values[metric] / measured - 1),
                "status": OK,
                EXPECTED: expected_pct(summary, _JUDGED_BY.get(metric.split("_")[0], metric)),
            }
        )
    return rows


def _common(run: MeasuredRun, scenario: Scenario) -> dict[str, Any]:
    process = run.arrivals["process"]
    users = run.arrivals.get("users")
    notes = list(run.notes)
    if not isinstance(run.prompt_tokens, np.ndarray):
        has_means = run.prompt_tokens is not None and run.output_tokens is not None
        notes.append("lengths: means of the file for all requests" if has_means else "lengths: those of the scenario")
    if scenario.workload.classes:
        notes.append("classes of the scenario are left out: the file does not say which request is of which")
    if scenario.workload.sessions.continued:
        # A file tells the rate or the users of requests, and not when a turn came after the answer before.
        notes.append("turns of the scenario are requests of their own here; compare its table of requests to keep them")
    return {
        "exp_id": run.label,
        "experiment_name": run.generator,
        **of_deployment(scenario.deployment),
        "workload": f"{users} users" if users else process,
        "stage_index": 0,
        "rate_rps": run.arrivals.get("rate_rps", np.nan),
        "notes": "; ".join(notes),
    }


SHOWN = ("ttft_mean", "tpot_mean", "itl_mean", "e2e_mean", "throughput_rps", "output_tok_per_s")
"""What the report tells of every run; percentiles are in the table of all rows."""
SLICES = ("model", "hardware", "engine", "load")
"""By what errors are told apart, where the runs differ in it; the load in bands of mean concurrency."""
OTHER_UNIT = 100.0
"""Factor between predicted and measured latencies, in the median, from which on a wrong unit is likelier than a wrong
prediction: seconds that are read as milliseconds are a factor of 1,000."""
MOST_TOLD = 60
"""Rows of single runs in the report."""


def described(table: pd.DataFrame) -> str:
    """The report: what each run gave and should have given, the errors by metric, and how often the bars held."""
    ran = table[(table["status"] == OK) & table["metric"].isin(SHOWN)]
    failed = table[table["status"] != OK]
    parts = [f"{row.exp_id}: {row.status}" for row in failed.itertuples()]
    if len(ran):
        columns = {"exp_id": "run", "workload": "load", "metric": "metric", "unit": "unit", "predicted": "predicted",
                   "measured": "measured", "error_pct": "error %", EXPECTED: "expected ± %"}  # fmt: skip
        parts.append(_text(ran[list(columns)].rename(columns=columns).head(MOST_TOLD)))
        if len(ran) > MOST_TOLD:
            parts.append(f"({len(ran) - MOST_TOLD} more rows: --out FILE.csv has them all)")
        if ran["exp_id"].nunique() > 1:
            parts += ["", "by metric (errors in %)", _text(_slices(ran, ["metric"]))]
        latencies = ran[ran["unit"] == "ms"]
        latencies = latencies.assign(load=[load_band(value) for value in latencies["concurrency"]])
        for column in SLICES:
            # Slices of one run each, and a single slice, repeat what stands above.
            if 1 < latencies[column].nunique() < latencies["exp_id"].nunique():
                parts += ["", f"latencies by {column} (errors in %)", _text(_slices(latencies, [column, "metric"]))]
        factor = float((1 + latencies["error_pct"] / 100).median()) if len(latencies) else 1.0
        if not 1 / OTHER_UNIT < factor < OTHER_UNIT:
            more = f"{factor:,.0f} times" if factor > 1 else f"1/{1 / factor:,.0f} of"
            parts += ["", f"predicted latencies are {more} the measured ones: look at the units of the file first"]
        judged = ran[ran[EXPECTED].notna()]
        if len(judged):
            within = int((judged["error_pct"].abs() <= judged[EXPECTED]).sum())
            parts += ["", f"within the expected error: {within} of {len(judged)} figures; 68 % should be"]
    notes = dict.fromkeys(note for row in table["notes"] for note in str(row).split("; ") if note)
    if (ran[EXPECTED].isna() & ~ran["metric"].str.endswith("_mean")).any():
        notes[AS_SENT] = None
    parts += [f"note: {note}" for note in notes]
    return "\n".join(parts)


def _slices(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Errors by the columns ``by``, and how many percent of them were within the expected one."""
    judged = rows[rows[EXPECTED].notna()]
    held = judged.assign(within_pct=100.0 * (judged["error_pct"].abs() <= judged[EXPECTED]))
    shares = held.groupby(list(by), sort=False)["within_pct"].mean().reset_index()
    return summarise(rows, by).merge(shares, how="left", on=list(by))


def _text(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="-")
