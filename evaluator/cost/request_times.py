"""What an engine that follows requests, not iterations, asks of a cost: batches of prompts, and whole decodes."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from evaluator.cost.arrays import Array, Batched, array_namespace
from evaluator.cost.iteration import BatchStatistics, IterationCost, iteration_time


class PromptBatch(NamedTuple):
    """Whole prompts that are computed together: the sums over them."""

    requests: Batched
    tokens: Batched
    longest: Batched  # tokens of the longest
    area: Batched  # pairs of tokens: s (s + 1) / 2 of each prompt of s tokens


@runtime_checkable
class PhaseTimes(Protocol):
    """Seconds of the two things that happen to a request."""

    def prompts_s(self, batch: PromptBatch) -> Batched:
        """All of these prompts, up to their first tokens."""
        ...

    def decodes_s(self, sequences: Batched, prompt_tokens: Batched, output_tokens: Batched) -> Batched:
        """Every token of a request but the first, where ``sequences`` decode together all the time."""
        ...


class IterationTimes(NamedTuple):
    """Requests at the cost of iterations. The model must have no sliding windows."""

    cost: IterationCost

    def prompts_s(self, batch: PromptBatch) -> Batched:
        """One iteration."""
        none = 0.0 * batch.requests
        # As of ``BatchStatistics`` from ``prefill_tokens`` on; without windows area and context are twice the same.
        prompts = batch.tokens, batch.requests, batch.area, batch.area, batch.tokens, batch.tokens
        return iteration_time(self.cost, BatchStatistics(none, none, none, *prompts))

    def decodes_s(self, sequences: Batched, prompt_tokens: Batched, output_tokens: Batched) -> Batched:
        """The iterations attend to prompt + 1 .. prompt + output - 1 tokens: so many times the one in the middle."""
        none = 0.0 * sequences
        # The middle of an affine time is its mean, so that one evaluation stands for all iterations.
        context = sequences * (prompt_tokens + 0.5 * output_tokens)
        batch = BatchStatistics(none + sequences, context, context, none, none, none, none, none, none)
        return (output_tokens - 1.0) * iteration_time(self.cost, batch)


def request_times(cost: IterationCost) -> PhaseTimes:
    """The times of requests on a replica; a cost that pads prompts to the longest says so itself."""
    return cost if isinstance(cost, PhaseTimes) else IterationTimes(cost)


class TabulatedTimes(NamedTuple):
    """Times by the size of the batch, for requests of equal lengths (``tabulate`` makes it); float64 (batch,)."""

    prompts: Array  # s of 1, 2, ... prompts
    decodes: Array  # s of a request among 1, 2, ... sequences

    def prompts_s(self, batch: PromptBatch) -> Batched:
        """Read at the number of prompts."""
        return self.prompts[_place(batch.requests)]

    def decodes_s(self, sequences: Batched, prompt_tokens: Batched, output_tokens: Batched) -> Batched:
        """Read at the number of sequences."""
        return self.decodes[_place(sequences)]


def _place(size: Batched) -> Batched:
    if isinstance(size, float | int):
        return int(size) - 1
    # JAX indexes by integers; 32 bits as the engine's other counts.
    return size.astype(np.int32) - 1


def tabulate(times: PhaseTimes, prompt_tokens: float, output_tokens: float, most: int) -> TabulatedTimes:
    """The times of 1 to ``most`` requests of these lengths. BestServe caches its estimates to the same end (3.3.4)."""
    sizes = np.arange(1.0, most + 1.0)
    longest = np.full(most, float(prompt_tokens))
    area = 0.5 * sizes * prompt_tokens * (prompt_tokens + 1.0)
    prompts = times.prompts_s(PromptBatch(sizes, sizes * prompt_tokens, longest, area))
    decodes = times.decodes_s(sizes, longest, np.full(most, float(output_tokens)))
    xp = array_namespace(prompts, decodes)
    return TabulatedTimes(xp.asarray(prompts), xp.asarray(decodes))
