"""What fits on a device: weights, activations, and the KV cache that is left.

A serving engine may use a fraction of a device's memory. Weights take their share of it first, the activations of the
largest batch and the engine's own needs come next, and all that is left becomes KV cache, cut into units of equal
size. Pipeline ranks differ in their layers, so that the rank with the least room limits the whole replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import CompressedAttention, LatentAttention, LayerKind, Mixer, Model, SoftmaxAttention
from evaluator.cost.activations import activation_bytes, rotary_bytes
from evaluator.cost.blocks import division_problem
from evaluator.cost.kv import KvUnits, beyond, prefix, units
from evaluator.cost.kv_groups import GroupedLayers, KvGroup, grouped_layers
from evaluator.cost.layer_state import kept, kv_bytes, state_bytes
from evaluator.cost.operators import rank_kinds
from evaluator.cost.parallel import Parallel, in_lockstep, lockstep_problem, of_rank
from evaluator.cost.precision import Precision
from evaluator.cost.weights import resident_bytes, weight_bytes

DRIVER_SHARE = 0.01
"""The part of a device's memory that the driver keeps: PyTorch sees 79.2 GiB of 80 (H100, A100: vllm-project/vllm pull
request 10511) and 23.6 of 24 (pull request 14447)."""

CONTEXT_BYTES = 0.11e9
"""Bytes per device of the CUDA context: what the KV blocks that vLLM 0.15 reported on H100 leave over beside the other
terms, in the mean of two models on one device (0.04 and 0.18 GB)."""

COMMUNICATOR_BYTES = 0.35e9
"""Bytes per device more where several share a model: buffers of NCCL and of vLLM's own all-reduce. From the same
blocks of four models with TP 2 and 4 (0.31 to 0.38 GB)."""

UNUSED_UNIT = 1e6
"""Bytes of a unit of memory that no sequence takes, in a model that keeps nothing of them."""


SMALL_BLOCK = 16
"""Tokens of the blocks that engines use. Where not even one such block has room, smaller ones are no remedy."""


def model_window(model: Model) -> int | None:
    """How many tokens windowed layers attend to, or sparse ones choose (the most, should they differ); None without."""
    mixers = (kind.mixer for kind in model.layers)
    limits = (_attended(mixer) for mixer in mixers)
    return max((limit for limit in limits if limit is not None), default=None)


def _attended(mixer: Mixer | None) -> int | None:
    if isinstance(mixer, CompressedAttention):
        return mixer.reach
    if not isinstance(mixer, SoftmaxAttention | LatentAttention):
        return None
    return mixer.window if mixer.index_top_k is None else mixer.index_top_k


def kv_bytes_per_token(model: Model, kv: str, tensor: int = 1) -> float:
    """Bytes of KV per token over all layers on one of ``tensor`` ranks; tensor 1: of the whole model."""
    return sum(kind.count * kv_bytes(kind.mixer, kv, tensor) for kind in model.layers)


@dataclass(frozen=True)
class KvLayout:
    """What sequences keep on one device of the pipeline rank that has least room, and how much of it there is.

    Layers with full attention keep KV of every token, windowed layers of the last ``window`` tokens only, recurrent
    layers a state of fixed size per sequence. So that one number can count the room of all three, the memory is cut
    into units: one is the KV of ``block_tokens`` tokens in all attention layers together (in a model without attention
    the state of one sequence; in an encoder, which keeps nothing, a UNUSED_UNIT). ``kv_units`` says how many a sequence
    takes.

    With ``groups`` of layers (``kv_groups``) a unit is a block of any of them, and the bytes per token and sequence are
    those of the blocks that groups of a kind take; ``window_blocks``: of each group with a window, at most.
    """

    bytes_per_token_full: float  # in the layers that keep every token
    bytes_per_token_window: float  # in the layers that keep a window
    window: int | None  # tokens
    bytes_per_sequence: float  # states of fixed size
    block_tokens: int
    unit_bytes: float
    capacity_units: int
    groups: tuple[KvGroup, ...] = ()
    window_blocks: int = 0

    @property
    def capacity_tokens(self) -> float:
        """Tokens of KV that fit if no window lets any go; inf for a model without KV."""
        has_kv = self.bytes_per_token_full + self.bytes_per_token_window > 0
        # Each group of attention has a block of its own for the same tokens.
        of_attention = sum(not group.state for group in self.groups) or 1
        return float(self.capacity_units // of_attention * self.block_tokens) if has_kv else math.inf


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of one device of the pipeline rank that has least room: how much there is, and what takes it.

    ``activation_bytes`` is all that is neither weights nor KV: the activations, the tables of rotary positions, and
    what driver, CUDA context and communicators of the engine take (DRIVER_SHARE, CONTEXT_BYTES, COMMUNICATOR_BYTES).
    """

    pipeline_rank: int
    usable_bytes: float
    weight_bytes: float
    activation_bytes: float
    kv: KvLayout


def memory_plan(
    model: Model,
    hardware: Hardware,
    precision: Precision,
    parallel: Parallel,
    *,
    memory_fraction: float = 0.9,
    memory_of: str = "device",
    block_tokens: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    beside: tuple[float, tuple[LayerKind, ...]] = (0.0, ()),
    states: int = 1,
    grouped: int = 0,
) -> MemoryPlan:
    """Weights, activations and KV capacity per device of the pipeline rank with the least room for KV.

    ``memory_of`` says what ``memory_fraction`` is a fraction of (``catalog.engines.ServingEngine``). The capacity is 0
    where weights and activations leave nothing; ``memory_problem`` then says why. ``beside``: bytes of weights of what
    drafts for this model, on the last pipeline rank, and its layers, which keep KV of the same tokens. ``states``: of
    each recurrent layer, that a sequence keeps; with drafts one behind each of them, since a state that has taken in a
    rejected draft cannot be taken back (vLLM, ``MambaSpec.num_speculative_blocks``). ``grouped``: the layers of a
    hybrid model keep their KV in groups, and so many batches are under way at once; 0: they do not.
    """
    whole = hardware.memory_bytes
    shared = of_rank(model, parallel).expert_devices > 1
    active = activation_bytes(model, precision, parallel, max_num_batched_tokens, max_num_seqs)
    # What is no activation but has to be there before a block of KV: measured, see the constants.
    active += DRIVER_SHARE * whole + CONTEXT_BYTES + COMMUNICATOR_BYTES * shared + rotary_bytes(model)
    plans = []
    for pipeline_rank in range(parallel.pipeline):
        # vLLM loads what drafts on the last rank, whose hidden states it reads.
        more, layers = beside if pipeline_rank == parallel.pipeline - 1 else (0.0, ())
        weights = weight_bytes(model, precision, parallel, pipeline_rank) + more
        usable = _usable(memory_of, memory_fraction, whole, weights, active)
        kinds = (*rank_kinds(model, parallel.pipeline, pipeline_rank), *((kind, kind.count) for kind in layers))
        free = usable - weights - active
        layout = _layout(model, kinds, precision, parallel, (block_tokens, states), free)
        of_groups = grouped_layers(model, precision, parallel, block_tokens) if grouped else None
        if of_groups is not None:
            layout = _grouped_layout(layout, of_groups, grouped * max_num_batched_tokens, free)
        plans.append(MemoryPlan(pipeline_rank, usable, weights, active, layout))
    # vLLM gives every rank as many blocks as the rank with the least has (``get_kv_cache_configs``).
    # Behind the comma, where no rank has room: the one that lacks most, which the message is about.
    return min(plans, key=lambda plan: (plan.kv.capacity_units, plan.usable_bytes - plan.weight_bytes))


def _usable(memory_of: str, fraction: float, whole: float, weights: float, active: float) -> float:
    """Bytes for weights, activations and KV together."""
    if memory_of == "static":
        # SGLang: mem_fraction_static is of weights and KV, so that activations come on top.
        return min(fraction * whole + active, whole)
    if memory_of == "free":
        # TensorRT-LLM: free_gpu_memory_fraction is of what is free once the model is loaded.
        # Where they do not fit, free memory is negative, and the fraction of it would leave more than there is.
        return min(weights + active + fraction * (whole - weights - active), whole)
    return fraction * whole


def _layout(
    model: Model,
    kinds: Iterable[tuple[LayerKind, float]],
    precision: Precision,
    parallel: Parallel,
    kept_of: tuple[int, int],
    free: float,
) -> KvLayout:
    """``kept_of``: tokens of a block, and states of a sequence."""
    block_tokens, states = kept_of
    # A block has as many tokens on each of the ranks that share a sequence's KV, which schedulers see as one block
    # (vLLM ``SingleTypeKVCacheManager``: ``block_size *= dcp_world_size``).
    block_tokens *= parallel.context
    full = window = per_sequence = 0.0
    for kind, count in kinds:
        for size, tokens in kept(kind.mixer, precision.kv, parallel.tensor):
            size /= parallel.context
            if math.isinf(tokens):  # sparse attention, too, keeps every token, any of which it may choose
                full += count * size
            else:
                window += count * size
        per_sequence += states * count * state_bytes(kind.mixer, precision.activations, parallel.tensor)
    # A model without attention counts by sequences, an encoder by anything: it never runs out.
    unit = block_tokens * (full + window) or per_sequence or UNUSED_UNIT
    # 1e-12: a capacity stated as so many units gives so many back.
    capacity = max(0, math.floor(free / unit * (1 + 1e-12)))
    return KvLayout(full, window, model_window(model), per_sequence, block_tokens, unit, capacity)


def _grouped_layout(layout: KvLayout, of: GroupedLayers, under_way_tokens: int, free: float) -> KvLayout:
    """The layout of the same memory in blocks that any group of layers may take."""
    block, unit = of.block_tokens, of.block_bytes
    states = sum(group.state for group in of.groups)
    windows = [most for group in of.groups if (most := group.most_blocks(under_way_tokens, block)) is not None]
    # vLLM ``get_num_blocks``, but for the block that it keeps as a place holder (``BlockPool.null_block``).
    capacity = max(0, math.floor(free / unit * (1 + 1e-12)) - 1)
    return replace(
        layout,
        bytes_per_token_full=(len(of.groups) - states - len(windows)) * unit / block,
        bytes_per_token_window=len(windows) * unit / block,
        bytes_per_sequence=states * unit,
        block_tokens=block,
        unit_bytes=unit,
        capacity_units=capacity,
        groups=of.groups,
        window_blocks=max(windows, default=0),
    )


def units_of(layout: KvLayout) -> KvUnits:
    """The layout as the formula of the units takes it."""
    block = layout.block_tokens
    full, window, sequence = layout.bytes_per_token_full, layout.bytes_per_token_window, layout.bytes_per_sequence
    # A windowed layer gives a block back once all of its tokens have left the window.
    held = layout.window_blocks if layout.groups else math.ceil((layout.window or 0) / block)
    return KvUnits(block, full, window, held * block, sequence, layout.unit_bytes)


def kv_units(layout: KvLayout, tokens: ArrayLike) -> np.ndarray:
    """Units that a sequence of ``tokens`` tokens occupies (any shape), int64."""
    return units(units_of(layout), np.asarray(tokens, dtype=np.float64)).astype(np.int64)


def suffix_units(layout: KvLayout, prompt_tokens: ArrayLike, tokens: ArrayLike) -> np.ndarray:
    """Units of one of several sequences of ``tokens`` tokens that continue a prompt (any shape), int64.

    As vLLM forks sequences (Kwon et al., arXiv:2309.06180, section 4.4), they share the whole blocks of the prompt, and
    each has its own copy of the last one if that is not full. Windows and states are each sequence's own.
    """
    lengths = np.asarray(tokens, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64)
    return beyond(units_of(layout), *lengths).astype(np.int64)


def prefix_units(layout: KvLayout, prompt_tokens: ArrayLike) -> np.ndarray:
    """Units that sequences which continue a prompt share (any shape), int64."""
    return prefix(units_of(layout), np.asarray(prompt_tokens, dtype=np.float64)).astype(np.int64)


def memory_problem(
    model: Model,
    hardware: Hardware,
    precision: Precision,
    parallel: Parallel,
    plan: MemoryPlan,
    beside: Callable[[Parallel], float] | None = None,
) -> str | None:
    """Why the model does not fit on these devices and what would help; None where it fits and leaves room for KV.

    ``beside``: bytes of weights, under a split, that are on the devices of the last pipeline rank, too; inf where what
    they belong to cannot be split so. None: there are none.
    """
    if plan.kv.capacity_units > 0:
        return None
    # What drafts is loaded on the last rank alone, and cannot be why another does not fit.
    more = 0.0 if beside is None or plan.pipeline_rank < parallel.pipeline - 1 else beside(parallel)
    places = resident_bytes(model, precision, parallel, plan.pipeline_rank)
    beside_model = {"of what drafts": more, "of places for adapters": places}
    parts = " and ".join(f"{held / 1e9:.1f} GB {what}" for what, held in beside_model.items() if held)
    parts = f" ({parts})" if parts else ""
    budget = f"the {plan.usable_bytes / 1e9:.1f} GB usable of {hardware.memory_bytes / 1e9:.0f} GB on {hardware.title}"
    if plan.weight_bytes > plan.usable_bytes:
        reason = f"{plan.weight_bytes / 1e9:.1f} GB of weights per device{parts} exceed {budget}"
    else:
        held = (
            f"{plan.weight_bytes / 1e9:.1f} GB of weights{parts} and "
            f"{plan.activation_bytes / 1e9:.1f} GB of activations per device leave"
        )
        if (fitting := _fitting_block(plan)) >= SMALL_BLOCK:
            return (
                f"does not fit: {held} {_free(plan) / 1e9:.1f} GB for KV in {budget}, and a block of "
                f"{plan.kv.block_tokens:,} tokens takes {plan.kv.unit_bytes / 1e9:.1f} GB; "
                f"remedy: kv.block_tokens <= {fitting:,}"
            )
        reason = f"{held} no room for KV in {budget}"
    fewer = _fewer_places(model, precision, parallel, plan, beside)
    return f"does not fit: {reason}; remedy: {_remedy(model, hardware, precision, parallel, plan, beside, fewer)}"


def _free(plan: MemoryPlan) -> float:
    return plan.usable_bytes - plan.weight_bytes - plan.activation_bytes


def _fitting_block(plan: MemoryPlan) -> int:
    """Tokens of the largest block of which one has room; 0 in a model without KV."""
    token_bytes = plan.kv.bytes_per_token_full + plan.kv.bytes_per_token_window
    return max(0, math.floor(_free(plan) / token_bytes)) if token_bytes > 0 else 0


def _fewer_places(
    model: Model,
    precision: Precision,
    parallel: Parallel,
    plan: MemoryPlan,
    beside: Callable[[Parallel], float] | None,
) -> list[str]:
    """The most adapters, or the highest rank, whose places leave room for a unit of KV on every pipeline rank."""
    if model.adapters is None:
        return []
    # What all places take grows with their number and with their rank, so that one share of it bounds both.
    share = 1.0
    for pipeline_rank in range(parallel.pipeline):
        places = resident_bytes(model, precision, parallel, pipeline_rank)
        others = weight_bytes(model, precision, parallel, pipeline_rank) - places
        others += beside(parallel) if beside is not None and pipeline_rank == parallel.pipeline - 1 else 0.0
        free = plan.usable_bytes - plan.activation_bytes - plan.kv.unit_bytes - others
        share = min(share, free / places if places else math.copysign(1.0, free))
    most, rank = (max(0, math.floor(share * count)) for count in (model.adapters.resident, model.adapters.rank))
    return [f"{key} <= {count}" for key, count in (("lora.max_loras", most), ("lora.rank", rank)) if count]


def _remedy(
    model: Model,
    hardware: Hardware,
    precision: Precision,
    parallel: Parallel,
    plan: MemoryPlan,
    beside: Callable[[Parallel], float] | None,
    fewer: list[str],
) -> str:
    """``fewer`` places for adapters; the smallest larger tensor or pipeline parallelism that the model can be split by
    and that fits, if any; of ranks that share experts also more of them; or to draft by less, if that is what does not
    fit; or smaller batches, where the weights alone would fit."""
    tensor, expert, data = parallel.tensor, parallel.expert, parallel.data
    # Expert parallelism grows along, so that the remedy keeps as many experts, whole or in part, on a device.
    wider = [replace(parallel, tensor=n, expert=expert * n // tensor if expert > 1 else 1) for n in _larger(tensor)]
    deeper = [replace(parallel, pipeline=n) for n in _larger(parallel.pipeline)]
    ranks = [replace(parallel, data=n, expert=expert * n // data if expert > 1 else 1) for n in _larger(data)]

    def fits(split: Parallel, drafts: bool = True) -> bool:
        # Whole blocks are what some engines demand; a remedy that only the others take would be none.
        if division_problem(model, hardware, precision, split) or lockstep_problem(model, split):
            return False
        weights = [weight_bytes(model, precision, split, pipeline_rank) for pipeline_rank in range(split.pipeline)]
        weights[-1] += beside(split) if drafts and beside is not None else 0.0
        return max(weights) + plan.activation_bytes < plan.usable_bytes

    remedies = fewer + [f"tensor_parallel >= {split.tensor}" for split in wider if fits(split)][:1]
    remedies += [f"pipeline_parallel >= {split.pipeline}" for split in deeper if fits(split)][:1]
    if in_lockstep(model, parallel):
        remedies += [
            f"data_parallel >= {split.data}" + (f" with expert_parallel {split.expert}" if expert > 1 else "")
            for split in ranks
            if fits(split)
        ][:1]
    if beside is not None and beside(parallel) and fits(parallel, drafts=False):
        remedies.append("less that drafts (method ngram takes nothing)")
    # Weights and driver alone would fit: it is the activations of the largest batch that do not.
    if plan.weight_bytes + DRIVER_SHARE * hardware.memory_bytes + CONTEXT_BYTES < plan.usable_bytes:
        remedies.append("a smaller max_num_seqs or max_num_batched_tokens")
    return " or ".join(remedies) or "narrower weights or devices with more memory"


def _larger(size: int) -> list[int]:
    return [wider for wider in (2, 4, 8, 16, 32) if wider > size]
