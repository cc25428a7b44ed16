"""Configurations of one group through the engine: from plan to per-request times and totals."""

from evaluator.simulation.chunk import simulate_chunk

__all__ = ["simulate_chunk"]
