"""Whole scenarios on both engines, which must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from evaluator.cost.lanes import RowCounts
from evaluator.device import configure
from evaluator.metrics import OK, Outcomes, summarise
from evaluator.plan import Configuration, Group, Plan, StationGroup, plan
from evaluator.plan.groups import groups_of
from evaluator.plan.route import RouteSizes
from evaluator.plan.simulators import CompileKey, in_any_order
from evaluator.reference.serve.pool import Observe
from evaluator.simulation import simulate_configurations
from tests.scenario.build import scenario
from tests.thorough import THOROUGH

TIMES = ["arrival_s", "scheduled_s", "first_token_s", "last_token_s"]
TOTALS = ["busy_s", "iterations", "flops", "bytes", "kv_unit_s", "kv_units_max", "preemptions", "experts_touched"]
LEVELS = np.array([0.5, 0.9, 0.99])
PARTS = (
    "windowed", "experts", "peaks", "frontend", "kv_seen", "guesses", "late", "agents", "admits_first", "preempts",
    "by_work", "admits_decodes",
)  # fmt: skip


def outcomes(simulator: str, *overrides: str, observe: Observe | None = None) -> Outcomes:
    """Of the first group of a small scenario; ``observe`` sees the iterations of the reference."""
    whole = plan(scenario(*overrides), simulator=simulator)
    return simulate_configurations(whole, whole.configurations, observe)


def column_of(outcomes: Outcomes, name: str) -> np.ndarray:
    """An array of the outcomes, of their times or of their tokens."""
    return next(getattr(table, name) for table in (outcomes.times, outcomes.tokens, outcomes) if hasattr(table, name))


@dataclass(frozen=True)
class Chunk:
    """Designs that share a program, on both engines, with what is reported of them."""

    fast: Outcomes
    exact: Outcomes
    found: dict[str, np.ndarray]
    known: dict[str, np.ndarray]


@dataclass(frozen=True)
class Pair:
    """A design on both engines: its ``place`` among the designs of a chunk."""

    chunk: Chunk
    place: int

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """An array of the outcomes as either engine has it, (seed, request), or (seed,) of the makespan."""
        values = [column_of(outcomes, name) for outcomes in (self.chunk.fast, self.chunk.exact)]
        both = [each if name != "makespan_s" and each.ndim == 2 else each[self.place] for each in values]
        return both[0], both[1]

    def summed(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A figure of the use summed over the stations, as either engine has it: (seed,)."""
        return self.chunk.fast.summed(name)[self.place], self.chunk.exact.summed(name)[self.place]

    def told(self, name: str) -> np.ndarray:
        """What is reported of the vectorised engine's outcomes."""
        return self.chunk.found[name][self.place]


class Designs:
    """Designs by name that are planned together: those of one structure share a compiled program.

    A chunk is computed when one of its designs is first asked for. ``designs``: overrides of the small scenario.
    """

    def __init__(self, designs: Mapping[str, Sequence[str]]) -> None:
        self.designs = designs
        self.chunks: dict[tuple, Chunk] = {}

    @cached_property
    def plans(self) -> dict[str, list[Plan]]:
        """The plan of every design, for either engine."""
        return {
            simulator: [plan(scenario(*asked), simulator=simulator) for asked in self.designs.values()]
            for simulator in ("iteration", "token")
        }

    @cached_property
    def groups(self) -> list[Group]:
        """Of all designs, numbered as they come."""
        configurations = [
            replace(whole.configurations[0], config=number) for number, whole in enumerate(self.plans["iteration"])
        ]
        groups = groups_of(
            configurations, tuple(sorted({seed for whole in self.plans["iteration"] for seed in whole.seeds}))
        )
        return groups if THOROUGH else with_few_programs(groups)

    def both(self, name: str) -> Pair:
        """A design on both engines, which agree in all times, totals and gaps between tokens."""
        configure()
        config = list(self.designs).index(name)
        status = self.plans["iteration"][config].configurations[0].status
        assert status == OK, f"{name}: {status}"  # nothing would be compared
        seeds = [whole.seeds for whole in self.plans["iteration"]]
        group = next(
            group
            for group in self.groups
            if any(configuration.config == config for configuration in group.configurations)
        )
        configurations = [
            configuration for configuration in group.configurations if seeds[configuration.config] == seeds[config]
        ]
        configs = tuple(configuration.config for configuration in configurations)
        if configs not in self.chunks:
            self.chunks[configs] = self._chunk(configurations)
        pair = Pair(self.chunks[configs], configs.index(config))
        assert_agree(pair)
        return pair

    def _chunk(self, configurations: list[Configuration]) -> Chunk:
        whole, others = (self.plans[simulator][configurations[0].config] for simulator in ("iteration", "token"))
        whole = replace(whole, groups=self.groups)
        tokens = [self.plans["token"][configuration.config].configurations[0] for configuration in configurations]
        fast, exact = simulate_configurations(whole, configurations), simulate_configurations(others, tokens)
        return Chunk(fast, exact, summarise(fast, LEVELS), summarise(exact, LEVELS))


def with_few_programs(groups: Sequence[Group]) -> list[Group]:
    """The groups on programs that have what any of those has that are alike but for it.

    A program with windows, rows of experts, LightLLM's peaks, more branches, a frontend of users or agents also serves
    who has none of them: as in a sweep, where some of a group have them. Thorough tests compile each group its own.
    """
    alike: dict[CompileKey, list[StationGroup]] = {}
    for group in groups:
        for station in group.stations:
            alike.setdefault(_without_parts(station.key), []).append(station)

    def wide(station: StationGroup) -> StationGroup:
        some = alike[_without_parts(station.key)]
        parts = {part: any(getattr(station_group.key, part) for station_group in some) for part in PARTS}
        branches = max(station_group.key.branches for station_group in some)
        sizes = {
            size: max(getattr(station_group, size) for station_group in some)
            for size in ("ring", "lane_requests", "looks")
        }
        blocks = max(station_group.block_tokens for station_group in some) if station.block_tokens else 0
        routes = [of_group.routes for of_group in some if of_group.routes is not None]
        sizes["routes"] = RouteSizes(*map(max, zip(*routes, strict=True))) if routes else None
        rows = RowCounts(*map(max, zip(*(station_group.rows for station_group in some), strict=True)))
        key = replace(station.key, branches=branches, **parts)
        return replace(station, key=key, rows=rows, block_tokens=blocks, **sizes)

    return [replace(group, stations=tuple(map(wide, group.stations))) for group in groups]


def _without_parts(key: CompileKey) -> CompileKey:
    """The same for programs that may be one; of branches there are some or none.

    Lanes that run short of KV on demand run again in the general program, so that both have the same parts.
    """
    general = in_any_order(key) if key.on_demand else key
    return replace(general, branches=min(key.branches, 2), **dict.fromkeys(PARTS, False))


def both_engines(*overrides: str) -> Pair:
    """A small scenario on the vectorised engine and on the reference, which agree."""
    return Designs({"": overrides}).both("")


def assert_agree(pair: Pair) -> None:
    """The same times, totals and gaps between tokens."""
    chunk, place = pair.chunk, pair.place
    assert (chunk.fast.engine[place], chunk.exact.engine[place]) == ("iteration", "token")
    for name in (*TIMES, "makespan_s"):
        np.testing.assert_allclose(*pair.column(name), rtol=1e-9, err_msg=name)
    for name in TOTALS:
        np.testing.assert_allclose(*pair.summed(name), rtol=1e-9, err_msg=name)
    for fast_gaps, exact_gaps in zip(chunk.fast.itl[place], chunk.exact.itl[place], strict=True):
        assert fast_gaps[1].sum() == exact_gaps[1].sum()
    np.testing.assert_allclose(chunk.found["itl_s"][place], chunk.known["itl_s"][place], rtol=0.01)
