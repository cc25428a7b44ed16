"""What a chunk of configurations used of a station: what stations hand to the metrics beside the times of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# One (gap_s, weight) pair: ``weight`` successive tokens came ``gap_s`` seconds after the token before.
WeightedGaps = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Use:
    """What a chunk of configurations used of a station. Rows of configurations that cannot run may hold anything.

    Totals are sums over the replicas. A station without devices (a delay) has zeros; NaN is what is not known.
    """

    name: str
    devices: np.ndarray  # (config,): of all replicas together
    replicas: np.ndarray  # (config,)
    peak_flops: np.ndarray  # (config,): FLOP/s of one device
    peak_bandwidth: np.ndarray  # (config,): byte/s of one device
    power_w: np.ndarray  # (config,): of one device that works
    idle_power_w: np.ndarray  # (config,): of one device that waits
    usd_per_hour: np.ndarray  # (config,): of one device
    kv_capacity_units: np.ndarray  # (config,): of one replica; 0 without a KV cache
    kv_unit_bytes: np.ndarray  # (config,): on one device
    busy_s: np.ndarray  # (config, seed)
    iterations: np.ndarray  # (config, seed)
    preemptions: np.ndarray  # (config, seed)
    experts_touched: np.ndarray  # (config, seed): fraction of the routed experts, summed over the iterations
    kv_unit_s: np.ndarray  # (config, seed): KV units in use, integrated over time
    kv_units_max: np.ndarray  # (config, seed): most units in use at once on any replica
    decoded: np.ndarray  # (config, seed): with drafts, decode iterations summed over the sequences; else 0
    decoded_tokens: np.ndarray  # (config, seed): and the output tokens that they gave
    flops: np.ndarray  # (config, seed): useful FLOPs of the model
    bytes: np.ndarray  # (config, seed): useful bytes of the model
    peaks: np.ndarray  # (config, seed, quantity): largest of ``quantities.PEAKS`` in any iteration, under a fitted cost
    itl: Sequence[Sequence[WeightedGaps]] | None = None  # [config][seed]: gaps between the tokens that it gave
