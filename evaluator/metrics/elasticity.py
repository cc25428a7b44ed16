"""What a little more of an input does to a metric: elasticities by central differences on paired runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evaluator.metrics.statistics import seed_stderr

STEP = 0.05
"""An input is made 1 + STEP times as large, and as small: steps alike in the logarithm."""

METRICS = (
    *(f"{name}{mean}" for name in ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "itl_s") for mean in ("", "_mean")),
    *("throughput_rps", "output_tok_per_s", "slo_attainment", "utilisation", "usd_per_mtok", "joule_per_tok"),
)
"""The variables that have elasticities."""


def elasticities(
    values: Mapping[str, np.ndarray], parts: Mapping[str, np.ndarray], bumps: np.ndarray
) -> dict[str, np.ndarray]:
    """d ln metric / d ln input of METRICS as ``NAME_elasticity``, (config, input) or (config, input, quantile).

    ``values`` (row, ...) are a configuration in its row and, in the rows ``bumps`` (config, input, 2), with an input
    a step lower and higher on the same requests. With m-, m0, m+ for the three and h for the step in the logarithm:

    * the elasticity is ln(m+ / m-) / 2h, NaN unless all three are positive and finite;
    * ``_stderr`` is the standard error over the ``parts`` (row, part, ...) of (m+_part / m+ - m-_part / m-) / 2h: the
      delta method on paired parts. Common random numbers leave in it only what the step changes;
    * ``_step_error`` is |ln(m+ m- / m0^2)| / 2h, half the difference between the elasticities a step up and a step
      down: what the size of the step matters where the metric has a kink or jumps. Where it is smooth the central
      difference is off by h^2 / 6 of its third derivative, which is far less.
    """
    span = 2.0 * np.log1p(STEP)
    results = {}
    for name in METRICS:
        if name not in values:
            continue
        usable = np.isfinite(values[name]) & (values[name] > 0.0)
        # Logarithms of positive values alone; NaN runs through all that follows and marks the metric as not known.
        value = np.where(usable, values[name], np.nan)
        log, relative = np.log(value), parts[name] / value[:, None]
        low, here, high = log[bumps[..., 0]], log[: len(bumps), None], log[bumps[..., 1]]
        slope = np.where(np.isnan(here), np.nan, (high - low) / span)
        apart = relative[bumps[..., 1]] - relative[bumps[..., 0]]  # (config, input, part, ...)
        stderr = seed_stderr(apart.reshape(bumps[..., 0].size, *apart.shape[2:])) / span
        results[f"{name}_elasticity"] = slope
        results[f"{name}_elasticity_stderr"] = np.where(np.isnan(slope), np.nan, stderr.reshape(slope.shape))
        results[f"{name}_elasticity_step_error"] = np.abs(high + low - 2.0 * here) / span
    return results
