"""The lanes of a chunk: one for each configuration, seed and replica, with the requests that it serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.metrics import OK
from evaluator.plan.plan import Member, Plan
from evaluator.routing.independent import assign_replicas
from evaluator.traffic.loads import Load

OPEN_LOOP = 1 << 30
"""So many users that none ever waits for another."""


@dataclass(frozen=True)
class Slot:
    """One lane."""

    position: int  # of the configuration in the chunk
    seed: int  # position of the seed
    replica: int  # -1: all of them, which run together
    load: Load  # of the whole pool
    served: np.ndarray | slice  # the requests of this replica
    count: int  # how many they are
    users: int  # closed loop: requests in flight

    @property
    def at(self) -> tuple[int, int]:
        return self.position, self.seed

    def warmup(self, warmup_requests: int) -> int:
        """How many of this replica's requests are among the first of the pool."""
        return warmup_requests if isinstance(self.served, slice) else int(np.searchsorted(self.served, warmup_requests))


def pool_slot(plan: Plan, member: Member, position: int, number: int) -> Slot:
    """All replicas of a configuration under one seed."""
    workload, deployment, _ = plan.grid.points[member.config]
    load = plan.traffics.load(workload, plan.seeds[number], deployment.role)
    users = workload.arrivals.users if workload.arrivals.process == "closed_loop" else None
    return Slot(position, number, -1, load, slice(None), workload.requests, users or OPEN_LOOP)


def slots(plan: Plan, members: list[Member], only: int | None = None) -> list[Slot]:
    """The lanes of the members that can run, or of the one at position ``only``, configuration by configuration.

    In a closed loop users keep to their replica, user u to replica u mod replicas, so that replicas stay independent.
    """
    found = []
    for position, member in enumerate(members):
        if member.status != OK or only not in (None, position):
            continue
        workload, deployment, _ = plan.grid.points[member.config]
        users = workload.arrivals.users if workload.arrivals.process == "closed_loop" else None
        replicas = deployment.replicas
        for number, seed in enumerate(plan.seeds):
            load = plan.traffics.load(workload, seed, deployment.role)
            if replicas == 1:
                found.append(Slot(position, number, 0, load, slice(None), workload.requests, users or OPEN_LOOP))
                continue
            chosen = assign_replicas(deployment, seed, workload.requests)
            for one in range(replicas):
                served = np.flatnonzero(chosen == one)
                share = OPEN_LOOP if users is None else (users - one + replicas - 1) // replicas
                found.append(Slot(position, number, one, load, served, len(served), share))
    return found
