"""How far programs are compiled: what LLVM's optimisations pay back follows from the requests of a whole run."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator import device
from evaluator.plan import plan
from evaluator.plan.simulators import (
    AUTO,
    ITERATION,
    USUAL_ANSWER,
    WORTH_COMPILING,
    WORTH_OPTIMISING,
    worth_compiling,
    worth_optimising,
)
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
    assert of_auto.requests_of_program == 12_000 and not worth_optimising(of_auto.key, 12_000)
    assert station(ITERATION).requests_of_program is None


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
    jax.devices()  # XLA reads its flags when it starts: those of the test are not for all tests of this process
    yield lambda value: monkeypatch.setenv("XLA_FLAGS", value)


def test_a_level_of_the_user_is_left_as_it_is(flags):
    flags(f"--{device.LEVEL}=2")
    assert device.compiled(joint.run_lanes, device.QUICKLY, "structure", "vectorise") is joint.run_lanes


def test_xla_knows_the_options_and_results_are_the_same(flags):
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


@pytest.mark.parametrize(
    ("stepped", "simulator"), [({}, "token"), ({"batching": {"planning": "asynchronous"}}, "iteration")]
)
def test_long_answers_go_to_a_program_sooner_where_the_reference_computes_each_iteration(
    stepped, simulator, as_users_run
):
    """600 answers of 2,000 tokens are as 6,000 of 200; without such planning it leaps over most of their iterations."""
    lengths = {"source": "fixed", "prompt_tokens": 200, "output_tokens": 2000}
    scenario = SCENARIO | {
        "workload": SCENARIO["workload"] | {"requests": 300, "lengths": lengths},
        "deployment": PIPELINES | stepped,
    }
    assert plan(loaded(scenario), simulator=AUTO).groups[0].simulator == simulator


@pytest.mark.parametrize(("role", "share"), [("mixed", 10), ("decode", 10), ("prefill", 1), ("stage", 1)])
def test_long_answers_count_where_they_are_computed(role, share, as_users_run):
    """A model that guards a pipeline, or a prefill side, has no iterations of theirs."""
    scenario = loaded(SCENARIO | {"deployment": PIPELINES})
    stepped = replace(scenario.deployment, role=role, pipeline_parallel=2)
    bounds = [
        worth_compiling(scenario.workload, (scenario.deployment, stepped), True, False, answer_tokens)
        for answer_tokens in (USUAL_ANSWER, 10 * USUAL_ANSWER)
    ]
    assert bounds[0] == share * bounds[1]


PIPELINES = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "kv": {"admission": "reserve"}}
ASKED = SCENARIO | {
    "workload": SCENARIO["workload"] | {"requests": 100_000},
    "deployment": PIPELINES,
    "sweep": {"deployment.pipeline_parallel": [1, 2], "workload.arrivals.rate_rps": [1, 2, 3]},
}


def test_a_program_counts_for_the_requests_that_it_serves():
    """A few designs with a program of their own do not have it optimised for what all others ask."""
    first, of_pipelines = plan(loaded(ASKED), simulator=AUTO).groups
    assert not first.stations[0].key.preemptive
    (station,) = of_pipelines.stations
    assert station.requests_of_program == 600_000 and worth_optimising(station.key, station.requests_of_program)
    shorter = ASKED | {"workload": ASKED["workload"] | {"requests": 50_000}}
    whole = plan(loaded(shorter), simulator=AUTO)
    assert whole.requests == 600_000
    (station,) = whole.groups[1].stations
    assert station.requests_of_program == 300_000 and not worth_optimising(station.key, station.requests_of_program)


@pytest.mark.parametrize("rows", [[3], [5, 1]])
def test_shards_have_the_programs_of_the_whole_sweep(rows):
    whole = plan(loaded(ASKED), simulator=AUTO)
    shard = plan(loaded(ASKED), np.array(rows), AUTO)
    assert [group.stations[0].requests_of_program for group in shard.groups] == [
        whole.group_of(configuration).stations[0].requests_of_program
        for configuration in (group.configurations[0] for group in shard.groups)
    ]


TURNS = {"turns": {"mean": 4, "max": 8}, "think_s": {"mean": 2}}
CACHED = {"admission": "on_demand", "prefix_caching": True}


def test_routers_that_know_caches_as_they_are_share_the_program_of_those_that_hear_late():
    scenario = SCENARIO | {
        "workload": SCENARIO["workload"] | {"sessions": TURNS},
        "deployment": SCENARIO["deployment"] | {"kv": CACHED, "router": "prefix_aware"},
        "sweep": {"deployment.router.prefix_aware.events_delay_s": [0, 2]},
    }
    (group,) = plan(loaded(scenario), simulator=AUTO).groups
    assert group.stations[0].key.late and group.stations[0].requests_of_program == 24_000
    # With as many requests that it is worth it each has its own, and so has whoever names the engine.
    longer = scenario | {"workload": scenario["workload"] | {"requests": 10_000}}
    for own in (plan(loaded(longer), simulator=AUTO), plan(loaded(scenario), simulator=ITERATION)):
        assert [group.stations[0].key.late for group in own.groups] == [False, True]


def test_short_runs_over_different_numbers_of_replicas_share_a_program():
    scenario = SCENARIO | {"sweep": {"deployment.replicas": [2, 12, 30, 100, 200]}}
    groups = plan(loaded(scenario), simulator=AUTO).groups
    assert [group.stations[0].key.replicas for group in groups] == [32, 128, 256]
    assert [group.stations[0].requests_of_program for group in groups] == [24_000, 24_000, 12_000]
    longer = scenario | {"workload": scenario["workload"] | {"requests": 200_000}}
    for own in (plan(loaded(longer), simulator=AUTO), plan(loaded(scenario), simulator=ITERATION)):
        assert [group.stations[0].key.replicas for group in own.groups] == [8, 16, 32, 128, 256]


def test_what_only_the_reference_can_run_makes_no_program_worth_its_compilation(as_users_run):
    """Half of 12,000 requests go to the reference in any case, and 6,000 are too few for a general program."""
    axis = {"deployment.failures": [None, {"outages": [{"replica": 0, "at_s": 60, "for_s": 60}]}]}
    workload = SCENARIO["workload"] | {"seeds": [0]}
    scenario = SCENARIO | {"workload": workload, "sweep": axis}
    for rows in (None, np.array([0]), np.array([1])):
        assert {group.simulator for group in plan(loaded(scenario), rows, AUTO).groups} == {"token"}
    longer = scenario | {"workload": workload | {"requests": 12_000}}
    assert [group.simulator for group in plan(loaded(longer), simulator=AUTO).groups] == ["iteration", "token"]
