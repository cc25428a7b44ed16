"""What one lane of the engine is given and what it gives back: plain tuples of numbers, all of them traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from evaluator.metrics.use import PoolTotals
from evaluator.policies import BatchingPolicy
from evaluator.stations.engine.common.arrays import (
    Array,
    Bins,
    Flag,
    Float,
    FloatPerRequest,
    FloatPerStop,
    Int,
    IntPerRequest,
    RequestReplicas,
    RequestTimes,
    RequestTokens,
)


class Policy(NamedTuple):
    """A batching policy as three decisions; numbers, not structure, so lanes of all policies share one program.

    The fields are those of ``policies.BatchingPolicy`` by the same names.
    """

    whole_prompts: Flag  # a prompt is computed in one iteration (else in chunks that fill the token budget)
    prefill_alone: Flag  # decodes wait while an iteration computes prompts (else they share it)
    drain_first: Flag  # nothing is admitted before every running request has finished


def decisions(policies: Sequence[BatchingPolicy]) -> Policy:
    """The decisions of the policy of each lane, bool (lane,)."""
    columns = ([getattr(policy, name) for policy in policies] for name in Policy._fields)
    return Policy(*(np.array(column, dtype=bool) for column in columns))


class LaneLimits(NamedTuple):
    """What both programs are told of one replica besides its cost: its policy and role, its limits, its load."""

    policy: Policy
    prompts_resident: Flag  # decode-only role: the prompts' KV is already here, nothing is prefilled
    max_num_seqs: Float
    max_num_batched_tokens: Float  # the token budget of an iteration
    kv_units: Float  # capacity in units of the KV layout (blocks of full attention), without what requests share
    window: Float  # attention window in tokens (ignored without windowed layers)
    users: Int  # closed loop: requests in flight; a number >= requests means open loop
    requests: Int  # how many of the request slots are real
    measured_from: Int  # requests before this one are warm-up


class Requests(NamedTuple):
    """The lane's requests in order of arrival; the slots behind ``LaneLimits.requests`` have an infinite arrival."""

    arrival_s: FloatPerRequest
    compute_tokens: IntPerRequest  # prompt tokens to compute: all but the cached prefix; 0 where prompts are resident
    prompt_tokens: IntPerRequest
    output_tokens: IntPerRequest
    kv_units: IntPerRequest  # KV of the finished request, without what it shares; reserved on admission, or on demand


class Spans(NamedTuple):
    """From when until when replicas were there, in the order in which they were started."""

    count: Int  # may exceed the rows that there are: then the later ones are missing
    began_s: Array  # float64 (span,)
    gone_s: Array  # float64 (span,); infinite: until the end


class LaneResult(NamedTuple):
    """What a lane gives back. Times are absolute; infinite for a request that could never be admitted.

    Of replicas that run together the totals are sums over all of them, and maxima of any. Of several pools they have a
    leading axis (replica,), the histogram has one behind the other, and times are those of the jobs of all phases.
    """

    scheduled_s: RequestTimes  # start of the first iteration that takes part of it
    first_token_s: RequestTimes
    last_token_s: RequestTimes
    totals: PoolTotals  # one number each, but for ``peaks``, which is empty under a roofline
    itl_histogram: Bins  # gaps between tokens, see ``histogram``
    hit_tokens: RequestTokens | None = None  # prompt tokens found in the prefix cache; None: there is none
    # KV on demand was asked for that was not there, or routers were to hear of more than there is room for: the rest is
    # void; None: cannot be.
    ran_short: Flag | None = None
    # Of replicas that run together: which of them served each request; ``refused_at`` one that refused it.
    replica: RequestReplicas | None = None
    sent_s: RequestTimes | None = None  # of several pools: when a job came to its phase
    link_s: RequestTimes | None = None  # and when its transfer began, if it is of the decode phase
    fleet: Spans | None = None  # of replicas that come and go: when each was there
    began_s: FloatPerStop | None = None  # of stages in the loop: when the service at each stop of each request began


def refused_at(replica: Array) -> Array:
    """What ``LaneResult.replica`` holds of a request that a replica refused; of that, which replica it was."""
    return -2 - replica  # below -1, which is no replica: 0 becomes -2, and -2 again 0


Lanes = TypeVar("Lanes")
Start = TypeVar("Start")
Results = TypeVar("Results")


def _shared_out(in_step: Callable[..., Results], lanes: int) -> Callable[..., Results]:
    """``in_step`` on all devices of this process, each with its share of the lanes, between which nothing goes.

    A device goes on as soon as its own lanes have ended. Lanes that cannot be shared evenly stay on one device.
    """
    devices = jax.local_devices()
    if len(devices) == 1 or lanes % len(devices):
        return in_step
    mesh, spread = Mesh(np.array(devices), ("lane",)), PartitionSpec("lane")
    # Loops that each device leaves by itself are what the check of replication knows nothing of.
    return jax.shard_map(in_step, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)


def over_lanes(
    start: Callable[[Lanes, Requests], Start],
    run: Callable[[Lanes, Requests, Start], Results],
    lanes: Lanes,
    requests: Requests,
    vectorise: bool,
) -> Results:
    """``run`` on each lane of a batch from its ``start``; inputs and the result have a leading ``lane`` axis.

    ``vectorise`` runs all lanes in step by ``vmap``, for accelerators, each of which has its share of them; else they
    run one after another, because on a CPU a loop over scalars is the fastest. The numbers are the same to rounding.
    """
    if vectorise:

        def in_step(lanes: Lanes, requests: Requests) -> Results:
            # The start by itself, so that each of its numbers has a lane axis. JAX would find out loop by loop, tracing
            # each several times, which of the numbers that lanes begin with alike differ between them later.
            return jax.vmap(run)(lanes, requests, jax.vmap(start)(lanes, requests))

        return _shared_out(in_step, len(requests.arrival_s))(lanes, requests)
    return lax.map(lambda pair: run(pair[0], pair[1], start(*pair)), (lanes, requests))
