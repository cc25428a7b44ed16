"""Random systems of pools, as parts of scenarios: what any of their keys may be, drawn together from one seed.

A test says what its systems have in common (``same``, ``policies``), so that they run on the engine that is tested and
share its programs; all else is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

POLICIES = ("chunked", "continuous", "mixed", "static")
HARDWARE = ("h100-sxm", "l40s", "h200-sxm")
LARGE = ("h100-sxm", "h200-sxm", "mi300x")
"""With room for any of the models and lengths of these systems on one device."""


class Draw:
    """Draws from one seed, in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *values: Any) -> Any:
        """One of them."""
        return values[self.rng.integers(len(values))]

    def pool(self, role: str, groups: int = 1, policies: Sequence[str] = POLICIES, **same: Any) -> dict[str, Any]:
        """A pool of any hardware, policy, order and admission, with replicas for ``groups``."""
        policy = self.one(*policies)
        admission = self.one("reserve", "on_demand") if policy != "static" else "reserve"
        return {
            "role": role,
            "hardware": self.one(*HARDWARE),
            "tensor_parallel": self.one(1, 2),
            "replicas": groups * self.one(1, 2),
            "batching": {
                "policy": policy,
                "max_num_seqs": self.one(2, 8, 64),
                "packing": self.one("fcfs", "least_work_left"),
            },
            "kv": {"admission": admission, "block_tokens": self.one(1, 16)},
            **same,
        }

    def pool_in_order(self, groups: int = 1, policies: Sequence[str] = POLICIES, **same: Any) -> dict[str, Any]:
        """One that serves requests as they come, all KV reserved: the program ``fcfs_reserved`` runs it."""
        return {
            "hardware": self.one(*LARGE),
            "tensor_parallel": self.one(1, 2, 4),
            "replicas": groups * self.one(1, 1, 2, 3),
            "batching": {"policy": self.one(*policies), "max_num_seqs": self.one(1, 2, 8, 64)},
            "kv": {"admission": "reserve", "block_tokens": self.one(1, 16)},
            **same,
        }

    def arrivals(self) -> dict[str, Any]:
        """Open or closed loop."""
        closed = {"process": "closed_loop", "users": self.one(1, 3, 20)}
        return self.one(closed, {"process": "poisson", "rate_rps": self.one(10.0, 60.0)}, {"process": "all_at_once"})

    def drafts(self) -> dict[str, Any]:
        """One or three, of any acceptance."""
        tokens, acceptance = self.one(1, 3), self.one(0.3, [0.9, 0.6, 0.4])
        return {"method": "ngram", "tokens": tokens, "acceptance": acceptance if tokens == 3 else 0.7}

    def transfer(self, **same: Any) -> dict[str, Any]:
        """Any link."""
        return {
            "link": self.one("nvlink", "pcie-gen5-x16", "ethernet-25g", "inter-rack"),
            "granularity": self.one("cache", "layer"),
            "shared": self.one("per_replica", "none"),
            "figures": self.one("per_replica", "per_device"),
            **same,
        }
