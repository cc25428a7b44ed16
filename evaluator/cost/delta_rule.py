"""Prompts through layers with the gated delta rule: a walk along each prompt, beside what operators tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evaluator.catalog.model import LinearAttention, Model
from evaluator.cost.iteration import CostParameters, DeltaRuleRows
from evaluator.cost.operators import rank_kinds
from evaluator.cost.parallel import Parallel

if TYPE_CHECKING:
    from evaluator.catalog.calibration import Calibration


def with_delta_rule(
    cost: CostParameters, model: Model, calibration: Calibration, parallel: Parallel, pipeline_rank: int | None = None
) -> CostParameters:
    """The cost of a pipeline rank (None: of all layers) with a row for each kind of such layers; as it is where the
    engine's kernels are not known."""
    figures = calibration.delta_rule
    if figures is None:
        return cost
    rows = []
    for kind, layers in rank_kinds(model, parallel.pipeline, pipeline_rank):
        if isinstance(kind.mixer, LinearAttention):
            heads = kind.mixer.value_heads // parallel.tensor
            of_layer = figures.start_s, figures.walk_s, figures.head_token_s * heads
            rows.append((*(layers * seconds for seconds in of_layer), heads / figures.heads))
    if not rows:
        return cost
    # With an axis of devices where there is one: the walk is that of the set's device on all of them.
    like = np.zeros((len(rows), *np.shape(cost.iteration_s)))
    columns = (np.array(column).reshape(-1, *(1,) * (like.ndim - 1)) for column in zip(*rows, strict=True))
    return cost._replace(delta_rule_rows=DeltaRuleRows(*(like + column for column in columns)))
