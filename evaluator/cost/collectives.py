"""Latency and volume of collectives over the hierarchy of links, affine in the message.

A collective of m bytes takes the sum over link levels of steps x latency + share x m / bandwidth. ``collective_terms``
gives (steps, share) per level; they depend on the algorithm and on who takes part, never on a rate.

Formulas: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005;
the volume 2 (n - 1) / n of an all-reduce is also NCCL's definition of bus bandwidth (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple


class Terms(NamedTuple):
    """Per link level, nearest first: messages in a row, and bytes per device in units of the message."""

    steps: tuple[float, ...]
    share: tuple[float, ...]


def direct_all_reduce(devices: int) -> tuple[float, float]:
    """Both phases at once with every peer, over links that join all of them: 2 steps, volume 2 (n - 1) / n.

    The two-shot form of vLLM's and TensorRT-LLM's custom all-reduce. For a small message it costs what their one-shot
    form costs, a latency: 4.5 to 5 us over 2, 4 or 8 H100 alike.
    """
    return 2.0 * (devices > 1), 2.0 * (devices - 1) / devices


def halving_all_reduce(devices: int) -> tuple[float, float]:
    """Recursive halving and doubling (Rabenseifner): 2 log2 n steps, volume 2 (n - 1) / n."""
    return 2.0 * math.ceil(math.log2(devices)), 2.0 * (devices - 1) / devices


def direct_all_gather(devices: int) -> tuple[float, float]:
    """Every device fetches the other shards of a message of n shards: 1 step, volume (n - 1) / n."""
    return 1.0 * (devices > 1), (devices - 1) / devices


def level_sizes(ranks: range, reach: tuple[int | None, ...]) -> tuple[int, ...]:
    """How many groups meet at each link level: devices in a node, then nodes in a rack, and so on.

    ``reach`` is how many devices each level joins (None: any number). Their product covers the ranks; beyond the last
    level's reach the last level serves.
    """
    # Ranks may be strided, one of every node for instance: the nearest links then join a step-th part of their devices.
    sizes, left, inside = [], len(ranks), ranks.step
    for level, joined in enumerate(reach):
        last = level == len(reach) - 1
        # ``joined`` counts devices, of which each group that meets at this level already holds ``inside``.
        here = left if joined is None or last else min(left, max(1, joined // inside))
        sizes.append(here)
        left = math.ceil(left / here)
        inside *= here
    return tuple(sizes)


class Spread(NamedTuple):
    """Each token goes to those of ``parts`` equal parts of the ranks that hold any of its ``visits`` experts, drawn
    evenly and without regard to one another: to all ranks of such a part, once to each."""

    visits: int
    parts: int

    def groups(self, count: float) -> float:
        """How many of ``count`` equal groups of the ranks a token is sent to, expected. They may be parts, several
        together or shards of one."""
        apart = min(count, self.parts)
        return count * (1.0 - (1.0 - 1.0 / apart) ** self.visits)


@cache
def collective_terms(
    collective: str,
    ranks: range,
    reach: tuple[int | None, ...],
    mesh: tuple[bool, ...] = (),
    spread: Spread | None = None,
) -> Terms:
    """Terms of ``all_reduce``, ``all_gather``, ``all_to_all`` or ``p2p`` among ``ranks``.

    Hierarchical. An all-reduce scatters inside a node, reduces each slice across nodes and gathers inside, so a level
    works on the 1 / (devices inside it) that is left; it is direct among the devices of the nearest level and halves
    and doubles across farther ones. An all-gather fetches across nodes first, slice by slice. An all-to-all sends
    every peer its own part; its message is all that a device sends. With ``spread`` parts are tokens, and what several
    devices of a node want goes there once and is handed on inside (DeepEP's normal kernels).

    ``mesh`` marks levels (default: none) whose devices are joined pairwise: among n of the r devices that such a level
    joins, r - n of each device's wires lead to nobody, so the volume counts (r - 1) / (n - 1) times.
    """
    if collective == "p2p":
        return _pair(ranks, reach, mesh)
    steps, share = [], []
    inside = 1
    for level, size in enumerate(level_sizes(ranks, reach)):
        # The nearer levels of the first two have scattered the message: only a slice of it crosses this one.
        if collective == "all_reduce":
            count, volume = direct_all_reduce(size) if level == 0 else halving_all_reduce(size)
            volume /= inside
        elif collective == "all_gather":
            count, volume = direct_all_gather(size)
            volume /= inside
        else:
            count, volume = _exchange(size, inside, len(ranks), spread)
        steps.append(count)
        share.append(volume * _detour(size, reach[level], _marked(mesh, level)))
        inside *= size
    return Terms(tuple(steps), tuple(share))


def _exchange(size: int, inside: int, ranks: int, spread: Spread | None) -> tuple[float, float]:
    """Steps of an all-to-all across a level of ``size`` groups of ``inside`` devices, and the part of the message."""
    if spread is None:
        # Of the parts of a message, one per rank, those for ``size - 1`` other groups of ``inside`` devices cross this
        # level and no nearer one.
        return 1.0 * (size > 1), (size - 1) * inside / ranks
    # The message counts a token once per device that wants it; across this level it goes once per group of devices.
    # The device's own group is one of ``size`` and needs nothing sent.
    share_sent = spread.groups(ranks / inside) / spread.groups(ranks)
    return 1.0 * (size > 1), share_sent * (size - 1) / size


def _marked(mesh: tuple[bool, ...], level: int) -> bool:
    return level < len(mesh) and mesh[level]


def _detour(size: int, joined: int | None, mesh: bool) -> float:
    return (joined - 1) / (size - 1) if mesh and joined is not None and 1 < size <= joined else 1.0


def _pair(ranks: range, reach: tuple[int | None, ...], mesh: tuple[bool, ...]) -> Terms:
    """One message between two ranks over the nearest level that joins both."""
    first, second = ranks[0], ranks[-1]
    # Both in the same run of ``joined`` consecutive devices, which is what a link of this level joins.
    level = next(
        (number for number, joined in enumerate(reach) if joined is None or first // joined == second // joined),
        len(reach) - 1,
    )
    chosen = tuple(float(number == level) for number in range(len(reach)))
    share = tuple(crossed * _detour(2, reach[number], _marked(mesh, number)) for number, crossed in enumerate(chosen))
    return Terms(chosen, share)
