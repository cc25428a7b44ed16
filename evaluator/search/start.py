"""Where a search for goodput begins: the rate at which a design's mean iteration reaches its bound, in closed form.

It saves trials and decides nothing: the search leaves a start that is far off in a few doubling strides.
"""

from __future__ import annotations

import numpy as np

from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.iteration import iteration_time
from evaluator.cost.memory import kv_units
from evaluator.plan import Configuration, Plan, StationPlan
from evaluator.speculation import mean_tokens
from evaluator.traffic.jobs import Demand

# Of the batch sizes that are looked at, spaced evenly in the logarithm: two neighbours are some 12 % apart up to 256.
POINTS = 48
USED = 0.75
"""Part of the capacity at which waits begin to count; typical of what the searches of the tests find."""

PACE = ("tpot", "itl")


class Starts:
    """Starting rates of designs; those that share a replica and the lengths of their requests are computed once."""

    def __init__(self, whole: Plan) -> None:
        self._whole = whole
        self._known: dict[tuple, float] = {}

    def rate(self, configuration: Configuration) -> float:
        """Requests per second, positive."""
        demand = self._whole.jobs(configuration)[0].demand
        prompt, output = float(demand.compute_tokens.mean()), float((demand.made_tokens + demand.later_tokens).mean())
        context = _context(demand)
        # Seconds between tokens that the objectives allow.
        pace = min((bound.bound_s for bound in configuration.objectives if bound.metric in PACE), default=float("inf"))
        rates = []
        for station in configuration.answering:
            most = station.deployment.batching.max_num_seqs
            # By identity: designs and demands are shared objects, and hashing their arrays would cost more than what is
            # saved.
            key = (id(station.design), id(demand), station.role.name, most, pace, station.speculative)
            if key not in self._known:
                self._known[key] = _capacity(station, prompt, output, context, pace)
            rates.append(self._known[key] * station.deployment.ranks)
        # A request passes all pools: the one with the least capacity sets the rate.
        return max(USED * min(rates), 1e-6)


def _context(demand: Demand) -> float:
    """Mean tokens that a decoding sequence holds. Long outputs count for more: they are in the batch for longer.

    ``demand`` is that of the first pool; a prefill side leaves all tokens but the first to a decode side.
    """
    output = demand.output_tokens + demand.later_tokens
    # Half of the output on average over a request's decodes, as the context grows by one with each of them.
    held, steps = demand.prompt_tokens + output / 2.0, output - 1
    return float(np.average(held, weights=steps) if steps.any() else held.mean())


def _capacity(station: StationPlan, prompt: float, output: float, context: float, pace: float) -> float:
    """Requests per second of one replica whose iterations take at most ``pace`` seconds per token on average.

    Little's law: an iteration of n decodes admits n / (output - 1) prompts, for each token that it gives a sequence. In
    a pipeline as many batches are in flight as there are ranks, and the slowest rank sets the pace of them all.
    """
    replica = station.design.ready
    tokens = mean_tokens(station.speculative)  # of an iteration
    # The first token comes of the prefill, so that a request with one output token decodes nothing; 1e-3 keeps the
    # quotient finite for a pool of such requests.
    steps = max((output - 1.0) / tokens, 1e-3)
    fits = replica.kv.capacity_units / max(float(kv_units(replica.kv, int(context))), 1.0)
    ranks = len(replica.pipeline_ranks)
    most = max(min(float(station.deployment.batching.max_num_seqs), fits) / ranks, 1.0)
    # Prompts per iteration, from one sequence in the batch to as many as seats and KV allow: in a steady state a
    # batch of n gives n tokens, and n / steps requests leave and are replaced.
    admitted = np.geomspace(1.0, most, POINTS) / steps
    if station.role.first_token_only:
        # A prefill pool has no decodes; up to a whole prompt per iteration, for its budget cuts longer ones into
        # chunks.
        admitted, decodes = np.geomspace(1e-2, 1.0, POINTS), np.zeros(POINTS)
    else:
        decodes = admitted * steps
    prompts = 0.0 * admitted if station.role.prompt_resident else admitted
    window = replica.kv.window
    batch = together(prefill_batch(prompts, prompt, window), decode_batch(decodes, context, window))
    times = np.array([np.broadcast_to(iteration_time(cost, batch), admitted.shape) for cost in replica.pipeline_ranks])
    rates = admitted / times.max(axis=0)
    allowed = station.role.first_token_only | (times.sum(axis=0) <= pace * tokens)
    # Where not even a batch of one keeps the pace, the search begins at the most that the pool computes, and finds out.
    return float(np.where(allowed, rates, 0.0).max() or rates.max())
