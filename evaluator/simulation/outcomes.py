"""What became of the requests of a chunk, with what is known of its configurations: what the metrics are taken of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

import numpy as np

from evaluator.accuracy import load_errors
from evaluator.accuracy.basis import BY_STATISTIC, Basis, design_basis, of_release
from evaluator.accuracy.cases import LOADS, Errors, load_group
from evaluator.catalog.calibration import PROVENANCES
from evaluator.catalog.own_server import ServedLoad
from evaluator.cost.fitted import verdict
from evaluator.cost.frontend import delay_s
from evaluator.metrics import OK, Outcomes, bounds_of
from evaluator.metrics.outcomes import RequestTimes, TokenCounts
from evaluator.metrics.sessions import SessionTable
from evaluator.metrics.use import WORK, Use
from evaluator.plan import Configuration, ReplicaBuild, StationPlan
from evaluator.plan.simulators import REQUEST
from evaluator.simulation.chain import ChainResult
from evaluator.stations.use import stuck_problem


def outcomes_of(
    configurations: Sequence[Configuration],
    chain_result: ChainResult,
    stage_names: Sequence[str] = (),
    class_names: Sequence[str] = (),
    has_sessions: bool = False,
    pool_names: Sequence[str] = (),
    objective_names: Sequence[str] = (),
) -> Outcomes:
    """The outcomes of a chunk. The rows of configurations that cannot run hold nothing of meaning.

    ``stage_names``, ``class_names`` and the like are those of all configurations of the plan, and
    ``has_sessions`` says whether any has some of several turns: chunks of a plan have the same variables.
    """
    first_later_s, last_later_s = _around_the_engine(configurations, chain_result)
    if (unanswered := chain_result.times.unanswered) is not None:  # nothing of theirs comes from an engine
        first_later_s[unanswered] = last_later_s[unanswered] = 0.0
    stuck = ~np.isfinite(chain_result.times.last_token_s).all(axis=(1, 2))
    uses = {use.name: use for use in chain_result.uses}
    judged = [
        _judged(configuration, chain_result, uses, position, bool(stuck[position]))
        for position, configuration in enumerate(configurations)
    ]
    table = load_errors()
    at_once = _concurrency(configurations, chain_result.times)
    errors = [
        expected(basis, table, at_once[position], _served_load(configuration, chain_result, position))
        for position, (configuration, basis) in enumerate(zip(configurations, _bases_of(configurations), strict=True))
    ]
    ended_s = _ended_s(chain_result.times)
    makespan_s = ended_s - chain_result.times.arrival_s.min(axis=-1)
    return Outcomes(
        times=replace(
            chain_result.times,
            first_token_s=chain_result.times.first_token_s + first_later_s,
            last_token_s=chain_result.times.last_token_s + last_later_s,
        ),
        tokens=chain_result.tokens,
        later_wait_s=chain_result.later_wait_s,
        measured=chain_result.measured,
        makespan_s=makespan_s,
        # Also of a side that was done before: what it has then stays until the last answer.
        stations=tuple(use.until(ended_s) for use in by_pool(configurations, chain_result.uses)),
        open_loop=np.array([configuration.open_loop for configuration in configurations]),
        users=np.array([configuration.users or 0 for configuration in configurations]),
        one_batch=np.array([configuration.one_batch for configuration in configurations]),
        status=np.array([status for status, _ in judged]),
        engine=np.array([configuration.simulator for configuration in configurations]),
        provenance=np.array([provenance for _, provenance in judged]),
        calibration_set=np.array([_sets(configuration) for configuration in configurations]),
        model_error=np.array([bands for bands, _ in errors]),
        model_error_basis=np.array([basis for _, basis in errors]),
        finds_warmup=np.array([configuration.workload.find_warmup for configuration in configurations]),
        asked_rps=np.array([_asked_rps(configuration) for configuration in configurations]),
        objectives=bounds_of([configuration.objectives for configuration in configurations]),
        itl=chain_result.gaps(last_later_s - first_later_s),
        model=chain_result.model,
        accelerators=np.array([configuration.accelerators for configuration in configurations]),
        api_server_utilisation=_api_server_utilisation(configurations, chain_result, makespan_s),
        request_class=_request_classes(configurations, chain_result, class_names),
        class_names=tuple(class_names),
        stages=chain_result.stages,
        sessions=(chain_result.sessions or SessionTable.empty(chain_result.times.arrival_s.shape))
        if has_sessions
        else None,
        stage_names=tuple(stage_names),
        pool_names=tuple(pool_names),
        objective_names=tuple(objective_names),
    )


def _request_classes(
    configurations: Sequence[Configuration], chain_result: ChainResult, class_names: Sequence[str]
) -> np.ndarray | None:
    """The numbers of the requests' classes among those of the plan, (config, seed, request); -1: none."""
    if chain_result.request_class is None or not class_names:
        return None
    numbers = np.full_like(chain_result.request_class, -1)
    for position, configuration in enumerate(configurations):
        # Points of a sweep may have classes of their own, which share the columns.
        of_workload = np.array([class_names.index(name) for name in configuration.workload.class_names], dtype=np.int64)
        if of_workload.size:
            numbers[position] = of_workload[chain_result.request_class[position]]
    return numbers


def by_pool(configurations: Sequence[Configuration], uses: Sequence[Use]) -> tuple[Use, ...]:
    """The uses with those of one pool together: a pool may serve several steps of the pipeline, and is paid for once.

    Busy times are in seconds of the replicas of the first.
    """
    pipeline = configurations[0].pipeline
    if pipeline is None:
        return tuple(uses)
    steps = {step.label: step for stage in pipeline.stages for step in stage.steps if step.pool is not None}
    uses_of_pools: dict[str, Use] = {}
    counted: set[int | None] = set()  # engines that compute for several steps, each of which tells of all
    for use in uses:
        step = steps.get(use.name)
        name = use.name if step is None else f"pool {step.pool}"
        engine = None if step is None else step.station
        if engine is not None and engine in counted:
            continue
        counted.add(engine)
        uses_of_pools[name] = _together(uses_of_pools[name], use) if name in uses_of_pools else use
    return tuple(uses_of_pools.values())


def _together(use: Use, other: Use) -> Use:
    # Utilisation is busy time over the replicas of ``use``: the other's seconds are converted to those.
    other_busy_s = other.totals.busy_s * (use.replicas / other.replicas)[:, None]
    totals = use.totals.joined(other.totals._replace(busy_s=other_busy_s))
    sums = {name: getattr(use, name) + getattr(other, name) for name in WORK}
    return replace(use, totals=totals, **sums)


def _judged(
    configuration: Configuration, chain_result: ChainResult, uses: Mapping[str, Use], position: int, stuck: bool
) -> tuple[str, str]:
    """Status and provenance as the run shows them: whether all requests ended, and of costs fitted to measured
    iterations whether it kept to their range. ``stuck``: some did not.

    Of several pools the first problem counts, and the least sure provenance.
    """
    names = {station.design.provenance for station in configuration.stations}
    if configuration.status != OK:
        return configuration.status, _least_sure(names)
    problem = stuck_problem(configuration, chain_result.times.last_token_s[position]) if stuck else None
    if problem is not None:
        return problem, _least_sure(names)
    names = set()
    for station in configuration.stations:
        # The largest of any seed, since one run beyond the measured range is enough.
        peaks = uses[station.name].totals.peaks[position].max(axis=0)
        problem, provenance = verdict(station.design.calibration, station.design.ready.fit, peaks)
        if problem is not None:
            return f"unsupported: {problem}", provenance
        names.add(provenance)
    return configuration.status, _least_sure(names)


def _asked_rps(configuration: Configuration) -> float:
    rate = configuration.workload.arrivals.rate_rps
    return rate if configuration.workload.feedback and rate is not None else np.nan


def _sets(configuration: Configuration) -> str:
    return " + ".join(dict.fromkeys(station.design.calibration.name for station in configuration.stations))


def _least_sure(names: set[str]) -> str:
    return min(names, key=lambda name: PROVENANCES.index(name) if name in PROVENANCES else len(PROVENANCES))


def texts_of(configuration: Configuration) -> dict[str, str]:
    """The texts of the row of a configuration that was not run."""
    provenance = _least_sure({station.design.provenance for station in configuration.stations})
    plain = {"status": configuration.status, "engine": configuration.simulator}
    by_source = {
        "calibration_set": _sets(configuration),
        "model_error_basis": expected(basis_of(configuration), load_errors())[1],
    }
    return {**plain, "provenance": provenance, **by_source}


def _ended_s(times: RequestTimes) -> np.ndarray:
    """When the last station is done with the last request, (config, seed): an engine, or an API server that tokens wait
    for. What clients wait for around these is no station's work."""
    last_s = times.last_token_s if times.last_wait_s is None else times.last_token_s + times.last_wait_s
    return last_s.max(axis=-1)


def _api_server_utilisation(
    configurations: Sequence[Configuration], chain_result: ChainResult, makespan_s: np.ndarray
) -> np.ndarray:
    """Time that the API servers of all replicas work / (their number x makespan), (config, seed); NaN where it is not
    known what they take."""
    utilisation = np.full(makespan_s.shape, np.nan)
    for position, configuration in enumerate(configurations):
        pool = configuration.stations[0]
        times = pool.api_server_times
        if configuration.status != OK or times is None:
            continue
        output = chain_result.tokens.output_tokens
        output = output[position] if output.ndim == 3 else output
        answered = np.ones(1, dtype=bool)
        if chain_result.times.unanswered is not None:
            answered = ~chain_result.times.unanswered[position]
        work_s = ((output * times.per_token_s + times.per_request_s) * answered).sum(axis=-1)
        utilisation[position] = work_s / (pool.api_servers * pool.deployment.replicas * makespan_s[position])
    return utilisation


def _around_the_engine(
    configurations: Sequence[Configuration], chain_result: ChainResult
) -> tuple[np.ndarray, np.ndarray]:
    """How much later than the engines clients have the first and the last tokens, (config, seed, request), in seconds.

    Clients talk to one frontend, so that of pools in tandem the calibration of the first says it; of several side by
    side that of the pool to which the request goes. Behind a prefill side the iterations that an engine has planned
    ahead are those of the decode side: they hold up all tokens but the first. Where a stage holds the tokens until
    the last has come, such as a guard, they hold up the first as well.
    """
    times = chain_result.times
    first, last = np.zeros_like(times.first_token_s), np.zeros_like(times.last_token_s)
    # A stage held the answer until its last token.
    held = times.first_token_s == times.last_token_s
    given_first, given_last = chain_result.given_s or (times.first_token_s, times.last_token_s)
    longest = chain_result.tokens.longest
    for pools, positions in _by_pools(configurations):
        rows = slice(None) if len(positions) == len(configurations) else np.array(positions)
        output, replica = longest[rows] if longest.ndim == 3 else longest, times.replica[rows]
        # Replicas are numbered over the pools of a phase, pool after pool.
        until = 0
        for pool in pools:
            since, until = until, until + pool.deployment.ranks
            frontend = pool.frontend
            later = delay_s(frontend, given_first[rows], given_last[rows], output)
            # Of disaggregated pools the client gets the first token from the prefill side, before the decode side
            # plans.
            first_later = np.where(held[rows], later, frontend.frontend_s) if pool.role.first_token_only else later
            if len(pools) > 1:
                here = (replica >= since) & (replica < until)
                first_later, later = np.where(here, first_later, first[rows]), np.where(here, later, last[rows])
            first[rows], last[rows] = first_later, later
    if times.first_wait_s is not None and times.last_wait_s is not None:
        first, last = first + times.first_wait_s, last + times.last_wait_s
    return first, last


def _by_pools(configurations: Sequence[Configuration]) -> Iterable[tuple[list[StationPlan], list[int]]]:
    """The pools to which requests come first, of configurations that run, and the positions of those that share them,
    as the rates of a sweep do."""
    alike: dict[tuple[int, ...], tuple[list[StationPlan], list[int]]] = {}
    for position, configuration in enumerate(configurations):
        if configuration.status == OK:
            pools = [configuration.stations[number] for number in configuration.phases[0].stations]
            alike.setdefault(tuple(map(id, pools)), (pools, []))[1].append(position)
    return alike.values()


# --- the expected errors of configurations, by what their pools rest on

Bands = tuple[tuple[float, ...], ...]


def expected(
    basis: Basis, errors: Errors, concurrency: float = np.nan, load: Callable[[], ServedLoad] | None = None
) -> tuple[Bands, str]:
    """The expected relative errors of the mean, p90 and p99 (``basis.BY_STATISTIC``) of TTFT, ITL and E2E
    (``basis.METRICS``) on a ``basis_of``, and what they rest on in words.

    ``concurrency``: requests at a time of each replica; NaN where nothing was run. ``load`` gives that with their
    lengths, and is asked where the errors depend on it; None where nothing was run.
    """
    if load is not None and basis.measured is not None:  # of each configuration its own: nothing to keep
        return _bands(basis, errors, load()), basis.text(errors)
    return _errors_and_basis(basis, errors, None if np.isnan(concurrency) else load_group(concurrency))


def _concurrency(configurations: Sequence[Configuration], times: RequestTimes) -> np.ndarray:
    """Requests at a time that the engines of a replica have had, (config,), by Little's law; NaN where none ran.

    Those that wait for good are not at the engines: at most as many as the engines take count.
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # rows of configurations that cannot run hold anything
        span_s = times.last_token_s.max(axis=-1) - times.arrival_s.min(axis=-1)
        in_system = np.mean((times.last_token_s - times.arrival_s).sum(axis=-1) / span_s, axis=-1)
    firsts = [configuration.stations[0] for configuration in configurations]
    most = [station.design.spec.max_num_seqs * station.design.spec.parallel.data for station in firsts]
    at_once = np.minimum(in_system / [station.deployment.replicas for station in firsts], most)
    return np.where([configuration.status == OK for configuration in configurations], at_once, np.nan)


def _served_load(
    configuration: Configuration, chain_result: ChainResult, position: int
) -> Callable[[], ServedLoad] | None:
    """What its replicas had to do, to be asked; None where they did nothing."""
    if configuration.status != OK:
        return None
    return partial(load_of, configuration, chain_result.times, chain_result.tokens, position)


def load_of(configuration: Configuration, times: RequestTimes, tokens: TokenCounts, position: int) -> ServedLoad:
    """Requests at a time of a replica, over all of a run (Little's law), and their mean lengths."""
    arrival_s, last_s = times.arrival_s[position], times.last_token_s[position]
    span_s = last_s.max(axis=-1) - arrival_s.min(axis=-1)
    concurrency = (
        float(np.mean((last_s - arrival_s).sum(axis=-1) / span_s)) / configuration.stations[0].deployment.replicas
    )
    own = tokens.of_config(position)
    prompt, output = own.prompt_tokens, own.output_tokens
    return ServedLoad(max(concurrency, 1e-3), max(1.0, float(prompt.mean())), max(1.0, float(output.mean())))


def basis_of(configuration: Configuration) -> Basis:
    """What the prediction of a configuration rests on, over all its pools."""
    first, *others = (
        _of_design(station.design, station.deployment.engine_version) for station in configuration.stations
    )
    basis = first
    for other in others:
        basis = basis.joined(other)
    unmeasured = _unmeasured(configuration)
    return basis.joined(Basis((), unmeasured)) if unmeasured else basis


def _bases_of(configurations: Sequence[Configuration]) -> list[Basis]:
    """``basis_of`` each, once for those that share their pools."""
    bases: dict[Hashable, Basis] = {}
    of_each = []
    for configuration in configurations:
        kind = (*map(id, configuration.stations), configuration.pipeline is None, configuration.simulator)
        if kind not in bases:
            bases[kind] = basis_of(configuration)
        of_each.append(bases[kind])
    return of_each


def _unmeasured(configuration: Configuration) -> tuple[str, ...]:
    """What no measured server did, beside what its replicas are."""
    reasons = ["stages beside the model"] if configuration.pipeline is not None else []
    if any(station.role.first_token_only for station in configuration.answering):
        reasons.append("prefill and decode apart")
    if configuration.simulator == REQUEST:
        reasons.append("an approximate engine (request)")
    return tuple(reasons)


# By identity (designs compare so): hashing its fields would take longer than the basis.
@lru_cache(maxsize=1024)
def _of_design(built: ReplicaBuild, version: str | None) -> Basis:
    """Once for the configurations that share a design and a release, which are the rates of a sweep."""
    return of_release(design_basis(built), built, version)


@cache
def _errors_and_basis(basis: Basis, errors: Errors, group: int | None) -> tuple[Bands, str]:
    """Once for all configurations that rest on the same and whose loads are of one group (None: of any)."""
    # Errors differ by group alone, so that any load of it stands for all of them.
    load = None if group is None else ServedLoad((*LOADS, 2.0 * LOADS[-1])[group], 1.0, 1.0)
    return _bands(basis, errors, load), basis.text(errors, None if load is None else load.concurrency)


def _bands(basis: Basis, errors: Errors, load: ServedLoad | None) -> Bands:
    return tuple(basis.bands(errors, load, statistic) for statistic in BY_STATISTIC)
