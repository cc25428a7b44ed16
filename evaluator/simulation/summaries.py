"""From the runs of configurations to their statistics, with runs beside them where elasticities are asked for."""

from __future__ import annotations

import numpy as np

from evaluator.catalog.store import looked_for_once
from evaluator.metrics import summarise
from evaluator.metrics.elasticity import STEP
from evaluator.plan import Configuration, Plan
from evaluator.replica import Change
from evaluator.simulation import simulate_configurations

Values = dict[str, np.ndarray]


@looked_for_once()  # each design whose stations are made with its chunk asks for the same files
def summaries(plan: Plan, configurations: list[Configuration], levels: np.ndarray) -> Values:
    """Statistics of configurations of one group, (config,) or (config, quantile), and elasticities to the inputs."""
    if not plan.inputs:
        return summarise(simulate_configurations(plan, configurations), levels, by_seed=plan.by_seed)
    rows, bumps = with_bumps(plan, configurations)
    values = summarise(simulate_configurations(plan, rows), levels, bumps, plan.by_seed)
    replicas = [[station.design.replica for station in configuration.stations] for configuration in configurations]
    # A fit to iterations has no inputs of a device that could be changed.
    fitted = [any(replica is not None and replica.fit is not None for replica in of_pools) for of_pools in replicas]
    for name in (name for name in values if "_elasticity" in name):
        values[name][fitted] = np.nan  # measured iterations do not say what bounds them
    return values


def with_bumps(plan: Plan, configurations: list[Configuration]) -> tuple[list[Configuration], np.ndarray]:
    """The configurations, then each of them with an input a step lower and higher: ``bumps`` (config, input, 2).

    They serve the same requests at the same times. Where an input makes no difference its bumps are the configuration
    itself.
    """
    rows, bumps = list(configurations), np.empty((len(configurations), len(plan.inputs), 2), dtype=np.int64)
    for config, configuration in enumerate(configurations):
        for input_number, name in enumerate(plan.inputs):
            # A step down is the inverse of a step up, so that the quotient of both is centred in logarithms.
            for bump, factor in enumerate((1.0 / (1.0 + STEP), 1.0 + STEP)):
                changed = plan.changed(configuration, Change(name, factor))
                # The configuration itself stands for a change that makes no difference: its elasticity is exactly 0.
                bumps[config, input_number, bump] = config if changed is configuration else len(rows)
                if changed is not configuration:
                    rows.append(changed)
    return rows, bumps
