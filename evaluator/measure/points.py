"""What is measured: calls of every operator class at the shapes that models have, in an order that may end anywhere."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from evaluator.catalog.model import Model, MoeFeedForward, SoftmaxAttention
from evaluator.catalog.store import suggestion
from evaluator.cost.dtypes import BYTES
from evaluator.cost.embedding_and_head import head_projection
from evaluator.cost.parallel import Parallel, split_problem
from evaluator.cost.projections import (
    Projection,
    expert_projections,
    feed_forward_projections,
    local_experts,
    local_heads,
    mixer_projections,
)
from evaluator.errors import InputError

DTYPES = ("bf16", "fp16", "fp32")
"""The dtypes in which JAX computes every operator on every device."""


@dataclass(frozen=True)
class ShapeGrid:
    """Loads at which every shape is measured. Tokens, sequences and bytes of one call on one device."""

    tokens: tuple[int, ...]
    prompts: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    decodes: tuple[int, ...]
    contexts: tuple[int, ...]
    moved_bytes: tuple[int, ...]
    messages: tuple[int, ...]
    squares: tuple[int, ...]


def _powers(first: int, last: int, step: int) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(first, last + 1, step))


FULL = ShapeGrid(
    tokens=(*_powers(0, 7, 1), 192, 256, 384, 512, 1024, 2048, 4096, 8192),
    prompts=(1, 4),
    prompt_tokens=_powers(7, 14, 1),
    decodes=(1, 4, 16, 64, 256),
    contexts=_powers(8, 15, 1),
    moved_bytes=_powers(18, 30, 1),
    messages=_powers(12, 28, 1),
    squares=_powers(9, 13, 1),
)
QUICK = ShapeGrid(
    tokens=(1, 16, 128, 1024),
    prompts=(1,),
    prompt_tokens=(128, 512, 2048),
    decodes=(1, 16, 64),
    contexts=(512, 2048, 8192),
    moved_bytes=_powers(20, 28, 2),
    messages=_powers(12, 24, 4),
    squares=_powers(9, 13, 1),
)


Columns = Mapping[str, float | str]
Key = tuple[str, ...]


def key(op_class: str, columns: Columns) -> Key:
    """Class and columns, the same for numbers and for their text in a file."""
    return op_class, *(f"{name}={_number(value)}" for name, value in sorted(columns.items()))


def _number(value: float | str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


@dataclass(frozen=True)
class MeasuredCall:
    """One call to time: the columns of its row in a table of ``evaluator.calibrate``, and the work that is in it."""

    op_class: str
    columns: Columns = field(hash=False)
    flops: float
    operand_bytes: float  # weights, KV or the other summand: what a call reads from memory
    held_bytes: float  # what it holds beside: activations, scores

    @property
    def key(self) -> Key:
        """What tells it from other points."""
        return key(self.op_class, self.columns)

    def seconds(self, flops: float, bandwidth: float) -> float:
        """The least that it takes at these rates (FLOP/s, byte/s)."""
        return max(self.flops / flops, self.operand_bytes / bandwidth)


def points(
    classes: Sequence[str] | None,
    models: Sequence[Model],
    tensors: Sequence[int],
    dtype: str,
    devices: int,
    grid: ShapeGrid,
) -> tuple[MeasuredCall, ...]:
    """The calls of these classes (None: all that there are), each once, for models split over ``tensors`` devices.

    The ends of the device come first: square products and sums of growing size, whatever the classes. The others are
    shuffled, the same way every time and all classes in proportion, so that a run that ends early has some of each.
    InputError for a class that is unknown, or that these models or devices have not.
    """
    unknown = sorted(set(classes or ()) - set(CLASSES))
    if unknown:
        raise InputError(f"unknown operator class '{unknown[0]}'{suggestion(unknown[0], list(CLASSES))}")
    shards = [(model, Parallel(tensor)) for model in models for tensor in tensors]
    # Of a model that no split divides there is nothing to measure; another may be left.
    shards = [(model, parallel) for model, parallel in shards if split_problem(model, parallel) is None]
    if not shards:
        sizes = " or ".join(map(str, tensors))
        raise InputError(f"none of {', '.join(call.name for call in models)} can be split over {sizes} devices")
    # By key, as layers and models share shapes.
    by_class = {name: _unique(_OF_CLASS[name](shards, dtype, devices, grid)) for name in classes or CLASSES}
    for name, calls in by_class.items():
        if classes and not calls:
            need = "several devices" if name == "all_reduce" else "a model that has it"
            raise InputError(f"nothing to measure of {name}: it needs {need}")
    first = _unique([*(gemm(size, size, size, dtype) for size in grid.squares), *_sums(dtype, grid)])
    keys = {call.key for call in first}
    # Each class takes its turn in proportion to how many points it has left: (position + 1/2) / points.
    rest = [
        ((position + 0.5) / len(calls), call)
        for calls in by_class.values()
        for position, call in enumerate(sorted(calls, key=_shuffled))
        if call.key not in keys
    ]
    return (*first, *(call for _, call in sorted(rest, key=lambda entry: entry[0])))


def _unique(calls: Iterable[MeasuredCall]) -> list[MeasuredCall]:
    return list({call.key: call for call in calls}.values())


# A checksum and no random number: the same order in every run, so that --resume continues it.
def _shuffled(point: MeasuredCall) -> int:
    return zlib.crc32("|".join(point.key).encode())


Shards = Sequence[tuple[Model, Parallel]]


def _matrices(shards: Shards) -> Iterator[Projection]:
    for model, parallel in shards:
        for kind in model.layers:
            yield from mixer_projections(kind.mixer, model.hidden, parallel)
            yield from feed_forward_projections(kind.feed_forward, model.hidden, parallel)
        yield head_projection(model, parallel.tensor)


def gemm(m: int, n: int, k: int, dtype: str) -> MeasuredCall:
    """A product of m x k activations with k x n weights."""
    width = BYTES[dtype]
    return MeasuredCall(
        "gemm", {"m": m, "n": n, "k": k, "dtype": dtype}, 2.0 * m * n * k, n * k * width, m * (n + k) * width
    )


def _gemms(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    for matrix, tokens in product(_matrices(shards), grid.tokens):
        yield gemm(tokens, matrix.outputs, matrix.inputs, dtype)


def _grouped(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    """A whole balanced MoE layer; only loads at which every touched expert has the same number of rows."""
    width = BYTES[dtype]
    for model, parallel in shards:
        for moe in (kind.feed_forward for kind in model.layers):
            if not isinstance(moe, MoeFeedForward) or not moe.gated:
                continue
            down = expert_projections(moe, model.hidden, parallel)[-1]
            experts = local_experts(moe, parallel)
            for tokens in grid.tokens:
                visits = tokens * moe.experts_per_token
                # Uneven loads would be another kernel than the batched product that stands for it.
                if visits > experts and visits % experts:
                    continue
                columns: Columns = {"tokens": tokens, "hidden": model.hidden, "intermediate": down.inputs,
                           "top_k": moe.experts_per_token, "experts": experts, "expert_parallel": 1,
                           "routing": "balanced", "dtype": dtype}  # fmt: skip
                expert = 3.0 * model.hidden * down.inputs
                yield MeasuredCall(
                    "grouped_gemm", columns, 2.0 * visits * expert, min(visits, experts) * expert * width,
                    visits * (2 * model.hidden + 3 * down.inputs) * width,
                )  # fmt: skip


def _heads(shards: Shards) -> list[tuple[int, int, int]]:
    """(query heads, KV heads, head size) of softmax attention on one device."""
    return [
        (mixer.heads // parallel.tensor, local_heads(mixer.kv_heads, parallel.tensor), mixer.head_dim)
        for model, parallel in shards
        for mixer in (kind.mixer for kind in model.layers)
        if isinstance(mixer, SoftmaxAttention)
    ]


def _prefills(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    """Whole causal prompts: cuDNN's attention, as JAX has it, knows no chunk on a history."""
    for (heads, kv_heads, size), batch, new in product(_heads(shards), grid.prompts, grid.prompt_tokens):
        load = {"batch": batch, "new_tokens": new, "past_tokens": 0}
        shape = _head_columns(heads, kv_heads, size, dtype)
        scores = batch * heads * new * new
        # Where attention is not fused: scores and what they weigh.
        score_bytes = scores * (BYTES["fp32"] + BYTES[dtype])
        moved = batch * new * size * BYTES[dtype]
        yield MeasuredCall(
            "attention_prefill",
            {**load, **shape},
            2.0 * scores * size,
            2.0 * kv_heads * moved,
            2 * heads * moved + score_bytes,
        )


def _decodes(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    for (heads, kv_heads, size), batch, past in product(_heads(shards), grid.decodes, grid.contexts):
        shape = _head_columns(heads, kv_heads, size, dtype)
        read = 2.0 * batch * past * kv_heads * size * BYTES[dtype]
        yield MeasuredCall(
            "attention_decode",
            {"batch": batch, "past_tokens": past, **shape},
            4.0 * batch * past * heads * size,
            read,
            read,
        )


def _head_columns(heads: int, kv_heads: int, size: int, dtype: str) -> Columns:
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": size, "window": 0, "dtype": dtype, "kv_dtype": dtype}


def _sums(dtype: str, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    """Two arrays read, one written; a third of the bytes each."""
    for moved in grid.moved_bytes:
        length = int(moved / (3 * BYTES[dtype]))
        exact = 3.0 * BYTES[dtype] * length
        yield MeasuredCall("elementwise", {"bytes": exact, "dtype": dtype}, length, exact / 3, exact)


def _elementwise(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    return _sums(dtype, grid)


def _reduces(shards: Shards, dtype: str, devices: int, grid: ShapeGrid) -> Iterator[MeasuredCall]:
    for size, message in product((n for n in (2, 4, 8) if n <= devices), grid.messages):
        columns: Columns = {"devices": size, "message_bytes": message, "dtype": dtype}
        # A ring moves twice the message per device, read and written.
        yield MeasuredCall("all_reduce", columns, message / BYTES[dtype], 2.0 * message, 2.0 * message)


_OF_CLASS = {
    "gemm": _gemms,
    "grouped_gemm": _grouped,
    "attention_prefill": _prefills,
    "attention_decode": _decodes,
    "elementwise": _elementwise,
    "all_reduce": _reduces,
}
CLASSES = tuple(_OF_CLASS)
"""The operator classes that can be measured."""
