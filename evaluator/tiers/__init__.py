"""Tiers of storage that keep the KV of contexts: where a context is found, and how long it takes to get it from there.

``latency`` is the time by tier and its expectation, ``popularity`` how often contexts are asked for, ``lru`` which of
them a tier still has, ``listed`` how a scenario lists tiers.
"""

from evaluator.tiers.latency import expected_s, fetch_s, held_shares
from evaluator.tiers.listed import figures_of, storage_name, tiers_reader
from evaluator.tiers.lru import TierSize, hit_rates
from evaluator.tiers.popularity import Popularity

__all__ = [
    "Popularity",
    "TierSize",
    "expected_s",
    "fetch_s",
    "figures_of",
    "held_shares",
    "hit_rates",
    "storage_name",
    "tiers_reader",
]
