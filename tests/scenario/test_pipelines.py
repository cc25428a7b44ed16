"""The section ``pipeline``: how it is written, and the messages where it cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.run.plan_figures import stage_note
from evaluator.scenario import expand, load_scenario

BASE: dict[str, Any] = {
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
        "requests": 50,
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
}
TOOL = {"stage": "tool", "seconds": "20ms"}
GUARD = {"stage": "postprocess", "kind": "guard", "model": "qwen3-0.6b"}
RETRIEVE = {
    "stage": "retrieve",
    "embedding": "e5-base",
    "index": {"centroids": 1000, "probes": 10, "points_per_probe": 100},
    "documents": 2,
    "tokens_per_document": 50,
}


def scenario(pipeline: Any, pools: Any = None, **more: Any) -> dict[str, Any]:
    deployment = {**BASE["deployment"], **({"pools": pools} if pools else {})}
    return {**BASE, "deployment": deployment, "pipeline": pipeline, **more}


def test_a_list_names_stages_after_their_kinds():
    found = load_scenario(scenario([TOOL, TOOL, "prefill", "decode", TOOL])).deployment.pipeline
    assert list(found) == ["tool", "tool_2", "prefill", "decode", "tool_3"]
    assert found["tool"].parameters.seconds == 0.02


def test_names_of_ones_own_and_null():
    found = load_scenario(scenario({"search": TOOL, "prefill": "prefill", "decode": "decode", "last": None}))
    assert list(found.deployment.pipeline) == ["search", "prefill", "decode"]


def test_no_pipeline_is_prefill_and_decode():
    plain, written = plan(load_scenario(BASE)), plan(load_scenario(scenario(["prefill", "decode"])))
    assert plain.configurations[0].pipeline is None and written.configurations[0].pipeline is None
    assert written.labels.stage_names == ()


def test_stages_are_swept_and_set():
    axes = {"pipeline.tool.seconds": ["10ms", "20ms"], "pipeline.tool.servers": [1, None]}
    grid = expand(load_scenario(scenario([TOOL, "prefill", "decode"], sweep=axes), ["pipeline.tool.tokens=7"]))
    tools = [point[1].pipeline["tool"].parameters for point in grid.points]
    assert [(tool.seconds, tool.servers, tool.tokens) for tool in tools] == [
        (0.01, 1, 7), (0.01, None, 7), (0.02, 1, 7), (0.02, None, 7),
    ]  # fmt: skip


def test_reasoning_of_a_decode_is_that_of_the_workload():
    raw = scenario(["prefill", {"stage": "decode", "reasoning": {"scale": 8, "branches": 4}}])
    found = load_scenario(raw, ["pipeline.decode.reasoning.branches=2"]).workload.reasoning
    assert (found.scale, found.branches) == (8, 2)
    both = {**raw, "workload": {**raw["workload"], "reasoning": {"scale": 2}}}
    with pytest.raises(InputError, match=r"decode\.reasoning: is there as workload\.reasoning, too; keep one"):
        load_scenario(both)
    with pytest.raises(InputError, match=r"cannot be swept here; sweep workload\.reasoning"):
        load_scenario({**raw, "sweep": {"pipeline.decode.reasoning": [{"branches": 2}, {"branches": 4}]}})


def test_the_schema_knows_stages():
    from evaluator.scenario.schema import scenario_schema

    kinds = str(scenario_schema()["properties"]["pipeline"])
    assert all(name in kinds for name in ("preprocess", "postprocess", "tool", "back_to"))


def test_a_pool_for_stages_beside_the_shorthand():
    pools = {"guard": {"role": "stage", "hardware": "l4", "replicas": 2}}
    whole = plan(load_scenario(scenario(["prefill", "decode", {**GUARD, "pool": "guard"}], pools)))
    (configuration,) = whole.configurations
    assert [station.name for station in configuration.stations] == ["engine", "postprocess"]
    assert [station.name for station in configuration.answering] == ["engine"]
    assert configuration.devices == 3
    assert configuration.usd_per_hour == pytest.approx(
        sum(station.devices * station.usd_per_device_hour for station in configuration.stations)
    )


def loop(**keys: Any) -> list[Any]:
    return ["prefill", "decode", {**TOOL, **keys}]


BAD: dict[str, tuple[Any, Any, str]] = {
    "no stage": ([], None, r"pipeline: holds no stage; leave it out for \[prefill, decode\]"),
    "no name": ([3], None, r"pipeline\[0\]: expected a stage such as \{stage: tool, seconds: 1s\}, got 3"),
    "unknown kind": (
        ["prefill", "decode", "posprocess"],
        None,
        r"pipeline\.posprocess\.stage: 'posprocess' is not one of prefill, decode, .*did you mean postprocess",
    ),
    "unknown key": (
        [{**TOOL, "second": 1}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.second: unknown key \(did you mean seconds\?\)",
    ),
    "key of another kind": (
        [{**TOOL, "seconds_per_token": 1}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.seconds_per_token: not a key of stage tool",
    ),
    "no servers": (
        [{**TOOL, "servers": 0}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.servers: must be an integer from 1 ",
    ),
    "draws beyond all numbers": (
        [{**TOOL, "distribution": "lognormal", "cv": 1e200}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.cv: must be at most 100, got 1e\+200",
    ),
    "no decode": (["prefill", TOOL], None, r"pipeline: has no stage decode; a pipeline holds prefill and decode"),
    "prefill alone behind": (
        ["prefill", TOOL, "prefill", "decode"],
        None,
        r"pipeline: prefill: prefill and decode stand",
    ),
    "back from between": (
        ["prefill", {**TOOL, "back_to": "prefill", "times": 2}, "decode"],
        None,
        r"pipeline\.tool\.back_to: leads into or out of the midst of an answer",
    ),
    "no such pool": (
        [{**TOOL, "pool": "tols"}, "prefill", "decode"],
        {"tools": {"role": "stage"}},
        r"pipeline\.tool\.pool: no pool tols serves it; those with role stage are tools\. Add deployment\.pools\.tols",
    ),
    "pool of the LLM": (
        [{**TOOL, "pool": "a"}, "prefill", "decode"],
        {"a": {"role": "mixed"}},
        r"pipeline\.tool\.pool: no pool a serves it; those with role stage are none",
    ),
    "idle pool": (
        [TOOL, "prefill", "decode"],
        {"tools": {"role": "stage"}},
        r"deployment\.pools\.tools: no stage of the pipeline runs on it",
    ),
    "pools without a pipeline": (
        None,
        {"tools": {"role": "stage"}},
        r"deployment\.pools\.tools: no stage of the pipeline runs on it",
    ),
    "no such pipeline": (
        [{**TOOL, "only": "rag"}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.only: no request takes the pipeline rag; workload\.pipelines has none",
    ),
    "endless": (
        loop(back_to="prefill"),
        None,
        r"pipeline\.tool\.times: is required: tool sends requests back to prefill, a cycle without an end",
    ),
    "back to what comes later": (
        [{**TOOL, "back_to": "decode", "times": 2}, "prefill", "decode"],
        None,
        r"pipeline\.tool\.back_to: decode is no stage before tool; those are none",
    ),
    "back to decode": (
        loop(back_to="decode", times=2),
        None,
        r"pipeline\.tool\.back_to: requests do not go back to decode without a prefill; go back to prefill",
    ),
    "times of nothing": (loop(times=2), None, r"pipeline\.tool\.times: says how often requests go back; say where"),
    "loops that overlap": (
        [*loop(back_to="prefill", times=2), {**TOOL, "back_to": "decode", "times": 1}],
        None,
        r"pipeline\.tool_2\.back_to: requests do not go back to decode",
    ),
    "loops that cross": (
        [TOOL, *loop(back_to="prefill", times=2), {**TOOL, "back_to": "tool", "times": 1}],
        None,
        r"pipeline\.tool_3\.back_to: the way back to tool crosses another one; loops cannot overlap",
    ),
    "a name of the LLM": (
        {"decode": TOOL, "a": "prefill", "b": "decode"},
        None,
        r"pipeline\.decode: is the name of a stage of the LLM; give this one another name",
    ),
    "takes no time": (
        [{"stage": "preprocess"}, "prefill", "decode"],
        None,
        r"pipeline\.preprocess: takes no time; say seconds, seconds_per_token or model",
    ),
    "a guard without a model": (
        ["prefill", "decode", {"stage": "postprocess", "kind": "guard"}],
        None,
        r"pipeline\.postprocess\.model: is required with kind guard",
    ),
    "a model that detokenises": (
        ["prefill", "decode", {"stage": "postprocess", "model": "qwen3-0.6b"}],
        None,
        r"pipeline\.postprocess\.model: detokenise runs no model",
    ),
}


@pytest.mark.parametrize(("pipeline", "pools", "message"), BAD.values(), ids=BAD.keys())
def test_messages(pipeline, pools, message):
    raw = scenario(pipeline, pools)
    if pipeline is None:
        del raw["pipeline"]
    with pytest.raises(InputError, match=message):
        load_scenario(raw)


STATUS: dict[str, tuple[Any, Any, str]] = {
    "a search without a pool": (
        [RETRIEVE, "prefill", "decode"],
        None,
        r"infeasible: pipeline\.retrieve: a search needs a CPU; add deployment\.pools\.cpu: \{role: stage, hardware: "
        r"cpu-grace\} and say pool: cpu",
    ),
    "a model without a pool": (
        ["prefill", "decode", GUARD],
        None,
        r"infeasible: pipeline\.postprocess: it computes a model, and no pool serves it; add a pool such as "
        r"deployment\.pools\.postprocess",
    ),
    "a model that does not fit": (
        ["prefill", "decode", {**GUARD, "model": "llama-3.1-70b", "pool": "small"}],
        {"small": {"role": "stage", "hardware": "l4"}},
        r"infeasible: pipeline\.postprocess: does not fit: 141\.1 GB of weights",
    ),
    "two models on one pool": (
        ["prefill", "decode", {**GUARD, "pool": "small"}, {**GUARD, "model": "qwen3-8b", "pool": "small"}],
        {"small": {"role": "stage", "hardware": "l40s"}},
        r"infeasible: pipeline\.postprocess_2: pool small computes qwen3-0\.6b for postprocess and cannot compute "
        r"qwen3-8b too; give it a pool of its own",
    ),
}


@pytest.mark.parametrize(("pipeline", "pools", "message"), STATUS.values(), ids=STATUS.keys())
def test_rows_that_cannot_run(pipeline, pools, message):
    (configuration,) = plan(load_scenario(scenario(pipeline, pools))).configurations
    assert re.match(message, configuration.status), configuration.status


def test_a_pool_that_a_sweep_takes_away_is_a_row_with_its_reason():
    raw = scenario(
        [{**TOOL, "pool": "tools"}, "prefill", "decode"],
        {"tools": {"role": "stage"}},
        sweep={"pipeline.tool.pool": ["tools", "others"]},
    )
    ok, gone = plan(load_scenario(raw)).configurations
    assert ok.status == "ok"
    assert gone.status.startswith("infeasible: pipeline.tool.pool: no pool others serves it")


def test_a_stage_that_holds_the_answer_says_so():
    """What streams passes tokens on, later by its time; what serves whole answers leaves a TPOT of 0."""
    held = plan(
        load_scenario(scenario(["prefill", "decode", {"stage": "postprocess", "seconds": "5ms", "servers": 4}]))
    )
    note = stage_note(held)["stage_note"]
    assert note.startswith("pipeline.postprocess: holds each answer until it is whole") and "TPOT is 0" in note
    assert (
        stage_note(plan(load_scenario(scenario(["prefill", "decode", {"stage": "postprocess", "seconds": "5ms"}]))))
        == {}
    )
