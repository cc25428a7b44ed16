"""``deployment.autoscaling`` of a pool: what it cannot go with, and its target where a latency is said in place of one.

Dynamo's planner divides the load that it foresees by what a worker bears within an objective, which it knows from a
sweep of measurements (docs/planner/sla_planner.md there: prompt tokens a second for prefill, sequences under an ITL for
decode). Here the cost model says what a replica bears, of the lengths that the workload draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from evaluator.catalog import load_link
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.iteration import iteration_time
from evaluator.cost.memory import kv_units
from evaluator.plan.checks import left_out
from evaluator.plan.phases import PhasePools
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild
from evaluator.scenario.autoscaling import OUTPUT_RATE, OUTSTANDING, PROMPT_RATE, PROMPT_TOKENS, TPOT, TTFT
from evaluator.speculation import mean_tokens

_NOT_OF = {
    "prefill": dict.fromkeys((TPOT, OUTPUT_RATE), "ttft, prompt_tokens or prompt_rate"),
    # What comes first of a decode side is a second token; prompts are computed elsewhere.
    "decode": dict.fromkeys((TTFT, PROMPT_TOKENS, PROMPT_RATE), "outstanding, output_rate, kv or tpot"),
}
"""Metrics that pools of a role have not, and what to use."""
_LEAST_SLACK = 1e-3
"""Part of a prompt's own time that it may wait where its objective leaves nothing: then all replicas are wanted."""


def scaling_problem(station: StationPlan, phases: Sequence[PhasePools], staged: bool) -> str | None:
    """Why replicas cannot come and go; None where they can, or do not. ``staged``: there is a pipeline."""
    deployment = station.deployment
    scaling = deployment.autoscaling
    if scaling is None:
        return None
    if scaling.min_replicas > deployment.replicas:
        return (
            f"infeasible: autoscaling.min_replicas {scaling.min_replicas} exceeds replicas {deployment.replicas}, the "
            "most that there may be; raise the one or lower the other"
        )
    side_by_side = any(phase.replicas is not None for phase in phases)
    use = _NOT_OF.get(deployment.role, {}).get(scaling.metric)
    others = {
        # A choice over the replicas of several pools, or of a group, is made by tables of all that there ever are.
        "several pools or stages; use one pool of each role, without stages": staged or side_by_side,
        "data_parallel; use replicas": deployment.data_parallel > 1,
        f"metric {scaling.metric} of a {deployment.role} pool; use {use}": use is not None,
    }
    if scaling.within_s is not None:
        metrics = (PROMPT_RATE,) if deployment.role == "prefill" else (OUTPUT_RATE, OUTSTANDING)
        others |= {
            "within_s of a mixed pool, whose prompts and decodes share iterations; use target": deployment.role
            == "mixed",
            f"within_s by metric {scaling.metric} of a {deployment.role} pool; use metric {metrics[0]}": scaling.metric
            not in metrics,
        }
    return left_out("autoscaling", others, ", or leave it out") or _unattainable(station)


def budget_problem(stations: Sequence[StationPlan]) -> str | None:
    """Why pools cannot share devices; None where they can, or have no bound together."""
    devices = stations[0].deployment.autoscaling_devices
    if devices is None:
        return None
    scaling = [(station, station.deployment.autoscaling) for station in stations]
    fleets = [(station, autoscaling) for station, autoscaling in scaling if autoscaling is not None]
    if len(fleets) < 2:
        return (
            "infeasible: autoscaling_devices are shared by two pools with autoscaling, of which there are "
            f"{len(fleets)}; lower replicas instead"
        )
    least = sum(autoscaling.min_replicas * station.design.devices for station, autoscaling in fleets)
    if least > devices:
        return (
            f"infeasible: autoscaling_devices {devices} are fewer than the {least} of min_replicas of all pools with "
            "autoscaling; raise the one or lower the other"
        )
    if len({autoscaling.every_s for _, autoscaling in fleets}) > 1:
        return (
            "infeasible: pools that share autoscaling_devices look at the same times; give their autoscaling the same "
            "every_s"
        )
    return None


def _unattainable(station: StationPlan) -> str | None:
    """Why no number of replicas keeps the objective."""
    scaling = station.deployment.autoscaling
    assert scaling is not None
    if scaling.within_s is None:
        return None
    if station.role.first_token_only:
        least_s, what = float(_prompts_s(station)[0].mean()), "a prompt of the workload takes a replica by itself"
    else:
        least_s, what = float(_decodes_s(station, np.ones(1))[0]), "a sequence by itself has a token"
        what += " every"
    if least_s < scaling.within_s:
        return None
    return (
        f"infeasible: autoscaling.within_s {scaling.within_s:g} s, and {what} {least_s:.3g} s on average; use more, or "
        "devices that are faster"
    )


def scaling_target(station: StationPlan) -> float:
    """What the metric of a pool's autoscaler is to be on a replica: as it is said, or as the cost model has it."""
    scaling = station.deployment.autoscaling
    assert scaling is not None
    if scaling.within_s is None:
        assert scaling.target is not None
        return scaling.target
    if station.role.first_token_only:
        return _prompt_rate(station, scaling.within_s)
    sequences = _sequences(station, scaling.within_s)
    if scaling.metric == OUTSTANDING:
        return sequences
    return sequences / float(_decodes_s(station, np.array([sequences]))[0])


def _prompt_rate(station: StationPlan, within_s: float) -> float:
    """Prompt tokens a second of a replica, to which prompts come at random, with a mean TTFT of ``within_s``.

    Prompts are computed one after the other, so that they wait as Pollaczek and Khinchine have it: by their rate r, r
    E[s^2] / (2 (1 - r E[s])) for services s, beside which a prompt takes its own time. This is solved for r.
    """
    takes_s, service_s = _prompts_s(station)
    slack_s = max(within_s - takes_s.mean(), _LEAST_SLACK * takes_s.mean())
    rate = 2.0 * slack_s / (np.mean(service_s**2) + 2.0 * slack_s * service_s.mean())
    assert station.lengths is not None
    return float(rate * np.mean(station.lengths.prompts))


def _prompts_s(station: StationPlan) -> tuple[np.ndarray, np.ndarray]:
    """Seconds to the first token of each drawn prompt alone, and those that it keeps a replica busy, (prompt,)."""
    assert station.lengths is not None
    whole = policy(station.deployment.batching.policy).whole_prompts
    return _prompt_times(station.design, station.lengths.prompts, None if whole else station.max_num_batched_tokens)


@lru_cache(maxsize=256)
def _prompt_times(design: ReplicaBuild, prompts: tuple[float, ...], chunk: int | None) -> tuple[np.ndarray, np.ndarray]:
    tokens, ready = np.array(prompts), design.ready
    size = float(chunk or tokens.max())
    of_ranks = np.zeros((len(ready.pipeline_ranks), len(tokens)))
    for past in np.arange(0.0, tokens.max(), size):
        computed = np.clip(tokens - past, 0.0, size)
        batch = prefill_batch(np.minimum(computed, 1.0), computed, ready.kv.window, past)
        took = [np.broadcast_to(iteration_time(cost, batch), tokens.shape) for cost in ready.pipeline_ranks]
        of_ranks += np.where(computed > 0, took, 0.0)  # a batch of nothing would take a host's time
    # A prompt passes all pipeline ranks, and keeps others from the slowest of them.
    return of_ranks.sum(axis=0), of_ranks.max(axis=0)


def _sequences(station: StationPlan, within_s: float) -> float:
    """The most sequences that a replica decodes at a time with a token of each every ``within_s``; one in any case."""
    sequences = np.arange(1.0, _most_sequences(station) + 1.0)
    able = sequences[_decodes_s(station, sequences) <= within_s]
    return float(able.max(initial=1.0))


def _most_sequences(station: StationPlan) -> float:
    """How many sequences have seats and KV on a replica."""
    assert station.lengths is not None
    kv = station.design.ready.kv
    fits = kv.capacity_units // max(float(kv_units(kv, int(station.lengths.context))), 1.0)
    return max(min(float(station.deployment.batching.max_num_seqs), fits), 1.0)


def _decodes_s(station: StationPlan, sequences: np.ndarray) -> np.ndarray:
    """Seconds between the tokens of so many sequences of the mean length, (n,)."""
    assert station.lengths is not None
    ready = station.design.ready
    # In a pipeline as many batches are under way as there are ranks.
    batch = decode_batch(sequences / len(ready.pipeline_ranks), station.lengths.context, ready.kv.window)
    of_ranks = [np.broadcast_to(iteration_time(cost, batch), sequences.shape) for cost in ready.pipeline_ranks]
    return np.sum(of_ranks, axis=0) / mean_tokens(station.speculative)


def start_up_s(station: StationPlan) -> float:
    """Seconds from the decision to start a replica until it serves: what the scenario says, and loading its weights."""
    scaling, replica = station.deployment.autoscaling, station.design.ready
    assert scaling is not None
    if scaling.weights_over is None:
        return scaling.start_up_s
    # All devices of a replica load their shares over one link.
    link = load_link(scaling.weights_over)
    return scaling.start_up_s + (link.latency_s + replica.replica_weight_bytes / link.bandwidth)
