"""Every layout of a replica that a budget has room for, so that a search need not be told which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import floor, prod
from typing import Any

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.catalog.what_if import device_named, model_named
from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.plan import Configuration, Plan, plan
from evaluator.scenario import Axis, Scenario
from evaluator.scenario.deployment import STAGE
from evaluator.search.start import Starts

KEYS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "expert_parallel")
MOST_DEVICES = 1024
"""Devices of one replica; larger ones are no layouts that anybody runs."""
KEPT = 0.4
"""Designs that the closed form gives less than this part of the best are pruned. Searches found 0.7 to 1.7 times what
it gave (DeepSeek-V3 with pools apart on 16 H200, 12 layouts), so that the best design is among those that stay."""
MOST_TRIED = 16
"""Designs that are searched at most, the best of the closed form."""

Layout = Mapping[str, int]


def with_layouts(scenario: Scenario, simulator: str) -> tuple[Scenario, str]:
    """The scenario with an axis of layouts for every pool that has none, and what there is to say of them.

    Layouts that fit no device, or that the model's shapes forbid, are left out. Errors: InputError where layouts are
    said already, and where none fits.
    """
    where = scenario.path or scenario.name
    free = _free(scenario)
    listed = {name: layouts(*_described(scenario, name)) for name in free}
    axes = {name: _axis(name, listed[name]) for name in free}
    # One replica of each: a layout that does not fit alone does not fit with more, and a plan of all counts of
    # replicas would be hundreds of times as large.
    ones = _alone(scenario)
    whole = plan(replace(ones, sweep=(*ones.sweep, *axes.values())), simulator=simulator)
    fits = _fitting(whole, [len(listed[name]) for name in free])
    if not all(fits):
        first = whole.configurations[0].status
        raise InputError(f"{where}: budget.layouts: no layout can run on the devices of the budget, e.g. {first}")
    able = {name: [listed[name][position] for position in fitting] for name, fitting in zip(free, fits, strict=True)}
    counts = ", ".join(f"{len(able[name])} of {len(listed[name])}{f' of {name}' if name else ''}" for name in free)
    chosen = tuple(_axis(name, able[name]) for name in free)
    return replace(scenario, sweep=(*scenario.sweep, *chosen)), f"layouts that fit: {counts}."


def layouts(models: Sequence[Model], hardware: Sequence[Hardware], devices: int) -> list[Layout]:
    """Layouts of a replica of at most so many devices, in powers of two, the smallest first.

    Tensor parallelism stays within the nearest link, which is what joins the devices of a node; a pipeline crosses
    nodes, and is tried where the tensor ranks fill one. Data-parallel ranks are of models with experts, which they
    share: of others they are replicas. Experts are cut like the other layers, or dealt out whole to all devices.
    """
    experts = any(model.has_experts for model in models)
    most = min(devices, MOST_DEVICES)
    # The largest nearest link of any device that is tried: a layout that one of them cannot have fails its plan.
    node = min(most, max(device.links[0].devices or most if device.links else 1 for device in hardware))
    cuts: list[Layout] = []
    for tensor, pipeline, data in product(_powers(node), _powers(most), _powers(most if experts else 1)):
        size = tensor * pipeline * data
        # ``2 * tensor <= node``: while half of a node or more is left, twice as many tensor ranks shorten every
        # layer, which pipeline ranks do not.
        if size > most or (pipeline > 1 and (2 * tensor <= node or data > 1)):
            continue
        whole = tensor * data
        # Data-parallel ranks are only of use where experts are dealt out over all of them; with a single rank
        # both ways exist. ``fromkeys``: on one device they are the same.
        for expert in dict.fromkeys((1, whole) if experts and data == 1 else (whole if experts else 1,)):
            cuts.append(dict(zip(KEYS, (tensor, pipeline, data, expert), strict=True)))
    # Expert parallelism (the fourth) uses the devices of the others, and adds none.
    return sorted(cuts, key=lambda layout: prod(layout[key] for key in KEYS[:3]))


def _powers(most: int) -> list[int]:
    return [1 << power for power in range(max(most, 1).bit_length())]


def _free(scenario: Scenario) -> list[str]:
    """The pools whose layout nobody says; ``""`` where there is one pool."""
    where = scenario.path or scenario.name
    swept = {path for axis in scenario.sweep for change in axis.changes for path in change}
    pools = scenario.deployment.pools
    if pools is None:
        stated = [key for key in KEYS if getattr(scenario.deployment, key) != 1 or f"deployment.{key}" in swept]
        if stated:
            raise InputError(
                f"{where}: budget.layouts: deployment.{stated[0]} is said; take it away, or leave out layouts"
            )
        return [""]
    free = [
        name
        for name, pool in pools.items()
        if pool.role != STAGE
        and all(getattr(pool, key) in (None, 1) and f"deployment.pools.{name}.{key}" not in swept for key in KEYS)
        and not any(path == f"deployment.pools.{name}" for path in swept)
    ]
    if not free or "deployment.pools" in swept:
        raise InputError(f"{where}: budget.layouts: every pool says its layout; take one away, or leave out layouts")
    return free


def _described(scenario: Scenario, name: str) -> tuple[list[Model], list[Hardware], int]:
    """Models and hardware of a pool, those of the sweep among them, and the devices that a replica may have at most:
    what the budget leaves beside one device of each other pool."""
    budget, outer, pools = scenario.budget, scenario.deployment, scenario.deployment.pools or {}
    pool = pools[name] if name else outer
    models = [model_named(model) for model in _values(scenario, name, "model", pool.model or outer.model)]
    hardware = [device_named(device) for device in _values(scenario, name, "hardware", pool.hardware or outer.hardware)]
    # One device of each other pool is the least that it takes.
    others = sum(1 for other in pools.values() if other.role != STAGE) - 1 if name else 0
    limits = [MOST_DEVICES]
    if budget.devices is not None:
        limits.append(budget.devices - others)
    stated_price = pool.usd_per_device_hour or outer.usd_per_device_hour
    prices = [stated_price or device.usd_per_hour for device in hardware]
    if budget.usd_per_hour is not None and (stated := [price for price in prices if price]):
        # Prices are decimals: three devices at 3.3 must not be too dear for 9.9 by a rounding error.
        # By the cheapest device: on it the most fit, and what is too dear on others is refused by their plan.
        limits.append(floor(budget.usd_per_hour / min(stated) * (1.0 + 1e-12)) - others)
    return models, hardware, max(min(limits), 1)


def _values(scenario: Scenario, name: str, key: str, base: Any) -> list[Any]:
    """What a key of a pool is, or all that the sweep makes of it."""
    paths = {f"deployment.{key}", f"deployment.pools.{name}.{key}"}
    swept = [
        value for axis in scenario.sweep for change in axis.changes for path, value in change.items() if path in paths
    ]
    return list(dict.fromkeys(swept)) or [base]


def _axis(name: str, listed: Sequence[Layout]) -> Axis:
    prefix = f"deployment.pools.{name}." if name else "deployment."
    changes = tuple({f"{prefix}{key}": value for key, value in layout.items()} for layout in listed)
    called = f"{name} layout" if name else "layout"
    return Axis(called, tuple(short(layout) for layout in listed), changes, tuple(f"{prefix}{key}" for key in KEYS))


def short(layout: Layout) -> str:
    """``tp2``, ``tp8 pp2``, ``dp8 ep8``: what of a layout is not one."""
    names = {"tensor_parallel": "tp", "pipeline_parallel": "pp", "data_parallel": "dp", "expert_parallel": "ep"}
    parts = [f"{names[key]}{value}" for key, value in layout.items() if value > 1]
    return " ".join(parts) or "tp1"


def _alone(scenario: Scenario) -> Scenario:
    """The scenario with one replica of each pool that states none, without failures: outages name further replicas."""
    pools = scenario.deployment.pools
    if pools is None:
        return replace(scenario, deployment=replace(scenario.deployment, replicas=1, failures=None))
    ones = {
        name: replace(pool, replicas=1) if pool.replicas is None and pool.role != STAGE else pool
        for name, pool in pools.items()
    }
    return replace(scenario, deployment=replace(scenario.deployment, pools=ones))


def _fitting(whole: Plan, counts: Sequence[int]) -> list[list[int]]:
    """For each pool the places of its layouts with which some design can run; the axes are the last of the plan's."""
    rows = whole.grid.numbers(np.arange(len(whole.configurations)))
    able = np.array([configuration.status == OK for configuration in whole.configurations], dtype=bool)
    # The axes of layouts come last and vary the fastest, so that a row modulo their sizes is the place among them.
    places = np.unravel_index(rows[able] % int(np.prod(counts)), tuple(counts))
    return [sorted(set(column.tolist())) for column in places]


def pruned(
    whole: Plan, ladders: list[list[Configuration]], stated: int, for_a_rate: bool
) -> tuple[list[list[Configuration]], str]:
    """The designs that may be the best by the closed form, and what to say of the others.

    The first ``said`` axes are those of the scenario, each step of which keeps designs of its own: what a user sweeps
    is to be compared. Of a goodput the promise is its rate; of a rate that has to be served it is the rate per device,
    for the fewest are looked for.
    """
    starts = Starts(whole)
    groups: dict[tuple[int, ...], list[tuple[float, list[Configuration]]]] = {}
    able = 0
    for ladder in ladders:
        design = next((configuration for configuration in ladder if configuration.status == OK), None)
        # A ladder is one design with more and more replicas; the first that can run stands for it.
        promise = 0.0 if design is None else starts.rate(design) / (design.accelerators if for_a_rate else 1)
        able += design is not None
        groups.setdefault(whole.grid.steps(ladder[0].config)[:stated], []).append((promise, ladder))
    promising: list[list[Configuration]] = []
    for group in groups.values():
        # Where none can run one stays, which says why.
        best = sorted(group, key=lambda entry: -entry[0])[:MOST_TRIED]
        least = KEPT * best[0][0]
        promising += [ladder for promise, ladder in best if promise > 0.0 and promise >= least] or [best[0][1]]
    order = {id(ladder): position for position, ladder in enumerate(ladders)}
    promising.sort(key=lambda ladder: order[id(ladder)])
    left = able - sum(any(configuration.status == OK for configuration in ladder) for ladder in promising)
    note = f"{left:,} designs that fit were pruned: in closed form they serve less than those that are searched."
    return promising, note if left else ""
