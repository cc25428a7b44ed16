"""One chunk of configurations through its chain of stations: from plan to request times and use of the stations.

JAX is loaded only by what runs on the vectorised engine, so that worker processes for the reference start at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from evaluator.metrics import Outcomes
    from evaluator.plan import Group, Member, Plan
    from evaluator.plan.walked import Walked
    from evaluator.simulation.chain import Journey
    from evaluator.simulation.sides import Serve
    from evaluator.simulation.tokens import Observe
    from evaluator.stations.contract import Station
    from evaluator.traffic.jobs import Jobs

__all__ = ["journey", "simulate_chunk", "stations_of"]


def simulate_chunk(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> Outcomes:
    """Run members of a group, or variants of them, over all seeds.

    ``observe`` is told of every iteration of the reference.
    """
    from evaluator.simulation.outcomes import outcomes_of

    return outcomes_of(members, journey(plan, group, members, observe), plan.stage_names)


def journey(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> Journey:
    """What becomes of the requests of members of a group, before it is seen by clients and summed up."""
    from evaluator.plan.engines import ITERATION, TOKEN
    from evaluator.simulation.chain import run_chain

    jobs = [plan.jobs(member) for member in members]
    if members[0].in_one_loop and group.engine == TOKEN:
        from evaluator.simulation.network import run_network

        return run_network(plan, members, jobs, observe)
    if members[0].in_one_loop and group.engine == ITERATION:
        from evaluator.simulation.one_loop import run_in_one_loop

        return run_in_one_loop(plan, group.stations[0], members, jobs)
    return run_chain(stations_of(plan, group, members, observe), jobs)


def stations_of(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> list[Station]:
    """What a request passes in members of a group, in this order: stages before the LLM, its sides with their links,
    stages behind it."""
    from evaluator.simulation.sides import chosen_replicas, serve_side
    from evaluator.stations.contract import Station
    from evaluator.stations.link import link

    def sends(at: tuple[int, int], jobs: Jobs) -> np.ndarray | None:
        return chosen_replicas(members[at[0]], plan.seeds[at[1]], 1, jobs)

    walks: list[list[Walked]] = []
    found: list[Station] = []
    if members[0].staged:
        from evaluator.simulation.stages import stage_stations

        walks = [plan.walked(member) for member in members]
        around = partial(stage_stations, members, walks, pool=partial(_pool, plan, group, members, observe=observe))
        found += around(before=True)
    for side in members[0].sides:
        pools = [_pool(plan, group, members, number, observe=observe) for number in side.stations]
        told = any(member.sides[side.number].replicas is not None for member in members)
        serve = partial(serve_side, members, plan.seeds, side.number, pools) if told else pools[0]
        prefill = side.role.first_token_only and len(members[0].sides) > 1
        name = members[0].stations[side.stations.start].name if len(pools) == 1 else side.role.name
        found.append(Station(name, serve, side.role, sends=sends if prefill else None))
        links = [member.link for member in members]
        there = next((one for one in links if one is not None), None)
        if side.number == 0 and there is not None:
            found.append(link(there.name, links))
    return [*found, *around(before=False)] if walks else found


def _pool(plan: Plan, group: Group, members: list[Member], number: int, *, observe: Observe | None) -> Serve:
    """What serves the jobs of a chunk at the pool of this number."""
    from evaluator.plan.engines import REQUEST, TOKEN

    if group.engine == TOKEN:
        from evaluator.simulation.tokens import serve_tokens

        return partial(serve_tokens, members, plan.seeds, number, observe=observe)
    if group.engine == REQUEST:
        from evaluator.simulation.request_level import serve_requests

        return partial(serve_requests, members, plan.seeds, number, group.request_stations[number])
    from evaluator.simulation.engine import serve_iterations

    return partial(serve_iterations, members, plan.seeds, number, group.stations[number])
