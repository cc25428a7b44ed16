"""What the design delivers and what it costs: throughput, use of the hardware, money and energy."""

from __future__ import annotations

import numpy as np

from evaluator.metrics.outcomes import Outcomes

SECONDS_PER_HOUR = 3600.0


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient, NaN where the denominator is not positive."""
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=np.asarray(denominator) > 0)


def _selected(tokens: np.ndarray, measured: np.ndarray | slice, like: np.ndarray) -> np.ndarray:
    """Tokens summed over the measured requests, (config, seed) whatever the shape of the input."""
    return np.broadcast_to(np.asarray(tokens)[..., measured].sum(axis=-1, dtype=np.float64), like.shape)


def throughput(outcomes: Outcomes, measured: np.ndarray | slice) -> dict[str, np.ndarray]:
    """throughput_rps, output_tok_per_s, total_tok_per_s and the same per GPU; (config, seed).

    Work of the measured requests over the window from the arrival of the first to the last completion of any of
    them. Edges: work done in the window for the warm-up requests is not counted, and the window includes the drain of
    the last requests, so that the rate of an unloaded design reads low by about one e2e_s in the window.
    """
    window = outcomes.last_token_s[..., measured].max(axis=-1) - outcomes.arrival_s[..., measured].min(axis=-1)
    output = _selected(outcomes.output_tokens, measured, window)
    prompt = _selected(outcomes.prompt_tokens, measured, window)
    count = np.full(window.shape, float(outcomes.measured.sum()))
    work = {
        "throughput_rps": count,
        "output_tok_per_s": output,
        "total_tok_per_s": prompt + output,
        "tok_per_s_per_gpu": _ratio(output, outcomes.devices[:, None]),
    }
    return {name: _ratio(done, window) for name, done in work.items()}


def hardware_use(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """utilisation, mfu, mbu, kv_used_mean, iterations, preemptions over the whole run; (config, seed).

    Busy time is summed over replicas, each of which has devices / replicas devices with their peaks together.
    """
    replicas = outcomes.replicas[:, None]
    device_busy_s = outcomes.busy_s * (outcomes.devices[:, None] / replicas)
    return {
        "utilisation": np.minimum(_ratio(outcomes.busy_s, replicas * outcomes.makespan_s), 1.0),  # two sums that round
        "mfu": _ratio(outcomes.flops, device_busy_s * outcomes.peak_flops[:, None]),
        "mbu": _ratio(outcomes.bytes, device_busy_s * outcomes.peak_bandwidth[:, None]),
        "kv_used_mean": outcomes.kv_used_mean,
        "iterations": outcomes.iterations,
        "preemptions": outcomes.preemptions,
    }


def price(outcomes: Outcomes, output_tok_per_s: np.ndarray) -> np.ndarray:
    """usd_per_mtok, (config,): all devices are paid for the whole measured window; NaN where the price is not known."""
    return 1e6 * _ratio(outcomes.devices * outcomes.usd_per_hour / SECONDS_PER_HOUR, output_tok_per_s)


def energy(outcomes: Outcomes) -> np.ndarray:
    """joule_per_tok per output token, (config, seed); NaN where a power is not known.

    Over the whole run a device takes power_w while its replica is busy and idle_power_w while it waits; where only
    power_w is known the energy is not guessed.
    """
    per_replica = (outcomes.devices / outcomes.replicas)[:, None]
    idle_s = outcomes.replicas[:, None] * outcomes.makespan_s - outcomes.busy_s
    power, idle_power = outcomes.power_w[:, None], outcomes.idle_power_w[:, None]
    joule = per_replica * (outcomes.busy_s * power + idle_s * idle_power)
    return _ratio(joule, _selected(outcomes.output_tokens, slice(None), joule))
