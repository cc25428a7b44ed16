"""Whether the shards of weights in fp8 with block scales consist of whole blocks, as engines that load them demand.

A scale is that of 128 x 128 weights. The last projection of attention, feed-forward and experts is divided by its
inputs, and a shard that ends within a block has no scale of its own there. vLLM and SGLang do not load it
(``validate_fp8_block_shape`` and ``Fp8MoEMethod.create_weights`` of vLLM): DeepSeek-V3 with TP 32, 576 of 18,432 inputs
(vllm-project/vllm#12256, sgl-project/sglang#3345); Qwen3-235B-A22B-FP8 with TP 8, 192 of 1,536
(vllm-project/vllm#17569); DeepSeek-V4-Pro with TP 16, 192 of 3,072 (vllm-project/vllm#42384). The outputs of the first
projections are not checked: those of feed-forwards and experts are as many, and those of attention are whole heads,
which are whole blocks in all models that are published so (heads of 128; of 192 and 64 by twos).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import LayerKind, Model, MoeFeedForward
from evaluator.cost.context_parallel import context_problem
from evaluator.cost.dtypes import weight_dtypes
from evaluator.cost.parallel import Parallel, parallel_problem, split_problem
from evaluator.cost.precision import Precision
from evaluator.cost.prefill_context import prefill_context_problem
from evaluator.cost.projections import (
    Projection,
    expert_projections,
    feed_forward_projections,
    mixer_projections,
)

BLOCK = 128


def division_problem(
    model: Model, hardware: Hardware, precision: Precision, parallel: Parallel, whole_blocks: bool = True
) -> str | None:
    """Why a model cannot be divided so on these devices, by its shape or, of an engine that loads whole blocks alone
    (``ServingEngine.whole_blocks``), by its blocks; None where it can."""
    undivided = parallel_problem(model, hardware, parallel) or context_problem(model, parallel)
    undivided = undivided or prefill_context_problem(model, parallel)
    if undivided is None and whole_blocks:
        return block_problem(model, precision, parallel)
    return undivided


def block_problem(model: Model, precision: Precision, parallel: Parallel) -> str | None:
    """Which weights a split cuts within a block, and what to do; None where there are none.

    ``parallel`` is one by which the model can be split (``split_problem``).
    """
    shard_sizes = _cut(model, precision, parallel)
    if shard_sizes is None:
        return None
    shard, whole = shard_sizes
    devices = whole.inputs // shard.inputs
    return (
        f"{devices} devices share the {whole.inputs:,} inputs of {whole.name} of {model.name}, and "
        f"{shard.inputs:,} each are no whole blocks of the {BLOCK} that have one scale (weights in fp8_block); "
        f"use {_remedy(model, precision, parallel)}"
    )


def _cut(model: Model, precision: Precision, parallel: Parallel) -> tuple[Projection, Projection] | None:
    """The first matrix that is cut within a block: the shard, and the whole."""
    dtypes = weight_dtypes(model, precision)
    # Only weights in blocks can be cut within one; all other models have nothing to look through.
    for kind in model.layers if "fp8_block" in dtypes.values() else ():
        shards, wholes = (_projections(kind, model.hidden, split) for split in (parallel, Parallel()))
        for shard, whole in zip(shards, wholes, strict=True):
            # A matrix that is whole on every device may end within a block: the checkpoint has a scale for that rest.
            if dtypes[shard.part] == "fp8_block" and shard.inputs != whole.inputs and shard.inputs % BLOCK:
                return shard, whole
    return None


def _projections(kind: LayerKind, hidden: int, parallel: Parallel) -> Iterator[Projection]:
    yield from mixer_projections(kind.mixer, hidden, parallel)
    yield from feed_forward_projections(kind.feed_forward, hidden, parallel)
    if isinstance(kind.feed_forward, MoeFeedForward):
        yield from expert_projections(kind.feed_forward, hidden, parallel)


def _remedy(model: Model, precision: Precision, parallel: Parallel) -> str:
    """Whole experts on every device, if that is enough, or fewer shards, or weights without blocks."""

    def loads(split: Parallel) -> bool:
        return split_problem(model, split) is None and _cut(model, precision, split) is None

    # With whole experts the devices share out experts instead of the rows of each, so that no expert is cut.
    whole = replace(parallel, expert=parallel.expert_devices)
    fewer = (replace(parallel, tensor=n) for n in range(parallel.tensor - 1, 0, -1) if parallel.tensor % n == 0)
    remedies = [f"expert_parallel {whole.expert}"] if whole != parallel and loads(whole) else []
    remedies += [f"tensor_parallel {split.tensor}" for split in fewer if loads(split)][:1]
    return " or ".join([*remedies, "precision.weights without blocks, such as bf16"])
