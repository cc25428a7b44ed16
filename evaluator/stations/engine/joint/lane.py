"""What a lane of several replicas is given and gives back."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.stations.engine.common.arrays import (
    Array,
    Flag,
    FlagPerRequest,
    Float,
    FloatPerReplica,
    Int,
    IntPerReplica,
    IntPerRequest,
    RequestReplicas,
    RequestTimes,
)
from evaluator.stations.engine.common.lane import LaneResult
from evaluator.stations.engine.joint.caches import ByPrefix
from evaluator.stations.engine.preemptive.lane import Given, Lane

NO_COUNTER = -1
"""In place of a counter: the router is independent of the state, and ``assigned`` says where requests go."""


class Links(NamedTuple):
    """Between a prefill and a decode side, as ``plan.LinkPlan`` has them.

    A *way* is from one pool to another. Ways on which everything takes as long share a row of ``service_s``.
    """

    row: Array  # int32 (pool * pool,), from and to: the row of a way
    service_s: Array  # float64 (row * request slot,): what a job of the decode side occupies the link
    ahead: Array  # float64 (row,): the share of it that may be sent before the first token
    latency_s: Float
    one_by_one: Flag  # every prefill replica sends one after the other
    asks_early: Flag  # back-pressure, layer by layer: room is asked for when a prompt's first chunk is computed


class Network(NamedTuple):
    """Several pools that run together: pools side by side, or a prefill and a decode side.

    Each request has a *job* on every side that it passes. The jobs of the first side have the numbers of the requests,
    in the order in which these are sent; those of the second side come behind them in the same order. Replicas are
    numbered pool after pool. All that is a replica's alone (cost, limits, rules) has a leading axis ``pool``, and
    ``Requests.kv_units`` is a row of request slots for each pool.

    Routers that are independent of the state have a table of choices: by ``kind`` of job and, behind a prefill side
    with groups, by group, the replica of the first, the second, ... that comes; or, with kind NONE, by job.
    """

    jobs: Int  # of all sides
    pool: IntPerReplica
    phase: IntPerReplica  # NONE: there is no such replica
    model: IntPerReplica
    group: IntPerReplica
    asks: IntPerRequest  # the model of a job
    measured: FlagPerRequest
    before: IntPerRequest  # the job that goes before it on the first side, or NONE
    after: IntPerRequest  # the job that comes after it on the second side, or NONE
    counter: Array  # int32 (side,)
    grouped: Flag  # decode replicas of the group in which the prompt was computed
    kind: IntPerRequest
    turns: Array  # int32 (kind, group, request slot)
    assigned: Array  # int32 (group, request slot)
    links: Links


class JointPool(NamedTuple):
    """The replicas of one configuration under one seed."""

    lane: Lane  # what each replica is given; users and requests are those of all of them
    replicas: Int  # at most those of the structure
    counter: Int  # number in ``routing.record.COUNTERS`` of what the router wants least of, or NO_COUNTER
    assigned: IntPerRequest  # with NO_COUNTER: the replica of each request, in the order in which they are sent
    by_prefix: ByPrefix | None = None  # with prefix caches
    network: Network | None = None  # of several pools; ``counter`` and ``assigned`` are not looked at then
    ranks: Int | None = None  # of each replica in lockstep; ``replicas`` are those of all of them. None: no lockstep


class GivenPool(NamedTuple):
    """All that stays the same during a run."""

    given: Given
    replicas: Int
    counter: Int
    assigned: IntPerRequest
    by_prefix: ByPrefix | None = None
    network: Network | None = None
    ranks: Int | None = None


class PoolResult(NamedTuple):
    """What a lane of several replicas gives back: totals are sums over them, peaks those of any."""

    served: LaneResult
    replica: RequestReplicas  # which of them served each request


class ReplicaTotalRows(NamedTuple):
    """By replica, what is told of each pool by itself: the numbers of ``State`` that sum up what has happened."""

    busy_s: FloatPerReplica
    iterations: FloatPerReplica
    kv_max: FloatPerReplica
    kv_unit_s: FloatPerReplica
    preemptions: IntPerReplica
    experts_touched: FloatPerReplica
    peaks: Array  # float64 (replica, peak)


class NetworkResult(NamedTuple):
    """What a lane of several pools gives back, by job; infinite for what never happened."""

    sent_s: RequestTimes  # when it came to its side
    scheduled_s: RequestTimes
    first_token_s: RequestTimes
    last_token_s: RequestTimes
    link_s: RequestTimes  # of a job of the decode side: when its transfer began
    replica: RequestReplicas
    totals: ReplicaTotalRows
    itl_histogram: Array  # float64 (pool * bin,)
