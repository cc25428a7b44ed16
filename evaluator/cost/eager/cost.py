"""The eager operator set as a cost: of iterations for the engines, of requests for the request-level one."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.catalog.eager import EagerFigures, EagerPhase
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.eager.modules import Dispatch, EagerRates, ModuleTime, iteration_s, module_times
from evaluator.cost.eager.shape import EagerShape, eager_shape
from evaluator.cost.eager.slips import AsPrinted, Tables
from evaluator.cost.eager.tables import Corrected, Phase
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.rates import peak_flops
from evaluator.cost.request_times import PromptBatch

# Two lengths only: each that is tried costs another pass through the formulas in every iteration of an engine.
LEAPS = (16.0, 4096.0)
"""Steps of decoding, the shortest first."""
ROUNDING = 1e-15
"""Relative error of a time. The growth of a step is a difference of two, whose error a leap multiplies by its steps."""


class EagerCost(NamedTuple):
    """A replica of ``tensor_parallel`` devices. An ``IterationCost`` and ``RequestTimes``; numbers are traced."""

    shape: EagerShape
    tensor_parallel: Batched
    prefill: EagerRates
    decode: EagerRates
    dispatch: Dispatch
    runs_ahead: Batched  # bool, see ``iteration_s``
    tables: Tables  # structure

    def modules(self, phase: Phase, sequences: Batched, tokens: Batched) -> tuple[ModuleTime, ...]:
        """The modules of one layer, see ``module_times``."""
        sizes = sequences, tokens, self.tensor_parallel
        rates = self.prefill if phase == "prefill" else self.decode
        return module_times(self.tables, phase, self.shape, sizes, rates, self.dispatch)

    def pass_s(self, phase: Phase, sequences: Batched, tokens: Batched) -> Batched:
        """One forward pass: prompts of ``tokens``, or decodes that attend to ``tokens``. Algorithm 1."""
        return iteration_s(self.modules(phase, sequences, tokens), self.shape.layers, self.runs_ahead)

    # As RequestTimes

    def prompts_s(self, batch: PromptBatch) -> Batched:
        """Eager modules compute a rectangle: all prompts are padded to the longest."""
        return self.pass_s("prefill", batch.requests, batch.longest)

    def decodes_s(self, sequences: Batched, prompt_tokens: Batched, output_tokens: Batched) -> Batched:
        """As in BestServe, all at the context of the last (table 3: 2048 + 63 for 2048 tokens in and 64 out)."""
        gaps = output_tokens - 1.0
        return gaps * self.pass_s("decode", sequences, prompt_tokens + gaps)

    # As IterationCost

    @property
    def log_expert_missed(self) -> Batched:
        """No experts."""
        return 0.0

    @property
    def expert_skew(self) -> Batched:
        """No experts."""
        return 0.0

    def time(self, batch: BatchStatistics) -> Batched:
        """Prompts at their mean length and decodes at their mean context, in a forward pass each, seconds."""
        prompts, decodes = batch.prefill_sequences, batch.decodes
        xp = array_namespace(prompts, decodes, self.prefill.flops)
        # 1.0 where there is none: the branch is masked below, but 0 / 0 in it would make the gradient NaN.
        prefill_s = self.pass_s("prefill", prompts, batch.prefill_context / xp.maximum(prompts, 1.0))
        decode_s = self.pass_s("decode", decodes, batch.decode_context / xp.maximum(decodes, 1.0))
        return xp.where(prompts > 0.0, prefill_s, 0.0) + xp.where(decodes > 0.0, decode_s, 0.0)

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer, seconds."""
        return self._decode_s(batch, 1.0) - self._decode_s(batch, 0.0)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds: the longest of LEAPS within which no operator changes sides, or 1.

        Times are sums and maxima of terms that are affine in the context, hence convex in it: where the growth over a
        leap is that of its first step so many times, it is the same in every step between.
        """
        now_s = self._decode_s(batch, 0.0)
        growth_s = self._decode_s(batch, 1.0) - now_s
        xp, affine_steps = array_namespace(now_s), 1.0
        for leap in LEAPS:
            then_s = self._decode_s(batch, leap)
            affine_steps = xp.where(then_s - now_s - leap * growth_s <= ROUNDING * leap * then_s, leap, affine_steps)
        return affine_steps

    def _decode_s(self, batch: BatchStatistics, later: float) -> Batched:
        """The decodes after so many more steps of them all."""
        xp = array_namespace(batch.decodes, self.decode.flops)
        return self.pass_s("decode", batch.decodes, batch.decode_context / xp.maximum(batch.decodes, 1.0) + later)


TABLES: dict[str, Tables] = {"corrected": Corrected(), "as_printed": AsPrinted()}


def eager_cost(model: Model, hardware: Hardware, tensor_parallel: int, figures: EagerFigures) -> EagerCost:
    """The eager set on ``tensor_parallel`` devices. ValueError for a model that the set does not know."""
    # All numbers of the tables are fp16, whatever ``precision`` says of equally wide ones.
    peak = peak_flops(hardware.peak_flops, "fp16")

    def rates(phase: EagerPhase) -> EagerRates:
        update, repeat_kv, upcast = (share * hardware.memory_bandwidth for share in phase.copies)
        return EagerRates(
            flops=phase.flops_efficiency * peak,
            memory=phase.bandwidth_efficiency * hardware.memory_bandwidth,
            link=phase.link_efficiency * hardware.links[0].bandwidth,
            update=update,
            repeat_kv=repeat_kv,
            upcast=upcast,
            message_s=figures.message_s,
        )

    dispatch = Dispatch(figures.norm_s, figures.attention_s, figures.feed_forward_s)
    shape, tables = eager_shape(model), TABLES[figures.tables]
    sides = rates(figures.prefill), rates(figures.decode)
    return EagerCost(shape, float(tensor_parallel), *sides, dispatch, figures.runs_ahead, tables)
