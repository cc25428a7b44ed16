"""Configurations of one group through their engine: from plan to per-request times and totals.

JAX is loaded only by what runs on the vectorised engine, so that worker processes for the reference start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.metrics import Outcomes
    from evaluator.plan.plan import Group, Member, Plan

__all__ = ["simulate_chunk"]


def simulate_chunk(plan: Plan, group: Group, members: list[Member]) -> Outcomes:
    """Run members of a group over all seeds and replicas. The rows of members that cannot run hold zeros."""
    if group.engine == "token":
        from evaluator.simulation.tokens import run_tokens

        return run_tokens(plan, group, members)
    from evaluator.simulation.chunk import run_iterations

    return run_iterations(plan, group, members)
