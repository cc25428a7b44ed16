"""The lanes of a chunk at one station, with the jobs that they serve.

There is one for each configuration, seed and replica, or one for all replicas of a configuration and seed where they
run together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from evaluator.metrics.outcomes import OK
from evaluator.plan import Configuration
from evaluator.plan.simulators import has_frontend, is_joint, routed_by
from evaluator.routing import Sent, assign, router_of, stream
from evaluator.scenario import Deployment
from evaluator.stations.contract import ChunkJobs, whole_table
from evaluator.traffic.jobs import Jobs

OPEN_LOOP = 1 << 30
"""So many users that none ever waits for another."""


@dataclass(frozen=True)
class LaneJobs:
    """One lane."""

    position: int  # of the configuration in the chunk
    seed: int  # position of the seed
    replica: int  # -1: all of them, which run together
    jobs: Jobs  # of the whole pool
    served: np.ndarray | slice  # those of this replica, in order of arrival
    count: int  # how many they are
    users: int  # closed loop: requests in flight
    station: int = 0  # number of the pool
    draws: int = 0  # the seed itself
    by_id: bool = False  # the reference numbers requests by their id, not by their place in ``served``
    assigned: np.ndarray | None = None  # of replicas that run together: that of each job, if the router knows it

    @property
    def run(self) -> tuple[int, int]:
        return self.position, self.seed

    def id_of(self, number: int) -> int:
        """The id of a request that the reference knows by a number."""
        return number if self.by_id else int(self.jobs.id[self.served][number])

    @cached_property
    def rows(self) -> np.ndarray | slice:
        """Where its requests stand in tables by id."""
        return self.served if whole_table(self.jobs) else self.jobs.id[self.served]

    @property
    def measured_from(self) -> int:
        """The first job in order of arrival that is no warm-up; ``count`` where all are."""
        measured = self.jobs.measured[self.served]
        return int(measured.argmax()) if measured.any() else self.count


def _all_together(configuration: Configuration, run: tuple[int, int], jobs: Jobs, seed: int, station: int) -> LaneJobs:
    """All replicas of a pool under one seed."""
    assigned = _assigned(configuration.stations[station].deployment, jobs, seed, station)
    return LaneJobs(
        *run, -1, jobs, jobs.order, len(jobs), configuration.users or OPEN_LOOP, station, seed, assigned=assigned
    )


def _assigned(deployment: Deployment, jobs: Jobs, seed: int, station: int) -> np.ndarray | None:
    """The replica of each job in order of arrival; None where the router looks at the replicas."""
    if jobs.chosen is not None:
        return jobs.chosen[jobs.order]
    router = routed_by(deployment)
    if router_of(router).independent is None:
        return None
    prompts, session = jobs.demand.prompt_tokens[jobs.order], jobs.session
    session = None if session is None else session[jobs.order]
    return assign(router, Sent(prompts, deployment.ranks, stream(seed, station), session))


def lanes_of(
    configurations: Sequence[Configuration], jobs: ChunkJobs, seeds: Sequence[int], station: int
) -> list[LaneJobs]:
    """The lanes of the configurations that can run, configuration by configuration.

    Of jobs that are already told where to go (``Jobs.chosen``) a lane has those of its replica, and others none.
    """
    lanes = []
    for position, configuration in enumerate(configurations):
        if configuration.status != OK:
            continue
        pool, users = configuration.stations[station], configuration.users
        deployment = pool.deployment
        frontend = has_frontend(configuration.workload, pool.design.calibration)
        joint = is_joint(configuration.workload, deployment, frontend, pool.lockstep)
        replicas = deployment.ranks
        for number, run_jobs in enumerate(jobs[position]):
            # Replicas that depend on one another (a router that looks at them, users, lockstep) are one lane with one
            # event loop.
            if run_jobs.chosen is None and joint:
                lanes.append(_all_together(configuration, (position, number), run_jobs, seeds[number], station))
                continue
            if replicas == 1 and run_jobs.chosen is None:
                # A single replica needs no router, and takes `order` as it is: often a slice, of
                # which nothing is copied.
                fields = (run_jobs, run_jobs.order, len(run_jobs), users or OPEN_LOOP, station, seeds[number])
                lanes.append(LaneJobs(position, number, 0, *fields))
                continue
            # The order of arrival is kept within each replica, as the programs take a lane's requests first come,
            # first served.
            order = np.arange(len(run_jobs))[run_jobs.order]
            chosen = _assigned(deployment, run_jobs, seeds[number], station)
            for replica in range(replicas):
                served = order[chosen == replica]
                fields = (run_jobs, served, len(served), OPEN_LOOP, station, seeds[number])
                lanes.append(LaneJobs(position, number, replica, *fields))
    return lanes


# --- users who send their next request some time after the answer to the one before


class TurnOrder(NamedTuple):
    """Which requests wait for which answers. A request that waits for none opens a session.

    In an open loop these come at times of their own, in a closed loop the first of each user: then whoever has the last
    answer of a session opens the next one. So who of the users it is makes no difference, and all that follows an
    answer follows from the request that it answers.

    Each entry, (entry,), is of an answer and of one request that waits for it, or of an answer that none waits for:
    turns of a session have one each. They are sorted by ``answer``, so that those of a request stand together.
    """

    waits: np.ndarray  # (request,): for so many answers
    answer: np.ndarray  # position of the request that is answered
    following: np.ndarray  # position of the one that waits for it, or -1
    pause_s: np.ndarray  # from the last answer that this waits for until it is sent; of -1 until another session opens

    @property
    def opening(self) -> np.ndarray:
        """Positions of the requests that open sessions, in the order in which they do."""
        return np.flatnonzero(self.waits == 0)

    def sent_s(self, ready_s: np.ndarray, answered_s: np.ndarray, users: int) -> np.ndarray:
        """When each request is sent, (request,): openings at ``ready_s``, but those that wait for one of ``users``."""
        on_s, opening, later = answered_s[self.answer] + self.pause_s, self.opening, self.following >= 0
        sent_s = np.where(self.waits == 0, ready_s, -np.inf)
        np.maximum.at(sent_s, self.following[later], on_s[later])
        # The n-th opening behind the first of each user is when the n-th user has finished a session, and rested.
        free_s = np.sort(on_s[~later])
        sent_s[opening[users:]] = free_s[: max(len(opening) - users, 0)]
        return sent_s


def follows_of(jobs: Jobs, served: np.ndarray | slice) -> TurnOrder | None:
    """Of jobs that are all requests of a table, in this order; None where nobody waits for an answer."""
    sharing = jobs.sharing
    if sharing is None or sharing.turns is None or not sharing.feedback:
        return None
    ids, turns = jobs.id[served], sharing.turns
    # The inverse of `ids`, which are a permutation.
    position = np.empty(len(ids), dtype=np.int64)
    position[ids] = np.arange(len(ids))
    previous = turns.previous[ids]
    following = np.flatnonzero(previous >= 0)
    answer = position[previous[following]]
    if turns.graph is not None:  # calls that read the answers of sub-agents, too
        joins = turns.graph.joins
        following = np.append(following, position[np.repeat(np.arange(len(ids)), np.diff(joins.offsets))])
        answer = np.append(answer, position[joins.values])
    waited = np.zeros(len(ids), dtype=bool)
    waited[answer] = True
    last = np.flatnonzero(~waited)  # nobody waits for these answers
    rest_s = np.zeros(len(last)) if turns.rest_s is None else turns.rest_s[ids[last]]
    pause_s = np.append(turns.think_s[ids[following]], rest_s)
    waits = np.bincount(following, minlength=len(ids))
    following, answer = np.append(following, np.full(len(last), -1)), np.append(answer, last)
    order = np.argsort(answer, kind="stable")
    return TurnOrder(waits, answer[order], following[order], pause_s[order])
