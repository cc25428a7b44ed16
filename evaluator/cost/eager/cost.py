"""The eager operator set as a cost: of iterations for the engines, of requests for the request-level one."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.eager.modules import Dispatch, ModuleTime, Rates, iteration_s, module_times
from evaluator.cost.eager.shape import EagerShape, eager_shape
from evaluator.cost.eager.slips import Tables
from evaluator.cost.eager.tables import Corrected, Phase
from evaluator.cost.iteration import BatchStatistics
from evaluator.cost.request_times import PromptBatch


class EagerCost(NamedTuple):
    """A replica of ``tensor_parallel`` devices. An ``IterationCost`` and ``RequestTimes``; numbers are traced."""

    shape: EagerShape
    tensor_parallel: Batched
    prefill: Rates
    decode: Rates
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
        prefill_s = self.pass_s("prefill", prompts, batch.prefill_context / xp.maximum(prompts, 1.0))
        decode_s = self.pass_s("decode", decodes, batch.decode_context / xp.maximum(decodes, 1.0))
        return xp.where(prompts > 0.0, prefill_s, 0.0) + xp.where(decodes > 0.0, decode_s, 0.0)

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer, seconds."""
        return self.time(batch._replace(decode_context=batch.decode_context + batch.decodes)) - self.time(batch)

    def steps(self, batch: BatchStatistics) -> Batched:
        """One: operators may change sides anywhere, so that the engine asks for every iteration anew."""
        return 1.0


BEST_SERVE_DISPATCH = Dispatch(24e-6, 190e-6, 41e-6)
"""Profiled, table 3."""
BEST_SERVE_EFFICIENCIES: dict[Phase, tuple[float, float, float]] = {
    "prefill": (0.65, 0.6, 0.6),
    "decode": (0.65, 0.3, 0.3),
}
"""e_c, e_m and e_+ of section 4.1."""


def best_serve_cost(
    model: Model, hardware: Hardware, tensor_parallel: int, tables: Tables | None = None, link: float | None = None
) -> EagerCost:
    """The eager set with the paper's efficiencies and dispatch times; ``tables``: the corrected ones unless given.

    ``link``: byte/s of the interconnect, that of the nearest link unless given. Copies run at the rate of memory: the
    paper names their rates, and states none. ValueError for a model that the set does not know.
    """
    peak = hardware.peak_flops.get("fp16", hardware.peak_flops["bf16"])
    link = hardware.links[0].bandwidth if link is None else link

    def rates(phase: Phase) -> Rates:
        compute, memory, communication = BEST_SERVE_EFFICIENCIES[phase]
        attained = memory * hardware.memory_bandwidth
        return Rates(compute * peak, attained, communication * link, attained, attained, attained, 0.0)

    tables = Corrected() if tables is None else tables
    shape, devices = eager_shape(model), float(tensor_parallel)
    return EagerCost(shape, devices, rates("prefill"), rates("decode"), BEST_SERVE_DISPATCH, False, tables)
