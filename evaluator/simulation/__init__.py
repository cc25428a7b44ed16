"""One chunk of configurations through its chain of stations: from plan to request times and use of the stations.

JAX is loaded only by what runs on the vectorised engine, so that worker processes for the reference start at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.metrics import Outcomes
    from evaluator.plan import Group, Member, Plan
    from evaluator.simulation.tokens import Observe
    from evaluator.stations.contract import Station

__all__ = ["simulate_chunk", "stations_of"]


def simulate_chunk(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> Outcomes:
    """Run members of a group, or variants of them, over all seeds.

    ``observe`` is told of every iteration of the reference.
    """
    from evaluator.simulation.chain import run_chain
    from evaluator.simulation.outcomes import outcomes_of

    jobs = [plan.jobs(member) for member in members]
    return outcomes_of(members, run_chain(stations_of(plan, group, members, observe), jobs))


def stations_of(plan: Plan, group: Group, members: list[Member], observe: Observe | None = None) -> list[Station]:
    """The pools of members of a group as stations, in the order in which a request passes them, and their links."""
    from evaluator.plan.engines import REQUEST, TOKEN
    from evaluator.simulation.tokens import serve_tokens
    from evaluator.stations.contract import Station
    from evaluator.stations.link import link

    found: list[Station] = []
    for number, pool in enumerate(members[0].stations):
        if group.engine == TOKEN:
            serve = partial(serve_tokens, members, plan.seeds, number, observe=observe)
        elif group.engine == REQUEST:
            from evaluator.simulation.request_level import serve_requests

            serve = partial(serve_requests, members, plan.seeds, number, group.request_stations[number])
        else:
            from evaluator.simulation.engine import serve_iterations

            serve = partial(serve_iterations, members, plan.seeds, number, group.stations[number])
        found.append(Station(pool.name, serve, pool.role))
        links = [member.link for member in members]
        there = next((one for one in links if one is not None), None)
        if number == 0 and there is not None:
            found.append(link(there.name, links))
    return found
