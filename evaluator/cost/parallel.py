"""How a replica's devices share a model, and whether they can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LinearAttention,
    Mixer,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)

GATHER, ALL_TO_ALL = "gather", "all_to_all"
DEEPEP, DEEPEP_LOW_LATENCY, NVLINK = "deepep", "deepep_low_latency", "nvlink"
EXCHANGES = (GATHER, ALL_TO_ALL, DEEPEP, DEEPEP_LOW_LATENCY, NVLINK)
"""How data-parallel ranks send one another the tokens that their experts compute; see ``exchange``."""


class TwoBatches(NamedTuple):
    """The tokens of a rank from which on its batch is split in two halves (``cost.two_batch_overlap``)."""

    decode_tokens: float  # of decodes alone
    prompt_tokens: float  # with prompts


@dataclass(frozen=True)
class Parallel:
    """Devices of one replica: ``data`` ranks of ``tensor`` x ``pipeline`` devices each.

    Every data-parallel rank holds all layers but the routed experts. These are spread over the ``data`` x ``tensor``
    devices of all ranks: divided into ``expert`` parts of whole experts, and each part sharded over the devices that
    are left for it. ``redundant`` experts are second copies of popular ones. ``exchange``: one of ``EXCHANGES``.
    ``context``: tensor-parallel ranks over which the KV of a sequence is split (``cost.context_parallel``).
    ``prefill``: copies of these ranks over which the tokens of prompts are split, and if they are ``dealt`` decodes,
    too (``cost.prefill_context``). ``overlap``: when one half of a batch exchanges tokens while the other computes;
    None: never.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    redundant: int = 0
    exchange: str = GATHER
    context: int = 1
    prefill: int = 1
    dealt: bool = False
    overlap: TwoBatches | None = None

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline * self.token_ranks

    @property
    def token_ranks(self) -> int:
        """Ranks with tokens of their own, which they exchange around routed experts."""
        return self.data * self.prefill

    @property
    def expert_devices(self) -> int:
        """Devices over which the routed experts of a layer are spread."""
        return self.tensor * self.token_ranks

    @property
    def expert_shards(self) -> int:
        """Devices that share each routed expert."""
        return self.expert_devices // self.expert


def layer_count(model: Model) -> int:
    """Layers of the model (a hybrid's mixer-only and feed-forward-only layers count one each)."""
    return sum(kind.count for kind in model.layers)


def rank_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of every pipeline rank: as even as can be, what is left over to the later ranks but the last.

    The last rank has the output head. Source: vLLM ``distributed/utils.py::get_pp_indices``.
    """
    counts = [layers // pipeline] * pipeline
    for position in range(layers % pipeline):  # there is none of one rank
        counts[-(2 + position)] += 1
    return tuple(counts)


def in_lockstep(model: Model, parallel: Parallel) -> bool:
    """Whether the data-parallel ranks of a replica start every iteration together.

    Ranks that share experts must. Ranks of a dense model have nothing in common: each is a replica of its own. Source:
    vLLM, "Data Parallel Deployment" (docs.vllm.ai/en/latest/serving/data_parallel_deployment).
    """
    return parallel.data > 1 and model.has_experts


def of_rank(model: Model, parallel: Parallel) -> Parallel:
    """The split by which an iteration of one data-parallel rank is computed: that of a dense model knows no others."""
    return parallel if parallel.data == 1 or in_lockstep(model, parallel) else replace(parallel, data=1)


def parallel_problem(model: Model, hardware: Hardware, parallel: Parallel) -> str | None:
    """Why this model cannot be split this way on this hardware; None where it can."""
    reach = _reach(hardware)
    linked = of_rank(model, parallel).devices
    if reach is not None and linked > reach:
        return f"{linked} devices per replica exceed the {reach} that the links of {hardware.title} join"
    # Links are asked for first, because another split does not help where too few devices can talk.
    return split_problem(model, parallel)


def split_problem(model: Model, parallel: Parallel) -> str | None:
    """Why this model cannot be split this way on any hardware; None where it can."""
    tensor, pipeline, expert = parallel.tensor, parallel.pipeline, parallel.expert
    # Before any division by them below.
    if min(tensor, pipeline, expert, parallel.data, parallel.context, parallel.prefill) < 1:
        return (
            "tensor_parallel, pipeline_parallel, expert_parallel, data_parallel, decode_context_parallel and "
            "prefill_context_parallel must be at least 1"
        )
    if not model.has_experts:
        exchanged = parallel.exchange != GATHER and parallel.exchange
        for name, given in (
            ("expert_parallel", expert > 1 and expert),
            ("redundant_experts", parallel.redundant),
            ("expert_exchange", exchanged),
            ("two_batch_overlap", parallel.overlap and "true"),
        ):
            if given:
                return f"{name} {given} on {model.name}, which has no experts"
    if parallel.exchange != GATHER and min(parallel.token_ranks, expert) == 1:
        without = (
            "data_parallel: every device has all tokens"
            if parallel.token_ranks == 1
            else "expert_parallel: every device holds a part of each expert, and needs all tokens"
        )
        return f"expert_exchange {parallel.exchange} without {without}; use {GATHER}"
    if parallel.overlap is not None and (parallel.data == 1 or parallel.exchange == GATHER):
        lacking = f"expert_exchange {GATHER}" if parallel.data > 1 else "data_parallel 1"
        return (
            f"two_batch_overlap with {lacking}: nothing is sent to experts of other ranks while a half computes; use "
            f"data_parallel with expert_exchange {DEEPEP}, or leave it out"
        )
    if parallel.expert_devices % expert:
        return f"expert_parallel {expert} does not divide the {_sharing(parallel)} that share the experts"
    if pipeline > layer_count(model):
        return f"pipeline_parallel {pipeline} exceeds the {layer_count(model)} layers of {model.name}"
    for kind in model.layers:
        problem = _mixer_problem(kind.mixer, tensor) or _feed_forward_problem(kind.feed_forward, parallel)
        if problem:
            return f"{problem} of {model.name}"
    return None


def lockstep_problem(model: Model, parallel: Parallel) -> str | None:
    """What is not known of experts that are dealt out; None where all is."""
    if parallel.redundant and parallel.data == 1 and model.has_experts:
        return (
            f"redundant_experts {parallel.redundant} without data_parallel, where no term says how uneven the load of "
            "the devices is; leave it out"
        )
    return None


def _sharing(parallel: Parallel) -> str:
    """The devices that share the experts, in words."""
    several = {"data_parallel": parallel.data, "prefill_context_parallel": parallel.prefill}
    others = "".join(f" x {name} {ranks}" for name, ranks in several.items() if ranks > 1)
    whose = f" (tensor_parallel {parallel.tensor}{others})" if others else ""
    return f"{parallel.expert_devices} devices{whose}"


def _reach(hardware: Hardware) -> int | None:
    if not hardware.links:
        return 1
    joined = [link.devices for link in hardware.links if link.devices is not None]
    return max(joined) if len(joined) == len(hardware.links) else None


def _indivisible(tensor: int, count: int, what: str) -> str | None:
    return f"tensor_parallel {tensor} does not divide the {count} {what}" if count % tensor else None


def _shared_or_divided(tensor: int, count: int, what: str) -> str | None:
    """Fewer heads than ranks are replicated, if every rank can hold exactly one."""
    # A head that is on several ranks is computed by each of them; parts of heads are nothing that engines load.
    if count % tensor == 0 or tensor % count == 0:
        return None
    return f"tensor_parallel {tensor} neither divides nor is a multiple of the {count} {what}"


def _mixer_problem(mixer: Mixer | None, tensor: int) -> str | None:
    match mixer:
        case SoftmaxAttention():
            return _indivisible(tensor, mixer.heads, "attention heads") or _shared_or_divided(
                tensor, mixer.kv_heads, "KV heads"
            )
        case LatentAttention():
            return _indivisible(tensor, mixer.heads, "attention heads")
        case CompressedAttention():
            return _indivisible(tensor, mixer.heads, "attention heads") or _shared_or_divided(
                tensor, mixer.output_groups, "groups of the attention's output"
            )
        case LinearAttention():
            return _indivisible(tensor, mixer.key_heads, "linear-attention key heads") or _indivisible(
                tensor, mixer.value_heads, "linear-attention value heads"
            )
        case StateSpace():
            return _indivisible(tensor, mixer.heads, "state-space heads") or _shared_or_divided(
                tensor, mixer.groups, "state-space groups"
            )
        case Recurrence():
            return _indivisible(tensor, mixer.heads, "heads of the recurrence")
    return None


def _feed_forward_problem(feed_forward: FeedForward | None, parallel: Parallel) -> str | None:
    tensor = parallel.tensor
    match feed_forward:
        case DenseFeedForward():
            return _indivisible(tensor, feed_forward.intermediate, "intermediate features")
        case MoeFeedForward():
            if feed_forward.shared_intermediate % tensor:
                return _indivisible(tensor, feed_forward.shared_intermediate, "shared-expert features")
            return _experts_problem(feed_forward, parallel)
    return None


def _experts_problem(moe: MoeFeedForward, parallel: Parallel) -> str | None:
    expert, shards, redundant = parallel.expert, parallel.expert_shards, parallel.redundant
    if redundant and expert == 1:
        return f"redundant_experts {redundant} without expert_parallel: every device holds a part of all experts"
    # A second copy on the same device would only take memory.
    if redundant > moe.experts * (expert - 1):
        return (
            f"redundant_experts {redundant} exceed the {moe.experts * (expert - 1)} with which each of the "
            f"{expert} parts has a copy of each expert"
        )
    if (moe.experts + redundant) % expert:
        more = f" and {redundant} redundant ones" if redundant else ""
        return f"expert_parallel {expert} does not divide the {moe.experts} experts{more}"
    if moe.intermediate % shards == 0:
        return None
    if parallel.token_ranks == 1 and expert == 1:
        return _indivisible(parallel.tensor, moe.intermediate, "intermediate features of an expert")
    return (
        f"{shards} of the {_sharing(parallel)} share each expert under expert_parallel {expert}, and do not divide its "
        f"{moe.intermediate} intermediate features; use more expert_parallel, or other numbers of devices, for experts"
    )
