"""From a YAML file (or a mapping) and overrides to a Scenario in which everything is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.scenario.axes import RawAxis, raw_axes, raw_conditions
from evaluator.scenario.changes import apply
from evaluator.scenario.fields import REQUIRED, Field, Place, Reader, Table, did_you_mean, file_name, listed, shown
from evaluator.scenario.grid import kept_rows
from evaluator.scenario.hidden import refuse_hidden
from evaluator.scenario.keys import (
    DEPLOYMENT,
    check_bare_bound,
    deployment_reader,
    read_slo,
)
from evaluator.scenario.pipeline_keys import by_name, pipeline_problem, pipeline_reader, with_reasoning
from evaluator.scenario.question_keys import budget_reader, demand_reader
from evaluator.scenario.scenario import Budget, Demand, Deployment, Scenario, Workload
from evaluator.scenario.sections import Base
from evaluator.scenario.sessions import check_sessions
from evaluator.scenario.sweep import check_axes
from evaluator.scenario.tables import read_section
from evaluator.scenario.tree import MISSING, get, leaves, plain, split_path
from evaluator.scenario.workload import check_cached, finish
from evaluator.scenario.workload_keys import LENGTHS, arrival_tables, workload_table
from evaluator.yaml import dumps_yaml, loads_yaml, read_text


def load_scenario(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a YAML file, or of a mapping like one, with ``overrides`` of the form ``key.path=value``.

    Relative trace files are looked for beside the file, then in the current directory. ``text`` of the result is the
    file's text, or with overrides the YAML of what they make of it.
    Errors: InputError naming the file, the key path, what is wrong and what is allowed.
    """
    if isinstance(source, Mapping):
        file, tree, written = "scenario", plain(source), None
    else:
        file, written = str(source), read_text(source)
        tree = loads_yaml(written, file)
    place = Place(file)
    if not isinstance(tree, Mapping):
        raise place.error(f"expected a scenario with the keys {', '.join(_TOP)}, got {shown(tree)}")
    tree = _named_stages(tree, place, first=True)
    for override in overrides:
        tree = _named_stages(_override(tree, override), place)
    path = None if isinstance(source, Mapping) else Path(source)
    scenario = _read(tree, place, path, overrides)
    if written is None or overrides:
        written = dumps_yaml(dict(tree))
    return replace(scenario, text=written)


def _parse(override: str) -> tuple[str, Any, Place]:
    """(key path, value, place for messages) of one ``--set``."""
    path, equals, written = override.partition("=")
    path = path.strip()
    if not equals or not all(split_path(path)):
        raise InputError(f"--set {override!r}: expected key.path=value, such as deployment.tensor_parallel=8")
    name = f"--set {override!r}"
    return path, loads_yaml(written, name), Place(name)


def _override(tree: Mapping[str, Any], override: str) -> dict[str, Any]:
    path, value, place = _parse(override)
    section, _, axis = path.partition(".")
    if section != "sweep" or not axis:
        return apply(tree, {path: value}, place)
    axes = tree.get("sweep") or {}  # the key of an axis is a whole path
    if not isinstance(axes, Mapping):
        raise place.error(f"sweep holds a value, not axes: {shown(axes)}")
    if value is None and axis not in axes:
        raise place.error(f"there is no such axis{did_you_mean(axis, axes)}; the axes are {listed(axes)}")
    kept = {**axes, axis: value}
    return {**tree, "sweep": {name: written for name, written in kept.items() if written is not None}}


_TOP: Table = {
    "name": Field(file_name, ""),
    "workload": Field(Reader(lambda value, place: value, {})),
    "deployment": Field(Reader(lambda value, place: value, {})),
    "pipeline": Field(pipeline_reader, {}),
    "slo": Field(read_slo, ()),
    "sweep": Field(Reader(lambda value, place: None, {}), None),  # read on its own
    "budget": Field(budget_reader, Budget()),
    "demand": Field(demand_reader, Demand()),
}


def _read(tree: Mapping[str, Any], place: Place, path: Path | None, overrides: Sequence[str]) -> Scenario:
    folder = Path.cwd() if path is None else path.parent
    axes = raw_axes(tree.get("sweep"), place.key("sweep"), folder)
    where = raw_conditions(tree.get("sweep"), place.key("sweep"))
    refuse_hidden(axes, tree, [_parse(override) for override in overrides], place.key("sweep"))
    top = read_section(_filled(tree, axes, place), _TOP, place)
    _check_bounds(tree.get("slo"), place.key("slo"))
    at = place.key("workload")
    workload = finish(read_section(top["workload"], workload_table(folder), at), at)
    check_cached(workload, at)
    check_sessions(workload, at)
    deployment = deployment_reader(top["deployment"], place.key("deployment"))
    if top["pipeline"]:
        deployment = replace(deployment, pipeline=top["pipeline"])
    _check_pipeline(workload, deployment, axes, place)
    base = Base(workload, deployment, top["slo"], folder, place)
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
    kept_rows(scenario)  # its errors belong here
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
        for path, value in axis.steps[0].items():
            if get(tree, split_path(path)) in (MISSING, None) and _must_be_there(tree, split_path(path)):
                tree = apply(tree, {path: value}, place)
    pools = get(tree, ("deployment", "pools"))
    if isinstance(pools, Mapping) and pools:
        for key in (key for key, field in DEPLOYMENT.items() if field.default is REQUIRED):
            said = [get(pool, (key,)) for pool in pools.values()]
            if get(tree, ("deployment", key)) in (MISSING, None) and all(one not in (MISSING, None) for one in said):
                tree = apply(tree, {f"deployment.{key}": said[0]}, place)
    return tree


def _must_be_there(tree: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    if keys[:2] == ("deployment", "pools"):
        beside = get(tree, ("deployment", keys[-1]))
        there = isinstance(get(tree, keys[:3]), Mapping)  # a pool that only some designs have is none of the base
        return there and len(keys) == 4 and keys[3] in DEPLOYMENT and beside in (MISSING, None)
    if keys[0] == "deployment":
        return len(keys) == 2 and keys[1] in DEPLOYMENT and DEPLOYMENT[keys[1]].default is REQUIRED
    choices = (("arrivals", "process", arrival_tables(Path())), ("lengths", "source", LENGTHS))
    for field, discriminator, tables in choices:
        if keys[:2] != ("workload", field):
            continue
        there = get(tree, keys[:2])
        if not isinstance(there, Mapping):
            return True
        if there.get(discriminator) is None:
            return there.get("trace") is None
        table = tables.get(str(there[discriminator]), {})
        return len(keys) == 3 and keys[2] in table and table[keys[2]].default is REQUIRED
    return False
