"""workload.sampling: what requests ask of the sampler, in place of what the model's own configuration says."""

import pytest

from evaluator import estimate, iteration_time
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.scenario import load_scenario


def tree(sampling=None, sweep=None, model="llama-3.1-8b"):
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
            "requests": 20,
            "sampling": sampling,
        },
        "deployment": {"model": model, "hardware": "h100-sxm"},
        "sweep": sweep,
    }


def asked(sampling, model="llama-3.1-8b"):
    """Whether logits are ordered, and penalties computed, as planned."""
    (configuration,) = plan(load_scenario(tree(sampling, model=model))).configurations
    found = configuration.stations[0].design.model
    return found.nucleus_sampling, found.penalties


@pytest.mark.parametrize(
    ("sampling", "llama", "gpt_oss"),
    [
        (None, (True, False), (False, False)),  # as their generation_config.json say
        ({"greedy": True}, (False, False), (False, False)),
        ({"top_p": 0.9}, (True, False), (True, False)),
        ({"top_p": 1}, (False, False), (False, False)),
        ({"top_k": 50}, (True, False), (False, False)),  # which no engine orders logits for
        ({"greedy": True, "penalties": True}, (False, True), (False, True)),
        ({"penalties": True}, (True, True), (False, True)),
    ],
)
def test_what_is_said_comes_before_what_the_model_says(sampling, llama, gpt_oss):
    assert asked(sampling) == llama
    assert asked(sampling, "gpt-oss-20b") == gpt_oss


def test_penalties_of_the_model_can_be_left_out():
    assert asked(None, "qwen2.5-7b") == (True, True)
    assert asked({"penalties": False, "top_p": 1.0}, "qwen2.5-7b") == (False, False)


def test_samplings_are_an_axis():
    axis = {"workload.sampling": [{"greedy": True}, {"top_p": 0.9}]}
    found = [each.stations[0].design.model for each in plan(load_scenario(tree(sweep=axis))).configurations]
    assert [model.nucleus_sampling for model in found] == [False, True]
    assert {model.name for model in found} == {"llama-3.1-8b"}


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"greedy": True, "top_p": 0.9}, r"workload\.sampling\.top_p: is of no use with greedy"),
        ({"greedy": True, "top_k": 5}, r"workload\.sampling\.top_k: is of no use with greedy"),
        ({"top_p": 0}, r"workload\.sampling\.top_p: must be .*above 0|workload\.sampling\.top_p"),
        ({"top_p": 1.1}, r"workload\.sampling\.top_p"),
        ({"penalties": 1.1}, r"workload\.sampling\.penalties: expected true or false"),
        ({"temperature": 0.7}, r"workload\.sampling.*temperature"),
    ],
)
def test_what_cannot_be_is_refused(sampling, message):
    with pytest.raises(InputError, match=message):
        load_scenario(tree(sampling))


@pytest.mark.parametrize("key", ["nucleus_sampling", "penalties"])
def test_the_keys_of_old_are_refused_with_the_new_ones(key):
    with pytest.raises(InputError, match=rf"deployment\.model\.{key}: .*workload\.sampling: "):
        load_scenario(tree(model={"like": "llama-3.1-8b", key: True}))
    with pytest.raises(InputError, match=r"workload\.sampling: "):
        plan(load_scenario(tree(sweep={f"deployment.model.{key}": [False, True]})))


def test_estimates_and_iterations_take_it():
    def decode_s(sampling):
        return estimate(
            "llama-3.1-8b", "h100-sxm", prompt_tokens=100, output_tokens=50, batch=64, sampling=sampling
        ).tpot_s

    def batch_s(sampling):
        return float(iteration_time("llama-3.1-8b", "h100-sxm", decodes=64, context_tokens=500, sampling=sampling))

    for seconds in (decode_s, batch_s):
        assert seconds({"greedy": True}) < seconds(None) == seconds({"top_p": 0.9}) < seconds({"penalties": True})
    with pytest.raises(InputError, match=r"sampling\.top_p"):
        decode_s({"top_p": 2})
