"""The records of the policies, and that one more record is all that a new combination of decisions needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import evaluator
from evaluator.errors import InputError
from evaluator.policies import POLICIES, BatchingPolicy, policy
from evaluator.reference import Limits
from evaluator.reference.schedulers import UNBOUNDED, limits_under, scheduler
from evaluator.run import simulate
from evaluator.scenario import Scenario
from evaluator.validation import validate
from tests.scenario.build import scenario

ORDERS = {
    "static": "drained",
    "continuous": "prompts_first",
    "chunked": "decodes_first",
    "mixed": "decodes_first",
    "orca": "decodes_first",
    "sarathi": "decodes_first",
    "lightllm": "looking",
    "token_ratio": "ByTokenRatio",
}


def test_every_policy_has_its_name_its_source_and_its_order():
    assert {name: record.name for name, record in POLICIES.items()} == {name: name for name in POLICIES}
    assert all(record.label and record.source for record in POLICIES.values())
    orders = {name: scheduler(record) for name, record in POLICIES.items()}
    assert {name: getattr(each, "__name__", type(each).__name__) for name, each in orders.items()} == ORDERS


def test_an_unknown_policy_is_refused_with_the_names():
    with pytest.raises(InputError, match=r"^no batching policy 'fifo'; the policies are static, continuous, chunked, "):
        policy("fifo")


def test_limits_as_a_policy_takes_them():
    given = Limits(8, 512, 100, admission="on_demand", block_tokens=1)
    assert limits_under(policy("chunked"), given) == given
    assert limits_under(policy("orca"), given) == replace(given, admission="reserve", max_num_batched_tokens=UNBOUNDED)
    assert limits_under(policy("lightllm"), given).look_every == 10
    assert limits_under(policy("lightllm"), replace(given, look_every=3)).look_every == 3


LOOKING = {
    "look_every": 5,
    "prefill_alone": True,
    "admission": "on_demand",
    "preemptive_program": True,
}
BY_RATIO = {
    "whole_prompts": False,
    "prefill_alone": True,
    "token_ratio": True,
    "admission": "on_demand",
    "preemptive_program": True,
}


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        ({**LOOKING, "drain_first": True}, "drain_first and look_every both say when"),
        ({"drain_first": True}, "drain_first and look_every need prefill_alone"),
        ({**LOOKING, "prefill_alone": False}, "drain_first and look_every need prefill_alone"),
        ({"prefill_alone": True, "whole_prompts": False}, "prefill_alone needs whole_prompts: chunks share iterations"),
        ({"admission": "later"}, "admission 'later' is unknown"),
        ({**LOOKING, "admission": None}, "look_every needs admission on_demand"),
        ({**LOOKING, "preemptive_program": False}, "look_every needs preemptive_program"),
        ({"token_ratio": True, "prefill_alone": True}, "token_ratio needs prefill_alone and admission on_demand"),
        ({**BY_RATIO, "preemptive_program": False}, "token_ratio needs preemptive_program"),
        ({**BY_RATIO, "whole_prompts": True}, "token_ratio cuts prompts into chunks: say whole_prompts False"),
    ],
)
def test_decisions_that_no_engine_can_combine_are_refused(decisions, why):
    with pytest.raises(ValueError, match=f"^policy made_up: {why}"):
        BatchingPolicy("made_up", "", "", **decisions)


# Decisions that others have made, in new combinations; and the policy that differs in one of them.
MADE_UP = {
    "mixed, but no token budget": ({"token_budget": False, "preemptive_program": True}, "mixed"),
    "chunked, KV of the whole prompt": ({"whole_prompts": False, "whole_kv": True}, "chunked"),
    "prompts first, but no token budget": (
        {"token_budget": False, "preemptive_program": True, "prefill_alone": True},
        "continuous",
    ),
    "prompts first, KV always reserved": ({"admission": "reserve", "prefill_alone": True}, "static"),
    "looks more often": ({**LOOKING, "look_every": 3}, "lightllm"),
}


def crowded(policy: str, *more: str) -> Scenario:
    """More requests than their KV has room for, so that every decision of a policy is taken."""
    return scenario(
        "deployment.hardware=rtx-4090",
        "deployment.precision.weights=fp8",
        "deployment.kv.memory_fraction=0.55",
        "deployment.kv.block_tokens=1",
        "workload.arrivals.rate_rps=60",
        "workload.lengths={source: fixed, prompt_tokens: 1500, output_tokens: 600}",
        f"deployment.batching.policy={policy}",
        *more,
    )


@pytest.mark.parametrize(("decisions", "like"), MADE_UP.values(), ids=list(MADE_UP))
def test_a_registered_policy_runs_in_both_engines_alike(monkeypatch, decisions, like):
    monkeypatch.setitem(POLICIES, "made_up", BatchingPolicy("made_up", "nowhere", "this test", **decisions))
    admission = decisions.get("admission") or "on_demand"
    # vLLM's own default admits by the whole prompt, too, which is one of the decisions.
    given = (f"deployment.kv.admission={admission}", "deployment.kv.full_prompt=false")
    result = validate(crowded("made_up", *given))
    assert (result.compared, result.apart) == (1, 0)
    assert result.worst <= 1e-9
    made_up, other = (simulate(crowded(each, *given), simulator="token").requests for each in ("made_up", like))
    assert not np.array_equal(made_up["last_token_s"], other["last_token_s"])


def test_admission_by_the_ratio_of_new_tokens_runs_in_both_engines_alike():
    """Nearest to it is ``continuous``, whose prompts are whole and whose KV is reserved."""
    keys = ("deployment.batching.schedule_conservativeness=0.1", "deployment.batching.max_prefill_tokens=3000")
    result = validate(crowded("token_ratio", *keys))
    assert (result.compared, result.apart) == (1, 0)
    assert result.worst <= 1e-9
    ours, hopeful, other = (
        simulate(crowded(*each), simulator="token")
        for each in (("token_ratio",), ("token_ratio", *keys), ("continuous",))
    )
    assert np.isfinite(ours.requests["last_token_s"]).all()
    assert not np.array_equal(ours.requests["last_token_s"], hopeful.requests["last_token_s"])
    assert not np.array_equal(ours.requests["last_token_s"], other.requests["last_token_s"])


@pytest.mark.parametrize(
    "keys",
    [
        ("deployment.batching.enable_mixed_chunk=true", "deployment.batching.planning=asynchronous"),
        ("deployment.kv.prefix_caching=true", "workload.sessions={turns: 3, think_s: 0.5}"),
        ("deployment.replicas=2", "deployment.router=least_outstanding"),
    ],
)
def test_what_only_the_reference_knows_of_the_ratio_of_new_tokens(keys):
    found = simulate(crowded("token_ratio", *keys), simulator="iteration")
    assert found.summary["engine"] == "token"
    assert np.isfinite(found.requests["last_token_s"]).all()


def test_turns_find_what_their_session_said_in_a_radix_cache():
    turns = ("workload.sessions={turns: 3, think_s: 0.5}", "workload.arrivals.rate_rps=1", "workload.requests=40",
             "workload.lengths={source: fixed, prompt_tokens: 200, output_tokens: 20}")  # fmt: skip
    found = [
        simulate(crowded(each, "deployment.kv.prefix_caching=true", *turns), simulator="token")
        for each in ("token_ratio", "chunked")
    ]
    ours, blocks = (each.summary["prefix_hit_rate"] for each in found)
    # Pages have a token here, so that both find all but the last answer's last token.
    assert 0.3 < ours == pytest.approx(blocks, abs=0.02)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("deployment.pipeline_parallel=2", "unsupported: policy token_ratio with pipeline_parallel; use tensor_par"),
        ("deployment.batching.packing=least_work_left", "unsupported: policy token_ratio with packing least_work"),
        (
            "deployment.kv={admission: on_demand, watermark: 0.01}",
            "unsupported: policy token_ratio with kv.watermark, which is vLLM's; leave it out",
        ),
        (
            "deployment={kv: {block_tokens: 64}, batching: {max_num_batched_tokens: 32}}",
            "infeasible: policy token_ratio cuts prompts where a block ends, and max_num_batched_tokens 32 is less",
        ),
        ("workload.reasoning.branches=2", "unsupported: policy token_ratio with several branches of a request; use p"),
        ("deployment.role=prefill", "unsupported: policy token_ratio with role prefill; use role mixed"),
        ("deployment.kv.capacity_tokens=2100", "infeasible: policy token_ratio keeps a block free beside a request, "),
    ],
)
def test_what_the_ratio_of_new_tokens_does_not_go_with(key, problem):
    (status,) = evaluator.sweep(crowded("token_ratio", key)).status.values.ravel()
    assert status.startswith(problem)


def test_a_new_name_is_allowed_in_scenarios(monkeypatch):
    with pytest.raises(InputError, match=r"'made_up' is not one of static, .*lightllm"):
        crowded("made_up")
    monkeypatch.setitem(POLICIES, "made_up", BatchingPolicy("made_up", "nowhere", "this test"))
    with pytest.raises(InputError, match=r"'made_down' is not one of static, .*token_ratio, made_up"):
        crowded("made_down")


def test_policies_are_read_without_jax():
    code = "import sys, evaluator.policies; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_no_other_room_knows_a_policy_by_its_name():
    """A name in code is a default, a role or a kind of iteration; what a policy means is asked of its record."""
    found = set()
    root = Path(evaluator.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            of_policies = path.parent.name == "policies"
            if isinstance(node, ast.Constant) and node.value in POLICIES and not of_policies:
                found.add((path.relative_to(root).as_posix(), node.value))
    roles = (
        "plan/checks.py",
        "plan/feasibility.py",
        "plan/kv_checks.py",
        "plan/phases.py",
        "plan/scaling.py",
        "scenario/deployment.py",
        "scenario/pools.py",
        "traffic/roles.py",
        "arguments/flags.py",
        "arguments/shell.py",
        "arguments/trtllm.py",
        "arguments/vllm.py",
        "deploy/design.py",
        "arguments/manifests.py",
        "calibrate/serving/own_runs.py",
        *(f"deploy/targets/{target}.py" for target in ("dynamo", "kubernetes", "script")),
    )
    assert found == {
        ("scenario/deployment.py", "chunked"),  # the default
        ("scenario/engine_defaults.py", "mixed"),  # the role
        *((path, "static") for path in ("catalog/engines.py", "cost/memory.py")),  # SGLang's mem_fraction_static
        *((path, "mixed") for path in roles),  # the role
        ("simulation/trace.py", "mixed"),  # an iteration of prompts and decodes
        ("huggingface/pattern.py", "chunked"),  # local attention in chunks
        ("huggingface/families/experts.py", "chunked"),  # the same
        *((f"arguments/{engine}.py", "chunked") for engine in ("sglang", "trtllm", "vllm")),  # what their flags say
        *(("arguments/sglang.py", name) for name in ("continuous", "token_ratio")),
    }
