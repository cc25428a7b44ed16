"""Predictions of whole engine iterations: prefills or decodes of equal sequences, by the folded cost of their model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from evaluator.catalog import load_model
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.coefficients import coefficients
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.fold import fold_rates
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.memory import model_window
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.rates import Rates


def batches(rows: pd.DataFrame, window: int | None) -> BatchStatistics:
    """The batch of every row, (row,) arrays."""
    names = ("prompts", "prompt_tokens", "past_tokens", "decodes", "context")
    prompts, length, past, decodes, context = (rows[name].to_numpy(dtype=float) for name in names)
    return together(prefill_batch(prompts, length, window, past), decode_batch(decodes, context, window))


def predictor(rows: pd.DataFrame, reach: tuple[int | None, ...]) -> Callable[[Rates], Any]:
    """Seconds of every row as a function of the rates, in JAX; one folding per model and split."""
    parts = []
    position = np.arange(len(rows))
    for (name, tensor, expert), part in rows.groupby(["model", "tensor_parallel", "expert_parallel"]):
        model = load_model(str(name))
        window = model_window(model)
        work = coefficients(operators(model, Precision(), Parallel(int(tensor), 1, int(expert))), reach)
        parts.append((position[rows.index.get_indexer(part.index)], work, batches(part, window)))
    # groupby takes the rows apart by model; the inverse permutation puts them back.
    order = np.argsort(np.concatenate([rows_of_part for rows_of_part, _, _ in parts]))

    def predict(rate: Rates) -> Any:
        # dispatch_s is fitted, and may be 0: then the maximum with it changes nothing.
        times = [Dispatched(fold_rates(work, rate), rate.dispatch_s).time(batch) for _, work, batch in parts]
        return jnp.concatenate([jnp.atleast_1d(part_times) for part_times in times])[order]

    return predict
