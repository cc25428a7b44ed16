"""Runs of a load generator that tell of one server: checked, with the figures that a fit takes and their loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluator.catalog.own_server import SAME_LOAD, ServedLoad
from evaluator.compare.results import serving_scenario
from evaluator.errors import InputError
from evaluator.experiments.generators import MeasuredRun
from evaluator.scenario import Scenario
from evaluator.units import counted

MOST_FAILED = 0.01
"""Share of requests that failed from which on a run is not of the load that it names."""
KEPT_UP = 0.9
"""Share of an open loop's rate that a server which keeps up serves at least, but for the end of the run."""
_QUEUED = 0.25  # of the time that a run took too long: a backlog that grows lets requests wait half of it in the mean

TTFT, GAPS = ("ttft_mean", "ttft_p50"), ("tpot_mean", "itl_mean", "tpot_p50")
E2E, THROUGHPUTS = ("e2e_mean", "e2e_p50"), ("output_tok_per_s", "throughput_rps", "total_tok_per_s")


@dataclass(frozen=True, eq=False)
class OwnRun:
    """``load`` in words, the same for runs of one load; ``figures`` are what the fit takes, ``judged`` those of which
    errors are stated."""

    measured: MeasuredRun
    scenario: Scenario
    load: str
    figures: Mapping[str, float]
    judged: Mapping[str, float]


def own_runs(runs: Sequence[MeasuredRun], scenario: Scenario | None, overrides: Sequence[str] = ()) -> list[OwnRun]:
    """The runs with the scenario that served them, of which each was of the same server.

    InputError, with the remedy, where they are of several servers, tell nothing, or are of one load.
    """
    if not runs:
        raise InputError("there is no run to fit to; give the results of at least two loads")
    served = [serving_scenario(run, scenario, overrides) for run in runs]
    for run, by in zip(runs, served, strict=True):
        _check_run(run)
        # The fit moves one set, and a replica is built of the deployment alone: of several pools there would be
        # several.
        if by.deployment.pools or by.deployment.pipeline or by.deployment.role != "mixed":
            raise InputError(
                f"{by.path or by.name}: a set is fitted to one pool; take the scenario of the server alone, without "
                "pools and stages"
            )
        if by.deployment != served[0].deployment:
            raise InputError(
                f"{run.label}: is of another deployment than {runs[0].label} ({_differing(served[0], by)}); a set is "
                "fitted to one server: give its runs alone"
            )
    loads = _loads(runs)
    if len(set(loads)) < 2:
        raise InputError(
            f"{runs[0].label}: {counted(len(runs), 'run')} at one load ({loads[0]}) cannot tell times of an "
            "iteration from those of a sequence, and leave nothing to judge the fit by; add runs at other "
            "concurrencies or rates, such as a half and twice as many (three loads are a good start)"
        )
    return [
        OwnRun(run, by, load, _figures(run), _judged(run)) for run, by, load in zip(runs, served, loads, strict=True)
    ]


def _differing(first_run: Scenario, other_run: Scenario) -> str:
    names = [
        name
        for name in vars(first_run.deployment)
        if getattr(first_run.deployment, name) != getattr(other_run.deployment, name)
    ]
    first = names[0]
    return f"{first} {getattr(other_run.deployment, first)} and {getattr(first_run.deployment, first)}"


def _check_run(run: MeasuredRun) -> None:
    if run.cancelled:
        raise InputError(f"{run.label}: the run was cancelled; leave it out, or repeat it")
    if run.failed > MOST_FAILED * (run.failed + run.requests):
        raise InputError(
            f"{run.label}: {run.failed:,} of {run.failed + run.requests:,} requests failed, so that the server had "
            "another load than the file says; leave the run out, or repeat it"
        )
    if not _figures(run):
        raise InputError(
            f"{run.label}: has no mean or median of TTFT, TPOT, ITL or E2E above 0, and no throughput of a closed "
            "loop; leave it out"
        )
    rate, served = run.arrivals.get("rate_rps"), run.metrics.get("throughput_rps")
    if rate and served and served < KEPT_UP * rate:
        # The end of a run takes as long as its last answers; a backlog takes the queue's time, which all requests see.
        late_s = run.requests / served - run.requests / rate
        if run.metrics.get("ttft_mean", run.metrics.get("ttft_p50", 0.0)) > _QUEUED * late_s:
            raise InputError(
                f"{run.label}: the server was saturated ({served:.3g} of {rate:.3g} requests/s were served), so that "
                "its latencies tell how long the run was; leave it out, or send the load as a closed loop (a "
                "concurrency without a rate)"
            )


def _first(run: MeasuredRun, names: Sequence[str]) -> dict[str, float]:
    return next(({name: run.metrics[name]} for name in names if run.metrics.get(name, 0.0) > 0.0), {})


def _figures(run: MeasuredRun) -> dict[str, float]:
    """What does not follow from one another: TTFT and a time between tokens, or else E2E or a throughput."""
    ttft, gap = _first(run, TTFT), _first(run, GAPS)
    if ttft and gap:
        # E2E is left out beside both, of which it consists: it would count their errors twice.
        return ttft | gap
    # The throughput of an open loop is what was sent; that of users who wait is their number over E2E.
    closed = "rate_rps" not in run.arrivals
    return ttft | gap | (_first(run, E2E) or (_first(run, THROUGHPUTS) if closed else {}))


def _judged(run: MeasuredRun) -> dict[str, float]:
    # An open loop serves what is sent, whatever the set: its throughput would be judged as predicted without an error.
    closed = "rate_rps" not in run.arrivals
    kinds = (TTFT, GAPS, E2E, *([THROUGHPUTS] if closed else []))
    return {name: value for kind in kinds for name, value in _first(run, kind).items()}


def _loads(runs: Sequence[MeasuredRun]) -> list[str]:
    """Each run's load in words, those that are nearly alike under the words of the first."""
    recognised: list[tuple[str, ServedLoad, str]] = []
    words = []
    for run in runs:
        process, load, text = _load(run)
        same = (
            other for of, near, other in recognised
            # Distance in concurrency and lengths; users and rates are never one load, though they may come to the same.
            if of == process and load.distance([near]) <= np.log(SAME_LOAD)
        )  # fmt: skip
        word = next(same, None)
        if word is None:
            word = text
            recognised.append((process, load, text))
        words.append(word)
    return words


def _load(run: MeasuredRun) -> tuple[str, ServedLoad, str]:
    arrivals: Mapping[str, Any] = run.arrivals
    users, rate = arrivals.get("users"), arrivals.get("rate_rps")
    prompt, output = (
        1.0 if tokens is None else max(1.0, float(np.mean(tokens))) for tokens in (run.prompt_tokens, run.output_tokens)
    )
    load = users or rate or run.requests
    text = f"{users:,} users" if users else f"{rate:g} requests/s" if rate else f"{run.requests:,} at once"
    lengths = "" if run.prompt_tokens is None else f", {prompt:,.0f} + {output:,.0f} tokens"
    kind = "users" if users else "rate" if rate else "at once"
    return kind, ServedLoad(float(load), prompt, output), text + lengths
