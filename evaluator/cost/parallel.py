"""How a replica's devices share a model, and whether they can."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Parallel:
    """Devices of one replica: ``tensor`` x ``pipeline``. ``expert`` is 1 or ``tensor`` (whole experts on ranks)."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline


def layer_count(model: Model) -> int:
    """Layers of the model (a hybrid's mixer-only and feed-forward-only layers count one each)."""
    return sum(kind.count for kind in model.layers)


def rank_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of every pipeline rank: as even as can be, what is left over to the later ranks but the last.

    The last rank has the output head. Source: vLLM ``distributed/utils.py::get_pp_indices``.
    """
    counts = [layers // pipeline] * pipeline
    for position in range(layers % pipeline):
        counts[-(2 + position) if pipeline > 1 else 0] += 1
    return tuple(counts)


def parallel_problem(model: Model, hardware: Hardware, parallel: Parallel) -> str | None:
    """Why this model cannot be split this way on this hardware; None where it can."""
    reach = _reach(hardware)
    if reach is not None and parallel.devices > reach:
        return f"{parallel.devices} devices per replica exceed the {reach} that the links of {hardware.name} join"
    return split_problem(model, parallel)


def split_problem(model: Model, parallel: Parallel) -> str | None:
    """Why this model cannot be split this way on any hardware; None where it can."""
    tensor, pipeline, expert = parallel.tensor, parallel.pipeline, parallel.expert
    if min(tensor, pipeline, expert) < 1:
        return "tensor_parallel, pipeline_parallel and expert_parallel must be at least 1"
    if expert not in (1, tensor):
        return (
            f"expert_parallel {expert} must be 1 or tensor_parallel ({tensor}): the expert ranks are the tensor ranks"
        )
    if pipeline > layer_count(model):
        return f"pipeline_parallel {pipeline} exceeds the {layer_count(model)} layers of {model.name}"
    for kind in model.layers:
        problem = _mixer_problem(kind.mixer, tensor) or _feed_forward_problem(kind.feed_forward, tensor, expert)
        if problem:
            return f"{problem} of {model.name}"
    if expert > 1 and not any(isinstance(kind.feed_forward, MoeFeedForward) for kind in model.layers):
        return f"expert_parallel {expert} on {model.name}, which has no experts"
    return None


def _reach(hardware: Hardware) -> int | None:
    if not hardware.links:
        return 1
    joined = [link.devices for link in hardware.links if link.devices is not None]
    return max(joined) if len(joined) == len(hardware.links) else None


def _indivisible(tensor: int, count: int, what: str) -> str | None:
    return f"tensor_parallel {tensor} does not divide the {count} {what}" if count % tensor else None


def _shared_or_divided(tensor: int, count: int, what: str) -> str | None:
    """Fewer heads than ranks are replicated, if every rank can hold exactly one."""
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


def _feed_forward_problem(feed_forward: FeedForward | None, tensor: int, expert: int) -> str | None:
    match feed_forward:
        case DenseFeedForward():
            return _indivisible(tensor, feed_forward.intermediate, "intermediate features")
        case MoeFeedForward():
            if feed_forward.shared_intermediate % tensor:
                return _indivisible(tensor, feed_forward.shared_intermediate, "shared-expert features")
            if expert == 1:
                return _indivisible(tensor, feed_forward.intermediate, "intermediate features of an expert")
            if feed_forward.experts % expert:
                return f"expert_parallel {expert} does not divide the {feed_forward.experts} experts"
    return None
