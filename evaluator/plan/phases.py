"""The sides of a configuration: which of its pools serve one phase side by side, and why they could not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from evaluator.catalog.what_if import WhatIf
from evaluator.plan.simulators import routed_by
from evaluator.plan.station import StationPlan
from evaluator.routing import Choice, Sent, assign, name_of, router_of, stream
from evaluator.routing.phases import BY_REQUEST, SHARED, Asking, PhaseReplicas, assign_in_phase
from evaluator.scenario import Deployment, Workload
from evaluator.traffic.jobs import Demand
from evaluator.traffic.roles import ROLES, Role

Pools = Sequence[tuple[str, Deployment]]


@dataclass(frozen=True)
class PhasePools:
    """Pools of one role. ``stations`` are their numbers among the stations of the configuration, ``number`` that of the
    side.

    ``replicas`` None: one pool that serves all requests, whose own router chooses when they come. Else the choice is
    made over all replicas of the side: on the prefill side (and of mixed pools) when a request is sent, on the decode
    side with its first token, because what a transfer takes depends on the replica to which it goes. ``grouped``: only
    the decode replicas of the group in which the prompt was computed can be chosen.

    Mixed pools beside prefill pools are on one side with them, behind them in number: a request that comes to one of
    their replicas is served there to its end. ``prompt_tokens_above``: those with more to compute go to the prefill
    pools, the others to the mixed ones; None: the router chooses among all.
    """

    number: int
    stations: range
    role: Role
    router: Choice
    replicas: PhaseReplicas | None
    grouped: bool = False
    prompt_tokens_above: int | None = None

    @property
    def mixed_from(self) -> int | None:
        """The first of the replicas of mixed pools beside prefill pools; None: there are none."""
        return None if self.replicas is None else self.replicas.mixed_from

    @property
    def asked(self) -> Role:
        """The role by which requests ask this side for their tokens: all of them, where some replicas are mixed."""
        return self.role if self.mixed_from is None else ROLES["mixed"]

    def apart(self, demand: Demand) -> np.ndarray | None:
        """Which jobs are for prefill and decode pools, (job,); None: the router says it, or all pools are of a role."""
        if self.mixed_from is None or self.prompt_tokens_above is None:
            return None
        return demand.compute_tokens > self.prompt_tokens_above

    @property
    def looks(self) -> bool:
        """Whether its router looks at the state of the replicas."""
        router = router_of(self.router)
        return router.counts is not None or router.by_prefix

    def assigned(self, asking: Asking, seed: int) -> np.ndarray:
        """The replica that serves each request, (job,), numbered pool after pool."""
        assert self.replicas is not None
        return assign_in_phase(self.replicas, name_of(self.router), stream(seed, self.number), asking)


def phases_of(pools: Pools, models: tuple[str, ...], groups: int) -> tuple[PhasePools, ...]:
    """The sides of pools in the order in which a request passes them. ``models``: those that requests ask for."""
    phases: list[PhasePools] = []
    start = 0
    # A request comes first to a prefill pool or to a mixed one: where there are both, they are one side.
    apart = any(deployment.role == "prefill" for _, deployment in pools)
    firsts = ("prefill", "mixed") if apart else ()
    # ``groupby`` needs the pools of a side next to one another, as ``pools_of`` sorts them.
    for role, several in groupby(
        (deployment for _, deployment in pools),
        key=lambda deployment: "prefill" if deployment.role in firsts else deployment.role,
    ):
        deployments = list(several)
        stations = range(start, start + len(deployments))
        router = routed_by(deployments[0])  # the same for all of a role
        grouped = groups > 1 and ROLES[role].prompt_resident
        # One pool without groups chooses by its own router when a request comes, which the vectorised engine can do
        # beforehand.
        joined = len(deployments) > 1 or grouped
        replicas = _phase_replicas(deployments, models, groups) if joined else None
        above = deployments[0].split.prompt_tokens_above
        phases.append(PhasePools(len(phases), stations, ROLES[role], router, replicas, grouped, above))
        start = stations.stop
    return tuple(phases)


def group_of_replicas(replicas: Sequence[int], groups: int) -> np.ndarray:
    """The group of each replica, pool after pool: every pool's replicas are split evenly, the first to group 0."""
    # Consecutive replicas share a group; ``_groups_problem`` has seen that all groups get as many.
    return np.concatenate([np.arange(count) * groups // count for count in replicas])


def model_of(deployment: Deployment) -> str:
    """The model for which requests ask a pool: one with other figures serves those for the model that it is like."""
    model = deployment.model
    return model if not isinstance(model, WhatIf) else str(model.parameters.get("like", model))


def _phase_replicas(deployments: Sequence[Deployment], models: tuple[str, ...], groups: int) -> PhaseReplicas:
    counts = [deployment.ranks for deployment in deployments]
    # A pool's weight is shared by its replicas, so that a request is as likely to come to the pool, however many it
    # has.
    weights = [1.0 if deployment.weight is None else deployment.weight / deployment.ranks for deployment in deployments]
    served = [model_of(deployment) for deployment in deployments]
    # Requests that name no model are all of kind 0.
    names = [models.index(name) if name in models else 0 for name in served]
    before_mixed = sum(deployment.ranks for deployment in deployments if deployment.role == "prefill")
    return PhaseReplicas(
        pool=tuple(np.repeat(np.arange(len(counts)), counts).tolist()),
        model=tuple(np.repeat(names, counts).tolist()),
        group=tuple(group_of_replicas(counts, groups).tolist()),
        weight=tuple(np.repeat(weights, counts).tolist()),
        mixed_from=before_mixed if 0 < before_mixed < sum(counts) else None,
    )


def phases_problem(workload: Workload, pools: Pools, phases: Sequence[PhasePools], groups: int) -> str | None:
    """Why requests could not be spread over the pools; None where they can."""
    for phase in phases:
        several = [pools[number] for number in phase.stations]
        if phase.replicas is not None:
            problem = _several_problem(workload, phase, several)
            if problem is not None:
                return problem
    return models_problem(workload, pools) or (_groups_problem(pools, groups) if len(phases) > 1 else None)


def _several_problem(workload: Workload, phase: PhasePools, several: Pools) -> str | None:
    weighed = [name for name, deployment in several if deployment.weight is not None]
    router = name_of(phase.router)
    if weighed and router not in SHARED:
        return (
            f"infeasible: pool {weighed[0]} has a weight, which router {router} takes no heed of; "
            f"leave it out or use router {' or '.join(SHARED)}"
        )
    if phase.mixed_from is not None and workload.reasoning.several:
        return (
            "unsupported: workload.reasoning.branches with mixed pools beside prefill and decode pools; use one "
            "branch, or pools of mixed, or of prefill and decode"
        )
    # Sessions dealt out in turn to the groups would meet in each with the same few of its replicas.
    if phase.grouped and router == "session":
        return f"unsupported: router session with transfer.groups; use {' or '.join(SHARED)}, or groups: 1"
    if router not in (*SHARED, *BY_REQUEST) and not phase.looks:
        return f"unsupported: router {router} over several pools of one role; use {' or '.join(SHARED)}, or one pool"
    if router_of(phase.router).by_prefix and len({deployment.shared_block_tokens for _, deployment in several}) > 1:
        split = any(deployment.decode_context_parallel > 1 for _, deployment in several)
        block = "kv.block_tokens x decode_context_parallel" if split else "kv.block_tokens"
        return (
            f"unsupported: router {router} over pools with different {block}, in which a prompt has different "
            "blocks; use the same or another router"
        )
    return None


def models_problem(workload: Workload, pools: Pools) -> str | None:
    """Why a request would find no pool with its model, or a pool no request."""
    names = workload.model_names
    where = "workload.models" if workload.models else "the column model of the trace"
    if not names:
        return _one_model_problem(pools)
    served_by = {
        role: {model_of(deployment) for _, deployment in pools if deployment.role == role}
        for role in dict.fromkeys(deployment.role for _, deployment in pools)
    }
    for role, served in served_by.items():
        for name in names:
            if name not in served and not _left_to_others(name, role, served_by):
                kind = "" if role == "mixed" else f"{role} "
                path = f"workload.models.{name}" if workload.models else f"model {name} in {where}"
                return (
                    f"infeasible: {path}: no {kind}pool serves it; the models of the {kind}pools are "
                    f"{', '.join(sorted(served))}. Add a pool with model: {name}"
                )
    for pool, deployment in pools:
        if model_of(deployment) not in names:
            return (
                f"infeasible: pool {pool} serves {deployment.model}, which no request asks for: {where} has "
                f"{', '.join(names)}"
            )
    for name in names:
        problem = _one_model_problem([pool for pool in pools if model_of(pool[1]) == name])
        if problem is not None:
            return problem
    return None


def _left_to_others(name: str, role: str, served_by: Mapping[str, set[str]]) -> bool:
    """Whether pools of a role need not serve a model: mixed pools beside prefill and decode pools may, or these may."""
    apart = any(name in served_by.get(other, ()) for other in ("prefill", "decode"))
    return apart if role == "mixed" else not apart and name in served_by.get("mixed", ())


def _one_model_problem(pools: Pools) -> str | None:
    (first, first_deployment), *others = pools
    for name, other in others:
        if other.model == first_deployment.model:
            continue
        if other.role != first_deployment.role and "mixed" not in (other.role, first_deployment.role):
            return (
                f"infeasible: pool {first} has {first_deployment.model} and pool {name} {other.model}, "
                "and the KV of one model means nothing to another; give both the same model"
            )
        asked = model_of(first_deployment), model_of(other)
        shares = f", or shares such as workload.models: {{{asked[0]}: 0.5, {asked[1]}: 0.5}}"
        return (
            f"infeasible: pool {first} has {first_deployment.model} and pool {name} {other.model}, "
            "and requests do not say which "
            f"they ask for; give both the same model{shares if asked[0] != asked[1] else ''}"
        )
    return None


def _groups_problem(pools: Pools, groups: int) -> str | None:
    for name, deployment in pools:
        if deployment.role != "mixed" and deployment.replicas % groups:
            return (
                f"infeasible: deployment.transfer.groups {groups} does not divide the {deployment.replicas} replicas "
                f"of pool {name}; every group takes as many of each pool"
            )
    return None


def most_jobs(
    phases: Sequence[PhasePools], stations: Sequence[StationPlan], demand: Demand, seed: int
) -> list[int | None]:
    """The most jobs that any replica of each pool can get under a seed; None where the pool's own router says it.

    ``demand`` is that of all requests, by their ids. On a decode side it is a bound: requests of one token skip it.
    """
    most: list[int | None] = [None] * len(stations)
    jobs, group = np.arange(len(demand)), None
    for phase in phases:
        pools = [stations[number].deployment for number in phase.stations]
        counts = [pool.ranks for pool in pools]
        independent = router_of(phase.router).independent
        # From here on nothing is known: who comes to later phases depends on this choice.
        if independent is None or independent.by_session:  # known only in the run, or to those who know the sessions
            # All jobs at one replica is the bound that always holds; lanes are then as wide as the run.
            most[phase.stations.start :] = [len(jobs)] * (len(most) - phase.stations.start)
            return most
        if phase.replicas is None:
            sent = Sent(demand.prompt_tokens, pools[0].ranks, stream(seed, phase.stations.start))
            chosen = assign(phase.router, sent)
        else:
            # Where the prompt was computed decides the group, so that a choice is made phase after phase.
            asking = Asking(jobs, demand.model[jobs], group if phase.grouped else None, apart=phase.apart(demand))
            chosen = phase.assigned(asking, seed)
            served = np.bincount(chosen, minlength=sum(counts))
            for number, jobs_of_replicas in zip(phase.stations, np.split(served, np.cumsum(counts)[:-1]), strict=True):
                most[number] = int(jobs_of_replicas.max())
            if phase.mixed_from is not None:  # who is served whole does not come to the decode side
                on = chosen < phase.mixed_from
                jobs, chosen = jobs[on], chosen[on]
        groups = max((max(phase.replicas.group) + 1 for phase in phases if phase.replicas is not None), default=1)
        group = group_of_replicas(counts, groups)[chosen]
    return most
