"""Two-batch overlap: while one half of a batch exchanges tokens with the experts' devices, the other computes.

vLLM calls it dual batch overlap (``--enable-dbo``), SGLang ``--enable-two-batch-overlap``. The two halves take turns at
two machines, the device's arithmetic and its exchange. Of L layers with experts, each half visits both twice in every
layer: it computes, sends its tokens to the experts, computes there, and gets the sums back. One half takes c to compute
and x to exchange, hence p = c / 2L and q = x / 2L for a visit. The longer of both is busy without a pause from the
first visit to it until the last, 2 x 2L times; before it, or behind it, is one visit to the other. Together

    2 max(c, x) + min(c, x) / 2L

pass: 2 c where nothing is exchanged, 2 x where nothing is computed, and never less than either needs. What there is
before the first layer and behind the last is taken as a part of c.

A half has half of the tokens, and reads all weights: products of few tokens take as long for a half as for the whole,
kernels start twice, and the host launches the layers of prompts twice. Where that costs more than the exchange, the
overlap makes an iteration longer.

vLLM splits a batch where every rank has as many tokens as its threshold says, of decodes alone or with prompts
(``check_ubatch_thresholds``), and so many that both halves have some once all are padded to the largest
(``is_last_ubatch_empty`` in ``vllm/v1/worker/ubatch_utils.py``, ``coordinate_batch_across_dp`` in ``dp_utils.py``).
SGLang has no threshold, and is taken to split by the same rule.

Not counted: the processors that kernels of the exchange take from those that compute (20 of DeepEP's normal kernels by
vLLM's default), what decode attention of half the sequences loses, and halves that are not equally long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model, MoeFeedForward
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.embedding_and_head import first_operators, last_operators
from evaluator.cost.fold import fold
from evaluator.cost.host import with_layers
from evaluator.cost.iteration import (
    BatchStatistics,
    CostParameters,
    decode_growth,
    dense_time,
    experts_time,
    launched,
    padded,
    time_without_experts,
)
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision


class Halves(NamedTuple):
    """What both halves of a batch take one after the other, seconds."""

    computing_s: Batched
    exchanging_s: Batched
    visits: Batched  # of both halves to either machine

    @property
    def time_s(self) -> Batched:
        """Seconds that pass."""
        xp = array_namespace(*self)
        longer_s, shorter_s = (bound(self.computing_s, self.exchanging_s) for bound in (xp.maximum, xp.minimum))
        return longer_s + shorter_s / self.visits

    @property
    def growing(self) -> Batched:
        """Seconds that pass more for each that computing takes longer."""
        return array_namespace(*self).where(self.computing_s >= self.exchanging_s, 1.0, 1.0 / self.visits)

    def steps(self, fastest_s: Batched) -> Batched:
        """For how many decodes that holds, of which computing takes at most ``fastest_s`` longer each time: until it
        takes as long as the exchange. Float, inf where it does already."""
        xp, spare_s = array_namespace(*self, fastest_s), self.exchanging_s - self.computing_s
        ahead = 1.0 + xp.floor(xp.minimum(spare_s / xp.maximum(fastest_s, 1e-30), 1e9))
        return xp.where(spare_s > 0.0, ahead, float("inf"))


class Overlapped(NamedTuple):
    """The cost of an iteration whose batch may be split in two. An ``IterationCost``."""

    device: CostParameters  # of all but the exchange
    exchange: CostParameters  # of the exchange alone
    layers: Batched  # with routed experts
    starts_s: Batched  # s that starting the kernels of the layers takes, which every half does
    decode_tokens: Batched  # of a rank, from which on its batch is split where it has decodes alone
    prompt_tokens: Batched  # the same of one with prompts

    @property
    def log_expert_missed(self) -> Batched:
        """As of the device."""
        return self.device.log_expert_missed

    @property
    def expert_skew(self) -> Batched:
        """As of the device."""
        return self.device.expert_skew

    def brought(self, batch: BatchStatistics) -> Batched:
        """Tokens of a rank's batch; 0 where these are too few to be split."""
        xp, tokens = array_namespace(self.decode_tokens, *batch), batch.decodes + batch.prefill_tokens
        least = xp.where(batch.prefill_tokens > 0.0, self.prompt_tokens, self.decode_tokens)
        return xp.where(tokens >= least, tokens, 0.0)

    def exchange_s(self, tokens: Batched, seen: Batched) -> Batched:
        """Seconds that so many tokens of every rank take to the experts and back."""
        return self.exchange.iteration_s + experts_time(self.exchange, tokens, seen)

    def halves(self, alone_s: Batched, tokens: Batched, seen: Batched) -> Halves:
        """Both halves of so many tokens of a rank, which takes ``alone_s`` without experts for all of them at once;
        ``seen``: the tokens when they are padded."""
        half = 0.5 * tokens, 0.5 * seen
        again_s = 2.0 * dense_time(self.device.token_rows, half[0]) - dense_time(self.device.token_rows, tokens)
        computing_s = alone_s + self.starts_s + again_s + 2.0 * experts_time(self.device, *half)
        return Halves(computing_s, 2.0 * self.exchange_s(*half), 4.0 * self.layers)

    def _of_equal_ranks(self, batch: BatchStatistics) -> tuple[Batched, Halves, Batched]:
        """(whether the batch is split, its halves if it is, seconds of the device if it is not)."""
        tokens = batch.decodes + batch.prefill_tokens
        seen = padded(tokens, self.device.graph_tokens)
        alone_s = time_without_experts(self.device, batch)
        whole_s = alone_s + experts_time(self.device, tokens, seen) + self.exchange_s(tokens, seen)
        return self.brought(batch) > 0.0, self.halves(alone_s, tokens, seen), whole_s

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of an iteration where all ranks have such a batch; of others see ``lockstep``."""
        split, halves, whole_s = self._of_equal_ranks(batch)
        xp, launched_s = array_namespace(whole_s, *halves), launched(self.device, batch)
        # The host launches the layers of every half by themselves.
        return xp.where(split, xp.maximum(halves.time_s, 2.0 * launched_s), xp.maximum(whole_s, launched_s))

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer."""
        split, halves, _ = self._of_equal_ranks(batch)
        growth_s = decode_growth(self.device, batch, window_growing)
        return growth_s * array_namespace(growth_s, *halves).where(split, halves.growing, 1.0)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds."""
        split, halves, _ = self._of_equal_ranks(batch)
        # As if no context had reached its window, where the growth is largest: as in ``dispatched``.
        steps = halves.steps(decode_growth(self.device, batch, batch.decodes))
        return array_namespace(steps, *halves).where(split, steps, float("inf"))


def overlapped(
    model: Model, hardware: Hardware, calibration: Calibration, precision: Precision, parallel: Parallel
) -> Overlapped:
    """The cost of one of the data-parallel ranks of a replica that overlaps two batches."""
    assert parallel.overlap is not None
    all_operators = operators(model, precision, parallel)
    computing = tuple(operator for operator in all_operators if operator.op_class != "all_to_all")
    exchanging = tuple(operator for operator in all_operators if operator.op_class == "all_to_all")
    ends = (*first_operators(model, precision, parallel), *last_operators(model, precision, parallel))
    started_s, ends_s = (fold(part, hardware, calibration, overheads=False).iteration_s for part in (computing, ends))
    return Overlapped(
        with_layers(fold(computing, hardware, calibration), model, calibration, parallel),
        fold(exchanging, hardware, calibration, overheads=False),
        np.float64(sum(kind.count for kind in model.layers if isinstance(kind.feed_forward, MoeFeedForward))),
        # Embedding, head and sampler see the whole batch.
        started_s - ends_s,
        np.float64(parallel.overlap.decode_tokens),
        np.float64(parallel.overlap.prompt_tokens),
    )
