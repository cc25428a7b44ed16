"""The designs of a scenario as a search sees them: its sweep without the rate, each with the replicas it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, prod

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.plan import Configuration, Plan, plan
from evaluator.scenario import Axis, Budget, Scenario, all_objectives, size
from evaluator.scenario.deployment import STAGE
from evaluator.search.layouts import pruned, with_layouts
from evaluator.search.start import Starts
from evaluator.traffic.arrivals import at_rate

RATES = ("workload.arrivals.rate_rps", "workload.arrivals.scale")
REPLICAS = "deployment.replicas"
MOST_REPLICAS = 512
"""Most replicas in the search for the fewest; a larger fleet is better searched part by part."""
MOST_SPLITS = 50_000
"""Splits of a budget over pools, all layouts together, that are planned in some minutes at most."""
BEYOND = 3.0
"""How many times the replicas of the closed form are tried before a rate is given up."""


@dataclass(frozen=True)
class Designs:
    """``plan`` holds every design with every number of replicas it may have.

    ``ladders``, one for each design, are the configurations of the plan that differ only in the replicas, fewest first;
    those above the budget are among them and have that as their status. ``note`` says what of the scenario was not
    taken as it stands.
    """

    plan: Plan
    ladders: list[list[Configuration]]
    note: str


def designs_of(scenario: Scenario, simulator: str) -> Designs:
    """Errors: InputError where there is nothing to search, or where the question contradicts the sweep."""
    check(scenario)
    bare, note = without_rates(scenario)
    if not scenario.budget.layouts:
        return _of_layouts(bare, simulator, note)
    laid_out, fitting = with_layouts(bare, simulator)
    designs = _of_layouts(laid_out, simulator, f"{note} {fitting}".strip())
    # Pruned after planning: the closed form asks for the iteration cost of a design, which its plan builds.
    ladders, left_out = pruned(designs.plan, designs.ladders, len(bare.sweep), scenario.demand.rate_rps is not None)
    return replace(designs, ladders=ladders, note=f"{designs.note} {left_out}".strip())


def _of_layouts(bare: Scenario, simulator: str, note: str) -> Designs:
    """The designs of a scenario whose sweep has all layouts, and no rate."""
    if bare.budget.fill and (free := _free_pools(bare)):
        return _filled_pools(bare, free, simulator, note)
    most = _most_replicas(bare, simulator)
    if most is None:
        whole = plan(bare, simulator=simulator)
        configurations = [within(configuration, bare.budget) for configuration in whole.configurations]
        return Designs(whole, [[configuration] for configuration in configurations], note)
    # As an axis of the sweep, so that the grid, its rows and the dataset know the replicas as any swept key. It
    # is the last, which varies the fastest: ``row // most`` is the design.
    laddered = replace(bare, sweep=(*bare.sweep, replicas_axis(most)))
    whole = plan(laddered, simulator=simulator)
    rows = whole.grid.numbers(np.arange(len(whole.configurations)))
    ladders: dict[int, list[Configuration]] = {}
    for row, configuration in zip(rows.tolist(), whole.configurations, strict=True):
        ladders.setdefault(row // most, []).append(within(configuration, bare.budget))
    for_a_rate = bare.demand.rate_rps is not None  # then the fewest replicas that serve the rate are looked for
    design_ladders = list(ladders.values()) if for_a_rate else [_filled(ladder) for ladder in ladders.values()]
    return Designs(whole, design_ladders, note)


def check(scenario: Scenario) -> None:
    """InputError where the scenario asks for nothing that can be searched."""
    where = scenario.path or scenario.name
    bounds = all_objectives(scenario.workload, scenario.slo) or any(
        path.startswith("slo") for axis in scenario.sweep for path in _paths(axis)
    )
    if not bounds:
        raise InputError(
            f"{where}: slo: a search needs objectives that designs have to meet; add some such as "
            "slo: {ttft: {p90: 1s}, tpot: {p90: 50ms}}"
        )
    if any("rate_rps" in condition for condition in scenario.where):
        raise InputError(f"{where}: sweep.where: the rate of arrivals is searched, so that no condition can be on it")
    if scenario.budget.fill and not _searches_replicas(scenario) and not _free_pools(scenario):
        raise InputError(
            f"{where}: budget.fill: the replicas are already said by the sweep or by deployment.pools; take them away "
            f"(such as --set sweep.{REPLICAS}=null), or leave out fill"
        )


def without_rates(scenario: Scenario) -> tuple[Scenario, str]:
    """The scenario without axes of the arrival rate, and what there is to say of it.

    Errors: InputError for an axis that changes the rate together with other keys.
    """
    axes_without_rate: list[Axis] = []
    dropped: list[Axis] = []
    for axis in scenario.sweep:
        rates = [path for path in _paths(axis) if path in RATES]
        if rates and len(_paths(axis)) > len(rates):
            raise InputError(
                f"{scenario.path or scenario.name}: sweep.{axis.name}: sets {rates[0]} beside other keys, and the rate "
                "is what is searched; take the rate out of its designs"
            )
        (dropped if rates else axes_without_rate).append(axis)
    note = "".join(f"the axis {axis.name} is left out: the rate is searched. " for axis in dropped).strip()
    return replace(scenario, sweep=tuple(axes_without_rate)), note


def replicas_axis(most: int) -> Axis:
    """1, 2, ... replicas."""
    numbers = tuple(range(1, most + 1))
    return Axis(REPLICAS, numbers, tuple({REPLICAS: number} for number in numbers))


def within(configuration: Configuration, budget: Budget) -> Configuration:
    """The configuration, with a status that says so where it is above the budget or has no rate to search."""
    problem = _beyond(configuration, budget) or _no_rate(configuration)
    return configuration if configuration.status != OK or problem is None else replace(configuration, status=problem)


def _beyond(configuration: Configuration, budget: Budget) -> str | None:
    if budget.devices is not None and configuration.accelerators > budget.devices:
        return f"over budget: {configuration.accelerators:,} devices, and the budget is {budget.devices:,}"
    if budget.usd_per_hour is None:
        return None
    price = configuration.usd_per_hour
    if price is None:
        device, key = configuration.unpriced[0]
        return f"over budget: the price of {device} is not known; set {key}"
    # Prices are decimals in the file and floats here: 3 x 3.3 must pass as 9.9.
    if price > budget.usd_per_hour * (1.0 + 1e-12):
        return f"over budget: {price:.2f} USD/h, and the budget is {budget.usd_per_hour:.2f} USD/h"
    return None


def _no_rate(configuration: Configuration) -> str | None:
    if configuration.users is not None:
        return (
            "unsupported: a closed loop has no rate of arrivals to search; use arrivals with a rate, or sweep "
            "workload.arrivals.users"
        )
    if configuration.workload.arrivals.process == "trace":
        try:
            # Tried, since only the trace tells whether its times can be scaled to a rate: all its requests may
            # come at once.
            at_rate(configuration.workload.arrivals, 1.0, configuration.workload.requests)
        except ValueError as error:
            return f"unsupported: {error}; use more requests of it, or other arrivals"
    return None


def _filled(ladder: list[Configuration]) -> list[Configuration]:
    """The configuration with the most replicas that the budget takes; the smallest where it takes none."""
    taken = [configuration for configuration in ladder if not configuration.status.startswith("over budget")]
    return [taken[-1] if taken else ladder[0]]


def _free_pools(scenario: Scenario) -> list[str]:
    """The answering pools whose replicas the scenario leaves open: a budget is filled by all combinations of theirs."""
    pools = scenario.deployment.pools or {}
    swept = {path for axis in scenario.sweep for path in _paths(axis)}
    if "deployment.pools" in swept or REPLICAS in swept:
        return []
    stated = {
        name for name in pools if f"deployment.pools.{name}.replicas" in swept or pools[name].replicas is not None
    }
    return [name for name in pools if name not in stated and pools[name].role != STAGE]


def _filled_pools(bare: Scenario, free: Sequence[str], simulator: str, note: str) -> Designs:
    """Every layout of the sweep with every split of the budget over its pools that leaves no room for one replica more.

    The others are pruned before they run: a split with room to spare serves no more than the one that fills it.
    """
    most = _most_of_pools(bare, free, simulator)
    splits = prod(most.values())
    axes = [
        Axis(path, numbers, tuple({path: number} for number in numbers))
        for path, numbers in ((f"deployment.pools.{name}.replicas", tuple(range(1, most[name] + 1))) for name in free)
    ]
    points = size(bare) * splits
    if points > MOST_SPLITS:
        raise InputError(
            f"{bare.path or bare.name}: budget.fill: {points:,} splits of the budget over its pools are more than "
            f"{MOST_SPLITS:,}; sweep fewer layouts, or say the replicas of a pool"
        )
    whole = plan(replace(bare, sweep=(*bare.sweep, *axes)), simulator=simulator)
    rows = whole.grid.numbers(np.arange(len(whole.configurations)))
    layouts: dict[int, dict[tuple[int, ...], Configuration]] = {}
    for row, configuration in zip(rows.tolist(), whole.configurations, strict=True):
        split = tuple(int(index) for index in np.unravel_index(row % splits, tuple(most.values())))
        # Layouts come first in the grid and splits last, so that a row is one of each by division and remainder.
        layouts.setdefault(row // splits, {})[split] = within(configuration, bare.budget)
    ladders = [[configuration] for splits_of in layouts.values() for configuration in _fullest(splits_of)]
    return Designs(whole, ladders, note)


def _fullest(splits: dict[tuple[int, ...], Configuration]) -> list[Configuration]:
    """The splits of one layout that are within the budget and leave no room for another replica; else the smallest."""
    taken = {split: design for split, design in splits.items() if not design.status.startswith("over budget")}
    # A split stays if one replica more in any of its pools is over the budget: the Pareto front of the splits.
    full = [
        design
        for split, design in taken.items()
        if not any((*split[:pool], split[pool] + 1, *split[pool + 1 :]) in taken for pool in range(len(split)))
    ]
    smallest = next(iter(splits.values()))
    # Where no split can run one row is enough to say why.
    return full if any(design.status == OK for design in full) else [smallest]


def _most_of_pools(scenario: Scenario, free: Sequence[str], simulator: str) -> dict[str, int]:
    """The replicas that each pool can have beside one of each other: of the smallest that any layout has."""
    assert scenario.deployment.pools is not None
    budget = scenario.budget
    ones = {name: replace(pool, replicas=1) for name, pool in scenario.deployment.pools.items() if name in free}
    single = replace(scenario, deployment=replace(scenario.deployment, pools={**scenario.deployment.pools, **ones}))
    most = dict.fromkeys(free, 1)
    for configuration in plan(single, simulator=simulator).configurations:
        if _beyond(configuration, budget) is not None:
            continue
        for station in configuration.answering:
            if station.name not in most:
                continue
            limits = [MOST_REPLICAS]
            if budget.devices is not None:
                # The plan has one replica of each pool already: what is left goes to this one alone.
                limits.append(1 + (budget.devices - configuration.accelerators) // station.devices)
            if budget.usd_per_hour is not None and station.usd_per_device_hour:
                assert configuration.usd_per_hour is not None
                left = budget.usd_per_hour * (1.0 + 1e-12) - configuration.usd_per_hour
                limits.append(1 + floor(left / (station.devices * station.usd_per_device_hour)))
            most[station.name] = max(most[station.name], min(limits))
    return most


def _paths(axis: Axis) -> tuple[str, ...]:
    """What the axis itself sets, without the defaults that follow from it."""
    swept = dict.fromkeys(path for change in axis.changes for path in change)
    return tuple(path for path in swept if path in axis.keys or path == axis.name or path.startswith(f"{axis.name}."))


def _searches_replicas(scenario: Scenario) -> bool:
    """Whether the replicas are free: of one pool, and not swept."""
    paths = [path for axis in scenario.sweep for path in _paths(axis)]
    swept = any(path == REPLICAS or path.startswith("deployment.pools") for path in paths)
    return scenario.deployment.pools is None and not swept


def _most_replicas(scenario: Scenario, simulator: str) -> int | None:
    """How many replicas a design can have at most; None where the scenario says how many they are."""
    budget, rate = scenario.budget, scenario.demand.rate_rps
    if not _searches_replicas(scenario) or not (budget.fill or rate is not None):
        return None
    # A fleet that scales has fewer than its fewest only here, where one replica stands for its size and its rate.
    scaling = scenario.deployment.autoscaling
    scaling = None if scaling is None else replace(scaling, min_replicas=1)
    # Nor does it fail here: that says nothing of its size, and outages name replicas that one alone has not.
    single = replace(scenario, deployment=replace(scenario.deployment, replicas=1, autoscaling=scaling, failures=None))
    whole = plan(single, simulator=simulator)
    able = [
        configuration
        for configuration in whole.configurations
        if configuration.status == OK and configuration.users is None
    ]
    starts = Starts(whole)
    return min(MOST_REPLICAS, max((_most(configuration, budget, rate, starts) for configuration in able), default=1))


def _most(configuration: Configuration, budget: Budget, rate: float | None, starts: Starts) -> int:
    """Replicas that the budget takes, and that the rate may need."""
    limits = []
    if budget.devices is not None:
        limits.append(budget.devices // configuration.accelerators)
    # A price of 0 bounds nothing, and must not divide.
    if budget.usd_per_hour is not None and (price := configuration.usd_per_hour):
        limits.append(floor(budget.usd_per_hour / price * (1.0 + 1e-12)))
    if rate is not None:
        # The closed form may be off by a factor, and by some replicas where a rate needs but a few.
        limits.append(4 + round(BEYOND * rate / starts.rate(configuration)))
    return max(min(limits), 1)


def first_replicas(ladders: Sequence[list[Configuration]], starts: Starts, rate_rps: float) -> np.ndarray:
    """The place on each ladder that the closed form takes for the rate, (design,)."""
    places = []
    for ladder in ladders:
        # The router gives each replica its share, so that the closed form of one is divided out; the ladder need not
        # have all counts from 1 on (a budget or an axis may leave some out), hence the search for the place.
        rate_of_replica = starts.rate(ladder[0]) / ladder[0].stations[0].deployment.replicas
        wanted = rate_rps / rate_of_replica
        counts = np.array([configuration.stations[0].deployment.replicas for configuration in ladder])
        places.append(min(int(np.searchsorted(counts, wanted)), len(ladder) - 1))
    return np.array(places, dtype=np.int64)
