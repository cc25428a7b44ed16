"""Configurations through their chain of stations: from the plan to request times and use of the stations.

Whoever needs the requests of configurations calls ``simulate_configurations``: the sweep and the search for the
statistics of a chunk (``summaries``), a single run and the validation for every request. JAX is loaded only by what
runs on the vectorised engine, so that worker processes for the reference start at once.

``chain`` takes jobs through the stations one after the other: ``stages`` (``prefetch``: those that begin early),
``phases`` (pools side by side), ``vectorised`` (a pool of the vectorised engine), ``joint_pools`` (several in one event
loop). What the engine is given: ``lanes``, with ``request_dependencies``, ``routing_tables`` and ``stops``. What comes
out: ``outcomes``, ``times`` by stage, a ``trace``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evaluator.device import configure

if TYPE_CHECKING:
    import numpy as np

    from evaluator.metrics import Outcomes
    from evaluator.plan import Configuration, Group, Plan
    from evaluator.plan.route import RequestRoutes
    from evaluator.reference.serve.pool import Observe
    from evaluator.simulation.chain import ChainResult, JointStations
    from evaluator.stations.contract import Station
    from evaluator.stations.stage_steps import Serve
    from evaluator.traffic.jobs import Jobs

__all__ = ["chain_result", "simulate_configurations", "stations_of"]


def simulate_configurations(
    plan: Plan, configurations: list[Configuration], observe: Observe | None = None
) -> Outcomes:
    """Run configurations of one group of the plan, or variants of them, over all seeds.

    ``observe`` is told of every iteration of the reference.
    """
    from evaluator.simulation.outcomes import outcomes_of

    result = chain_result(plan, configurations, observe)
    return outcomes_of(configurations, result, *plan.labels.of_outcomes)


def chain_result(plan: Plan, configurations: list[Configuration], observe: Observe | None = None) -> ChainResult:
    """What becomes of the requests of configurations of one group, before it is seen by clients and summed up."""
    from evaluator.plan.simulators import ITERATION, TOKEN
    from evaluator.simulation.chain import chain_result_of, run_chain

    group = plan.group_of(configurations[0])
    if group.simulator == ITERATION:
        # Before the first array is made: it sets float64 and the cache of compiled programs.
        configure()
    jobs = [plan.jobs(configuration) for configuration in configurations]
    if configurations[0].joint_pools and group.simulator == TOKEN:
        from evaluator.reference.serve.network import run_network

        return chain_result_of(run_network(plan, configurations, jobs, observe))
    return run_chain(stations_of(plan, configurations, observe), jobs)


def stations_of(
    plan: Plan, configurations: list[Configuration], observe: Observe | None = None
) -> list[Station | JointStations]:
    """What a request passes in configurations of one group, in this order: stages before the LLM, its sides with their
    links, or all of these at once where they run in one loop, stages behind it; or all at once."""
    from evaluator.plan.route import BEFORE, BEHIND, BETWEEN
    from evaluator.plan.simulators import ITERATION
    from evaluator.simulation.phases import chosen_replicas, dealt_out, serve_phase
    from evaluator.stations.contract import Station
    from evaluator.stations.link import link

    def sends(run: tuple[int, int], jobs: Jobs) -> np.ndarray | None:
        # 1: the decode phase, behind which nothing is sent.
        return chosen_replicas(configurations[run[0]], plan.seeds[run[1]], 1, jobs)

    group = plan.group_of(configurations[0])
    if configurations[0].in_loop and group.simulator == ITERATION:
        from evaluator.simulation.joint_pools import visits_on_routes

        return [partial(visits_on_routes, plan, group.stations[0], configurations)]
    all_routes: list[list[RequestRoutes]] = []
    stations: list[Station | JointStations] = []
    if configurations[0].staged:
        from evaluator.simulation.stages import stage_stations

        all_routes = [plan.routes(configuration) for configuration in configurations]
        around = partial(
            stage_stations,
            configurations,
            all_routes,
            pool=partial(_pool, plan, group, configurations, observe=observe),
        )
        stations += around(where=BEFORE)
    # All pools that give answers are one step: one event loop runs them.
    if configurations[0].joint_pools and group.simulator == ITERATION:
        from evaluator.simulation.joint_pools import visits_in_one_loop

        stations.append(partial(visits_in_one_loop, plan, group.stations[0], configurations))
        return [*stations, *around(where=BEHIND)] if all_routes else stations
    for phase in configurations[0].phases:
        pools = [_pool(plan, group, configurations, number, observe=observe) for number in phase.stations]
        # A choice over all replicas of the phase is made before the jobs are dealt out to its pools.
        routed = any(configuration.phases[phase.number].replicas is not None for configuration in configurations)
        serve = partial(serve_phase, configurations, plan.seeds, phase.number, pools) if routed else pools[0]
        prefill = phase.role.first_token_only and len(configurations[0].phases) > 1
        name = configurations[0].stations[phase.stations.start].name if len(pools) == 1 else phase.role.name
        deals = None if phase.mixed_from is None else partial(dealt_out, configurations, plan.seeds)
        passed = [Station(name, serve, phase.role, deals=deals)]
        if prefill:
            passed += around(where=BETWEEN) if all_routes else []
            # The decode replica is chosen where a request goes to the link: behind the last stage between.
            passed[-1] = replace(passed[-1], sends=sends)
        stations += passed
        links = [configuration.link for configuration in configurations]
        # A configuration that cannot run may have no link; those that can have one each, or none has.
        first_link = next((candidate for candidate in links if candidate is not None), None)
        if phase.number == 0 and first_link is not None:
            stations.append(link(first_link.name, links))
    return [*stations, *around(where=BEHIND)] if all_routes else stations


def _pool(
    plan: Plan, group: Group, configurations: list[Configuration], number: int, *, observe: Observe | None
) -> Serve:
    """What serves the jobs of a chunk at the pool of this number."""
    # Each engine is imported where it serves: a process that has the reference alone never loads JAX.
    from evaluator.plan.simulators import REQUEST, TOKEN

    if group.simulator == TOKEN:
        from evaluator.reference.serve.pool import serve_tokens

        return partial(serve_tokens, configurations, plan.seeds, number, observe=observe)
    if group.simulator == REQUEST:
        from evaluator.reference.serve.request_level import serve_requests

        return partial(serve_requests, configurations, plan.seeds, number)
    from evaluator.simulation.vectorised import serve_iterations

    return partial(serve_iterations, configurations, plan.seeds, number, group.of_station(number))
