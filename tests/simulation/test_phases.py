"""Several pools of one role, several models, groups of replicas: both engines agree, in either order of computing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.cost.frontend import Frontend, client_times
from evaluator.device import configure
from evaluator.metrics import OK
from evaluator.plan import Plan, plan
from evaluator.scenario import Scenario, load_scenario
from evaluator.simulation import simulate_configurations, stations_of
from evaluator.simulation.chain import run_chain
from evaluator.traffic.jobs import Jobs
from tests.simulation.test_pools import simulated
from tests.systems import Draw
from tests.thorough import tried

TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")
SUMS = ("busy_s", "iterations", "flops", "bytes", "kv_unit_s", "kv_units_max", "preemptions")
SPREAD = {"source": "uniform", "prompt_min": 20, "prompt_max": 2500, "output_min": 1, "output_max": 40}
SHORT = {"source": "uniform", "prompt_min": 10, "prompt_max": 300, "output_min": 1, "output_max": 80}
BOTH = {"llama-3.1-8b": 0.6, "qwen3-8b": {"share": 0.4, "lengths": SHORT}}
SYSTEMS = tried(240)


def of_pools(
    pools: Any = None,
    models: Any = None,
    arrivals: Any = None,
    sweep: Any = None,
    requests: int = 30,
    lengths: Any = SPREAD,
    sessions: Any = None,
    **deployment: Any,
) -> Scenario:
    """Llama-3.1-8B on an H100 where a pool says nothing else."""
    workload = {
        "arrivals": arrivals or {"process": "poisson", "rate_rps": 20.0},
        "lengths": lengths,
        "requests": requests,
        "warmup_requests": 0,
        "models": models,
        "sessions": sessions or {},
    }
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "calibration": "datasheet", "pools": pools, **deployment}
    return load_scenario({"workload": workload, "deployment": served, "sweep": sweep})


def random_designs(count: int) -> list[dict[str, Any]]:
    """Up to four pools a side, of one model or two, in groups or not, by any shares, over any link."""
    draw = Draw(1)

    def pool(role: str, model: str, groups: int) -> dict[str, Any]:
        shares = {"weight": draw.one(None, None, 0.5, 3.0), "precision": {"kv": draw.one("bf16", "bf16", "fp8")}}
        return draw.pool_in_order(groups, ("continuous", "mixed", "static"), role=role, model=model, **shares)

    def phase(role: str, names: tuple[str, ...], groups: int) -> dict[str, Any]:
        models = [*names, *(draw.one(*names) for _ in range(draw.one(0, 1, 2)))]
        return {f"{role[0]}{number}": pool(role, model, groups) for number, model in enumerate(models)}

    designs = []
    for number in range(count):
        names = draw.one(("llama-3.1-8b",), ("llama-3.1-8b", "qwen3-8b"))
        apart, beside = ("prefill", "decode"), ("prefill", "decode", "mixed")
        groups, roles = draw.one(1, 1, 2, 3), draw.one(apart, apart, beside, ("mixed",))
        groups = groups if len(roles) > 1 else 1
        pools = {name: one for role in roles for name, one in phase(role, names, groups).items()}
        designs.append(
            {
                "deployment.pools": pools,
                "deployment.transfer": draw.transfer(groups=groups),
                "deployment.router": draw.one("round_robin", "random"),
                "deployment.split": {"prompt_tokens_above": draw.one(None, 250, 1200)} if roles is beside else {},
                "workload.models": BOTH if len(names) == 2 else None,
                "workload.arrivals.rate_rps": draw.one(2, 20, 200) + number / 1000,
            }
        )
    return designs


def assert_same(mine: Any, at: int, known: Any, there: int, what: str) -> None:
    """Two runs, each at its place in a chunk, in their times, replicas, uses and gaps between tokens."""
    for name in TIMES:
        np.testing.assert_allclose(
            getattr(mine.times, name)[at], getattr(known.times, name)[there], rtol=1e-9, err_msg=f"{name} of {what}"
        )
    np.testing.assert_array_equal(mine.times.replica[at], known.times.replica[there], err_msg=what)
    for one, other in zip(mine.stations, known.stations, strict=True):
        for name in SUMS:
            np.testing.assert_allclose(
                one.figure(name)[at], other.figure(name)[there], rtol=1e-9, err_msg=f"{name} of {what}"
            )
    assert [gaps[1].sum() for gaps in mine.itl[at]] == [gaps[1].sum() for gaps in known.itl[there]]


@pytest.fixture(scope="module")
def systems() -> tuple[Plan, dict, dict]:
    """Random systems: their plan, and both engines' outcomes by configuration."""
    configure()
    asked = of_pools(None, sweep={"design": {"zip": random_designs(SYSTEMS)}})
    whole = plan(asked)
    return whole, simulated(whole), simulated(plan(asked, simulator="token"))


def test_both_engines_agree_on_random_systems(systems):
    whole, fast, exact = systems
    able = [configuration for configuration in whole.configurations if configuration.status == OK]
    assert len(able) >= SYSTEMS * 5 // 6 and {configuration.simulator for configuration in able} == {"iteration"}
    assert max(len(configuration.stations) for configuration in able) >= 6
    for configuration in able:
        assert_same(*fast[configuration.config], *exact[configuration.config], f"system {configuration.config}")


def test_one_event_loop_over_all_pools_gives_the_same(systems):
    """It follows every request with its own objects, choices and links; the chain goes from station to station."""
    whole, _, exact = systems
    token = plan(whole.scenario, simulator="token")
    for configuration in token.configurations:
        if configuration.status == OK:
            joint = replace(configuration, joint_pools=True)
            outcomes = simulate_configurations(token, [joint])
            assert_same(outcomes, 0, *exact[configuration.config], f"system {configuration.config}")


def test_requests_go_where_their_model_and_group_are(systems):
    whole, fast, _ = systems
    for configuration in (configuration for configuration in whole.configurations if configuration.status == OK):
        (outcomes, at), first = fast[configuration.config], configuration.phases[0]
        demand = whole.sampler.jobs(configuration.workload, 0, first.asked).demand
        model, apart = demand.model, first.apart(demand)
        replica = outcomes.times.replica[at, 0]
        if first.replicas is not None:
            np.testing.assert_array_equal(np.asarray(first.replicas.model)[replica], model)
        if apart is not None:
            assert apart.any() and not apart.all()
            np.testing.assert_array_equal(replica < first.mixed_from, apart)
        assert sum(use.replicas[at] for use in outcomes.stations if use.devices[at]) == sum(
            station.deployment.replicas for station in configuration.stations
        )


def test_tokens_are_conserved_over_the_pools(systems):
    whole, fast, _ = systems
    for configuration in (configuration for configuration in whole.configurations if configuration.status == OK):
        outcomes, at = fast[configuration.config]
        output = outcomes.tokens.of_config(at).output_tokens[0]
        assert outcomes.itl[at][0][1].sum() == (output - 1).sum()
        times = np.array([getattr(outcomes.times, name)[at, 0] for name in TIMES])
        assert np.isfinite(times).all() and (np.diff(times, axis=0) >= 0).all()


# --- what must be the same as something simpler


@pytest.mark.parametrize("role", ["mixed", "prefill"])
def test_pools_alike_are_one_pool_with_as_many_replicas(role):
    behind = {} if role == "mixed" else {"d": {"role": "decode"}}
    one = ran({"a": {"role": role, "replicas": 5}, **behind})
    several = ran({"a": {"role": role, "replicas": 2}, "b": {"role": role, "replicas": 3}, **behind})
    for name in (*TIMES, "replica"):
        np.testing.assert_array_equal(getattr(one.times, name), getattr(several.times, name))
    for name in SUMS[:-2]:
        np.testing.assert_allclose(one.summed(name), several.summed(name), rtol=1e-12)


@pytest.mark.parametrize("above", [0, 10**9])
def test_pools_to_which_all_requests_go_are_as_if_alone(above):
    """With every prompt above the bound the mixed pool has nothing to do, with none the prefill and decode pools."""
    apart = {"p": {"role": "prefill", "replicas": 2}, "d": {"role": "decode"}}
    whole = {"w": {"role": "mixed", "hardware": "l40s", "replicas": 3}}
    beside = ran({**apart, **whole}, split={"prompt_tokens_above": above})
    alone = ran(apart if above == 0 else whole)
    for name in TIMES:
        np.testing.assert_array_equal(getattr(beside.times, name), getattr(alone.times, name))
    np.testing.assert_array_equal(beside.times.replica, alone.times.replica + (2 if above else 0))
    for name in SUMS[:-2]:
        np.testing.assert_allclose(beside.summed(name), alone.summed(name), rtol=1e-12)


def test_a_model_may_be_left_to_mixed_pools():
    """Whoever asks for it goes there, whatever the length of the prompt."""
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}, "w": {"role": "mixed", "model": "qwen3-8b"}}
    outcomes = ran(pools, models=BOTH, split={"prompt_tokens_above": 100})
    np.testing.assert_array_equal(outcomes.times.replica[0, 0] == 1, outcomes.model[0, 0] == 1)
    whole = plan(of_pools({**pools, "d": {"role": "decode", "model": "qwen3-8b"}}, models=BOTH), simulator="token")
    assert "workload.models.qwen3-8b: no prefill pool serves it" in whole.configurations[0].status


def test_a_mixed_pool_is_sized_by_the_short_prompts_that_come_to_it():
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}, "w": {"role": "mixed"}}
    (configuration,) = plan(of_pools(pools, split={"prompt_tokens_above": 700})).configurations
    prompts = {station.name: station.extremes.prompt for station in configuration.stations}
    assert prompts["w"] <= 700 < prompts["p"] and prompts["d"] == 0


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (
            {"simulator": "request", "batching": {"policy": "continuous"}, "kv": {"admission": "reserve"}},
            "unsupported: simulator request does not cover mixed pools beside prefill pools; use simulator iteration",
        ),
        ({"router": "least_outstanding"}, OK),
    ],
)
def test_which_simulator_runs_mixed_pools_beside_others(more, status):
    pools = {"p": {"role": "prefill"}, "d": {"role": "decode"}, "w": {"role": "mixed"}}
    deployment = {key: value for key, value in more.items() if key != "simulator"}
    (configuration,) = plan(of_pools(pools, **deployment), simulator=more.get("simulator", "iteration")).configurations
    assert configuration.status.startswith(status)
    if status == OK:
        assert configuration.simulator == "token"
        assert "with mixed pools beside prefill pools" in configuration.lacking[0]


# --- system prompts in several pools: each cache finds them by their content

SYSTEM = {"system_prompts": 3, "system_tokens": 500}
SIDES = {
    "mixed pools": {"a": {"role": "mixed"}, "b": {"role": "mixed", "hardware": "l40s", "kv": {"block_tokens": 32}}},
    "apart": {"p": {"role": "prefill", "kv": {"block_tokens": 64}}, "d": {"role": "decode"}},
    "all": {"p": {"role": "prefill"}, "w": {"role": "mixed"}, "d": {"role": "decode"}},
}
CACHING = {"kv": {"prefix_caching": True, "admission": "reserve"}, "sessions": SYSTEM}


@pytest.mark.parametrize("pools", SIDES)
def test_each_pool_computes_a_system_prompt_once(pools):
    """As long as there is room: whoever comes first to a replica with one computes it, the others find its blocks."""
    whole = plan(of_pools(SIDES[pools], requests=60, **CACHING), simulator="token")
    (configuration,) = whole.configurations
    assert configuration.status == OK and not configuration.joint_pools
    outcomes = simulate_configurations(whole, [configuration])
    (jobs,) = whole.jobs(configuration)
    system, replica, found = jobs.sharing.system, outcomes.times.replica[0, 0], outcomes.tokens.cached_tokens[0, 0]
    assert set(system.tolist()) == {0, 1, 2}
    block = np.repeat(
        [pool.deployment.kv.block_tokens for pool in configuration.stations],
        [pool.deployment.ranks for pool in configuration.stations],
    )
    for prompt in range(3):
        for one in np.unique(replica):
            mine = np.flatnonzero((system == prompt) & (replica == one))
            first = mine[np.argmin(outcomes.times.scheduled_s[0, 0, mine])]
            after = mine[outcomes.times.scheduled_s[0, 0, mine] >= outcomes.times.first_token_s[0, 0, first]]
            assert found[first] == 0 and len(after)
            np.testing.assert_array_equal(found[after], 500 // block[one] * block[one])
    assert_same(outcomes, 0, simulate_configurations(whole, [replace(configuration, joint_pools=True)]), 0, pools)


def test_both_engines_find_the_same_system_prompts():
    configure()
    scenario = of_pools(SIDES["all"], requests=60, split={"prompt_tokens_above": 1500}, **CACHING)
    fast, exact = (plan(scenario, simulator=simulator) for simulator in ("iteration", "token"))
    assert fast.configurations[0].simulator == "iteration"
    found, known = (simulate_configurations(whole, whole.configurations) for whole in (fast, exact))
    assert_same(found, 0, known, 0, "system prompts")
    for name in ("cached_tokens", "decode_hit_tokens"):
        np.testing.assert_array_equal(getattr(found.tokens, name), getattr(known.tokens, name))


def ran(pools: Any, simulator: str = "token", **more: Any) -> Any:
    """The outcomes of one configuration."""
    whole = plan(of_pools(pools, **more), simulator=simulator)
    assert [configuration.status for configuration in whole.configurations] == [OK]
    return simulate_configurations(whole, whole.configurations)


def test_groups_of_one_replica_a_side_are_pairs_by_themselves():
    """Requests go to three prefill replicas in turn, so each pair serves every third of them as if it were alone."""
    pools = {"p": {"role": "prefill", "replicas": 3}, "d": {"role": "decode", "replicas": 3}}
    transfer = {"link": "ethernet-25g"}
    found = ran(pools, transfer={**transfer, "groups": 3})
    alone = plan(
        of_pools({name: {**pool, "replicas": 1} for name, pool in pools.items()}, transfer=transfer), simulator="token"
    )
    (configuration,), (jobs,) = alone.configurations, alone.jobs(alone.configurations[0])
    for pair in range(3):
        ids = jobs.id[pair::3]
        own = Jobs(np.arange(len(ids)), jobs.ready_s[ids], jobs.demand[ids], jobs.measured[ids])
        known = run_chain(stations_of(alone, [configuration]), [[own]])
        for name in TIMES:
            np.testing.assert_array_equal(getattr(found.times, name)[0, 0, ids], getattr(known.times, name)[0, 0])


def test_weights_share_requests_out():
    pools = {"a": {"role": "mixed", "weight": 3}, "b": {"role": "mixed", "replicas": 2}}
    shares = [
        np.bincount(ran(pools, requests=400, router=one).times.replica[0, 0]) / 400 for one in ("round_robin", "random")
    ]
    np.testing.assert_allclose(shares[0], [0.6, 0.2, 0.2], atol=0.005)
    np.testing.assert_allclose(shares[1], [0.6, 0.2, 0.2], atol=0.08)


def test_several_configurations_and_seeds_at_once():
    """Each is what it is by itself, on either engine and in one loop over all pools."""
    axes = {"deployment.pools.q.replicas": [1, 2], "deployment.transfer.groups": [1, 2]}
    pools = {"p": {"role": "prefill", "replicas": 2}, "q": {"role": "prefill"}, "d": {"role": "decode", "replicas": 4}}
    whole = plan(of_pools(pools, sweep=axes), simulator="token")
    assert [configuration.status == OK for configuration in whole.configurations] == [True, False, True, True]
    (group,) = whole.groups
    together = simulate_configurations(whole, group.configurations)
    joint = simulate_configurations(
        whole, [replace(configuration, joint_pools=True) for configuration in group.configurations]
    )
    for place, configuration in enumerate(group.configurations):
        if configuration.status == OK:
            alone = simulate_configurations(whole, [configuration])
            assert_same(together, place, alone, 0, "together")
            assert_same(joint, place, alone, 0, "in one loop")


def test_the_same_seed_gives_the_same_models_whatever_the_lengths():
    def asked(**changes: Any) -> np.ndarray:
        scenario = of_pools(MODEL_POOLS, models=BOTH, requests=300, **changes)
        whole = plan(scenario, simulator="token")
        return whole.jobs(whole.configurations[0])[0].demand.model

    first = asked()
    np.testing.assert_array_equal(first, asked(lengths=SHORT))
    assert first.mean() == pytest.approx(0.4, abs=0.1)


MODEL_POOLS = {"l": {"role": "mixed"}, "q": {"role": "mixed", "model": "qwen3-8b"}}


def test_models_with_lengths_of_their_own():
    outcomes = ran(MODEL_POOLS, models=BOTH, requests=300)
    prompt, model = outcomes.tokens.prompt_tokens[0, 0], outcomes.model[0, 0]
    assert prompt[model == 1].max() <= 300 < prompt[model == 0].max()
    same = ran(MODEL_POOLS, models={name: 0.5 for name in BOTH}, requests=300)
    plain = ran({"a": {"role": "mixed", "replicas": 2}}, requests=300)
    np.testing.assert_array_equal(
        same.tokens.prompt_tokens, plain.tokens.prompt_tokens
    )  # lengths are drawn as without models


def test_a_request_pays_at_the_frontend_of_its_pool():
    """Sets that were fitted to servers say what lies around the engine; the one of the H100 is none of the L40S."""
    pools = {"h": {"role": "mixed", "calibration": "h100-sxm-vllm.serving"},
             "l": {"role": "mixed", "hardware": "l40s", "calibration": "l40s-vllm.serving"}}  # fmt: skip
    whole = plan(of_pools(pools), simulator="token")
    (configuration,) = whole.configurations
    chain_result = run_chain(stations_of(whole, [configuration]), [whole.jobs(configuration)])
    outcomes = simulate_configurations(whole, [configuration])
    for replica, station in enumerate(configuration.stations):
        at = chain_result.times.replica == replica
        times = (
            chain_result.times.first_token_s[at],
            chain_result.times.last_token_s[at],
            chain_result.tokens.output_tokens[at],
        )
        first_s, last_s = client_times(Frontend.of(station.design.calibration), *times)
        np.testing.assert_array_equal(outcomes.times.first_token_s[at], first_s)
        np.testing.assert_array_equal(outcomes.times.last_token_s[at], last_s)
    frontends = {station.design.calibration.frontend_s for station in configuration.stations}
    assert len(frontends) == 2
