"""Whole scenarios with speculative decoding: both engines, all sides of a deployment, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.cost.speculative import SpeculativeCost
from evaluator.device import configure
from evaluator.metrics import summarise
from evaluator.plan import plan
from evaluator.reference import Limits, Request, simulate
from evaluator.run import sweep
from evaluator.scenario import load_scenario
from evaluator.speculation import Speculative, keys
from evaluator.speculation import tokens_given as given_by
from tests.reference.build import linear_cost
from tests.reference.serve.test_pool import CLOSED, TIGHT
from tests.scenario.build import scenario
from tests.simulation.engines import LEVELS, Designs, outcomes
from tests.thorough import THOROUGH

NGRAM = "deployment.speculative={method: ngram, tokens: 3, acceptance: [0.8, 0.6, 0.45]}"
EAGLE = "deployment.speculative={method: eagle, tokens: 2, acceptance: 0.7, vocabulary: 32000}"
MTP = "deployment.speculative={method: mtp, tokens: 2, acceptance: 0.7}"
DEEPSEEK = ("deployment.model=deepseek-v3", "deployment.hardware=h200-sxm", "deployment.tensor_parallel=8")
DRAFT = "deployment.speculative={method: draft, model: {like: llama-3.1-8b, layers: 4}, tokens: 4, acceptance: 0.7}"
SIDES = "deployment.pools={prefill: {role: prefill}, decode: {role: decode, batching: {policy: continuous}}}"
OWN = (
    "deployment.pools={prefill: {role: prefill}, decode: {role: decode, batching: {policy: continuous}, "
    "speculative: {method: ngram, tokens: 2, acceptance: 0.6}}}"
)
SHARED = {
    "chunked, n-grams": (NGRAM,),
    "draft model, whole prompts": (DRAFT, "deployment.batching.policy=continuous"),
    "static, trained head": (EAGLE, "deployment.batching.policy=static", "workload.seeds=[3, 5]"),
    "windows, experts, replicas": (EAGLE, "deployment.model=gpt-oss-20b", "deployment.replicas=2"),
    "decode": (NGRAM, "deployment.role=decode", "deployment.batching.policy=mixed"),
    "closed loop with a frontend": (DRAFT, CLOSED),
    "full cache": (
        NGRAM, "deployment.hardware=rtx-4090", "deployment.precision.weights=fp8", "workload.arrivals.rate_rps=40"
    ),
    "on demand": (NGRAM, *TIGHT),
    "prediction module, whole prompts": (MTP, *DEEPSEEK, "deployment.batching.policy=continuous"),
    "router by tokens": (EAGLE, CLOSED, "deployment.replicas=2", "deployment.router=least_work"),
    "data-parallel ranks": (DRAFT, "deployment.data_parallel=2"),
    "disaggregated": (EAGLE, SIDES),
    "disaggregated, decode side alone": (OWN,),
}  # fmt: skip

if THOROUGH:  # programs of their own: random systems have drafts in pipelines, random cases of the engine in lockstep
    SHARED["pipeline"] = (NGRAM, "deployment.pipeline_parallel=2")
    SHARED["pipeline with a draft model"] = (DRAFT, "deployment.pipeline_parallel=2")
    SHARED["ranks that share experts"] = (
        MTP, "deployment.model=deepseek-v3", "deployment.hardware=h200-sxm", "deployment.data_parallel=8",
        "deployment.expert_parallel=8", "workload.arrivals.rate_rps=20",
    )  # fmt: skip

DESIGNS = Designs(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_both_engines_give_the_same(name):
    found = DESIGNS.both(name)
    for total in ("decoded", "decoded_tokens"):
        np.testing.assert_array_equal(*found.summed(total), err_msg=total)
    assert 1.3 < found.told("accepted_per_iteration").item() < 4.0


def test_tokens_come_in_chunks_each_of_which_ends_one_gap():
    configure()
    found = outcomes("iteration", EAGLE, "workload.warmup_requests=0", "workload.cooldown_requests=0")
    gaps = found.itl[0][0][1].sum()
    since = found.tokens.output_tokens.sum() - found.tokens.output_tokens.shape[-1]
    assert found.summed("decoded_tokens").item() == since
    assert gaps == pytest.approx(found.summed("decoded").item(), abs=60)
    table = summarise(found, LEVELS)
    ratio = table["itl_s_mean"].item() / table["tpot_s_mean"].item()
    assert ratio == pytest.approx(table["accepted_per_iteration"].item(), rel=0.15)


def test_without_drafts_nothing_is_said_of_them():
    configure()
    assert np.isnan(summarise(outcomes("iteration"), LEVELS)["accepted_per_iteration"]).all()


def test_a_request_draws_the_same_on_every_design():
    found = sweep(
        scenario(
            "workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 61}", EAGLE,
            deployment__hardware=["h100-sxm", "a100-sxm"], deployment__replicas=[1, 3],
            deployment__batching__policy=["chunked", "continuous"],
        )
    )  # fmt: skip
    assert len(set(found["accepted_per_iteration"].values.tolist())) == 1
    assert (found["engine"] == "iteration").all()


def test_more_accepted_tokens_make_answers_faster():
    ngram = {"method": "ngram", "tokens": 3}
    found = sweep(scenario(deployment__speculative=[{**ngram, "acceptance": rate} for rate in (0, 0.3, 0.6, 0.9, 1)]))
    assert (np.diff(found["tpot_s_mean"]) < 0).all()
    assert (np.diff(found["accepted_per_iteration"]) > 0).all()
    assert found["accepted_per_iteration"].values[0] == 1.0
    plain = sweep(scenario())
    assert found["tpot_s_mean"].values[0] > plain["tpot_s_mean"].item() > found["tpot_s_mean"].values[-1]


@pytest.mark.parametrize(("rate", "tokens", "ratio"), [(0.7, 4, 0.1), (0.5, 1, 0.3), (0.9, 8, 0.02)])
def test_the_speedup_of_a_single_stream_is_that_of_leviathan(rate, tokens, ratio):
    """arXiv:2211.17192, theorem 3.8: (1 - a^(k+1)) / ((1 - a) (k c + 1)), c the draft's share of an iteration."""
    speculative, output = Speculative("draft", tokens, "any", rate), 20001
    request = Request(0, 0.0, 10, 10, output, 1)
    request.curve = (0, *np.cumsum(given_by(speculative.chances, keys(0, np.array([3]))[0], output)).tolist())
    cost = SpeculativeCost(linear_cost(1.0), linear_cost(ratio), tokens + 1.0, float(tokens), 0.0)
    simulate(cost, "continuous", Limits(1, 1000, 10, drafts=tokens), [request])
    speedup = (output - 1) / (request.last_token_s - request.first_token_s)
    expected = (1 - rate ** (tokens + 1)) / ((1 - rate) * (tokens * ratio + 1))
    assert speedup == pytest.approx(expected, rel=0.02)


REFUSED = {
    "infeasible: speculative.model qwen3-0.6b has a vocabulary of 151,936 tokens, llama-3.1-8b one of 128,256": (
        "deployment.speculative={method: draft, model: qwen3-0.6b, tokens: 2, acceptance: 0.5}",
    ),
    "infeasible: speculative.model e5-mistral-7b gives a vector and no tokens": (
        "deployment.model=llama-2-7b", "workload.lengths={source: fixed, prompt_tokens: 9, output_tokens: 9}",
        "deployment.speculative={method: draft, model: e5-mistral-7b, tokens: 2, acceptance: 0.5}",
    ),
    "infeasible: a request of 5,000 tokens exceeds the 4,096 positions of the model that drafts": (
        "deployment.model=mixtral-8x7b", "deployment.tensor_parallel=4",
        "workload.lengths={source: fixed, prompt_tokens: 4000, output_tokens: 1000}",
        "deployment.speculative={method: draft, model: llama-2-7b, tokens: 2, acceptance: 0.5}",
    ),
    "infeasible: speculative.method mtp with llama-3.1-8b, which was published without prediction modules": (MTP,),
    "infeasible: speculative.vocabulary 200,000 exceeds the 128,256 tokens of llama-3.1-8b": (
        "deployment.speculative={method: eagle, tokens: 2, acceptance: 0.5, vocabulary: 200000}",
    ),
    "infeasible: does not fit: 827.8 GB of weights per device (811.7 GB of what drafts) exceed the": (
        "deployment.speculative={method: draft, model: llama-3.1-405b, tokens: 2, acceptance: 0.5}",
    ),
    "unsupported: speculative.model qwen3-30b-a3b with data_parallel ranks of qwen3-8b": (
        "deployment.model=qwen3-8b", "deployment.data_parallel=2",
        "deployment.speculative={method: draft, model: qwen3-30b-a3b, tokens: 2, acceptance: 0.5}",
    ),
    "infeasible: max_num_seqs 32 with 3 drafts each exceeds max_num_batched_tokens 100": (
        NGRAM, "deployment.batching.max_num_batched_tokens=100",
    ),
    "unsupported: deployment.speculative with workload.reasoning.branches": (
        NGRAM, "workload.reasoning={branches: 2}",
    ),
    "unsupported: deployment.speculative with policy lightllm": (
        NGRAM, "deployment.batching.policy=lightllm", "deployment.kv={admission: on_demand, block_tokens: 1}",
    ),
    "unsupported: speculative with calibration": (
        NGRAM, "deployment.hardware=ascend-910b3", "deployment.calibration=ascend-910b3-bestserve",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "overrides"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_draft_says_why(reason, overrides):
    configuration = plan(scenario(*overrides)).configurations[0]
    assert configuration.status.startswith(reason)
    assert "; " in configuration.status or ", or " in configuration.status


def test_engine_request_knows_no_drafts():
    whole = plan(scenario(NGRAM, "deployment.batching.policy=continuous"), simulator="request")
    assert "does not cover deployment.speculative; use simulator iteration" in whole.configurations[0].status


def test_several_pools_in_one_loop_may_draft():
    configuration = plan(scenario(EAGLE, SIDES, CLOSED)).configurations[0]
    assert (configuration.lacking, configuration.simulator) == ((), "iteration")


def test_drafts_beside_a_prefix_cache_by_content_find_as_much_there():
    cached = ("workload.sessions={turns: 3, think_from: arrival}", "deployment.kv.prefix_caching=true")
    configuration = plan(scenario(NGRAM, *cached)).configurations[0]
    assert (configuration.lacking, configuration.simulator) == ((), "iteration")
    found, plain = (sweep(scenario(*more, *cached), simulator="token") for more in ((NGRAM,), ()))
    assert found["prefix_hit_rate"].item() == pytest.approx(plain["prefix_hit_rate"].item(), abs=0.02)
    assert found["prefix_hit_rate"].item() > 0.3


def test_kv_of_what_drafts_is_sent_along():
    tree = {"deployment.transfer": {"link": {"bandwidth": 1e9}}}
    alone, drafting = (
        plan(scenario(SIDES, *more, f"deployment.transfer={tree['deployment.transfer']}")).configurations[0].link
        for more in ((), (DRAFT,))
    )
    tokens = np.array([1000])
    assert drafting.service_s(tokens) == pytest.approx(alone.service_s(tokens) * 36 / 32)


def test_a_shipped_scenario_asks_where_it_stops_paying():
    assert load_scenario("scenarios/speculative.yaml").sweep


def test_figures_of_a_device_are_swept_with_drafts():
    swept = sweep(scenario(EAGLE, deployment__hardware__memory_bandwidth=["2TB/s", "4TB/s"]))
    alone = sweep(scenario(EAGLE, "deployment.hardware={like: h100-sxm, memory_bandwidth: 4TB/s}"))
    assert swept["tpot_s_mean"].values[0] > 1.3 * swept["tpot_s_mean"].values[1]
    assert swept["tpot_s_mean"].values[1] == pytest.approx(alone["tpot_s_mean"].item(), rel=1e-12)
