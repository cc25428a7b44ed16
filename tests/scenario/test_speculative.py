"""The keys of ``deployment.speculative``, and what is said of those that do not go together."""

from __future__ import annotations

import pytest

from evaluator.errors import InputError
from evaluator.scenario import expand, load_scenario, pools_of
from evaluator.speculation import Speculative
from evaluator.yaml import loads_yaml
from tests.scenario.build import scenario

MTP = "deployment.speculative={method: mtp, tokens: 3, acceptance: [0.8, 0.6, 0.45]}"


def test_the_keys():
    assert scenario().deployment.speculative is None
    assert scenario(MTP).deployment.speculative == Speculative("mtp", 3, None, (0.8, 0.6, 0.45))
    found = scenario("deployment.speculative={method: draft, model: llama-3.1-8b, tokens: 2, acceptance: 0.7}")
    assert found.deployment.speculative == Speculative("draft", 2, "llama-3.1-8b", 0.7)
    found = scenario("deployment.speculative={method: eagle, tokens: 2, acceptance: 0.7, vocabulary: 32000}")
    assert found.deployment.speculative == Speculative("eagle", 2, None, 0.7, vocabulary=32_000)
    assert (scenario().deployment.decode_tokens, found.deployment.decode_tokens) == (1, 3)


def test_each_key_may_be_an_axis_and_so_may_the_whole():
    axes = {"deployment__speculative__tokens": [1, 4], "deployment__speculative__acceptance": [0.2, 0.9]}
    grid = expand(scenario("deployment.speculative={method: ngram, tokens: 3, acceptance: 0.5}", **axes))
    found = [(point[1].speculative.tokens, point[1].speculative.acceptance) for point in grid.points]
    assert found == [(1, 0.2), (1, 0.9), (4, 0.2), (4, 0.9)]
    whole = expand(scenario(deployment__speculative=[None, {"method": "ngram", "tokens": 2, "acceptance": 0.5}]))
    assert [point[1].speculative for point in whole.points] == [None, Speculative("ngram", 2, None, 0.5)]


def test_what_drafts_is_replaced_as_a_whole():
    draft = "deployment.speculative={method: draft, model: llama-3.1-8b, tokens: 2, acceptance: [0.7, 0.6]}"
    ngram = {"method": "ngram", "tokens": 3, "acceptance": 0.5}
    tree = loads_yaml(scenario().text, "small")
    tree["deployment"]["speculative"] = {"method": "draft", "model": "llama-3.1-8b", "tokens": 2, "acceptance": 0.7}
    tree["sweep"] = {"deployment.speculative": [ngram]}
    (point,) = expand(load_scenario(tree)).points
    assert point[1].speculative == Speculative("ngram", 3, None, 0.5)
    two = scenario(draft, f"deployment.speculative={ngram}".replace("'", ""))
    assert two.deployment.speculative == Speculative("ngram", 3, None, 0.5)


def test_a_pool_drafts_as_is_said_beside_the_pools_or_in_its_own_way():
    pools = (
        "deployment.pools={a: {role: mixed}, b: {role: mixed, speculative: {method: ngram, tokens: 1, acceptance: 1}}}"
    )
    found = {name: pool.speculative for name, pool in pools_of(scenario(MTP, pools).deployment)}
    assert found == {"a": Speculative("mtp", 3, None, (0.8, 0.6, 0.45)), "b": Speculative("ngram", 1, None, 1.0)}


ERRORS = {
    "ngram": r"speculative: expected a section such as \{method: ngram, tokens: 3, acceptance: 0.6\}, got 'ngram'",
    "{method: ngram, tokens: 3}": r"speculative.acceptance: is required",
    "{method: ngram, acceptance: 0.5}": r"speculative.tokens: is required",
    "{method: medusa, tokens: 3, acceptance: 0.5}": (
        r"speculative.method: 'medusa' is not one of draft, mtp, eagle, ngram"
    ),
    "{method: mtp, tokens: 3, acceptance: 0.5, vocabulary: 32000}": (
        r"speculative.vocabulary: is for method eagle, whose head has its own; leave it out of mtp"
    ),
    "{method: eagle, tokens: 3, acceptance: 0.5, vocabulary: 0}": r"speculative.vocabulary: must be an integer from 1",
    "{method: ngram, tokens: 3, acceptance: .nan}": r"speculative.acceptance: nan is not a finite number",
    "{method: ngram, tokens: 3, acceptance: '0.5'}": r"speculative.acceptance: expected a number, got '0.5'",
    "{method: ngram, tokens: 17, acceptance: 0.5}": r"speculative.tokens: must be an integer from 1 to 16, got 17",
    "{method: ngram, tokens: 0, acceptance: 0.5}": r"speculative.tokens: must be an integer from 1 to 16, got 0",
    "{method: ngram, tokens: 3, acceptance: 1.2}": r"speculative.acceptance: must be at most 1, got 1.2",
    "{method: ngram, tokens: 1, acceptance: [-0.1]}": r"speculative.acceptance\[0\]: must be at least 0, got -0.1",
    "{method: ngram, tokens: 1, acceptance: []}": r"speculative.acceptance: expected a rate, or a list of them",
    "{method: ngram, tokens: 3, acceptance: [0.8, 0.6]}": (
        r"speculative.acceptance: 2 rates for 3 drafted tokens; give one for each position, or one number for all"
    ),
    "{method: draft, tokens: 3, acceptance: 0.5}": r"speculative.model: is required with method draft",
    "{method: mtp, tokens: 3, acceptance: 0.5, model: llama-3.1-8b}": (
        r"speculative.model: is for method draft; with mtp no other model drafts: leave it out"
    ),
    "{method: draft, tokens: 3, acceptance: 0.5, model: llama-9}": r"speculative.model: unknown model 'llama-9'",
}


@pytest.mark.parametrize(("value", "message"), ERRORS.items(), ids=ERRORS)
def test_bad_input_is_refused_by_its_place(value, message):
    with pytest.raises(InputError, match=f"deployment.{message}"):
        scenario(f"deployment.speculative={value}")


def test_a_pool_for_stages_decodes_nothing():
    pools = (
        "deployment.pools={a: {role: mixed}, b: {role: stage, speculative: {method: ngram, tokens: 1, acceptance: 1}}}"
    )
    with pytest.raises(InputError, match=r"pools.b.speculative: is for pools that decode; leave it out of a stage's"):
        scenario(pools)
