"""Sums over devices, each with an array of the message's size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evaluator.cost.dtypes import BYTES
from evaluator.measure.operators.call import DTYPES, Call


def all_reduce(columns: Mapping[str, Any], platform: str) -> tuple[Call, ...]:
    """``message_bytes`` among the first ``devices`` devices."""
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
