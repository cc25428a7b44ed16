"""What became of the requests of a chunk, with what is known of its configurations: what the metrics are taken of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluator.accuracy import load_errors
from evaluator.catalog.calibration import PROVENANCES
from evaluator.cost.fitted import verdict
from evaluator.cost.frontend import delay_s
from evaluator.metrics import OK, Outcomes, bounds_of
from evaluator.metrics.use import Use
from evaluator.plan import Member
from evaluator.simulation.accuracy import expected
from evaluator.simulation.chain import Gaps, Journey
from evaluator.simulation.gaps import pooled


def outcomes_of(members: Sequence[Member], journey: Journey, stage_names: Sequence[str] = ()) -> Outcomes:
    """The outcomes of a chunk. The rows of members that cannot run hold nothing of meaning.

    ``stage_names`` are those of all configurations of the plan.
    """
    first_later_s, last_later_s = _around_the_engine(members, journey)
    judged = [_judged(member, journey, position) for position, member in enumerate(members)]
    table = load_errors()
    errors = [expected(member, table) for member in members]
    return Outcomes(
        arrival_s=journey.arrival_s,
        scheduled_s=journey.scheduled_s,
        first_token_s=journey.first_token_s + first_later_s,
        last_token_s=journey.last_token_s + last_later_s,
        prompt_tokens=journey.prompt_tokens,
        output_tokens=journey.output_tokens if journey.made_tokens is None else journey.made_tokens,
        path_tokens=None if journey.made_tokens is None else journey.output_tokens,
        cached_tokens=journey.cached_tokens,
        later_wait_s=journey.later_wait_s,
        measured=journey.measured,
        makespan_s=journey.last_token_s.max(axis=-1) - journey.arrival_s.min(axis=-1),
        stations=by_pool(members, journey.uses),
        open_loop=np.array([member.open_loop for member in members]),
        status=np.array([status for status, _ in judged]),
        engine=np.array([member.engine for member in members]),
        provenance=np.array([provenance for _, provenance in judged]),
        calibration_set=np.array([_sets(member) for member in members]),
        model_error=np.array([bands for bands, _ in errors]),
        model_error_basis=np.array([told for _, told in errors]),
        finds_warmup=np.array([member.workload.find_warmup for member in members]),
        asked_rps=np.array([_asked_rps(member) for member in members]),
        objectives=bounds_of([member.objectives for member in members]),
        itl=_gaps(journey, last_later_s - first_later_s),
        replica=journey.replica,
        model=journey.model,
        stages=journey.stages,
        stage_names=tuple(stage_names),
    )


def by_pool(members: Sequence[Member], uses: Sequence[Use]) -> tuple[Use, ...]:
    """The uses with those of one pool together: a pool may serve several steps of the pipeline, and is paid for once.

    Busy times are in seconds of the replicas of the first.
    """
    pipeline = members[0].pipeline
    if pipeline is None:
        return tuple(uses)
    steps = {step.label: step for stage in pipeline.stages for step in stage.steps if step.pool is not None}
    found: dict[str, Use] = {}
    told: set[int | None] = set()  # engines that compute for several steps, each of which tells of all
    for use in uses:
        step = steps.get(use.name)
        name = use.name if step is None else f"pool {step.pool}"
        engine = None if step is None else step.station
        if engine is not None and engine in told:
            continue
        told.add(engine)
        found[name] = _together(found[name], use) if name in found else use
    return tuple(found.values())


def _together(one: Use, other: Use) -> Use:
    same = (one.replicas / other.replicas)[:, None]
    sums = {name: getattr(one, name) + getattr(other, name) for name in _SUMMED}
    most = {name: np.maximum(getattr(one, name), getattr(other, name)) for name in ("kv_units_max", "peaks")}
    return replace(one, busy_s=one.busy_s + other.busy_s * same, **sums, **most)


_SUMMED = (
    "iterations", "preemptions", "experts_touched", "kv_unit_s", "flops", "bytes", "decoded", "decoded_tokens",
)  # fmt: skip


def _judged(member: Member, journey: Journey, position: int) -> tuple[str, str]:
    """Status and provenance: of costs fitted to measured iterations, whether the run kept to their range.

    Of several pools the first problem counts, and the least sure provenance.
    """
    names = {station.design.provenance for station in member.stations}
    if member.status == OK:
        names = set()
        uses = {use.name: use for use in journey.uses}
        for station in member.stations:
            peaks = uses[station.name].peaks[position].max(axis=0)
            problem, provenance = verdict(station.design.calibration, station.design.ready.fit, peaks)
            if problem is not None:
                return f"unsupported: {problem}", provenance
            names.add(provenance)
    return member.status, _least_sure(names)


def _asked_rps(member: Member) -> float:
    rate = member.workload.arrivals.rate_rps
    return rate if member.workload.sessions.feedback and rate is not None else np.nan


def _sets(member: Member) -> str:
    return " + ".join(dict.fromkeys(station.design.calibration.name for station in member.stations))


def _least_sure(names: set[str]) -> str:
    return min(names, key=lambda name: PROVENANCES.index(name) if name in PROVENANCES else len(PROVENANCES))


def told_of(member: Member) -> dict[str, str]:
    """The texts of the row of a member that was not run."""
    provenance = _least_sure({station.design.provenance for station in member.stations})
    known = {"status": member.status, "engine": member.engine}
    told = {"calibration_set": _sets(member), "model_error_basis": expected(member, load_errors())[1]}
    return {**known, "provenance": provenance, **told}


def _around_the_engine(members: Sequence[Member], journey: Journey) -> tuple[np.ndarray, np.ndarray]:
    """How much later than the engines clients have the first and the last tokens, (config, seed, request), in seconds.

    Clients talk to one frontend, so that of pools in tandem the calibration of the first says it; of several side by
    side that of the pool to which the request goes. Behind a prefill side the iterations that an engine has planned
    ahead are those of the decode side: they hold up all tokens but the first. Where a stage holds the tokens until
    the last has come, such as a guard, they hold up the first as well.
    """
    first, last = np.zeros_like(journey.first_token_s), np.zeros_like(journey.last_token_s)
    held = journey.first_token_s == journey.last_token_s
    given_first, given_last = journey.given_s or (journey.first_token_s, journey.last_token_s)
    for position, member in enumerate(members):
        if member.status != OK:
            continue
        output, replica = journey.output_tokens[position], journey.replica[position]
        pools = [member.stations[number] for number in member.sides[0].stations]
        until = 0
        for pool in pools:
            since, until = until, until + pool.deployment.ranks
            at = (position, (replica >= since) & (replica < until) if len(pools) > 1 else ...)
            frontend = pool.frontend
            last[at] = delay_s(frontend, given_first[at], given_last[at], output[at[1]])
            waits = held[at] | (not pool.role.first_token_only)
            first[at] = np.where(waits, last[at], frontend.frontend_s)
    return first, last


def _gaps(journey: Journey, longer_s: np.ndarray) -> Gaps | None:
    """The gaps between tokens as clients see them.

    ``longer_s`` (config, seed, request) is how much later the tokens after the first come than the first itself, beyond
    what the engines say. Behind a prefill side the gap before the second token is longer by it.
    """
    handed = journey.handed
    if journey.itl is None or handed is None:
        return journey.itl
    found = [list(seeds) for seeds in journey.itl]
    for config, seeds in enumerate(found):
        for seed, gaps in enumerate(seeds):
            at = config, seed
            there = (handed.sequences[at] > 0) & (longer_s[at] > 0)
            gap_s, sequences = handed.gap_s[at][there], handed.sequences[at][there]
            if there.any():
                values, weights = pooled([gaps, (gap_s, -sequences), (gap_s + longer_s[at][there], sequences)])
                seeds[seed] = values[weights > 0], weights[weights > 0]
    return found
