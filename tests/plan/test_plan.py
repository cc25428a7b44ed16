"""Which configurations can run, what is said of the others, and which share a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_model
from evaluator.metrics import OK
from evaluator.plan import plan
from evaluator.plan.simulators import CompileKey
from evaluator.replica import token_budget
from evaluator.scenario import Batching, Deployment, Scenario, load_scenario


def scenario(**changes: Any) -> Scenario:
    """A small scenario that can run, with changes of the form section__key=value."""
    tree = {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
            "requests": 20,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
        "sweep": changes.pop("sweep", None),
    }
    return load_scenario(tree, tuple(f"{path.replace('__', '.')}={value}" for path, value in changes.items()))


def status(**changes: Any) -> str:
    (configuration,) = plan(scenario(**changes)).configurations
    return configuration.status


def fixed(prompt: int, output: int = 10) -> str:
    return f"{{source: fixed, prompt_tokens: {prompt}, output_tokens: {output}}}"


def test_what_can_run_is_ok():
    assert status() == OK


CLOSED = "{{process: closed_loop, users: {}}}"
ON_DEMAND = {"deployment__kv__admission": "on_demand"}
GROUPS = {"deployment__model": "gpt-oss-20b", "deployment__kv__layer_groups": True}
SMALL = {"deployment__hardware": "rtx-4090", "deployment__precision__weights": "fp8"}
STATUSES = {
    "heads": (
        {"deployment__tensor_parallel": 3},
        "infeasible: tensor_parallel 3 does not divide the 32 attention heads of llama-3.1-8b",
    ),
    "memory": (
        {"deployment__model": "llama-3.1-70b"},
        "infeasible: does not fit: 141.1 GB of weights per device exceed the 79.0 GB usable of 86 GB on h100-sxm; "
        "remedy: tensor_parallel >= ",
    ),
    "positions": (
        {"deployment__model": "llama-2-7b", "workload__lengths": fixed(4090)},
        "infeasible: a request of 4,100 tokens exceeds the 4,096 positions of llama-2-7b; "
        "use shorter prompts or a model with a longer context",
    ),
    "KV": (
        {"deployment__hardware": "rtx-4090", "workload__lengths": fixed(60_000)},
        "infeasible: a request of 60,009 tokens exceeds the KV cache of ",
    ),
    "whole prompt": (
        {"deployment__batching": "{policy: continuous, max_num_batched_tokens: 64}"},
        "infeasible: a prompt of 100 tokens exceeds max_num_batched_tokens 64, and continuous batching computes whole "
        "prompts; raise it or use policy chunked",
    ),
    "sequences": (
        {"deployment__batching": "{policy: chunked, max_num_seqs: 65, max_num_batched_tokens: 64}"},
        "infeasible: max_num_seqs 65 exceeds max_num_batched_tokens 64; lower the one or raise the other",
    ),
    "again whole": (
        {"deployment__batching": "{policy: continuous, max_num_batched_tokens: 104}", **ON_DEMAND},
        "infeasible: a prompt of 109 tokens, with the output so far after a preemption, exceeds max_num_batched_tokens "
        "104, and continuous batching computes whole prompts; raise it or use policy chunked",
    ),
    "watermark": (
        {"deployment__kv__watermark": 0.5, "workload__lengths": fixed(90_000), **SMALL, **ON_DEMAND},
        "infeasible: a request of 90,009 tokens exceeds the KV cache of ",
    ),
    "reserving policy": (
        {"deployment__batching__policy": "orca", **ON_DEMAND},
        "infeasible: policy orca reserves the KV of a whole request; use kv.admission reserve",
    ),
    "lightllm": (
        {"deployment__batching__policy": "lightllm"},
        "infeasible: policy lightllm deals out KV token by token; use kv.block_tokens 1",
    ),
    "lightllm with windows": (
        {
            "deployment__batching__policy": "lightllm",
            "deployment__kv__block_tokens": 1,
            "deployment__model": "gpt-oss-20b",
        },
        "unsupported: policy lightllm on gpt-oss-20b, whose layers do not all keep every token; use policy chunked",
    ),
    "no light replica": (
        {"deployment__router": "{heavy_light: {prompt_tokens: 50, heavy_replicas: 2}}", "deployment__replicas": 2},
        "infeasible: router heavy_light has 2 of 2 replicas for long prompts, and none is left for the others; use "
        "fewer heavy_replicas",
    ),
    "ranks of several servers": (
        {"deployment__router": "vllm_ranks", "deployment__replicas": 2},
        "unsupported: router vllm_ranks with several replicas, which are servers of their own; use data_parallel for "
        "the ranks of one",
    ),
    "ranks that share experts": (
        {"deployment__router": "vllm_ranks", "deployment__data_parallel": 2, "deployment__model": "gpt-oss-20b"},
        "unsupported: router vllm_ranks with data-parallel ranks in lockstep; use router least_outstanding",
    ),
    "a memory without a cache": (
        {"deployment__router": "prefix_approximate", "deployment__replicas": 2},
        "infeasible: router prefix_approximate without a prefix cache; use kv.prefix_caching, and ",
    ),
    "late news of groups": (
        {
            "deployment__model": "gpt-oss-20b",
            "deployment__kv": "{layer_groups: true, prefix_caching: true}",
            "deployment__router": "{prefix_aware: {events_delay_s: 1s}}",
            "workload__sessions": "{turns: 3}",
        },
        "unsupported: events_delay_s of router prefix_aware with kv.layer_groups, of which each has blocks of its own; "
        "leave it out, or use router prefix_approximate",
    ),
    "predictions for a tree": (
        {
            "deployment__batching__policy": "token_ratio",
            "deployment__kv": "{admission: on_demand, prefix_caching: true}",
            "deployment__router": "{prefix_aware: {predicted_ttl_s: 2s}}",
            "workload__sessions": "{turns: 3}",
        },
        "unsupported: predicted_ttl_s of router prefix_aware with policy token_ratio, whose cache is a tree; leave",
    ),
    "groups of reserved KV": (
        {"deployment__model": "gpt-oss-20b", "deployment__kv": "{layer_groups: true, admission: reserve}"},
        "unsupported: kv.layer_groups with kv.admission reserve; use on_demand",
    ),
    "groups and whole prompts": (
        {**GROUPS, "deployment__batching__policy": "continuous"},
        "unsupported: kv.layer_groups with policy continuous; use policy chunked",
    ),
    "groups of a capacity in tokens": (
        {**GROUPS, "deployment__kv__capacity_tokens": 100_000},
        "unsupported: kv.layer_groups with kv.capacity_tokens, which do not say how many blocks there are; leave it "
        "out",
    ),
    "groups of another engine": (
        {**GROUPS, "deployment__engine": "sglang", "deployment__batching__policy": "chunked"},
        "unsupported: kv.layer_groups with engine sglang, which has none; leave it out",
    ),
    "groups of states with a cache": (
        {
            "deployment__model": "qwen3.5-35b-a3b",
            "deployment__kv": "{layer_groups: true, prefix_caching: true}",
            "deployment__tensor_parallel": 2,
            "workload__sessions": "{turns: 3}",
        },
        "unsupported: kv.layer_groups with kv.prefix_caching and layers that keep states; leave out prefix_caching",
    ),
    "groups in a pipeline": (
        {**GROUPS, "deployment__pipeline_parallel": 2},
        "unsupported: kv.layer_groups with pipeline_parallel: nothing says on which rank gpt-oss-20b has which layers; "
        "use tensor_parallel",
    ),
    "ranks that plan ahead": (
        {
            "deployment__router": "vllm_ranks",
            "deployment__data_parallel": 2,
            "deployment__batching__planning": "asynchronous",
        },
        "unsupported: router vllm_ranks with batching.planning asynchronous; use planning at_once",
    ),
}


LACKING: dict[tuple[str, ...], dict[str, Any]] = {
    (): {"deployment__router": "least_work", "deployment__batching__policy": "mixed"},  # one replica: nothing to choose
    ("preemption swap with router least_kv",): {
        "deployment__kv": "{admission: on_demand, preemption: swap, swap_bandwidth: 25GB/s}",
        "deployment__router": "least_kv",
        "deployment__replicas": 2,
    },
    ("deployment.autoscaling.metric ttft with batching.planning asynchronous",): {
        "deployment__batching__planning": "asynchronous",
        "deployment__replicas": 2,
        "deployment__router": "least_outstanding",
        "deployment__autoscaling": "{metric: ttft, target: 1}",
    },
    ("kv.layer_groups",): {"deployment__model": "gpt-oss-20b", "deployment__kv__layer_groups": True},
    **{
        (f"deployment.autoscaling with router {next(iter(router))}",): {
            "deployment__router": router,
            "deployment__replicas": 2,
            "deployment__autoscaling": "{target: 8}",
            "deployment__kv__prefix_caching": True,
            "workload__sessions": "{turns: 3, think_from: arrival}",
        }
        for router in ({"prefix_aware": {"events_delay_s": 1}}, {"prefix_approximate": {}})
    },
    ("router vllm_ranks",): {"deployment__router": "vllm_ranks", "deployment__data_parallel": 2},
    **{
        (f"deployment.autoscaling.{name} of more than 4,096 every_s",): {
            "deployment__replicas": 4,
            "deployment__router": "least_outstanding",
            "deployment__autoscaling": f"{{target: 8, every_s: 2s, {said}}}",
        }
        # Of one that never scales down there would be no memory for a program.
        for name, said in (("cooldown_s", "cooldown_s: 1e12"), ("window_s", "window_s: 8200s, cooldown_s: 0"))
    },
    ("router least_kv over 9,000 replicas with outputs of up to 5,000 tokens",): {
        "deployment__router": "least_kv",
        "deployment__replicas": 9_000,
        "workload__lengths": "{source: fixed, prompt_tokens: 60, output_tokens: 5000}",
    },
}


@pytest.mark.parametrize("missing", LACKING)
def test_what_the_vectorised_engine_lacks_is_left_to_the_reference(missing):
    (configuration,) = plan(scenario(**LACKING[missing])).configurations
    assert (configuration.status, configuration.lacking) == (OK, missing)
    assert configuration.simulator == ("token" if missing else "iteration")


PARTS = ("preempts", "by_work", "admits_decodes")
"""Of a general program, which follow from the designs of its group."""
IN_ANY_ORDER: list[tuple[dict[str, Any], CompileKey]] = [
    ({"deployment__batching__policy": "sarathi"}, CompileKey(on_demand=True)),
    ({"deployment__batching__policy": "orca"}, CompileKey(True)),
    ({"deployment__batching": "{policy: sarathi, long_prefill_token_threshold: 9}"}, CompileKey(True)),
    ({"deployment__batching__packing": "least_work_left"}, CompileKey(True)),
    ({}, CompileKey(on_demand=True)),
    ({"deployment__kv__admission": "reserve"}, CompileKey()),
    ({"deployment__kv": "{admission: on_demand, full_prompt: true, watermark: 0.01}"}, CompileKey(on_demand=True)),
    ({"deployment__kv__admission": "on_demand", "deployment__batching__packing": "least_work_left"}, CompileKey(True)),
    ({"deployment__pipeline_parallel": 2}, CompileKey(True, pipeline_ranks=2)),
    (
        {"deployment__batching__planning": "asynchronous", "deployment__kv__admission": "reserve"},
        CompileKey(asynchronous=True),
    ),
    ({"deployment__async_scheduling": "true"}, CompileKey(on_demand=True, asynchronous=True)),
    (
        {"deployment__batching__planning": "asynchronous", "deployment__batching__packing": "least_work_left"},
        CompileKey(True, asynchronous=True),
    ),
    (
        {
            "deployment__batching": "{policy: token_ratio, planning: asynchronous}",
            "deployment__kv__admission": "on_demand",
        },
        CompileKey(True, asynchronous=True, token_ratio=True, admits_first=True),
    ),
    (
        {"deployment__batching__policy": "lightllm", "deployment__kv__block_tokens": 1},
        CompileKey(True, peaks=True, admits_first=True),
    ),
    (
        {
            "deployment__batching__policy": "lightllm",
            "deployment__kv__block_tokens": 1,
            "deployment__pipeline_parallel": 2,
        },
        CompileKey(True, pipeline_ranks=2, peaks=True, admits_first=True),
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), IN_ANY_ORDER)
def test_which_program_of_the_engine_runs_it(changes, wanted):
    whole = plan(scenario(**changes))
    (group,) = whole.groups
    (station,) = group.stations
    known = {name: getattr(station.key, name) for name in (*PARTS, "windowed", "experts", "cost", "requests")}
    assert (group.simulator, station.key) == ("iteration", replace(wanted, **known))


@pytest.mark.parametrize(("changes", "message"), STATUSES.values(), ids=list(STATUSES))
def test_what_cannot_run_says_why_and_what_to_do(changes, message):
    assert status(**changes).startswith(message)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "; use more tensor_parallel, kv precision fp8 or shorter requests"),
        ({"deployment__precision__kv": "fp8"}, "; use more tensor_parallel or shorter requests"),
        ({"deployment__precision__kv": "int8"}, "; use more tensor_parallel or shorter requests"),
        (
            {"deployment__kv__capacity_tokens": 41408},
            " of 41,408 tokens; use more kv.capacity_tokens or shorter requests",
        ),
    ],
)
def test_the_remedy_of_a_kv_cache_that_is_too_small_changes_something(changes, remedy):
    told = status(deployment__hardware="rtx-4090", workload__lengths=fixed(120_000), **changes)
    assert told.startswith("infeasible: a request of 120,009 tokens exceeds the KV cache of ") and told.endswith(remedy)


def test_the_remedy_of_a_model_that_does_not_fit_helps():
    told = status(deployment__model="llama-3.1-70b")
    wider = int(told.partition("tensor_parallel >= ")[2].split()[0])
    assert status(deployment__model="llama-3.1-70b", deployment__tensor_parallel=wider) == OK


def test_the_limits_are_exact():
    """What fills a limit to the last token is served, one token more is not."""
    positions = load_model("llama-2-7b").max_positions
    for prompt, able in ((positions - 10, True), (positions - 9, False)):
        found = status(deployment__model="llama-2-7b", workload__lengths=fixed(prompt))
        assert (found == OK) == able
    whole = "{policy: mixed, max_num_seqs: 8, max_num_batched_tokens: 100}"
    assert status(deployment__batching=whole) == OK
    assert "whole prompts" in status(deployment__batching=whole, workload__lengths=fixed(101))
    small = {"deployment__hardware": "rtx-4090", "deployment__kv__block_tokens": 1}
    (configuration,) = plan(scenario(**small)).configurations
    room = int(configuration.stations[0].design.ready.kv.capacity_tokens)
    assert status(**small, workload__lengths=fixed(room - 9)) == OK  # the last of 10 tokens is never computed
    assert "exceeds the KV cache" in status(**small, workload__lengths=fixed(room - 8))


def test_cached_tokens_need_no_budget_but_kv():
    whole = {"deployment__batching": "{policy: continuous, max_num_batched_tokens: 64}"}
    assert status(**whole, workload__cached_tokens=36) == OK
    assert "a prompt of 65 tokens" in status(**whole, workload__cached_tokens=35)


def test_roles_have_limits_of_their_own():
    """A decode-only replica computes no prompts; a prefill-only one needs no room for outputs."""
    whole = {"deployment__batching": "{policy: continuous, max_num_batched_tokens: 64}"}
    assert status(**whole, deployment__role="decode") == OK
    long = {"deployment__model": "llama-2-7b", "workload__lengths": fixed(4000, 200)}
    assert "positions" in status(**long)
    assert status(**long, deployment__role="prefill") == OK


@pytest.mark.parametrize(
    ("batching", "longest", "budget"),
    [
        (Batching("chunked"), 9000, 8192),
        (Batching("chunked", max_num_seqs=9001), 9000, 9001),
        (Batching("continuous"), 9000, 9000),
        (Batching("continuous"), 10, 8192),
        (Batching("static", max_num_seqs=100), 9000, 9000),
        (Batching("mixed", max_num_seqs=100), 9000, 9100),
        (Batching("chunked", max_num_batched_tokens=77), 9000, 77),
        (Batching("mixed", max_num_batched_tokens=77), 9000, 77),
    ],
)
def test_default_token_budget(batching, longest, budget):
    assert token_budget(Deployment("llama-3.1-8b", "h100-sxm", batching=batching), longest) == budget


# --- groups


def test_one_group_for_each_structure():
    """Layer kinds and shapes make groups; hardware, splits, policies and rates are numbers."""
    axes = {
        "deployment.model": ["llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b"],  # dense, dense, MoE, window
        "deployment.hardware": ["h100-sxm", "h200-sxm"],
        "deployment.batching.policy": ["continuous", "chunked"],
        "workload.arrivals.rate_rps": [1, 2, 4],
    }
    whole = plan(scenario(sweep=axes))
    assert len(whole.configurations) == 48
    stations = [station for group in whole.groups for station in group.stations]
    assert [(station.key.windowed, station.rows.expert_rows > 0) for station in stations] == [
        (False, False), (False, True), (True, True),
    ]  # fmt: skip
    assert sorted(configuration.config for group in whole.groups for configuration in group.configurations) == list(
        range(48)
    )
    lengths = {**axes, "workload.requests": [20, 30]}
    assert len(plan(scenario(sweep=lengths)).groups) == 6


def test_shapes_hold_every_member_of_a_group():
    axes = {"deployment.replicas": [1, 3], "workload.lengths.output_tokens": [10, 700]}
    (group,) = plan(scenario(sweep=axes)).groups
    (station,) = group.stations
    assert station.lane_requests == 32  # the next power of two of 20
    assert station.ring == 1024
    (group,) = plan(scenario(deployment__replicas=3)).groups
    assert group.stations[0].lane_requests == 8


def test_a_part_of_the_grid_keeps_its_numbers():
    whole = plan(scenario(sweep={"workload.arrivals.rate_rps": [1, 2, 4]}), np.array([2]))
    assert [configuration.config for configuration in whole.configurations] == [2]


# --- traffic


KEPT = {"workload__sessions": {"system_prompts": 4, "system_tokens": 1000}, "deployment__kv": {"prefix_caching": True}}


def test_system_prompts_need_room_in_the_kv_cache():
    assert status(**KEPT) == OK
    many = {**KEPT, "workload__sessions": {"system_prompts": 1000, "system_tokens": 1000}}
    assert "1,000 system prompts of 992 tokens stay in the KV cache" in status(**many)
    assert "use fewer or shorter system_prompts" in status(**many)
    assert status(**{**many, "deployment__kv": {}}) == OK


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"deployment__model": "gpt-oss-20b"}, "do not all keep every token; use another model, or leave it out"),
        (
            {
                "deployment__kv": {
                    "prefix_caching": True, "admission": "on_demand", "preemption": "swap", "swap_bandwidth": 1e9
                }
            },
            "with preemption swap; use preemption recompute",
        ),
    ],
    ids=["windows", "swap"],
)  # fmt: skip
def test_what_cannot_keep_system_prompts(more, message):
    assert message in status(**{**KEPT, **more})


def test_a_planned_iteration_is_one_of_those_that_a_request_waits():
    """Fitted to servers, ``lookahead_steps`` hold the iteration that asynchronous planning makes a request wait."""

    def waited(**changes: Any) -> float:
        (one,) = plan(scenario(deployment__calibration="h100-sxm-vllm.serving", **changes)).configurations
        return one.stations[0].frontend.lookahead_steps

    steps = load_calibration("h100-sxm-vllm.serving", "h100-sxm").lookahead_steps
    ahead = {"deployment__batching__planning": "asynchronous"}
    assert (waited(), waited(**ahead)) == (steps, pytest.approx(steps - 1.0))
    assert steps > 1.0


def test_a_fleet_that_the_reference_keeps_makes_no_program_remember_more():
    fleet = {"deployment__replicas": 4, "deployment__router": "least_outstanding"}
    policies = [{"target": 8, "every_s": 2, "cooldown_s": cooldown_s} for cooldown_s in (200, 8000, 1e12)]
    sweep = {"deployment.autoscaling": [*policies, {"target": 8, "every_s": 1e-9, "cooldown_s": 1e308}]}
    whole = plan(scenario(**fleet, sweep=sweep), simulator="iteration")
    assert [each.simulator for each in whole.configurations] == ["iteration", "iteration", "token", "token"]
    assert [station.looks for group in whole.groups for station in group.stations] == [4096]


@pytest.mark.parametrize(("policies", "first"), [(["chunked"], False), (["chunked", "continuous"], True)])
def test_a_batch_is_formed_in_two_turns_where_some_policy_computes_prompts_alone(policies, first):
    by_work = {"deployment__batching__packing": "least_work_left", "deployment__kv__admission": "reserve"}
    whole = plan(scenario(**by_work, sweep={"deployment.batching.policy": policies}), simulator="iteration")
    assert {station.key.admits_first for group in whole.groups for station in group.stations} == {first}
    assert len(whole.groups) == 1


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"deployment__kv__admission": "reserve", "deployment__pipeline_parallel": 2}, ()),
        ({"deployment__kv__admission": "on_demand", "deployment__pipeline_parallel": 2}, ("preempts",)),
        ({"deployment__kv__admission": "reserve", "deployment__batching__packing": "least_work_left"}, ("by_work",)),
        ({"deployment__kv__admission": "on_demand"}, ("preempts",)),  # if a lane runs short of KV it runs again
        (
            {"deployment__kv": {"admission": "on_demand", "preemption": "swap", "swap_bandwidth": 25e9}},
            ("preempts", "admits_decodes"),
        ),
        ({"deployment__kv__admission": "reserve"}, ()),
    ],
)
def test_a_general_program_has_the_parts_that_its_designs_need(changes, parts):
    (group,) = plan(scenario(**changes), simulator="iteration").groups
    (station,) = group.stations
    assert tuple(part for part in PARTS if getattr(station.key, part)) == parts


@pytest.mark.parametrize(("router", "seen"), [("least_kv", True), ("least_outstanding", False), ("least_work", False)])
def test_a_program_sees_into_leaps_where_a_router_goes_by_kv(router, seen):
    fleet = {"deployment__replicas": 4, "deployment__router": router, "deployment__kv__admission": "on_demand"}
    (group,) = plan(scenario(**fleet), simulator="iteration").groups
    assert group.stations[0].key.kv_seen == seen


def test_routers_that_guess_or_hear_late_have_programs_of_their_own():
    """Who knows the caches keeps the one without what these remember; a single replica is no choice."""
    cached = {"deployment__kv__prefix_caching": True, "workload__sessions": {"turns": 3}}
    routers = [
        "prefix_aware",
        "least_outstanding",
        "prefix_approximate",
        {"prefix_aware": {"scores": {}}},
        {"prefix_aware": {"events_delay_s": 1}},
        {"prefix_aware": {"predicted_ttl_s": 1}},
    ]

    def keys(replicas: int) -> list[tuple[bool, bool]]:
        whole = plan(
            scenario(**cached, deployment__replicas=replicas, sweep={"deployment.router": routers}),
            simulator="iteration",
        )
        assert {each.simulator for each in whole.configurations} == {"iteration"}
        of_group = {each.config: group.stations[0].key for group in whole.groups for each in group.configurations}
        return [(key.guesses, key.late) for _, key in sorted(of_group.items(), key=lambda item: item[0])]

    sent, late = (True, False), (True, True)
    assert keys(3) == [(False, False), (False, False), sent, sent, late, late]
    assert keys(1) == [(False, False)] * len(routers)
