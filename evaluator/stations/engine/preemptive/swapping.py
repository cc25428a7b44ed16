"""Preemption by swapping: the KV of a preempted request is copied to host memory and back (vLLM v0).

A request that is swapped out keeps what it has computed. It waits as any preempted one, and goes on where it was when
it is admitted again: with its prompt, or as a decode that has nothing to compute before its next token. Copies delay
the next batch (vLLM v0 ``CacheEngine.swap_in``, ``swap_out`` run before the model). Where host memory is full, the
request is computed anew.
"""

from __future__ import annotations

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Flag, Float, Int
from evaluator.stations.engine.common.rings import behind, read_once, write
from evaluator.stations.engine.preemptive.kv import own_units
from evaluator.stations.engine.preemptive.lane import Given, HostMemory
from evaluator.stations.engine.preemptive.state import State, SwappedKv


def swap_out(given: Given, state: State, i: Int) -> tuple[State, Flag]:
    """Request ``i``, which is no longer in a decode group, is preempted; the flag says whether its KV is kept."""
    swapped, host = _swapped(given, state)
    units = _units(given, state, i)
    fits = swapped.units + units <= host.units
    more = jnp.where(fits, units, 0.0)
    swapped = SwappedKv(write(swapped.in_host_memory, i, fits), swapped.units + more, swapped.moved + more)
    return state._replace(swapped=swapped), fits


def swap_in(given: Given, state: State, i: Int) -> tuple[State, Int]:
    """Request ``i`` is admitted: if its KV is in host memory, it is copied back. And ``i``, known after what was read
    of the sequences."""
    swapped, _ = _swapped(given, state)
    in_host_memory = read_once(swapped.in_host_memory, i)
    less = jnp.where(in_host_memory, _units(given, state, i), 0.0)
    swapped = SwappedKv(
        write(swapped.in_host_memory, i, in_host_memory & False), swapped.units - less, swapped.moved + less
    )
    return state._replace(swapped=swapped), behind(i, swapped.units)


def copy_s(given: Given, state: State) -> Float:
    """Seconds by which every pipeline rank takes longer for the batch that is launched now."""
    swapped, host = _swapped(given, state)
    return swapped.moved * host.unit_s


def launched(state: State, on: Flag) -> State:
    """A batch is launched, if ``on``, and all copies were made before it."""
    swapped = state.swapped
    assert swapped is not None
    return state._replace(swapped=swapped._replace(moved=jnp.where(on, 0.0, swapped.moved)))


def _units(given: Given, state: State, i: Int) -> Float:
    """KV units of what the request has computed."""
    return own_units(given, i, read_once(state.sequences.computed, i).astype(jnp.float64))


def _swapped(given: Given, state: State) -> tuple[SwappedKv, HostMemory]:
    assert state.swapped is not None and given.host_memory is not None
    return state.swapped, given.host_memory
