"""The section ``pipeline``: the stages that a request passes, by name, in their order.

It may be written as a list; stages are then named after their kinds (``tool``, ``tool_2``). Every stage has the keys of
its kind (``evaluator.stages``) and those of ``Stage``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    Table,
    count,
    key,
    listed,
    many,
    named,
    no_key,
    number,
    schema_of,
    shown,
    table_of,
    text,
    variant,
    written,
)
from evaluator.scenario.key_paths import put
from evaluator.scenario.reasoning import reasoning_reader
from evaluator.scenario.sessions import Geometric, fixed_or
from evaluator.stages import KINDS, kind_of

LLM_STAGES = ("prefill", "decode")
MOST_ROUNDS = 100
_ROUNDS: Table = {
    "mean": Key(number(least=1, most=MOST_ROUNDS), says="Mean of a geometric number of rounds, before the clip."),
    "max": Key(count(most=MOST_ROUNDS), 8, "Most rounds."),
}


def _read_names(value: Any, place: Place) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else many(text)(value, place)


_names = Reader(_read_names, lambda: {"anyOf": [schema_of(text), schema_of(many(text))]})


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: ``kind`` is prefill, decode or a name of ``evaluator.stages``.

    ``parameters`` are those of the kind, None for prefill and decode. ``pool`` is a pool with role stage; None: none is
    described. ``only``: empty where all requests pass it.

    ``back_to``: a request comes here ``times`` times, each time goes back there, and then passes it by. ``tokens``: of
    a decode, what it gives, in the place of the request's output.
    """

    kind: str = no_key()
    parameters: Any = no_key(None)
    pool: str | None = key(text, None, "A pool of deployment.pools with role stage, on whose devices it runs.")
    only: tuple[str, ...] = key(_names, (), "Of workload.pipelines those whose requests pass it; all where absent.")
    back_to: str | None = key(text, None, "A stage before it, to which requests go back from here.")
    times: int | Geometric | None = key(
        fixed_or(count(most=MOST_ROUNDS), _ROUNDS, Geometric),
        None,
        "How often a request comes here and goes back, before it passes the stage by: a number, or {mean: 2, max: 8}.",
    )
    tokens: int | None = no_key(None)

    @property
    def of_llm(self) -> bool:
        """Whether the pools that give the answers are meant."""
        return self.kind in LLM_STAGES

    def written(self) -> dict[str, Any]:
        """The section it could have been read from."""
        of_kind = {} if self.parameters is None else written(self.parameters)
        # ``or None``: an empty ``only`` is a key that nobody said.
        common = {name: written(getattr(self, name)) or None for name in (*COMMON, "tokens")}
        return {"stage": self.kind, **common, **of_kind}


COMMON = table_of(Stage)
"""The keys of every stage beside the LLM."""
DECODE: Table = {
    "tokens": Key(count(), None, "What it gives, such as a call of a tool; the request's output where absent."),
    # It has no place in ``Stage``: ``with_reasoning`` moves what a file says here to ``workload.reasoning``.
    "reasoning": Key(reasoning_reader, None, "Longer outputs, or branches: another place for workload.reasoning."),
}


def _tables() -> dict[str, Table]:
    """The keys by kind, as they are now: a kind of one's own may be registered at any time."""
    return {"prefill": {}, "decode": DECODE, **{name: {**kind.table, **COMMON} for name, kind in KINDS.items()}}


def _stage(name: str, values: dict[str, Any], place: Place) -> Stage:
    # They have no parameters: what they take is the pools' affair.
    if name in LLM_STAGES:
        if values.pop("reasoning", None) is not None:  # one that the file says has moved (``with_reasoning``)
            raise place.key("reasoning").error("cannot be swept here; sweep workload.reasoning")
        return Stage(name, **values)
    kind = kind_of(name)
    parameters = kind.parameters(**{name: values[name] for name in kind.table})
    if kind.check is not None:
        kind.check(parameters, place)
    return Stage(name, parameters, **{name: values[name] for name in COMMON})


def _any_stage() -> Reader:
    return variant("stage", _tables(), _stage, "What the stage is.")


def _read_stage(value: Any, place: Place) -> Stage:
    return _any_stage()({"stage": value} if isinstance(value, str) else value, place)


def _stage_schema() -> Schema:
    return {"anyOf": [{"enum": [*_tables()]}, schema_of(_any_stage())]}


def _read(value: Any, place: Place) -> dict[str, Stage]:
    return _by_name.read(by_name(value, place), place)


def _schema() -> Schema:
    below = schema_of(_by_name.entry)
    return {"anyOf": [{"type": "array", "items": below, "minItems": 1}, schema_of(_by_name)]}


_by_name = named(Reader(_read_stage, _stage_schema), lambda stages, place: _check_order(stages, place))
pipeline_reader = replace(_by_name, read=_read, schema=_schema)
"""Reads a pipeline, written as a list or by names."""


def by_name(value: Any, place: Place) -> Any:
    """A list of stages as a mapping from names to them; anything else as it is."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    if not value:
        raise place.error("holds no stage; leave it out for [prefill, decode]")
    stages: dict[str, Any] = {}
    for index, stage in enumerate(value):
        kind = stage if isinstance(stage, str) else stage.get("stage") if isinstance(stage, Mapping) else None
        if not isinstance(kind, str):
            raise place.item(index).error(f"expected a stage such as {{stage: tool, seconds: 1s}}, got {shown(stage)}")
        # The second of a kind is `tool_2`, whatever stands between: names are coordinates of the result.
        number = 1 + sum(name == kind or name.startswith(f"{kind}_") for name in stages)
        stages[kind if number == 1 else f"{kind}_{number}"] = stage
    return stages


_OWN_NAMES = ("prefill", "transfer", "decode")


def _check_order(stages: Mapping[str, Stage], place: Place) -> None:
    """Prefill and decode are there, the one before the other; stages between them go on to the decode."""
    kinds = [stage.kind for stage in stages.values()]
    for kind in LLM_STAGES:
        if kind not in kinds:
            raise place.error(f"has no stage {kind}; a pipeline holds prefill and decode, as in [prefill, decode]")
    # Results have coordinates of these names for the LLM, and for the sending of KV between its pools.
    taken = [name for name, stage in stages.items() if name in _OWN_NAMES and stage.kind not in LLM_STAGES]
    if taken:
        raise place.key(taken[0]).error("is the name of a stage of the LLM; give this one another name")
    _check_loops(stages, place)
    # Nothing at either end lets the first and the last stage be looked at as every other: a decode there has no prefill
    # before it, a prefill no decode behind it.
    for kind, following in pairwise(["", *(kind for kind in kinds if kind in LLM_STAGES), ""]):
        if (kind == "prefill") != (following == "decode"):
            raise place.error(
                f"{following or kind}: prefill and decode stand in turns, each prefill with a decode behind it; other "
                "stages may stand before prefill, between the two, or behind decode"
            )
    _check_between(stages, place)


def stages_between(stages: Mapping[str, Stage]) -> tuple[str, ...]:
    """The names of the stages between a prefill and its decode."""
    between, computed = [], False
    for name, stage in stages.items():
        if stage.of_llm:
            computed = stage.kind == "prefill"
        elif computed:
            between.append(name)
    return tuple(between)


def _check_between(stages: Mapping[str, Stage], place: Place) -> None:
    """No way back begins or ends between a prefill and its decode."""
    between = stages_between(stages)
    for name, stage in stages.items():
        if stage.back_to is not None and (name in between or stage.back_to in between):
            raise (
                place.key(name)
                .key("back_to")
                .error(
                    "leads into or out of the midst of an answer: stages between prefill and decode are passed once "
                    "with each"
                )
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
        if first and workload.get("reasoning") is not None:
            raise place.key(f"pipeline.{name}.reasoning").error("is there as workload.reasoning, too; keep one of them")
        workload = put(dict(workload), ("reasoning",), stage["reasoning"])
        stages = {**stages, name: {key: value for key, value in stage.items() if key != "reasoning"}}
    return {**tree, "pipeline": stages, "workload": workload}


def _check_loops(stages: Mapping[str, Stage], place: Place) -> None:
    """Every way back leads to a stage before, passes the LLM or a stage, and has an end."""
    names, until = list(stages), -1
    for place_of, (name, stage) in enumerate(stages.items()):
        where = place.key(name)
        if stage.back_to is None:
            if stage.times is not None:
                raise where.key("times").error("says how often requests go back; say where to with back_to")
            continue
        if stage.back_to not in names[:place_of]:
            raise where.key("back_to").error(
                f"{stage.back_to} is no stage before {name}; those are {listed(names[:place_of])}"
            )
        if stages[stage.back_to].kind == "decode":
            raise where.key("back_to").error("requests do not go back to decode without a prefill; go back to prefill")
        if stage.times is None:
            raise where.key("times").error(
                f"is required: {name} sends requests back to {stage.back_to}, a cycle without an end; say how often, "
                "such as times: 3 or times: {mean: 2}"
            )
        # A request goes through its loops one after the other: of two that overlap neither would end before the other.
        if names.index(stage.back_to) <= until:
            raise where.key("back_to").error(
                f"the way back to {stage.back_to} crosses another one; loops cannot overlap"
            )
        until = place_of
