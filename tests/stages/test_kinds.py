"""The kinds of stages by themselves: what their latency functions say of requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from evaluator.catalog import load_hardware, load_model
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.stages import (
    KINDS,
    Delay,
    Pass,
    Served,
    StageKind,
    StagePool,
    StageRequests,
    Work,
    count,
    key,
    kind_of,
    register,
)
from evaluator.stages.postprocess import Postprocess
from evaluator.stages.preprocess import Preprocess
from evaluator.stages.tool import Tool

PROMPT, OUTPUT = np.array([100, 2000, 7]), np.array([10, 1, 300])
VISIT = StageRequests(
    "here", PROMPT, OUTPUT, np.zeros_like(PROMPT), 3, load_model("llama-3.1-8b"), Precision(), pool=None
)  # fmt: skip
ON_POOL = replace(VISIT, pool=StagePool("small", load_hardware("l4"), replicas=2, devices=1))


def work(name, parameters, visit=VISIT) -> Work:
    return KINDS[name].work(parameters, visit)


def test_preprocess_is_linear_in_the_prompt():
    (step,) = work("preprocess", Preprocess(seconds=0.5, seconds_per_token=0.001)).steps
    assert isinstance(step, Delay)
    np.testing.assert_allclose(step.seconds, 0.5 + 0.001 * PROMPT)
    (step,) = work("preprocess", Preprocess(seconds=0.5, servers=2, tokens=9)).steps
    assert isinstance(step, Served) and step.servers == 2
    assert work("preprocess", Preprocess(seconds=0.5, tokens=9)).adds_tokens == 9


def test_preprocess_with_a_model_reads_the_prompt_behind_the_text():
    text, model = work("preprocess", Preprocess(seconds=0.5, model="qwen3-0.6b"), ON_POOL).steps
    assert isinstance(text, Delay) and isinstance(model, Pass)  # the pool is the model's
    np.testing.assert_array_equal(model.tokens, PROMPT)


@pytest.mark.parametrize("kind", ["guard", "outcome_reward", "process_reward"])
def test_a_model_behind_the_answer_reads_all_of_it_once(kind):
    parameters = Postprocess(kind=kind, model="qwen3-0.6b")
    (step,) = work("postprocess", parameters, ON_POOL).steps
    assert isinstance(step, Pass)
    np.testing.assert_array_equal(step.tokens, PROMPT + OUTPUT)
    assert not KINDS["postprocess"].streams(parameters)


def test_detokenising_is_linear_in_the_output():
    parameters = Postprocess(seconds_per_token=1e-3)
    (step,) = work("postprocess", parameters).steps
    np.testing.assert_allclose(step.seconds, 1e-3 * OUTPUT)
    assert KINDS["postprocess"].streams(parameters)
    assert not KINDS["postprocess"].streams(Postprocess(seconds_per_token=1e-3, servers=1))


@pytest.mark.parametrize(("distribution", "cv"), [("fixed", 0.0), ("exponential", 1.0), ("lognormal", 0.4)])
def test_calls_of_a_tool_have_the_mean_and_the_spread_that_are_said(distribution, cv):
    many = replace(VISIT, prompt_tokens=np.ones(200_000, dtype=np.int64))
    tool = Tool(seconds=2.0, distribution=distribution, cv=0.4)
    seconds = work("tool", tool, many).steps[0].seconds
    assert seconds.mean() == pytest.approx(2.0, rel=0.01)
    assert seconds.std() / seconds.mean() == pytest.approx(cv, rel=0.02)
    np.testing.assert_array_equal(seconds, work("tool", tool, many).steps[0].seconds)
    if cv:
        later = work("tool", tool, replace(many, turn=1)).steps[0].seconds
        assert abs(np.corrcoef(seconds, later)[0, 1]) < 0.01


def test_a_tool_on_a_pool_has_its_replicas():
    (step,) = work("tool", Tool(seconds=1.0), ON_POOL).steps
    assert isinstance(step, Served) and step.servers is None


def test_kinds_are_registered_once():
    @dataclass(frozen=True)
    class Named:
        pool: int = key(count(), 1)

    @dataclass(frozen=True)
    class Plain:
        width: int = 3

    nothing = StageKind("nothing", Tool, lambda parameters, visit: Work(()))
    with pytest.raises(ValueError, match="there is a stage tool already"):
        register(replace(nothing, name="tool"))
    with pytest.raises(ValueError, match="there is a stage prefill already"):
        register(replace(nothing, name="prefill"))
    with pytest.raises(ValueError, match="every stage has the key pool; give it another name"):
        register(replace(nothing, parameters=Named))
    with pytest.raises(ValueError, match=r"Plain\.width says not how it is read; use key"):
        register(replace(nothing, parameters=Plain))
    assert "nothing" not in KINDS
    with pytest.raises(InputError, match="no stage 'nothing'; the stages are prefill, decode, preprocess"):
        kind_of("nothing")
