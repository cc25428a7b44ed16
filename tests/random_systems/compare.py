"""Both simulators on random systems: which are compared, how far apart they are, and the smallest that differ."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics import OK, Outcomes
from evaluator.plan import Configuration, Plan, plan
from evaluator.plan.simulators import ITERATION, TOKEN
from evaluator.scenario import Grid, expand, load_scenario
from evaluator.simulation import simulate_configurations
from tests.random_systems.draw import Tree
from tests.simulation.engines import with_few_programs

TOLERANCE = 1e-9
TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
COUNTS = ("replica", "hit_tokens", "host_tokens", "storage_tokens", "shared_tokens", "refused", "lost", "tries")
USES = ("busy_s", "iterations", "flops", "bytes", "kv_unit_s", "kv_units_max", "preemptions")


@dataclass(frozen=True)
class Verdict:
    """What became of a system. ``outcome``: compared, tie, reference (with ``why``), refused (with why), or not run.

    ``apart`` of one that was compared: the largest relative difference; ``where``: of what.
    """

    number: int
    outcome: str
    why: str = ""
    apart: float = 0.0
    where: str = ""
    preemptions: int = 0
    requests: int = 0


def planned(trees: Sequence[Tree]) -> tuple[Plan | None, dict[int, int], dict[int, str]]:
    """The trees that can be read as points of one plan, and the others.

    (plan, place in it -> place among the trees, place among the trees -> why it was refused).
    """
    scenarios, refused = {}, {}
    for number, tree in enumerate(trees):
        try:
            scenarios[number] = load_scenario(tree)
        except InputError as error:
            refused[number] = f"input: {error}"
    if not scenarios:
        return None, {}, refused
    points = [expand(scenario).points[0] for scenario in scenarios.values()]
    empty = plan(next(iter(scenarios.values())))
    whole = replace(empty, grid=Grid((), (len(points),), points)).of(np.arange(len(points)))
    return whole, dict(enumerate(scenarios)), refused


def verdicts(trees: Sequence[Tree], programs: int, most: int) -> Iterator[Verdict]:
    """Of each tree; no more programs are compiled than ``programs``, for the groups with the most systems.

    ``most``: systems that are compared at the most; a fourth of them where the reference computes all alone.
    """
    whole, places, refused = planned(trees)
    yield from (Verdict(number, "refused", why) for number, why in refused.items())
    if whole is None:
        return
    able, alone = set[int](), 0
    for configuration in whole.configurations:
        number = places[configuration.config]
        if configuration.status != OK:
            yield Verdict(number, "refused", configuration.status)
        elif configuration.simulator == ITERATION:
            able.add(configuration.config)
        elif 4 * alone >= most:
            yield Verdict(number, "not run")
        else:
            alone += 1
            try:
                _reference(whole, configuration)
            except Exception as error:  # what breaks is found as what differs is
                yield _broken(number, "reference", error)
            else:
                yield Verdict(number, "reference", ", ".join(configuration.lacking))
    groups = [
        group for group in whole.groups if any(configuration.config in able for configuration in group.configurations)
    ]
    compiled: set[Any] = set()
    left = most
    for group in sorted(
        with_few_programs(groups),
        key=lambda group: -sum(configuration.config in able for configuration in group.configurations),
    ):
        some = [configuration for configuration in group.configurations if configuration.config in able]
        wanted = compiled | set(group.stations)
        if (len(wanted) > programs and compiled) or not left:
            yield from (Verdict(places[configuration.config], "not run") for configuration in some)
            continue
        compiled, some, later = wanted, some[:left], some[left:]
        left -= len(some)
        yield from (Verdict(places[configuration.config], "not run") for configuration in later)
        try:
            for verdict in _compared(replace(whole, groups=[group]), some):
                yield replace(verdict, number=places[verdict.number])
        except Exception as error:
            yield from (_broken(places[configuration.config], "compared", error) for configuration in some)


def _broken(number: int, outcome: str, error: Exception) -> Verdict:
    """Of a system on which a simulator ends with an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Verdict(
        number, outcome, "", np.inf, f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"[:300]
    )


def _reference(whole: Plan, configuration: Configuration) -> Outcomes:
    """What the reference makes of it; it answers every request, in order."""
    single = replace(whole, simulator=TOKEN).of(np.array([configuration.config]))
    exact = simulate_configurations(single, single.configurations)
    if exact.status[0] == OK:
        times = np.array([getattr(exact.times, name)[0] for name in TIMES])
        assert np.isfinite(times).all() and (np.diff(times, axis=0) >= -1e-9).all(), "a request goes back in time"
    return exact


def _compared(whole: Plan, configurations: list[Configuration]) -> Iterator[Verdict]:
    fast = simulate_configurations(whole, configurations)
    for place, configuration in enumerate(configurations):
        exact = _reference(whole, configuration)
        statuses = str(fast.status[place]), str(exact.status[0])
        if statuses[0] != statuses[1]:
            yield Verdict(configuration.config, "compared", "", np.inf, f"status: {statuses[0]} | {statuses[1]}")
        elif statuses[0] != OK:  # such as a cost that was fitted to smaller batches
            yield Verdict(configuration.config, "refused", statuses[0])
        else:
            apart, where = max(_differences(fast, place, exact))
            preemptions, requests = int(exact.summed("preemptions").sum()), configuration.workload.requests
            outcome = "tie" if apart > TOLERANCE and _is_tie(fast, place, exact) else "compared"
            yield Verdict(configuration.config, outcome, "", apart, where, preemptions, requests)


def _is_tie(fast: Outcomes, place: int, exact: Outcomes) -> bool:
    """Whether nothing differs but who of several that come at one time goes to which replica.

    Answers on two replicas may end at times that are equal but for rounding: whose next request is first is then a
    matter of the last bit, in which the simulators sum up a leap in other orders.
    """
    if any(_apart(getattr(fast.times, name)[place], getattr(exact.times, name)[0]) > TOLERANCE for name in TIMES):
        return False
    came_s, swapped = exact.times.arrival_s[0, 0], fast.times.replica[place, 0] != exact.times.replica[0, 0]
    beside = np.abs(came_s[swapped][:, None] - came_s[swapped]) <= TOLERANCE * (1.0 + came_s[swapped])
    return bool(swapped.any()) and bool((beside.sum(axis=1) > 1).all())


def _differences(fast: Outcomes, place: int, exact: Outcomes) -> Iterator[tuple[float, str]]:
    """(largest relative difference, of what); those of numbers that are counted are 0 or infinite."""
    for name in TIMES:
        yield _apart(getattr(fast.times, name)[place], getattr(exact.times, name)[0]), name
    for name in COUNTS:
        fast_times, exact_times = getattr(fast.times, name), getattr(exact.times, name)
        if fast_times is not None or exact_times is not None:
            fast_times = np.zeros_like(exact_times) if fast_times is None else fast_times[place]
            exact_times = np.zeros_like(fast_times) if exact_times is None else exact_times[0]
            yield float("inf") if (fast_times != exact_times).any() else 0.0, name
    for use, known in zip(fast.stations, exact.stations, strict=True):
        for name in USES:
            yield _apart(use.figure(name)[place], known.figure(name)[0]), f"{name} of {known.name}"
    given = [_gaps(fast, place), _gaps(exact, 0)]
    yield _apart(*map(np.array, given)), "gaps between tokens"


def _gaps(outcomes: Outcomes, place: int) -> list[float]:
    """How many there are, of each seed; none where nobody says when each token came."""
    return [] if outcomes.itl is None else [float(weights.sum()) for _, weights in outcomes.itl[place]]


def _apart(first: np.ndarray, second: np.ndarray) -> float:
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Times near the start of a run are held to a microsecond, of which 1e-9 is below what a clock resolves.
        relative = np.abs(first - second) / np.maximum(np.abs(second), 1e-6)
    relative = np.where(first == second, 0.0, np.where(np.isnan(relative), np.inf, relative))
    return float(relative.max(initial=0.0))


# --- the smallest system that differs


def shrunk(tree: Tree, tries: int) -> Tree:
    """The system with as little said as still differs, after so many tries at the most."""
    left = tries
    while left > 0:
        for smaller in _smaller(tree):
            left -= 1
            if _differs(smaller):
                tree = smaller
                break
            if left <= 0:
                return tree
        else:
            return tree
    return tree


def _differs(tree: Tree) -> bool:
    return any(verdict.outcome == "compared" and not verdict.apart <= TOLERANCE for verdict in verdicts([tree], 8, 1))


def _smaller(tree: Tree) -> Iterator[Tree]:
    """The same with fewer requests, then without each of its keys, the outer ones first."""
    requests = tree["workload"]["requests"]
    for fewer in (requests // 4, requests // 2, requests - 4, requests - 1):
        if 0 < fewer < requests:
            yield _with(tree, ("workload", "requests"), fewer)
    paths = sorted(_paths(tree), key=len)
    needed = {("workload",), ("deployment",), ("name",), ("workload", "requests"), ("workload", "arrivals"),
              ("workload", "lengths"), ("workload", "warmup_requests"), ("workload", "cooldown_requests"),
              ("workload", "seeds"), ("deployment", "model"), ("deployment", "hardware")}  # fmt: skip
    for path in paths:
        if path not in needed:
            yield _with(tree, path, None)


def _paths(tree: Any, above: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield (*above, name)
            yield from _paths(value, (*above, name))


def _with(tree: Tree, path: tuple[str, ...], value: Any) -> Tree:
    """A copy with another value at a path, or without it (None)."""
    tree = copy.deepcopy(tree)
    inner = tree
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree
