"""Prefill context parallelism: the tokens of prompts are split over ranks that each hold the model and the whole KV.

Each of ``Parallel.prefill`` ranks computes the layers for an early and a late part of every prompt (of 2 c parts the
r-th and the (2 c - 1 - r)-th), so that all have as many pairs of tokens under the causal mask. So do vLLM
(DualChunkSwap, ``PCPManager``) and SGLang (``ZigzagCPStrategy``). In each layer the ranks gather the new keys and
values of all of them, and each stores all; behind the last one they gather the hidden states, of which every rank
samples. Routed experts are spread over the devices of all ranks, which exchange tokens as data-parallel ones do
(``exchange``), with one scheduler for all.

Decodes are computed by every rank (SGLang; vLLM before 0.32), or dealt out in turn (``Parallel.dealt``, vLLM since).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from evaluator.catalog.model import LatentAttention, Mixer, Model, SoftmaxAttention
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.context_parallel import KEEPING_A_PART, keeps_a_part
from evaluator.cost.dtypes import stream_bytes
from evaluator.cost.iteration import (
    BatchStatistics,
    CostParameters,
    decode_growth,
    iteration_time,
    prefill_attention_time,
)
from evaluator.cost.kernel import Operator
from evaluator.cost.layer_state import read_bytes
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision


class PromptsSplit(NamedTuple):
    """The cost of one of the ranks, and how many they are.

    An ``IterationCost``, asked with the batch of all. Ranks with longer contexts than others are not told apart: each
    has its share of the context of all decodes.
    """

    device: CostParameters
    parts: Batched
    dealt: Batched  # 1 where decodes are dealt out, 0 where every rank computes all

    @property
    def log_expert_missed(self) -> Batched:
        """That of one token; the device's is of one token on every rank."""
        return self.device.log_expert_missed / self.parts

    @property
    def expert_skew(self) -> Batched:
        """As of the device."""
        return self.device.expert_skew

    def _of_rank(self, batch: BatchStatistics) -> tuple[BatchStatistics, Batched]:
        """What the rank with most decodes computes of a batch, and its share of the decodes."""
        xp, parts = array_namespace(self.parts, *batch), self.parts
        # In turn, so that a rank has one decode more than another at the most.
        decodes = xp.where(self.dealt > 0.0, xp.ceil(batch.decodes / parts), batch.decodes)
        share = decodes / xp.maximum(batch.decodes, 1.0)
        # Its parts of a prompt of q tokens behind h others end at h + (r + 1) q / 2c and h + (2c - r) q / 2c: together
        # they read 2 h + (2c + 1) q / 2c tokens of KV, whichever rank it is.
        beyond = 1.0 - 0.5 / parts
        rank_batch = BatchStatistics(
            decodes=decodes,
            decode_context=share * batch.decode_context,
            decode_window_context=share * batch.decode_window_context,
            prefill_tokens=batch.prefill_tokens / parts,
            prefill_sequences=batch.prefill_sequences,
            prefill_area=batch.prefill_area / parts,
            prefill_window_area=batch.prefill_window_area / parts,
            prefill_context=2.0 * batch.prefill_context - beyond * batch.prefill_tokens,
            prefill_window_context=batch.prefill_window_context / parts,  # 0: windows are refused
        )
        return rank_batch, share

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of an iteration."""
        of_rank, share = self._of_rank(batch)
        # A kernel sees two parts of each prompt, with an edge each; the head one token of each sequence of all ranks.
        attention_s = prefill_attention_time(
            self.device, of_rank._replace(prefill_sequences=2.0 * of_rank.prefill_sequences)
        )
        sampled = 1.0 / array_namespace(share).maximum(share, 1e-9)
        return iteration_time(self.device, of_rank, attention_s, sampled=sampled)

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer."""
        of_rank, share = self._of_rank(batch)
        return decode_growth(self.device, of_rank, share * window_growing)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds: affine in the contexts, as the cost of a rank is."""
        return float("inf")


def gather_keys(
    core: list[Operator], mixer: SoftmaxAttention | LatentAttention, precision: Precision, parallel: Parallel
) -> list[Operator]:
    """The attention of one layer on one of the ranks: it stores the keys and values of all, which they gather."""
    parts, stored = parallel.prefill, read_bytes(mixer, precision.kv, parallel.tensor)
    if isinstance(mixer, LatentAttention):
        width = mixer.kv_lora_rank + mixer.rope_head_dim
    else:
        width = max(mixer.kv_heads // parallel.tensor, 1) * (mixer.head_dim + mixer.value_size)
    attention = [
        replace(operator, token_bytes=operator.token_bytes + (parts - 1) * stored)
        if operator.scaling in ("prefill", "decode")
        else operator
        for operator in core
    ]
    return [*attention, _gathered("attention.prefill_context_keys", width, precision, parallel)]


def expand_again(products: list[Operator], parallel: Parallel) -> list[Operator]:
    """MLA's product that expands the latent, of the tokens of other ranks in front of a rank's own.

    vLLM takes them from the cache as it takes the history of a chunk (``_compute_prefill_context``): of a prompt each
    rank expands (2 c - 1) / 2 c anew, which are (2 c - 1) / 2 times its own tokens. Decodes have no such product, and
    are few enough for its FLOPs to be lost beside the weights.
    """
    times = parallel.prefill - 0.5
    return [
        replace(
            operator,
            name=f"{operator.name}_again",
            flops=times * operator.flops,
            activation_bytes=times * operator.activation_bytes,
        )
        for operator in products
        if operator.name == "attention.kv_up"
    ]


def gather_states(model: Model, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Behind the last layer the hidden states of all tokens come to every rank (vLLM ``restore_hidden_states``)."""
    if parallel.prefill == 1:
        return []
    return [_gathered("head.prefill_context_states", model.hidden, precision, parallel)]


def _gathered(name: str, width: float, precision: Precision, parallel: Parallel) -> Operator:
    """A vector of every token, gathered by the ranks, which lie ``tensor`` devices apart (vLLM: PCP outside of TP)."""
    # The unit is a token of every rank, as all ranks compute as many.
    message = parallel.prefill * width * stream_bytes(precision.activations)
    ranks = range(0, parallel.prefill * parallel.tensor, parallel.tensor)
    return Operator(name, "all_reduce", "linear_tokens", message_bytes=message, collective="all_gather", ranks=ranks)


def prefill_context_problem(model: Model, parallel: Parallel) -> str | None:
    """Why prompts of this model cannot be split so; None where they can, or are not."""
    if parallel.prefill == 1:
        return None
    beside = {"data_parallel": parallel.data, "decode_context_parallel": parallel.context}
    for name, ranks in beside.items():
        if ranks > 1:
            return f"prefill_context_parallel {parallel.prefill} beside {name} {ranks}; leave out the one or the other"
    reason = next((why for kind in model.layers if (why := _mixer_problem(kind.mixer)) is not None), None)
    return None if reason is None else f"prefill_context_parallel {parallel.prefill} on {model.name}: {reason}; use 1"


def _mixer_problem(mixer: Mixer | None) -> str | None:
    if mixer is None:
        return None
    if not isinstance(mixer, SoftmaxAttention | LatentAttention):
        return "what its layers keep of a prompt is not split along tokens"
    if keeps_a_part(mixer):
        return f"what {KEEPING_A_PART} exchange is not known"
    encodes = isinstance(mixer, SoftmaxAttention) and mixer.bidirectional
    return "an encoder attends to later tokens, too" if encodes else None
