"""How long requests wait and are served at each stage of their pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.statistics import over_seeds, summary
from evaluator.metrics.window import Window


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Times at one stage, or at one step of a stage; NaN for requests that do not pass it.

    ``utilisation`` is that of its servers or replicas; NaN where there is no end of them.
    """

    name: str
    wait_s: np.ndarray  # (config, seed, request)
    service_s: np.ndarray  # (config, seed, request)
    utilisation: np.ndarray  # (config, seed)

    def rows(self, rows: np.ndarray) -> StageTimes:
        """Of some configurations."""
        return replace(
            self, wait_s=self.wait_s[rows], service_s=self.service_s[rows], utilisation=self.utilisation[rows]
        )


def stage_statistics(
    names: Sequence[str], stages: Sequence[StageTimes], window: Window, levels: np.ndarray, configs: int
) -> dict[str, np.ndarray]:
    """Waits and service times as of all latencies, (config, stage) and (config, stage, quantile).

    ``names`` are the stages of all configurations of a plan; those that these configurations do not have are NaN.
    """
    table: dict[str, np.ndarray] = {}
    # NaN in all cells first: configurations of a plan may have other stages, and share the columns.
    if names:
        shape = (configs, len(names))
        for variable in TIMES:
            for ending, statistic in _STATISTICS.items():
                sizes = shape if "mean" in statistic else (*shape, levels.size)
                table[variable + ending] = np.full(sizes, np.nan)
        table["stage_utilisation"], table["stage_share"] = np.full(shape, np.nan), np.full(shape, np.nan)
    for stage in stages:
        column = names.index(stage.name)
        for variable, values in (("stage_wait_s", stage.wait_s), ("stage_service_s", stage.service_s)):
            of_stage = summary(window.cut(values), levels)
            for ending, statistic in _STATISTICS.items():
                table[variable + ending][:, column] = getattr(of_stage, statistic)
        table["stage_utilisation"][:, column] = over_seeds(stage.utilisation)
        # NaN waits are those of requests that pass the stage by.
        table["stage_share"][:, column] = over_seeds(window.total(np.isfinite(stage.wait_s)) / window.count)
    return table


TIMES = ("stage_wait_s", "stage_service_s")
_STATISTICS = {"": "quantiles", "_stderr": "quantiles_stderr", "_mean": "mean", "_mean_stderr": "mean_stderr"}
