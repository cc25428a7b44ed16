"""Times of the modules of a layer, and of an iteration whose modules a host dispatches to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.eager.shape import EagerShape
from evaluator.cost.eager.slips import Tables
from evaluator.cost.eager.tables import Module, Phase, Row

BLOCK: tuple[Module, ...] = ("norm", "attention", "norm", "feed_forward")
"""The modules of a layer in the order in which they run."""


class EagerRates(NamedTuple):
    """What a device attains in one phase: efficiency x peak of BestServe's adapted roofline (equations 3-5)."""

    flops: Batched  # FLOP/s: e_c S_c
    memory: Batched  # byte/s: e_m S_m
    link: Batched  # byte/s: e_+ S_+
    update: Batched  # byte/s: kappa_update, at which new keys and values get into the cache
    repeat_kv: Batched  # byte/s: kappa_kv, at which KV heads are repeated for their query heads
    upcast: Batched  # byte/s: kappa_upcast, at which scores become fp32
    message_s: Batched  # s that a transmission takes at least


class Dispatch(NamedTuple):
    """Seconds in which the host dispatches a module; 0 where CUDA graphs replay it."""

    norm: Batched
    attention: Batched
    feed_forward: Batched


class ModuleTime(NamedTuple):
    """A line of BestServe's table 3, seconds."""

    dispatch_s: Batched
    compute_s: Batched
    communicate_s: Batched


def row_s(row: Row, rates: EagerRates) -> Batched:
    """Seconds of one operator: W / min(e_c S_c, I e_m S_m), which is the larger of its two sides; a copy has one."""
    if row.copy is not None:
        return row.bytes / getattr(rates, row.copy)
    flop_s, byte_s = row.flops / rates.flops, row.bytes / rates.memory
    return array_namespace(flop_s, byte_s).maximum(flop_s, byte_s)


def module_times(
    tables: Tables, phase: Phase, shape: EagerShape, sizes: tuple, rates: EagerRates, dispatch: Dispatch
) -> tuple[ModuleTime, ...]:
    """The modules of a layer in the order of ``BLOCK``; ``sizes``: (b, s, t) as in ``tables``.

    Attention and MLP end with a sum over the devices, which costs nothing on one.
    """
    b, s, t = sizes
    sent = tables.sent_bytes(shape, b * s if phase == "prefill" else b, t)
    xp = array_namespace(sent, rates.link, rates.message_s)
    # max, not a sum: BestServe's ``message_s`` is the least a transmission takes, not a latency before it.
    sends_s = (t > 1) * xp.maximum(sent / rates.link, rates.message_s)
    compute_s = {
        module: sum((row_s(row, rates) for row in tables.rows(module, phase, shape, sizes)), start=0.0)
        for module in dict.fromkeys(BLOCK)
    }
    return tuple(
        ModuleTime(getattr(dispatch, module), compute_s[module], 0.0 if module == "norm" else sends_s)
        for module in BLOCK
    )


def block_s(modules: Sequence[ModuleTime]) -> Batched:
    """One layer, from an idle host on: BestServe's algorithm 1.

    The host dispatches module after module. A module starts when it has been dispatched and the one before has ended.
    """
    dispatched_s = ended_s = 0.0
    for module in modules:
        dispatched_s = dispatched_s + module.dispatch_s
        starts_s = array_namespace(dispatched_s, ended_s).maximum(dispatched_s, ended_s)
        ended_s = starts_s + module.compute_s + module.communicate_s
    return ended_s


def iteration_s(modules: Sequence[ModuleTime], layers: Batched, runs_ahead: Batched) -> Batched:
    """All layers. Algorithm 1 multiplies: the host waits for a layer to end before it dispatches the next.

    A host that ``runs_ahead`` does not wait. Every layer behind the first then takes what the slower of host and
    device needs for one: the critical path through identical layers changes from host to device in the first or the
    last of them.
    """
    first_s = block_s(modules)
    host_s = sum((module.dispatch_s for module in modules), start=0.0)
    # Where the host does not wait, host and device are a pipeline of two, and the slower one sets the pace.
    device_s = sum((module.compute_s + module.communicate_s for module in modules), start=0.0)
    xp = array_namespace(first_s, host_s, device_s, runs_ahead)
    return first_s + (layers - 1.0) * xp.where(runs_ahead, xp.maximum(host_s, device_s), first_s)
