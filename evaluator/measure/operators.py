"""The operators as JAX programs, by the classes of calibration (``MAKERS``).

Each makes a ``Call`` of a point. Every call works on what the one before it gave: this chain of data is what keeps a
compiler from merging, reordering or dropping calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evaluator.cost.dtypes import BYTES

DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32}


class Call(NamedTuple):
    """One call of an operator: a function of a carried array and of one set of operands to the next carried array."""

    kernel: str  # which implementation
    run: Callable[[jax.Array, tuple[jax.Array, ...]], jax.Array]
    carried: Callable[[], jax.Array]  # makes the array that the first call starts from
    operands: Callable[[int], tuple[jax.Array, ...]]  # makes the i-th set of operands
    linked: bool  # whether the chain needs a kernel of its own: ``link``


Make = Callable[[Mapping[str, Any], str], tuple[Call, ...]]
"""From the columns of a point and the platform (cpu, gpu, tpu) to its implementations, the best first; any may fail."""


def link(carried: jax.Array, result: jax.Array) -> jax.Array:
    """``carried`` with one element that depends on ``result``, changed in place: the next call must wait.

    The barrier is for the compiler: who sees that one element is wanted might compute no other.
    """
    # An element of the result, made small, so that carried values neither grow nor are known beforehand.
    first = lax.optimization_barrier(result)[(0,) * result.ndim] * 1e-3
    return carried.at[(0,) * carried.ndim].set(first.astype(carried.dtype))


@cache
def _filled(shape: tuple[int, ...], dtype: Any) -> Any:
    def fill(seed: jax.Array) -> jax.Array:
        length = 1
        for size in shape:
            length *= size
        bits = lax.iota(jnp.uint32, length) * jnp.uint32(2654435761) + seed
        bits = (bits ^ (bits >> 15)) * jnp.uint32(2246822519)
        # 24 bits of a hash, as many as fp32 has, to [-1, 1).
        signed = (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-23) - jnp.float32(1.0)
        return signed.astype(dtype).reshape(shape)

    return jax.jit(fill)


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> jax.Array:
    """Pseudo-random numbers in [-1, 1), made on the device by a hash of the index.

    Products of zeros draw less power and run faster; generators of JAX take longer than what is measured.
    """
    return _filled(shape, DTYPES[dtype])(jnp.uint32(seed * 7919 + 1))


def precision_of(dtype: str) -> lax.Precision | None:
    """fp32 in full: by default GPUs and TPUs compute products of fp32 in fewer bits."""
    return lax.Precision.HIGHEST if dtype == "fp32" else None


def gemm(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """Matrix products of m x k activations with k x n weights."""
    m, n, k, dtype = (columns[name] for name in ("m", "n", "k", "dtype"))

    def product(carried: Any, operands: Any) -> Any:
        return link(carried, lax.dot(carried, *operands, precision=precision_of(dtype)))

    return (
        Call(
            "dot", product, lambda: noise((m, k), dtype, 0), lambda turn: (noise((k, n), dtype, 1 + turn),), linked=True
        ),
    )


def grouped_gemm(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """A whole MoE layer: both products of the experts, activation, sum over the experts of a token.

    ``tokens`` x hidden activations, weights of the experts that they touch. Routing is balanced: a batched product, in
    which every touched expert has as many rows.
    """
    # ``jax.lax.ragged_dot`` is not used: outside TPUs XLA computes every row with every expert.
    tokens, hidden, inner, top, experts, dtype = (
        columns[name] for name in ("tokens", "hidden", "intermediate", "top_k", "experts", "dtype")
    )
    # With fewer visits than experts each touches one of its own; else all have as many rows.
    touched = min(tokens * top, experts)
    rows = tokens * top // touched

    def layer(carried: Any, operands: Any) -> Any:
        up, down = operands
        visits = jnp.repeat(carried[:, None, :], top, axis=1).reshape(touched, rows, hidden)
        both = jnp.einsum("erh,ehi->eri", visits, up, precision=precision_of(dtype))
        gate, linear = jnp.split(both, 2, axis=-1)
        result = jnp.einsum("eri,eih->erh", jax.nn.silu(gate) * linear, down, precision=precision_of(dtype))
        return link(carried, result.reshape(tokens, top, hidden).sum(axis=1))

    def weights(turn: int) -> tuple[Any, ...]:
        return noise((touched, hidden, 2 * inner), dtype, 1 + 2 * turn), noise(
            (touched, inner, hidden), dtype, 2 + 2 * turn
        )

    return (Call("batched_dot", layer, lambda: noise((tokens, hidden), dtype, 0), weights, linked=True),)


def attention(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """Causal prompts of ``new_tokens`` where there are any, else one query a sequence over ``past_tokens``.

    The output has the queries' shape and is the next call's queries.
    """
    # cuDNN computes attention in 16 bits alone.
    fused = platform == "gpu" and columns["dtype"] != "fp32"
    # cuDNN first: of several implementations the first that runs on the device is timed.
    return (*((_cudnn_attention(columns),) if fused else ()), _attention_products(columns))


def _cudnn_attention(columns: Mapping[str, Any]) -> Call:
    """Flash attention of cuDNN."""
    batch, heads, kv_heads, size, dtype, queries, seen = _attention_sizes(columns)

    def call(carried: Any, operands: Any) -> Any:
        return jax.nn.dot_product_attention(carried, *operands, is_causal=_has_prompts(columns), implementation="cudnn")

    return Call(
        "cudnn", call, lambda: noise((batch, queries, heads, size), dtype, 0),
        lambda turn: _keys_and_values((batch, seen, kv_heads, size), dtype, turn), linked=False,
    )  # fmt: skip


def _attention_products(columns: Mapping[str, Any]) -> Call:
    """Two products with a softmax between, as XLA compiles them; the queries of a KV head are rows of one matrix.

    KV lies head by head: with heads inside tokens, as ``jax.nn.dot_product_attention`` wants it, XLA would copy it.
    """
    batch, heads, kv_heads, size, dtype, queries, seen = _attention_sizes(columns)
    group, precision = heads // kv_heads, precision_of(dtype)

    def call(carried: Any, operands: Any) -> Any:
        keys, values = operands
        batch_axes = ((0, 1), (0, 1))
        # Scores in fp32, as fused kernels have them.
        scores = lax.dot_general(
            carried, keys, (((3,), (3,)), batch_axes), precision=precision, preferred_element_type=jnp.float32
        )
        if _has_prompts(columns):
            # As often as a KV head has query heads, whose rows lie behind one another.
            mask = jnp.tile(jnp.tril(jnp.ones((queries, seen), bool)), (group, 1))
            scores = jnp.where(mask[None, None], scores, -jnp.inf)
        # The scale behind the product: before it bf16 would lose digits of the scores.
        weights = jax.nn.softmax(scores * size**-0.5, axis=-1).astype(carried.dtype)
        return lax.dot_general(weights, values, (((3,), (2,)), batch_axes), precision=precision)

    return Call(
        "products", call, lambda: noise((batch, kv_heads, group * queries, size), dtype, 0),
        lambda turn: _keys_and_values((batch, kv_heads, seen, size), dtype, turn), linked=False,
    )  # fmt: skip


def _attention_sizes(columns: Mapping[str, Any]) -> tuple[Any, ...]:
    given = tuple(columns[name] for name in ("batch", "heads", "kv_heads", "head_dim", "dtype"))
    new = columns.get("new_tokens", 0)
    return *given, max(1, new), columns["past_tokens"] + new


def _has_prompts(columns: Mapping[str, Any]) -> bool:
    return "new_tokens" in columns


def _keys_and_values(shape: tuple[int, ...], dtype: str, turn: int) -> tuple[jax.Array, jax.Array]:
    """Keys and values."""
    return noise(shape, dtype, 1 + 2 * turn), noise(shape, dtype, 2 + 2 * turn)


def elementwise(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """Sums of two arrays, as a residual is added, of ``bytes`` in all: a third of them the other summand; the carried
    array is read and written."""
    dtype = columns["dtype"]
    length = int(columns["bytes"] / (3 * BYTES[dtype]))

    def add(carried: Any, operands: Any) -> Any:
        return operands[0] - carried  # alternates, where a sum would grow out of its range

    return (
        Call("add", add, lambda: noise((length,), dtype, 0), lambda i: (noise((length,), dtype, 1 + i),), linked=False),
    )


def all_reduce(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """Sums over the first ``devices`` devices, each with an array of ``message_bytes``."""
    count, dtype = int(columns["devices"]), columns["dtype"]
    length = max(1, int(columns["message_bytes"] / BYTES[dtype]))
    mesh = Mesh(np.array(jax.devices()[:count]), ("device",))
    spread = PartitionSpec("device")

    def reduce(part: Any) -> Any:
        total = lax.psum(part, "device")
        # What every device knows already XLA would multiply instead of reducing: one element differs.
        return total.at[0].set(total[0] * lax.axis_index("device").astype(total.dtype))

    call = jax.shard_map(reduce, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)

    def zeros() -> jax.Array:
        return jnp.zeros((count * length,), DTYPES[dtype], device=NamedSharding(mesh, spread))

    return (Call("psum", lambda carried, operands: call(carried), zeros, lambda turn: (), linked=True),)


MAKERS: dict[str, Make] = {
    "gemm": gemm,
    "grouped_gemm": grouped_gemm,
    "attention_prefill": attention,
    "attention_decode": attention,
    "elementwise": elementwise,
    "all_reduce": all_reduce,
}
