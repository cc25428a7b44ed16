"""How long requests wait and are served at each stage of their pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluator.metrics.statistics import over_seeds, summary
from evaluator.metrics.window import Window


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Of one stage, or of one step of a stage; NaN for requests that do not pass it.

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
    names: Sequence[str], stages: Sequence[StageTimes], window: Window, levels: np.ndarray
) -> dict[str, np.ndarray]:
    """Waits and service times as of all latencies, (config, stage) and (config, stage, quantile).

    ``names`` are the stages of all configurations of a plan; those that these configurations do not have are NaN.
    """
    if not stages:
        return {}
    columns: dict[str, list[np.ndarray | None]] = {}
    known = {stage.name: stage for stage in stages}
    for name in names:
        stage = known.get(name)
        for variable in ("stage_wait_s", "stage_service_s"):
            values = None if stage is None else window.cut(getattr(stage, variable.removeprefix("stage_")))
            one = None if values is None else summary(values, levels)
            for ending, field in _FIELDS.items():
                columns.setdefault(variable + ending, []).append(None if one is None else getattr(one, field))
        utilisation = None if stage is None else over_seeds(stage.utilisation)
        columns.setdefault("stage_utilisation", []).append(utilisation)
    return {name: _stacked(column) for name, column in columns.items()}


_FIELDS = {"": "quantiles", "_stderr": "quantiles_stderr", "_mean": "mean", "_mean_stderr": "mean_stderr"}


def _stacked(column: Sequence[np.ndarray | None]) -> np.ndarray:
    """The values of all stages along a second axis."""
    there = next(values for values in column if values is not None)
    empty = np.full(there.shape, np.nan)
    return np.stack([empty if values is None else values for values in column], axis=1)
