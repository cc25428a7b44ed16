"""The time of a search in an index of vectors on a CPU, as RAGO has it (Jiang et al., ISCA 2025, arXiv:2503.14649).

A search scans bytes, and little else: first all centroids of an inverted file (IVF), then the vectors near the best of
them, each coded in a few bytes by product quantisation (PQ, Jegou et al., TPAMI 2011), then perhaps some again at full
precision. These scans follow one another. Each is a roofline: cores scan so many bytes per second each, and all queries
of a batch share the memory's bandwidth, because each reads lists of its own. Equations and rates are those of the
authors' program (github.com/google/rago, retrieval_sim), whose published times the tests reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from evaluator.cost.arrays import Array, array_namespace

CODE_RATE = 18e9
"""Bytes of PQ codes that a core scans per second: ScaNN on AMD EPYC 7R13 (google/rago, retrieval_sim/systems/cpu.json;
measured in github.com/WenqiJiang/scann_microbench)."""
VECTOR_RATE = 10e9
"""Bytes of plain vectors that a core scans per second (the same file, per_core_rerank_throughput)."""
JOIN_S = 1e-6
"""Seconds per core that a scan on all cores takes on top, to share it out and to join the results (the same,
cost.py)."""

Spread = Literal["best", "across_queries", "within_query"]
"""Over what the cores are spread: every query on one core, or every query on all; best: whichever is faster."""
SPREADS: tuple[str, ...] = get_args(Spread)


class Scan(NamedTuple):
    """``query_bytes`` are scanned for a query, at ``core_rate`` bytes per second and core. ``whole_bytes``: what all
    queries of a batch read at most, where they read the same; inf: each reads its own."""

    query_bytes: float
    core_rate: float
    whole_bytes: float = np.inf


@dataclass(frozen=True)
class VectorIndex:
    """An inverted file with product quantisation. ``pq_bytes`` and ``centroid_bytes`` are of one vector.

    Each of ``probes`` lists has ``points_per_probe`` vectors. ``rescored`` of the best are compared again with their
    plain vectors of ``vector_bytes``. ``reuse_centroids``: a batch reads the centroids once for all its queries.
    """

    centroids: float
    probes: float
    points_per_probe: float
    pq_bytes: float
    centroid_bytes: float
    rescored: float = 0.0
    vector_bytes: float = 0.0
    reuse_centroids: bool = False

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Of one search, in turn."""
        whole = self.centroids * self.centroid_bytes
        return (
            Scan(whole, VECTOR_RATE, whole if self.reuse_centroids else np.inf),
            Scan(self.probes * self.points_per_probe * self.pq_bytes, CODE_RATE),
            Scan(self.rescored * self.vector_bytes, VECTOR_RATE),
        )

    @property
    def points(self) -> float:
        """Vectors in all lists."""
        return self.centroids * self.points_per_probe

    @property
    def bytes(self) -> float:
        """That it takes in memory; plain vectors are kept only to compare with them."""
        plain = self.vector_bytes if self.rescored else 0.0
        return self.centroids * self.centroid_bytes + self.points * (self.pq_bytes + plain)


def scan_time(scan: Scan, queries: Array, cores: Array, bandwidth: Array, spread: Spread = "best") -> Array:
    """Seconds of one scan for a batch of ``queries``, any common shape with ``cores`` and ``bandwidth`` (byte/s).

    Across queries a batch smaller than the cores leaves some idle; more queries than cores share them evenly. Within a
    query all cores work on all queries, and ``JOIN_S`` comes on top.
    """
    xp = array_namespace(queries, cores, bandwidth)
    # Lists that the queries of a batch share are read from memory once, and scanned by each.
    read_s = xp.minimum(queries * scan.query_bytes, scan.whole_bytes) / bandwidth
    across_s = xp.maximum(queries / cores, 1.0) * scan.query_bytes / scan.core_rate
    # Sharing out and joining is done per core, but not for a scan that the index does not have.
    within_s = queries * scan.query_bytes / (scan.core_rate * cores) + JOIN_S * cores * (scan.query_bytes > 0)
    computed_s = {
        "across_queries": across_s,
        "within_query": within_s,
        "best": xp.minimum(across_s, within_s),
    }[spread]
    return xp.maximum(computed_s, read_s)


def search_time(index: VectorIndex, queries: Array, cores: Array, bandwidth: Array, spread: Spread = "best") -> Array:
    """Seconds of a search for a batch of ``queries`` on a CPU of so many cores and byte/s of memory bandwidth."""
    return sum((scan_time(scan, queries, cores, bandwidth, spread) for scan in index.scans), start=0.0)
