"""How far programs are compiled: what LLVM's optimisations pay back follows from the requests of a whole run."""

import json

import pytest

from evaluator import device
from evaluator.plan import plan
from evaluator.plan.simulators import AUTO, ITERATION, WORTH_COMPILING, WORTH_OPTIMISING, worth_optimising
from evaluator.run.request import loaded
from evaluator.stations.engine import joint
from tests.forked import Forked

SCENARIO = {
    "name": "worth",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 200, "output_tokens": 20},
        "requests": 6_000,
        "seeds": [0, 1],
    },
    "deployment": {
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "replicas": 2,
        "router": "least_outstanding",
        "kv": {"admission": "reserve"},
    },
}


def station(simulator, **workload):
    changed = SCENARIO | {"workload": SCENARIO["workload"] | workload}
    return plan(loaded(changed), simulator=simulator).groups[0].stations[0]


def test_auto_weighs_the_requests_of_all_seeds_and_who_names_the_engine_gets_its_programs_optimised():
    of_auto = station(AUTO)
    assert of_auto.requests_of_run == 12_000 and not worth_optimising(of_auto.key, 12_000)
    assert station(ITERATION).requests_of_run is None


def test_from_a_bound_on_a_program_is_optimised():
    key, bound = station(AUTO).key, WORTH_OPTIMISING["general"]
    assert not worth_optimising(key, bound - 1) and worth_optimising(key, bound)
    # Below it there is no more to choose: the reference computes what is shorter still.
    assert all(WORTH_OPTIMISING[kind] > WORTH_COMPILING[kind] for kind in WORTH_OPTIMISING)


def test_the_first_program_is_always_optimised_since_it_compiles_in_a_second():
    reserved = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": {"admission": "reserve"}}
    group = plan(loaded(SCENARIO | {"deployment": reserved}), simulator=AUTO).groups[0]
    assert not group.stations[0].key.preemptive and worth_optimising(group.stations[0].key, 1)


@pytest.fixture
def flags(monkeypatch):
    """XLA_FLAGS of the test's choice."""
    yield lambda value: monkeypatch.setenv("XLA_FLAGS", value)


def test_a_level_of_the_user_is_left_as_it_is(flags):
    flags(f"--{device.LEVEL}=2")
    assert device.compiled(joint.run_lanes, device.QUICKLY, "structure", "vectorise") is joint.run_lanes


def test_xla_knows_the_options_and_results_are_the_same(flags):
    import jax
    import jax.numpy as jnp

    def wave(values, terms):
        return jax.lax.fori_loop(0, terms, lambda term, sum_: sum_ + jnp.sin(values * term) / (term + 1), 0 * values)

    flags("")
    values = jnp.linspace(0, 1, 100)
    jitted = jax.jit(wave, static_argnames="terms")
    quickly, of_loops = (device.compiled(jitted, options, "terms") for options in (device.QUICKLY, device.OF_LOOPS))
    assert quickly is not of_loops and quickly is device.compiled(jitted, device.QUICKLY, "terms")
    for program in (quickly, of_loops):
        assert program is not jitted
        assert jnp.allclose(jitted(values, terms=7), program(values, terms=7), rtol=1e-13, atol=0)


VALIDATES = """
import json, sys
from evaluator import device, validate
from evaluator.simulation import lanes
asked, compiled = [], device.compiled
def noted(jitted, options, *static):
    asked.append(options == device.QUICKLY)
    return compiled(jitted, options, *static)
lanes.compiled = noted
result = validate(json.loads(sys.argv[1]))
print(json.dumps([result.compared, result.apart, result.worst, *asked]))
"""


def test_a_general_program_that_is_compiled_quickly_serves_as_the_reference_does(flags):
    """As users have it compiled: other tests say the level for all of XLA, so that no program is of ``QUICKLY``."""
    flags("")
    short = {"requests": 200, "seeds": [0], "arrivals": {"process": "poisson", "rate_rps": 120}}
    kv = {"capacity_tokens": 4000, "admission": "on_demand"}  # of which they preempt one another
    scenario = SCENARIO | {
        "workload": SCENARIO["workload"] | short,
        "deployment": SCENARIO["deployment"] | {"kv": kv},
    }
    process = Forked(VALIDATES, [json.dumps(scenario)])
    printed, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    compared, apart, worst, *quickly = json.loads(printed)
    assert (compared, apart) == (1, 0) and worst <= 1e-9 and quickly and all(quickly)


@pytest.mark.parametrize(("requests", "simulator"), [(2_400, "token"), (2_500, "iteration")])
def test_pipelines_go_to_a_program_sooner_than_other_designs_of_the_general_one(requests, simulator, as_users_run):
    """The reference is slower there, by the batches under way on every rank."""
    deployment = {
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "pipeline_parallel": 2,
        "kv": {"admission": "reserve"},
    }
    scenario = SCENARIO | {"workload": SCENARIO["workload"] | {"requests": requests}, "deployment": deployment}
    assert plan(loaded(scenario), simulator=AUTO).groups[0].simulator == simulator
