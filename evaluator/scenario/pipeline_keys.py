"""The section ``pipeline``: the stages of a request's way, by name, in their order.

It may be written as a list; stages are then named after their kinds (``tool``, ``tool_2``). Every stage has the keys of
its kind (``evaluator.stages``) and those that are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from evaluator.scenario.fields import (
    Field,
    Place,
    Reader,
    Schema,
    Table,
    count,
    listed,
    many,
    number,
    shown,
    text,
)
from evaluator.scenario.pools import stage_pools_of
from evaluator.scenario.reasoning_keys import reasoning_reader
from evaluator.scenario.scenario import LLM_STAGES, Deployment, Geometric, Stage, Workload
from evaluator.scenario.session_keys import fixed_or
from evaluator.scenario.tables import named, schema_of, variant
from evaluator.scenario.tree import put
from evaluator.scenario.workload import pipeline_names

SAYS = "What the stage is."
MOST_ROUNDS = 100
_GEOMETRIC: Table = {
    "mean": Field(number(least=1, most=MOST_ROUNDS), says="Mean of a geometric number of rounds, before the clip."),
    "max": Field(count(most=MOST_ROUNDS), 8, "Most rounds."),
}


def _read_names(value: Any, place: Place) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else many(text)(value, place)


_names = Reader(_read_names, lambda: {"anyOf": [schema_of(text), schema_of(many(text))]})
COMMON: Table = {
    "pool": Field(text, None, "A pool of deployment.pools with role stage, on whose devices it runs."),
    "only": Field(_names, (), "Of workload.pipelines those whose requests pass it; all where absent."),
    "back_to": Field(text, None, "A stage before it, to which requests go back from here."),
    "times": Field(
        fixed_or(count(most=MOST_ROUNDS), _GEOMETRIC, Geometric),
        None,
        "How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}.",
    ),
}
DECODE: Table = {
    "tokens": Field(count(), None, "What it gives, such as a call of a tool; the request's output where absent."),
    "reasoning": Field(reasoning_reader, None, "Longer outputs, or branches: another place for workload.reasoning."),
}


@cache
def _kinds() -> Any:
    import evaluator.stages as stages  # reads its keys with the readers of this room, and so comes after it

    return stages


def _tables() -> dict[str, Table]:
    """The keys by kind, as they are now: a kind of one's own may be registered at any time."""
    own = {name: kind.table for name, kind in _kinds().KINDS.items()}
    return {"prefill": {}, "decode": DECODE, **{name: {**table, **COMMON} for name, table in own.items()}}


def _stage(name: str, values: dict[str, Any], place: Place) -> Stage:
    if name in LLM_STAGES:
        if values.pop("reasoning", None) is not None:  # one that the file says has moved (``with_reasoning``)
            raise place.key("reasoning").error("cannot be swept here; sweep workload.reasoning")
        return Stage(name, **values)
    kind = _kinds().kind_of(name)
    parameters = kind.parameters(**{key: values[key] for key in kind.table})
    if kind.check is not None:
        kind.check(parameters, place)
    return Stage(name, parameters, **{key: values[key] for key in COMMON})


def _read_stage(value: Any, place: Place) -> Stage:
    written = {"stage": value} if isinstance(value, str) else value
    return variant("stage", _tables(), _stage, SAYS)(written, place)


def _stage_schema() -> Schema:
    return {"anyOf": [{"enum": [*_tables()]}, schema_of(variant("stage", _tables(), _stage, SAYS))]}


_by_name = named(Reader(_read_stage, _stage_schema), lambda found, place: _check_order(found, place))


def _read(value: Any, place: Place) -> dict[str, Stage]:
    return _by_name.read(by_name(value, place), place)


def _schema() -> Schema:
    below = schema_of(_by_name.entry)
    return {"anyOf": [{"type": "array", "items": below, "minItems": 1}, schema_of(_by_name)]}


pipeline_reader = type(_by_name)(_read, _schema, _by_name.entry, _by_name.check)
"""Reads a pipeline, written as a list or by names."""


def by_name(value: Any, place: Place) -> Any:
    """A list of stages as a mapping from names to them; anything else as it is."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if not value:
        raise place.error("holds no stage; leave it out for [prefill, decode]")
    found: dict[str, Any] = {}
    for index, written in enumerate(value):
        kind = written if isinstance(written, str) else written.get("stage") if isinstance(written, Mapping) else None
        if not isinstance(kind, str):
            raise place.item(index).error(
                f"expected a stage such as {{stage: tool, seconds: 1s}}, got {shown(written)}"
            )
        number = 1 + sum(name == kind or name.startswith(f"{kind}_") for name in found)
        found[kind if number == 1 else f"{kind}_{number}"] = written
    return found


_OWN_NAMES = ("prefill", "transfer", "decode")


def _check_order(stages: Mapping[str, Stage], place: Place) -> None:
    """Prefill and decode are there, the one right before the other."""
    kinds = [stage.kind for stage in stages.values()]
    for kind in LLM_STAGES:
        if kind not in kinds:
            raise place.error(f"has no stage {kind}; a pipeline holds prefill and decode, as in [prefill, decode]")
    taken = [name for name, stage in stages.items() if name in _OWN_NAMES and stage.kind not in LLM_STAGES]
    if taken:
        raise place.key(taken[0]).error("is the name of a stage of the LLM; give this one another name")
    _check_loops(stages, place)
    for one, other in pairwise([*kinds, ""]):
        if (one == "prefill") != (other == "decode"):
            raise place.error(
                f"{'decode' if one == 'prefill' else one or 'nothing'}: prefill and decode stand together, in this "
                f"order; put other stages before prefill or behind decode"
            )


def with_reasoning(tree: Mapping[str, Any], place: Place, first: bool) -> Mapping[str, Any]:
    """The tree with what decode stages say of reasoning as ``workload.reasoning``, which is the record of it.

    ``first``: the tree is as the file has it, and may not say it in both places.
    """
    stages, workload = tree.get("pipeline"), tree.get("workload")
    if not isinstance(stages, Mapping) or not isinstance(workload, Mapping):
        return tree
    for name, stage in stages.items():
        if not isinstance(stage, Mapping) or stage.get("stage") != "decode" or stage.get("reasoning") is None:
            continue
        own = stage["reasoning"]
        if first and workload.get("reasoning") is not None:
            raise place.key(f"pipeline.{name}.reasoning").error("is there as workload.reasoning, too; keep one of them")
        workload = put(dict(workload), ("reasoning",), own)
        stages = {**stages, name: {key: value for key, value in stage.items() if key != "reasoning"}}
    return {**tree, "pipeline": stages, "workload": workload}


def _check_loops(stages: Mapping[str, Stage], place: Place) -> None:
    """Every way back leads to a stage before, passes the LLM or a stage, and has an end."""
    names, until = list(stages), -1
    for place_of, (name, stage) in enumerate(stages.items()):
        at = place.key(name)
        if stage.back_to is None:
            if stage.times is not None:
                raise at.key("times").error("says how often requests go back; say where to with back_to")
            continue
        if stage.back_to not in names[:place_of]:
            raise at.key("back_to").error(
                f"{stage.back_to} is no stage before {name}; those are {listed(names[:place_of])}"
            )
        if stages[stage.back_to].kind == "decode":
            raise at.key("back_to").error("requests do not go back to decode without a prefill; go back to prefill")
        if stage.times is None:
            raise at.key("times").error(
                f"is required: {name} sends requests back to {stage.back_to}, a cycle without an end; say how often, "
                "such as times: 3 or times: {mean: 2}"
            )
        if names.index(stage.back_to) <= until:
            raise at.key("back_to").error(f"the way back to {stage.back_to} crosses another one; loops cannot overlap")
        until = place_of


def pipeline_problem(workload: Workload, deployment: Deployment) -> tuple[str, str] | None:
    """(key, what is wrong) where stages name pools or pipelines that are not there; None where all are."""
    pools, pipelines = stage_pools_of(deployment), pipeline_names(workload)
    for name, stage in deployment.pipeline.items():
        if stage.pool is not None and stage.pool not in pools:
            there = f"those with role stage are {listed(pools)}"
            return (
                f"pipeline.{name}.pool",
                f"no pool {stage.pool} serves it; {there}. Add deployment.pools.{stage.pool}: "
                "{role: stage, hardware: ...}",
            )
        missing = [one for one in stage.only if one not in pipelines]
        if missing:
            return (
                f"pipeline.{name}.only",
                f"no request takes the pipeline {missing[0]}; workload.pipelines has {listed(pipelines)}",
            )
    used = {stage.pool for stage in deployment.pipeline.values()}
    for pool in pools:
        if pool not in used and not _named_inside(deployment.pipeline.values(), pool):
            return (
                f"deployment.pools.{pool}",
                "no stage of the pipeline runs on it; name it as the pool of one, or leave it out",
            )
    return None


def _named_inside(stages: Any, pool: str) -> bool:
    """Whether the parameters of a stage name the pool: a stage may have steps on several."""
    return any(pool in vars(stage.parameters).values() for stage in stages if stage.parameters is not None)
