"""What one lane of the engine is given and what it gives back: plain tuples of numbers, all of them traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evaluator.cost.iteration import Array, IterationCost
from evaluator.policies import BatchingPolicy


class Policy(NamedTuple):
    """A batching policy as three decisions; numbers, not structure, so lanes of all policies share one program.

    The fields are those of ``policies.BatchingPolicy`` by the same names.
    """

    whole_prompts: Array  # a prompt is computed in one iteration (else in chunks that fill the token budget)
    prefill_alone: Array  # decodes wait while an iteration computes prompts (else they share it)
    drain_first: Array  # nothing is admitted before every running request has finished


def decisions(policies: Sequence[BatchingPolicy]) -> Policy:
    """The decisions of the policy of each lane, bool (lane,)."""
    columns = ([getattr(policy, name) for policy in policies] for name in Policy._fields)
    return Policy(*(np.array(column, dtype=bool) for column in columns))


class Lane(NamedTuple):
    """One replica. Every field is a scalar; with a leading ``lane`` axis it is a batch of replicas."""

    cost: IterationCost
    policy: Policy
    prompts_resident: Array  # decode-only role: the prompts' KV is already here, nothing is prefilled
    max_num_seqs: Array  # float64
    max_num_batched_tokens: Array  # float64
    kv_units: Array  # float64, capacity in units of the KV layout (blocks of full attention)
    window: Array  # float64, attention window in tokens (ignored without windowed layers)
    users: Array  # int32, closed loop: requests in flight; a number >= requests means open loop
    requests: Array  # int32, how many of the request slots are real
    measured_from: Array  # int32, requests before this one are warm-up


class Requests(NamedTuple):
    """The lane's requests in order of arrival, (request + 1,): the last slot is padding with an infinite arrival."""

    arrival_s: Array  # float64
    compute_tokens: Array  # int32, prompt tokens to compute: all but the cached prefix; 0 where prompts are resident
    prompt_tokens: Array  # int32
    output_tokens: Array  # int32
    kv_units: Array  # int32, KV that the finished request occupies; reserved on admission


class LaneResult(NamedTuple):
    """Times are absolute seconds (request,); infinite for a request that could never be admitted."""

    scheduled_s: Array
    first_token_s: Array
    last_token_s: Array
    busy_s: Array
    iterations: Array
    kv_units_max: Array
    kv_unit_s: Array  # units in use, integrated over time
    preemptions: Array  # how often a running request had to give up its KV
    experts_touched: Array  # sum over iterations of the fraction of experts touched; 0 without experts
    peaks: Array  # (quantity,) largest of each, ``quantities.PEAKS``, under a fitted cost; (0,) under the roofline
    itl_histogram: Array  # (bin,) gaps between tokens, see ``histogram``
