"""By what waiting requests go where a scheduler goes by priorities: those of their classes, or predicted lengths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluator.scenario.deployment import SHORTEST_FIRST, Batching
from evaluator.traffic.arrivals import stream
from evaluator.traffic.jobs import Jobs

_PREDICTIONS = 12  # the random stream of what predictions are off by


def priorities(jobs: Jobs, served: NDArray[np.int64] | slice, batching: Batching, seed: int) -> NDArray | None:
    """The priority of each of these jobs, (job,), the smallest first; None where all are alike.

    Under ``shortest_first`` the predicted output in tokens, without what a request gains while it waits
    (``reference.replica.Replica.submit``, ``aged``).
    """
    if batching.packing == SHORTEST_FIRST:
        return _predicted_tokens(jobs, served, batching.prediction_error, seed)
    return None if jobs.classes is None else jobs.classes.of(jobs.id[served]).priority


def aged(priority: NDArray, ready_s: NDArray, batching: Batching) -> NDArray:
    """The priorities of jobs that come at known times, (job,), with what they gain while they wait."""
    # Whoever has waited w seconds counts as w x aging tokens shorter. Of two that wait both shrink alike, so that who
    # is first never changes: the later one has as much more as it came later.
    if batching.packing != SHORTEST_FIRST or not batching.aging_tokens_per_s:
        return priority
    return priority + batching.aging_tokens_per_s * ready_s


def _predicted_tokens(jobs: Jobs, served: NDArray[np.int64] | slice, error: float, seed: int) -> NDArray[np.float64]:
    """Outputs times the exponential of a normal number: half of the predictions are too long, half too short."""
    output = jobs.demand.output_tokens[served].astype(np.float64)
    if not error:
        return output
    # By the ids, so that designs differ by what they do with a prediction and not by their luck with it.
    ids = jobs.id[served]
    off = stream(seed, _PREDICTIONS).standard_normal(int(ids.max(initial=-1)) + 1)
    return output * np.exp(error * off[ids])
