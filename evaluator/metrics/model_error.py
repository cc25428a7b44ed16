"""How far the model's predictions are expected to be from a real system: of each configuration, by what it rests on.

The errors that the table of ``evaluator.accuracy`` states are of servers that keep up. Where a queue decides, an error
of the service grows in the wait, by how much the wait follows the service.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluator.metrics.outcomes import Outcomes
from evaluator.metrics.window import Window

MODEL_ERRORS = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "throughput_rps", "output_tok_per_s")
"""The variables whose model error is told, as ``NAME_model_error``: of latencies that of the mean."""


def model_errors(outcomes: Outcomes, window: Window, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The expected relative errors of MODEL_ERRORS, (config,), from those of servers that keep up and the ``values``.

    Under overload requests come at rho > 1 times the rate at which they are served, and the mean wait W in a window
    grows as rho - 1 (fluid limit; Newell: Applications of Queueing Theory, 1982, chapter 2). As rho is proportional to
    the times of service, d ln W / d ln service = rho / (rho - 1), by which the error of E2E, which is that of the
    service, is multiplied in the wait; the rest of a latency has its own error. NaN where the rates do not tell rho.

    What is served is the rate of arrivals as long as the design keeps up, however far the latencies are off: its error
    is 0. Under overload, in a closed loop and of all at once it is that of E2E, as requests then wait for the service.

    The error of E2E is at least that of the TTFT in it (``end_to_end``). A latency that is not there, as TPOT of single
    tokens, has none.
    """
    ttft, itl, service = outcomes.model_error.T
    # Only where requests queue for good; else waits follow the load and have the error of the service.
    waited_s = np.where(values["saturated"], values["queue_wait_s_mean"], 0.0)
    e2e = end_to_end(service, ttft, values["ttft_s_mean"] - waited_s, values["e2e_s_mean"] - waited_s)
    keeps_up = outcomes.open_loop & ~values["saturated"]
    # 0 where it keeps up, NaN where the error of the service is not known: 0 times it has both.
    served = np.where(keeps_up, 0.0 * service, service)
    errors = {"ttft_s": ttft, "tpot_s": itl, "itl_s": itl, "e2e_s": e2e}
    errors |= {"throughput_rps": served, "output_tok_per_s": served}
    if values["saturated"].any():
        wait_error = service * _amplified(outcomes, window, values["throughput_rps"])
        for name in ("ttft_s", "e2e_s"):
            whole_s = values[f"{name}_mean"]
            waited = np.divide(values["queue_wait_s_mean"], whole_s, out=np.zeros_like(whole_s), where=whole_s > 0.0)
            queued = waited * wait_error + (1.0 - waited) * errors[name]
            errors[name] = np.where(values["saturated"], queued, errors[name])
    for name in ("tpot_s", "itl_s"):
        if f"{name}_mean" in values:
            errors[name] = np.where(np.isnan(values[f"{name}_mean"]), np.nan, errors[name])
    return {f"{name}_model_error": error for name, error in errors.items()}


def end_to_end(e2e: np.ndarray, ttft: np.ndarray, ttft_s: np.ndarray, e2e_s: np.ndarray) -> np.ndarray:
    """The error of an E2E from that of long outputs and that of TTFT: short outputs are as unsure as their TTFT."""
    share = np.divide(ttft_s, e2e_s, out=np.zeros_like(e2e_s), where=e2e_s > 0.0)
    # fmax takes the other where one is NaN: an error that is not known is no reason to know none.
    return np.fmax(e2e, share * ttft)


def _amplified(outcomes: Outcomes, window: Window, served_rps: np.ndarray) -> np.ndarray:
    """rho / (rho - 1), (config,), with rho the rate of arrivals over that of completions; NaN unless rho > 1."""
    first_s, last_s = window.least(outcomes.times.arrival_s), outcomes.times.arrival_s.max(axis=-1)
    # Arrivals behind the first measured one: as many gaps as requests, so that the rate has no end effect.
    came = np.count_nonzero(outcomes.times.arrival_s > first_s[..., None], axis=-1)
    span_s = last_s - first_s
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.mean(came / span_s, axis=-1) / served_rps
        return np.where(rho > 1.0, rho / (rho - 1.0), np.nan)
