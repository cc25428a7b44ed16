"""Members of a group from their runs to their statistics, with runs beside them where elasticities are asked for."""

from __future__ import annotations

import numpy as np

from evaluator.metrics import summarise
from evaluator.metrics.elasticity import STEP
from evaluator.plan import Design, Group, Member, Plan
from evaluator.replica import Change
from evaluator.simulation import simulate_chunk


def summaries(plan: Plan, group: Group, members: list[Member], levels: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics of members of a group, (config,) or (config, quantile), and elasticities to the plan's inputs."""
    if not plan.inputs:
        return summarise(simulate_chunk(plan, group, members), levels, by_seed=plan.by_seed)
    rows, sides = with_sides(plan, members)
    values = summarise(simulate_chunk(plan, group, rows), levels, sides, plan.by_seed)
    fitted = [any(_is_fitted(station.design) for station in member.stations) for member in members]
    for name in (name for name in values if "_elasticity" in name):
        values[name][fitted] = np.nan  # measured iterations do not say what bounds them
    return values


def _is_fitted(design: Design) -> bool:
    return design.replica is not None and design.replica.fit is not None


def with_sides(plan: Plan, members: list[Member]) -> tuple[list[Member], np.ndarray]:
    """The members, then each of them with an input a step lower and higher; ``sides`` (config, input, 2) says which.

    They serve the same requests at the same times. Where an input makes no difference its sides are the member itself.
    """
    rows, sides = list(members), np.empty((len(members), len(plan.inputs), 2), dtype=np.int64)
    for config, member in enumerate(members):
        for place, name in enumerate(plan.inputs):
            for side, factor in enumerate((1.0 / (1.0 + STEP), 1.0 + STEP)):
                changed = plan.changed(member, Change(name, factor))
                sides[config, place, side] = config if changed is member else len(rows)
                if changed is not member:
                    rows.append(changed)
    return rows, sides
