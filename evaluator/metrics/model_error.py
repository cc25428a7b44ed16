"""How far the model's predictions are expected to be from a real system: of each configuration, by what it rests on.

The errors that the table of ``evaluator.accuracy`` states are of servers that keep up. Where a queue decides, an error
of the service grows in the wait, by how much the wait follows the service.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluator.metrics.latency import VARIABLE
from evaluator.metrics.outcomes import Outcomes
from evaluator.metrics.window import Window

MODEL_ERRORS = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "throughput_rps", "output_tok_per_s")
"""The variables whose model error is told, as ``NAME_model_error``: of latencies that of the mean."""


_TAILS = (0.5, 0.9)
"""Quantiles up to which a statistic has the error of the mean, and of p90; that of p99 is stated of all beyond."""


def model_errors(outcomes: Outcomes, window: Window, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The expected relative errors of MODEL_ERRORS, (config,), from those of servers that keep up and the ``values``.

    What is served is the rate of arrivals as long as the design keeps up, however far the latencies are off: its error
    is 0. Under overload, in a closed loop and of all at once it is that of E2E, as requests then wait for the service.
    """
    service = outcomes.model_error[:, 0, 2]
    keeps_up = outcomes.open_loop & ~values["saturated"]
    # 0 where it keeps up, NaN where the error of the service is not known: 0 times it has both.
    served = np.where(keeps_up, 0.0 * service, service)
    errors = _latency_errors(outcomes, values, None)
    errors |= {"throughput_rps": served, "output_tok_per_s": served}
    if values["saturated"].any():
        wait_error = service * amplified(overload(outcomes, window, values))
        for name in ("ttft_s", "e2e_s"):
            waited = waited_share(values, name)
            queued = waited * wait_error + (1.0 - waited) * errors[name]
            errors[name] = np.where(values["saturated"], queued, errors[name])
    return {f"{name}_model_error": errors[name] for name in MODEL_ERRORS}


def objective_errors(outcomes: Outcomes, values: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The expected relative errors, in a server that keeps up, of the mean latency that each objective is about, and of
    the statistic that it bounds, (config,) each.

    That of a quantile is that of the measured statistic above it (p90, p99), and no less than the mean's. Of TPOT and
    ITL means alone were measured, which stand for their quantiles. A wait in the queue is as sure as the service.
    """
    quantiles = {None: None} | {bound.quantile: None for bound in outcomes.objectives}
    errors = {quantile: _latency_errors(outcomes, values, quantile) for quantile in quantiles}
    names = [(VARIABLE[bound.metric], bound.quantile) for bound in outcomes.objectives]
    return [(errors[None][name], errors[quantile][name]) for name, quantile in names]


def _latency_errors(
    outcomes: Outcomes, values: Mapping[str, np.ndarray], quantile: float | None
) -> dict[str, np.ndarray]:
    """The errors of all latencies at a quantile (None: of their means), (config,), in a server that keeps up.

    The error of E2E is at least that of the TTFT in it (``end_to_end``). A latency that is not there, as TPOT of single
    tokens, has none.
    """
    place = 0 if quantile is None else int(np.searchsorted(_TAILS, quantile))
    # No tail is surer than the mean, whatever the table says of the two; ``fmax`` where a tail was not measured.
    ttft, itl, service = np.fmax.reduce(outcomes.model_error[:, : place + 1], axis=1).T
    # Only where requests queue for good; else waits follow the load and have the error of the service.
    waited_s = np.where(values["saturated"], values["queue_wait_s_mean"], 0.0)
    e2e = end_to_end(service, ttft, values["ttft_s_mean"] - waited_s, values["e2e_s_mean"] - waited_s)
    errors = {"queue_wait_s": service, "ttft_s": ttft, "tpot_s": itl, "itl_s": itl, "e2e_s": e2e}
    for name in ("tpot_s", "itl_s"):
        if f"{name}_mean" in values:
            errors[name] = np.where(np.isnan(values[f"{name}_mean"]), np.nan, errors[name])
    return errors


def waited_share(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The part of a mean latency that requests wait in the queue, (config,)."""
    whole_s = values[f"{name}_mean"]
    return np.divide(values["queue_wait_s_mean"], whole_s, out=np.zeros_like(whole_s), where=whole_s > 0.0)


def amplified(rho: np.ndarray) -> np.ndarray:
    """d ln W / d ln service of the mean wait W in a window under overload; NaN where the rates do not tell.

    Requests come at rho > 1 times the rate at which they are served, and the wait grows as rho - 1 (fluid limit;
    Newell: Applications of Queueing Theory, 1982, chapter 2). As rho is proportional to the times of service that is
    rho / (rho - 1).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rho > 1.0, rho / (rho - 1.0), np.nan)


def end_to_end(e2e: np.ndarray, ttft: np.ndarray, ttft_s: np.ndarray, e2e_s: np.ndarray) -> np.ndarray:
    """The error of an E2E from that of long outputs and that of TTFT: short outputs are as unsure as their TTFT."""
    share = np.divide(ttft_s, e2e_s, out=np.zeros_like(e2e_s), where=e2e_s > 0.0)
    # fmax takes the other where one is NaN: an error that is not known is no reason to know none.
    return np.fmax(e2e, share * ttft)


def overload(outcomes: Outcomes, window: Window, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rate of arrivals over that of completions of saturated designs, (config,); NaN of all others."""
    if not values["saturated"].any():
        return np.full(outcomes.status.size, np.nan)
    first_s, last_s = window.least(outcomes.times.arrival_s), outcomes.times.arrival_s.max(axis=-1)
    # Arrivals behind the first measured one: as many gaps as requests, so that the rate has no end effect.
    came = np.count_nonzero(outcomes.times.arrival_s > first_s[..., None], axis=-1)
    span_s = last_s - first_s
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.mean(came / span_s, axis=-1) / values["throughput_rps"]
    return np.where(values["saturated"] & np.isfinite(rho), rho, np.nan)
