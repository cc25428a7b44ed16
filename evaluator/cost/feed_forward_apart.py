"""Attention and feed-forwards apart (AFD): devices of their own for each, which micro-batches pass in turn.

``Apart.ranks`` groups of the tensor-parallel devices of a replica compute attention, each for its share of the
sequences, whose KV it keeps; ``Apart.devices`` others hold the routed experts between them, and compute dense
feed-forwards and shared experts for a share of the tokens each. Every layer sends the hidden states of a micro-batch
there and back. So do MegaScale-Infer (arXiv:2504.02263) and Step-3 (arXiv:2507.19427). With several micro-batches both
sides and the link work at a time: of m micro-batches and L layers on which attention, feed-forward and a way take A, F
and C, a layer begins every max(m max(A, F, C), A + F + 2 C), and

    L - 1 times that + (A + F + 2 C) + (m - 1) max(A, F, C)

passes, which is section 4.1 of MegaScale-Infer, m L max(A, F) + A + F + 2 C - max(A, F), where the micro-batches are
enough to fill the pipeline. Layers of several kinds have the mean of their times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model, MoeFeedForward
from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.collectives import Spread
from evaluator.cost.delta_rule import with_delta_rule
from evaluator.cost.dtypes import BYTES, stream_bytes, weight_dtypes
from evaluator.cost.embedding_and_head import first_operators, last_operators
from evaluator.cost.feed_forward import feed_forward_operators
from evaluator.cost.fold import fold
from evaluator.cost.host import with_model_host
from evaluator.cost.iteration import BatchStatistics, CostParameters, decode_growth, device_time, launched
from evaluator.cost.kernel import Operator, merge
from evaluator.cost.mixers import mixer_operators
from evaluator.cost.parallel import GATHER, Parallel, layer_count
from evaluator.cost.precision import Precision
from evaluator.cost.weights import rank_parameters


@dataclass(frozen=True)
class Apart:
    """Devices for the feed-forwards of a replica, groups for its attention, micro-batches, and the link of a device."""

    devices: int
    ranks: int
    micro_batches: int
    bandwidth: float  # byte/s of a device, each way
    latency_s: float

    @property
    def split(self) -> Parallel:
        """How the feed-forwards are split: each device has whole experts, and tokens of its own."""
        return Parallel(tensor=1, expert=self.devices, data=self.devices)


class PingPong(NamedTuple):
    """The cost of an iteration whose micro-batches alternate. An ``IterationCost``; fields as of ``Apart``."""

    attention: CostParameters  # of all layers, of one rank
    feed_forward: CostParameters  # of all layers, by the tokens of a device's share
    ends: CostParameters  # embedding, head and the host, of one rank: once per iteration
    ranks: Batched
    devices: Batched
    micro_batches: Batched  # at most, see ``_parts``
    layers: Batched
    sent_s: Batched  # s per token of a rank and way: the side that sends or receives most
    received_s: Batched  # s per token of all ranks and way, of a feed-forward device
    latency_s: Batched

    @property
    def log_expert_missed(self) -> Batched:
        """That of one token; the feed-forwards' is of one token on each of their devices."""
        return self.feed_forward.log_expert_missed / self.devices

    @property
    def expert_skew(self) -> Batched:
        """As of the feed-forwards."""
        return self.feed_forward.expert_skew

    def _parts(self, batch: BatchStatistics) -> Batched:
        """Micro-batches that a batch is cut into: no more than the rank with most decodes has, and prompts have tokens.

        A decode has one token, and is in one micro-batch. A prompt is cut at any token, as vLLM does where it overlaps
        two micro-batches (``_make_metadata_with_slice`` in ``vllm/v1/worker/ubatch_utils.py``).
        """
        xp = array_namespace(self.ranks, *batch)
        # From whole numbers, and not from a rank's share of the statistics: a rounding error of that would be one
        # micro-batch more.
        tokens = xp.ceil(batch.decodes / self.ranks) + xp.ceil(batch.prefill_tokens)
        return xp.minimum(self.micro_batches, xp.maximum(tokens, 1.0))

    def _of_rank(self, batch: BatchStatistics) -> BatchStatistics:
        """The batch of the attention rank with most sequences; ranks are dealt whole sequences and prompts."""
        xp = array_namespace(self.ranks, *batch)
        decoding, computing = self._share(xp, batch.decodes), self._share(xp, batch.prefill_sequences)
        # Three statistics are of decodes, the other six of prompts.
        return BatchStatistics(
            *(decoding * statistic for statistic in batch[:3]), *(computing * statistic for statistic in batch[3:])
        )

    def _micro_batch(self, batch: BatchStatistics) -> BatchStatistics:
        """One micro-batch of that rank, the mean of them.

        The mean and not the largest: all of them pass the slowest side, which takes the sum of their times.
        """
        parts = self._parts(batch)
        return BatchStatistics(*(statistic / parts for statistic in self._of_rank(batch)))

    def _share(self, xp: Any, sequences: Batched) -> Batched:
        """The part of so many sequences that the rank with most of them has."""
        return xp.ceil(sequences / self.ranks) / xp.maximum(sequences, 1.0)

    def _stages(self, batch: BatchStatistics) -> tuple[Batched, Batched, Batched]:
        """Seconds that attention, feed-forward and a way take for a layer of a micro-batch."""
        micro_batch = self._micro_batch(batch)
        tokens, zero = (batch.decodes + batch.prefill_tokens) / self._parts(batch), 0.0 * batch.decodes
        of_device = BatchStatistics(tokens / self.devices, *[zero] * 8)
        attention_s = device_time(self.attention, micro_batch) / self.layers
        feed_forward_s = device_time(self.feed_forward, of_device) / self.layers
        sent_s = self.sent_s * (micro_batch.decodes + micro_batch.prefill_tokens)
        received_s = self.received_s * tokens
        return attention_s, feed_forward_s, self.latency_s + array_namespace(sent_s).maximum(sent_s, received_s)

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of an iteration."""
        attention_s, feed_forward_s, way_s = self._stages(batch)
        xp, parts = array_namespace(attention_s, way_s), self._parts(batch)
        slowest_s = xp.maximum(attention_s, xp.maximum(feed_forward_s, way_s))
        round_s = attention_s + feed_forward_s + 2.0 * way_s
        layer_s = xp.maximum(parts * slowest_s, round_s)
        through_s = (self.layers - 1.0) * layer_s + round_s + (parts - 1.0) * slowest_s
        # Behind the last layer every rank samples for its own sequences.
        whole_s = through_s + device_time(self.ends, self._of_rank(batch))
        # The host of a rank launches the layers of every micro-batch by themselves, while the devices compute: a floor
        # and no addend, as in ``iteration_time``. Without prompts it is 0, so that decodes stay affine.
        return xp.maximum(whole_s, parts * launched(self.ends, self._micro_batch(batch)))

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer."""
        attention_s, feed_forward_s, way_s = self._stages(batch)
        xp, parts = array_namespace(attention_s, way_s), self._parts(batch)
        others_s = xp.maximum(feed_forward_s, way_s)
        slowest = 1.0 * (attention_s >= others_s)
        full = parts * xp.maximum(attention_s, others_s) >= attention_s + feed_forward_s + 2.0 * way_s
        by_layer = xp.where(full, parts * slowest, 1.0)
        times = (self.layers - 1.0) * by_layer + 1.0 + (parts - 1.0) * slowest
        return times * self._grows_s(batch, window_growing)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds: until attention takes as long as something else, so that another side is the
        slowest, or the micro-batches fill the pipeline, or no longer do."""
        attention_s, feed_forward_s, way_s = self._stages(batch)
        xp, parts = array_namespace(attention_s, way_s), self._parts(batch)
        others_s, besides_s = xp.maximum(feed_forward_s, way_s), feed_forward_s + 2.0 * way_s
        ends: list[Batched] = [others_s, parts * others_s - besides_s, besides_s / xp.maximum(parts - 1.0, 1e-9)]
        spare_s = [xp.where(end_s > attention_s, end_s - attention_s, float("inf")) for end_s in ends]
        least_s = xp.minimum(spare_s[0], xp.minimum(spare_s[1], spare_s[2]))
        # As in ``dispatched``: the growth is taken as if no context had reached its window, where it is largest.
        fastest_s = xp.maximum(self._grows_s(batch, batch.decodes), 1e-30)
        return 1.0 + xp.floor(xp.minimum(least_s / fastest_s, 1e9))

    def _grows_s(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """Seconds by which attention takes longer for a layer of a micro-batch in the next iteration."""
        micro_batch = self._micro_batch(batch)
        share = micro_batch.decodes / array_namespace(micro_batch.decodes).maximum(batch.decodes, 1.0)
        return decode_growth(self.attention, micro_batch, share * window_growing) / self.layers


def ping_pong(
    model: Model, hardware: Hardware, calibration: Calibration, precision: Precision, parallel: Parallel, apart: Apart
) -> PingPong:
    """The cost of a replica whose feed-forwards are apart."""
    attention, feed_forward, ends = sides(model, precision, parallel, apart)
    sent = _sent_bytes(model, precision, apart)
    return PingPong(
        # The gated delta rule is of mixers.
        with_delta_rule(fold(attention, hardware, calibration, overheads=False), model, calibration, parallel),
        fold(feed_forward, hardware, calibration, overheads=False),
        # What the host takes for an iteration is in the ends, once, and so is what it takes to launch the layers.
        with_model_host(fold(ends, hardware, calibration), model, calibration, parallel),
        np.float64(apart.ranks),
        np.float64(apart.devices),
        np.float64(apart.micro_batches),
        np.float64(layer_count(model)),
        # The devices of a rank send a part of each state.
        np.float64(sent / parallel.tensor / apart.bandwidth),
        np.float64(sent / apart.devices / apart.bandwidth),
        np.float64(apart.latency_s),
    )


def sides(
    model: Model, precision: Precision, parallel: Parallel, apart: Apart
) -> tuple[tuple[Operator, ...], tuple[Operator, ...], tuple[Operator, ...]]:
    """Operators of a device that computes attention, of one that computes feed-forwards, and of the former at the ends
    of an iteration."""
    attention: list[Operator] = []
    feed_forward: list[Operator] = []
    for kind in model.layers:
        attention += [
            operator.times(kind.count) for operator in mixer_operators(model, kind.mixer, precision, parallel)
        ]
        # Sending tokens to experts and back is the way between both sides, which ``PingPong`` has by itself.
        feed_forward += [
            operator.times(kind.count)
            for operator in feed_forward_operators(model, kind.feed_forward, precision, apart.split)
            if operator.collective is None
        ]
    ends = [*first_operators(model, precision, parallel), *last_operators(model, precision, parallel)]
    return merge(attention), merge(feed_forward), merge(ends)


def _sent_bytes(model: Model, precision: Precision, apart: Apart) -> float:
    """Bytes of a token's state to all devices that compute its feed-forward, in the mean of the layers; as much comes
    back, in 16 bits as the states themselves."""
    copies: Sequence[float] = [
        # Once to each device with an expert that it visits; other feed-forwards are of one device.
        kind.count * Spread(kind.feed_forward.experts_per_token, apart.devices).groups(apart.devices)
        if isinstance(kind.feed_forward, MoeFeedForward)
        else float(kind.count)
        for kind in model.layers
    ]
    return sum(copies) / layer_count(model) * model.hidden * stream_bytes(precision.activations)


def attention_alone(model: Model) -> Model:
    """The model as the devices for attention hold it."""
    return replace(model, layers=tuple(replace(kind, feed_forward=None) for kind in model.layers))


def feed_forward_bytes(model: Model, precision: Precision, apart: Apart) -> float:
    """Bytes of weights on each of the devices for feed-forwards."""
    alone = replace(model, layers=tuple(replace(kind, mixer=None) for kind in model.layers), encoder_parameters=0)
    dtypes = weight_dtypes(model, precision)
    parts = rank_parameters(alone, apart.split, 0)
    return sum(count * BYTES[dtypes[part]] for part, count in parts.items() if part not in ("embedding", "head"))


def apart_problem(model: Model, parallel: Parallel, apart: Apart) -> tuple[str, bool] | None:
    """(why the feed-forwards of a model cannot be apart so and what to do, whether by any engine); None: they can."""
    beside = {
        "pipeline_parallel": parallel.pipeline,
        "data_parallel": parallel.data,
        "expert_parallel": parallel.expert,
        "decode_context_parallel": parallel.context,
        "prefill_context_parallel": parallel.prefill,
    }
    for name, ranks in beside.items():
        if ranks > 1:
            remedy = f"use tensor_parallel for attention and leave out {name}"
            return f"feed_forward_apart beside {name} {ranks}; {remedy}", False
    # Every expert is there once, and tokens go there over the link between both sides.
    if parallel.redundant:
        return f"feed_forward_apart beside redundant_experts {parallel.redundant}; leave out redundant_experts", False
    if parallel.exchange != GATHER:
        return f"feed_forward_apart beside expert_exchange {parallel.exchange}; leave out expert_exchange", False
    experts = [kind.feed_forward for kind in model.layers if isinstance(kind.feed_forward, MoeFeedForward)]
    if not experts:
        return f"feed_forward_apart on {model.name}, which has no experts; use a model with experts", False
    if any(kind.mixer is None or kind.feed_forward is None for kind in model.layers):
        return f"feed_forward_apart on {model.name}, whose layers do not all have both; use another model", False
    uneven = next((moe.experts for moe in experts if moe.experts % apart.devices), None)
    if uneven is None:
        return None
    shared = math.gcd(*(moe.experts for moe in experts))
    even = [devices for devices in range(1, shared + 1) if shared % devices == 0]
    # The next ones below and above, of which the latter may not be there.
    near = [max(devices for devices in even if devices < apart.devices)]
    near += [min(devices for devices in even if devices > apart.devices)] if apart.devices < shared else []
    return (
        f"feed_forward_apart.devices {apart.devices} does not divide the {uneven} experts of {model.name}; use "
        f"{' or '.join(map(str, near))}",
        True,
    )
