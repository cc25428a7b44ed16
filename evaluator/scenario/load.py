"""From a YAML file (or a mapping) and overrides to a Scenario in which everything is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.keys import (
    Key,
    Place,
    Reader,
    Table,
    did_you_mean,
    file_name,
    listed,
    read_section,
    required,
    shown,
    split_path,
)
from evaluator.scenario.arrivals import PROCESSES
from evaluator.scenario.axes import RawAxis, raw_axes, raw_conditions
from evaluator.scenario.deployment import Deployment
from evaluator.scenario.from_command import started_by
from evaluator.scenario.grid import kept_rows
from evaluator.scenario.key_paths import MISSING, get, leaves, plain
from evaluator.scenario.lengths import FORMULAS
from evaluator.scenario.objectives import Budget, Demand, budget_reader, check_bare_bound, demand_reader, read_slo
from evaluator.scenario.pipeline import by_name, pipeline_reader, with_reasoning
from evaluator.scenario.pools import deployment_reader, pipeline_problem
from evaluator.scenario.scenario import Scenario
from evaluator.scenario.set_keys import apply
from evaluator.scenario.shadowed_keys import Override, refuse_shadowed
from evaluator.scenario.sweep import check_axes
from evaluator.scenario.swept_fields import Base
from evaluator.scenario.workload import Workload, check_workload, workload_reader
from evaluator.yaml import dumps_yaml, loads_yaml, read_text


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a YAML file, or of a mapping like one, with ``overrides`` of the form ``key.path=value``.

    Relative trace files are looked for beside the file, then in the current directory. ``text`` of the result is the
    file's text, or with overrides the YAML of what they make of it.
    Errors: InputError naming the file, the key path, what is wrong and what is allowed.
    """
    if isinstance(source, Mapping):
        file, tree, written = "scenario", plain(source), None
    elif not isinstance(source, str | Path):
        raise InputError(f"a scenario is a mapping, or the path of a file, not {shown(source)}")
    else:
        file, written = str(source), read_text(source)
        tree = loads_yaml(written, file)
    path = None if isinstance(source, Mapping) else Path(source)
    place = Place(file, folder=None if path is None else path.parent)
    if not isinstance(tree, Mapping):
        raise place.error(f"expected a scenario with the keys {', '.join(TOP)}, got {shown(tree)}")
    # First the command line that a deployment may stand as: keys below it, and overrides, change what it makes.
    command = started_by(tree, place)
    # Stages get names before overrides, which set keys below them (``pipeline.tool.seconds``).
    tree = _named_stages(command or tree, place, first=True)
    parsed = [_parse(override) for override in overrides]
    for override in parsed:  # each may write the pipeline as a list, below whose stages the next sets a key
        tree = _named_stages(_overridden(tree, *override), place)
    scenario = _read(tree, place, path, parsed)
    if written is None or overrides or command:  # else the file's own text, with its comments
        written = dumps_yaml(dict(tree))
    return replace(scenario, text=written)


def _parse(override: str) -> Override:
    """(key path, value, place for messages) of one ``--set``."""
    path, equals, written = override.partition("=")
    path = path.strip()
    if not equals or not all(split_path(path)):
        raise InputError(f"--set {override!r}: expected key.path=value, such as deployment.tensor_parallel=8")
    name = f"--set {override!r}"
    return path, loads_yaml(written, name), Place(name)


def _overridden(tree: Mapping[str, Any], path: str, value: Any, place: Place) -> dict[str, Any]:
    section, _, axis = path.partition(".")
    if section != "sweep" or not axis:
        return apply(tree, {path: value}, place)
    axes = tree.get("sweep") or {}  # the key of an axis is a whole path, in which dots lead nowhere
    if not isinstance(axes, Mapping):
        raise place.error(f"sweep holds a value, not axes: {shown(axes)}")
    if value is None and axis not in axes:
        # Null deletes an axis; of one that is not there it would do nothing, most likely for a slip of the pen.
        raise place.error(f"there is no such axis{did_you_mean(axis, axes)}; the axes are {listed(axes)}")
    with_axis = {**axes, axis: value}
    return {**tree, "sweep": {name: written for name, written in with_axis.items() if written is not None}}


TOP: Table = {
    "name": Key(file_name, "", "Names the files of the results."),
    "workload": Key(workload_reader, says="What is asked of the servers."),
    "deployment": Key(deployment_reader, says="What serves it."),
    "pipeline": Key(pipeline_reader, {}, "The stages that a request passes; prefill and decode where absent."),
    "slo": Key(read_slo, (), "Objectives: bounds in seconds."),
    # Its axes are read before the rest, which they may complete, and their values after it, as what they change.
    "sweep": Key(Reader(lambda value, place: None, {}), None, "The axes of the grid, which is their product."),
    "budget": Key(budget_reader, Budget(), "What a design may take, for optimize."),
    "demand": Key(demand_reader, Demand(), "What a design has to serve, for optimize."),
}
"""The keys of a scenario."""


def _read(tree: Mapping[str, Any], place: Place, path: Path | None, overrides: Sequence[Override]) -> Scenario:
    axes = raw_axes(tree.get("sweep"), place.key("sweep"))
    where = raw_conditions(tree.get("sweep"), place.key("sweep"))
    # Of the tree as written: once the sections are read, nothing tells a figure that was said from one of the
    # catalog.
    refuse_shadowed(axes, tree, overrides, place.key("sweep"))
    # Axes before sections: a key that must be there may be said by an axis alone, whose first value then completes
    # the base.
    top = read_section(_filled(tree, axes, place), TOP, place)
    # Of the tree: a bound that was read is in seconds, whether it had a unit or not.
    _check_bounds(tree.get("slo"), place.key("slo"))
    for name in top["workload"].classes:
        _check_bounds(get(tree, ("workload", "classes", name, "slo")), place.key(f"workload.classes.{name}.slo"))
    workload, deployment = top["workload"], top["deployment"]
    check_workload(workload, place.key("workload"))
    if top["pipeline"]:
        deployment = replace(deployment, pipeline=top["pipeline"])
    _check_pipeline(workload, deployment, axes, place)
    base = Base(workload, deployment, top["slo"], place)
    # Which keys were said cannot be seen in the record, in which all that follows from others is filled in.
    given = {key for key, value in (tree.get("workload") or {}).items() if value is not None}
    sweep = check_axes(axes, base, given)
    name = top["name"] or ("scenario" if path is None else path.stem)
    scenario = Scenario(
        name=name,
        workload=workload,
        deployment=deployment,
        slo=top["slo"],
        sweep=sweep,
        where=where,
        budget=top["budget"],
        demand=top["demand"],
        path=None if path is None else str(path),
    )
    kept_rows(scenario, warns=True)  # now: nobody should meet errors of conditions in the middle of a sweep
    return scenario


def _check_pipeline(workload: Workload, deployment: Deployment, axes: Sequence[RawAxis], place: Place) -> None:
    """Refuses stages that name what is not there; where a sweep may bring it, the plan finds out point by point."""
    problem = pipeline_problem(workload, deployment)
    swept = ("pipeline", "deployment.pools", "workload.pipelines")
    if problem is not None and not any(path.startswith(swept) for axis in axes for path in axis.keys):
        key, reason = problem
        raise place.key(key).error(reason)


def _named_stages(tree: Mapping[str, Any], place: Place, first: bool = False) -> Mapping[str, Any]:
    """The tree with stages by their names, so that keys below them can be set; ``first``: before any is."""
    if isinstance(tree.get("pipeline"), list | tuple):
        tree = {**tree, "pipeline": by_name(tree["pipeline"], place.key("pipeline"))}
    return with_reasoning(tree, place, first)


def _check_bounds(slo: Any, place: Place) -> None:
    """Refuses bounds without a unit that can only be meant in milliseconds."""
    for path, bound in leaves(slo or {}, place.path):
        check_bare_bound(bound, Place(place.file, path))


def _filled(tree: Mapping[str, Any], axes: Sequence[RawAxis], place: Place) -> Mapping[str, Any]:
    """The tree with keys that must be there and are only swept, from the first value of their axis.

    A key that every pool says need not be said beside the pools, where it then means nothing: it is the first pool's.
    """
    for axis in axes:
        # The base must be a whole scenario to be read; what stands here is replaced at every point.
        for path, value in axis.steps[0].items():
            if get(tree, split_path(path)) in (MISSING, None) and _must_be_there(tree, split_path(path)):
                tree = apply(tree, {path: value}, place)
    pools = get(tree, ("deployment", "pools"))
    if isinstance(pools, Mapping) and pools:
        for key in required(deployment_reader.table):
            values = [get(pool, (key,)) for pool in pools.values()]
            if get(tree, ("deployment", key)) in (MISSING, None) and not any(
                value in (MISSING, None) for value in values
            ):
                tree = apply(tree, {f"deployment.{key}": values[0]}, place)
    return tree


def _must_be_there(tree: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    if keys[:2] == ("deployment", "pools"):
        beside = get(tree, ("deployment", keys[-1]))
        in_base = isinstance(get(tree, keys[:3]), Mapping)  # a pool that only some designs have is none of the base
        return in_base and len(keys) == 4 and keys[3] in required(deployment_reader.table) and beside in (MISSING, None)
    if keys[0] == "deployment":
        return len(keys) == 2 and keys[1] in required(deployment_reader.table)
    choices = (("arrivals", "process", PROCESSES), ("lengths", "source", FORMULAS))
    for field, discriminator, tables in choices:
        if keys[:2] != ("workload", field):
            continue
        section = get(tree, keys[:2])
        if not isinstance(section, Mapping):
            return True
        if section.get(discriminator) is None:
            return section.get("trace") is None
        return len(keys) == 3 and keys[2] in required(tables.get(str(section[discriminator]), {}))
    return False
