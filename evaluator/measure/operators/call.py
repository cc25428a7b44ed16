"""A call to time, and the arrays it works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

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
