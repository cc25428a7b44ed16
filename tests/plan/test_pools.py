"""Configurations of several pools: their checks, their groups, and which of them are coupled."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.plan import plan
from evaluator.plan.groups import groups_of
from evaluator.scenario import load_scenario
from tests.scenario.build import scenario
from tests.simulation.build import plan_of_pools

CLOSED = "workload.arrivals={process: closed_loop, users: 7}"
LEAST = ("deployment.replicas=2", "deployment.router=least_work")
LEAST_WORK_LEFT = "deployment.batching.packing=least_work_left"


def test_pools_have_roles_and_limits_of_their_own():
    (configuration,) = plan_of_pools(
        "workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 30}"
    ).configurations
    prefill, decode = configuration.stations
    assert (prefill.name, decode.name, configuration.status, configuration.simulator) == (
        "prefill",
        "decode",
        OK,
        "iteration",
    )
    assert (prefill.extremes.prompt, prefill.extremes.output, prefill.extremes.kv_tokens) == (100, 1, 100)
    assert (decode.extremes.prompt, decode.extremes.output, decode.extremes.kv_tokens) == (0, 29, 129)


def test_what_does_not_fit_says_in_which_pool():
    (configuration,) = plan_of_pools("deployment.model=llama-3.1-70b").configurations
    assert configuration.status.startswith("infeasible: pool prefill: does not fit: 141.1 GB of weights")


def test_pools_share_the_program_of_their_structure():
    """A prefill side and a decode side of one model are compiled once, with shapes that hold both."""
    whole = plan_of_pools("workload.lengths={source: fixed, prompt_tokens: 100, output_tokens: 700}")
    (group,) = whole.groups
    assert len(group.stations) == 2 and group.stations[0] == group.stations[1]
    assert group.stations[0].ring == 1024


def test_a_group_is_of_one_sequence_of_structures():
    one, two = plan_of_pools(), plan_of_pools("deployment.kv.admission=on_demand")
    (single,) = plan(scenario()).configurations
    groups = groups_of([*one.configurations, *two.configurations, single, *one.configurations], (0,))
    assert [len(group.configurations) for group in groups] == [2, 1, 1]
    assert [len(group.stations) for group in groups] == [2, 2, 1]


@pytest.mark.parametrize(
    ("overrides", "joint", "lacking"),
    [
        ((), False, ()),
        (("deployment.replicas=2", "deployment.router=random"), False, ()),
        (LEAST, True, ()),
        ((CLOSED,), True, ()),
        ((CLOSED, LEAST_WORK_LEFT), True, ()),
    ],
)
def test_pools_that_look_at_each_other_are_coupled(overrides, joint, lacking):
    (configuration,) = plan_of_pools(*overrides).configurations
    assert (configuration.joint, configuration.lacking) == (joint, lacking)
    assert configuration.simulator == ("token" if lacking else "iteration")
    assert configuration.status == OK and configuration.joint_pools == (CLOSED in overrides)


@pytest.mark.parametrize(
    ("overrides", "joint"),
    [
        ((CLOSED, "deployment.calibration=datasheet"), False),
        ((CLOSED,), True),
        (LEAST, True),
        ((CLOSED, "deployment.replicas=2"), True),
        (("deployment.replicas=2",), False),
    ],
)
def test_replicas_run_together_where_one_decides_what_comes_to_another(overrides, joint):
    (configuration,) = plan(scenario(*overrides)).configurations
    assert (configuration.joint, configuration.status, configuration.simulator) == (joint, OK, "iteration")


def test_numbers_of_replicas_that_run_together_share_a_program():
    axes = {"deployment__replicas": [2, 3, 5, 8, 9], "deployment__router": ["least_work", "least_kv"]}
    groups = plan(scenario(**axes)).groups
    assert [(len(group.configurations), group.stations[0].key.replicas) for group in groups] == [(8, 8), (2, 16)]
    assert {group.stations[0].lane_requests for group in groups} == {64}  # all requests of a pool, a power of two


# --- several pools of one role, several models, groups

BOTH = {"llama-3.1-8b": 3, "qwen3-8b": 1}
LLAMA, QWEN = ({"model": model} for model in BOTH)
PREFILL, DECODE, MIXED = ({"role": role} for role in ("prefill", "decode", "mixed"))
CACHED = {"role": "mixed", "kv": {"prefix_caching": True}}


def of_pools(pools, models=None, **deployment):
    """The only member of a scenario with these pools."""
    (configuration,) = plan(load(pools, models, **deployment)).configurations
    return configuration


def load(pools, models=None, lengths=None, sessions=None, adapters=None, **deployment):
    return load_scenario(_tree(pools, models, lengths, sessions, adapters, **deployment))


def _tree(pools, models, lengths, sessions=None, adapters=None, **deployment):
    workload = {"arrivals": {"process": "poisson", "rate_rps": 4}, "requests": 200, "models": models,
                "lengths": lengths or {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10},
                "sessions": sessions, "adapters": adapters}  # fmt: skip
    served = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "pools": pools, **deployment}
    return {"workload": workload, "deployment": served}


def test_sides_and_the_most_jobs_of_their_replicas():
    pools = {
        "d": {**DECODE, "replicas": 3},
        "a": {**PREFILL, "replicas": 6},
        "b": {**PREFILL, "replicas": 2, "weight": 2},
    }
    configuration = of_pools(pools)
    first, second = configuration.phases
    assert [configuration.stations[number].name for number in first.stations] == ["a", "b"] and second.replicas is None
    assert first.replicas.weight == (1.0,) * 8 and first.replicas.pool == (0,) * 6 + (1,) * 2
    assert [station.most_jobs for station in configuration.stations] == [25, 25, None]
    assert (configuration.link.senders, configuration.link.receivers, configuration.link.replicas) == ((6, 2), (3,), 8)


def test_every_pool_is_checked_against_the_requests_of_its_model():
    models = {"llama-3.1-8b": 1, "qwen3-8b": {"share": 1, "lengths": {"source": "fixed", "prompt_tokens": 7,
              "output_tokens": 300}}}  # fmt: skip
    configuration = of_pools({"l": {**MIXED, **LLAMA}, "q": {**MIXED, **QWEN}}, models)
    assert [(one.extremes.prompt, one.extremes.output) for one in configuration.stations] == [(100, 10), (7, 300)]


def test_a_described_model_serves_the_requests_for_what_it_is_like():
    described = {"model": {"like": "llama-3.1-8b", "layers": 16}}
    assert of_pools({"l": {**MIXED, **described}, "q": {**MIXED, **QWEN}}, BOTH).status == OK


def test_links_between_unlike_pools():
    """The narrower cache decides what is sent, from which pool to which; models have no link to one another."""
    pools = {"p": {**PREFILL, **LLAMA}, "q": {**PREFILL, **QWEN},
             "d": {**DECODE, **LLAMA}, "e": {**DECODE, **LLAMA, "precision": {"kv": "fp8"}},
             "f": {**DECODE, **QWEN}}  # fmt: skip
    link = of_pools(pools, BOTH).link
    whole, half = 32 * 2 * 8 * 128 * 2, 32 * 2 * 8 * 128
    sender, receiver = np.array([0, 0, 1]), np.array([0, 1, 2])
    sent = link.service_s(np.array([10, 10, 10]), link.ways(sender, receiver)) * link.bandwidth
    assert sent.tolist() == [10 * whole, 10 * half, 10 * 36 * 2 * 8 * 128 * 2]
    assert link.layers(link.ways(sender, receiver)).tolist() == [32, 32, 36]


@pytest.mark.parametrize(("prefill", "decode", "share"), [(1, 1, 1), (4, 4, 4), (4, 2, 2), (2, 8, 2), (8, 1, 1)])
def test_devices_of_the_smaller_side_bound_a_transfer(prefill, decode, share):
    """Links of a device: the two replicas have as many as the one with fewer devices."""
    pools = {"p": {**PREFILL, "tensor_parallel": prefill}, "d": {**DECODE, "tensor_parallel": decode}}
    together, apart = (of_pools(pools, transfer={"figures": figures}).link for figures in ("per_replica", "per_device"))
    np.testing.assert_allclose(apart.service_s(np.array([100])) * share, together.service_s(np.array([100])))


@pytest.mark.parametrize(("prefill", "decode", "copies"), [(8, 8, 8), (8, 16, 8)])
def test_what_all_ranks_hold_is_sent_to_each_of_them(prefill, decode, copies):
    """Latent vectors are the same on all ranks: each of 8 devices gets all of them, or sends them twice to 16."""
    pools = {"p": {**PREFILL, "tensor_parallel": prefill}, "d": {**DECODE, "tensor_parallel": decode}}
    model = {"model": "deepseek-v3", "hardware": "b200-sxm"}
    together, apart = (
        of_pools(pools, transfer={"figures": figures}, **model).link for figures in ("per_replica", "per_device")
    )
    times = decode // prefill
    np.testing.assert_allclose(apart.service_s(np.array([100])), times * together.service_s(np.array([100])))


def test_groups_take_as_many_of_each_pool():
    pools = {"p": {**PREFILL, "replicas": 4}, "q": {**PREFILL, "replicas": 2}, "d": {**DECODE, "replicas": 6}}
    configuration = of_pools(pools, transfer={"groups": 2})
    prefill, decode = configuration.phases
    assert prefill.replicas.group == (0, 0, 1, 1, 0, 1) and decode.replicas.group == (0, 0, 0, 1, 1, 1)
    assert decode.grouped and not prefill.grouped
    assert configuration.link.group_of(np.array([0, 3, 4, 5])).tolist() == [0, 1, 0, 1]


THREE = {"replicas": 3}
REFUSED = {
    "groups": (
        {"p": {**PREFILL, "replicas": 2}, "d": {**DECODE, **THREE}},
        {"transfer": {"groups": 2}},
        "infeasible: deployment.transfer.groups 2 does not divide the 3 replicas of pool d; every group takes as many",
    ),
    "model": (
        {"a": MIXED},
        {"models": BOTH},
        "infeasible: workload.models.qwen3-8b: no pool serves it; the models of the pools are llama-3.1-8b. Add a pool "
        "with model: qwen3-8b",
    ),
    "model of one side": (
        {"p": PREFILL, "q": {**PREFILL, **QWEN}, "d": DECODE},
        {"models": BOTH},
        "infeasible: workload.models.qwen3-8b: no decode pool serves it",
    ),
    "nobody's model": (
        {"a": MIXED, "b": {**MIXED, **QWEN}},
        {"models": {"llama-3.1-8b": 1}},
        "infeasible: pool b serves qwen3-8b, which no request asks for: workload.models has llama-3.1-8b",
    ),
    "two models": (
        {"a": MIXED, "b": {**MIXED, **QWEN}},
        {},
        "infeasible: pool a has llama-3.1-8b and pool b qwen3-8b, and requests do not say which they ask for; give "
        "both the same model, or shares such as workload.models: {llama-3.1-8b: 0.5, qwen3-8b: 0.5}",
    ),
    "weight": (
        {"a": {**MIXED, "weight": 2}, "b": MIXED},
        {"router": "least_work"},
        "infeasible: pool a has a weight, which router least_work takes no heed of; leave it out or use router "
        "round_robin or random",
    ),
    "heavy": (
        {"a": MIXED, "b": MIXED},
        {"router": {"heavy_light": {"prompt_tokens": 100}}},
        "unsupported: router heavy_light over several pools of one role; use round_robin or random, or one pool",
    ),
    "blocks": (
        {"a": CACHED, "b": {**CACHED, "kv": {**CACHED["kv"], "block_tokens": 32}}},
        {"sessions": {"turns": 3}, "router": "prefix_aware"},
        "unsupported: router prefix_aware over pools with different kv.block_tokens, in which a prompt has different",
    ),
    "blocks on several ranks": (
        {"a": CACHED, "b": {**CACHED, "decode_context_parallel": 2}},
        {"sessions": {"turns": 3}, "router": "prefix_aware", "tensor_parallel": 8, "model": "qwen3-30b-a3b"},
        "unsupported: router prefix_aware over pools with different kv.block_tokens x decode_context_parallel, in",
    ),
    "not all caches": (
        {"a": CACHED, "b": {**CACHED, "kv": {**CACHED["kv"], "prefix_caching": False}}},
        {"sessions": {"turns": 3}, "router": "prefix_aware"},
        "infeasible: pool b: router prefix_aware without a prefix cache; use kv.prefix_caching, and ",
    ),
    "no places for adapters": (
        {"a": {**MIXED, "lora": {"max_loras": 4}}, "b": MIXED},
        {"adapters": {"count": 4}},
        "infeasible: pool b: requests name adapters (workload.adapters), and pool b holds none; use "
        "deployment.pools.b.lora: {max_loras: 4}, or leave out workload.adapters",
    ),
    "more adapters than places": (
        {"a": MIXED, "b": MIXED},
        {"adapters": {"count": 4}, "lora": {"max_loras": 2}, "batching": {"policy": "chunked"}},
        "unsupported: pool a: 4 workload.adapters, more than lora.max_loras 2, with several pools or stages; use one "
        "pool without stages, or as many max_loras",
    ),
    "a session within groups": (
        {"p": {**PREFILL, "replicas": 2}, "d": {**DECODE, "replicas": 2}},
        {"sessions": {"turns": 3}, "router": "session", "transfer": {"groups": 2}},
        "unsupported: router session with transfer.groups; use round_robin or random, or groups: 1",
    ),
    "no sessions": (
        {"a": MIXED, "b": MIXED},
        {"router": "session"},
        "infeasible: pool a: router session without sessions; use workload.sessions.turns, a trace with",
    ),
    "a session's weight": (
        {"a": {**MIXED, "weight": 2}, "b": MIXED},
        {"sessions": {"turns": 3}, "router": "session"},
        "infeasible: pool a has a weight, which router session takes no heed of; leave it out or use router",
    ),
    "host memory": (
        {"p": CACHED | PREFILL, "d": CACHED | DECODE},
        {"sessions": {"turns": 3}, "kv": {"offload_bytes": 1e10, "offload_bandwidth": 1e10}},
        "unsupported: pool p: kv.offload_bytes with role prefill; use role mixed, or leave it out",
    ),
    "memory": (
        {"a": MIXED, "b": {**MIXED, "hardware": "a30"}},
        {"precision": {"weights": "fp32"}},
        "infeasible: pool b: does not fit",
    ),
}  # fmt: skip


def test_caches_of_several_pools_run_vectorised():
    kept = {"prefix_caching": True}
    turns, answered = ({"turns": 3, "think_from": since} for since in ("arrival", "answer"))
    both = {"p": PREFILL, "d": DECODE}
    first = {"p": {**PREFILL, "kv": kept}, "d": DECODE}
    ranks = {"model": "qwen3-30b-a3b", "data_parallel": 2, "expert_parallel": 2}
    drafts = {"speculative": {"method": "ngram", "tokens": 3, "acceptance": 0.5}}
    coupled = "sessions that think from the answer over several pools with kv.prefix_caching and "
    for pools, sessions, lacking in (
        (first, turns, ()),
        ({"a": CACHED, "b": CACHED}, turns, ()),
        ({"a": MIXED, "b": MIXED}, answered, ()),
        ({"a": CACHED, "b": MIXED}, answered, ()),
        ({name: {**pool, "kv": kept} for name, pool in both.items()}, turns, ()),
        ({name: {**pool, "kv": kept} for name, pool in both.items()}, answered, ()),
        (
            {"p": PREFILL, "d": {**DECODE, **drafts, "kv": kept}},
            turns,
            ("kv.prefix_caching and speculative on a decode side",),
        ),
        ({"a": {**CACHED, **ranks}, "b": {**MIXED, "model": ranks["model"]}}, answered, (f"{coupled}data_parallel",)),
        ({"a": {**CACHED, **drafts}, "b": MIXED}, answered, (f"{coupled}speculative",)),
        ({"a": CACHED, "b": {**MIXED, "pipeline_parallel": 2}}, answered, (f"{coupled}pipeline_parallel",)),
    ):
        configuration = of_pools(pools, sessions=sessions)
        assert (configuration.status, configuration.lacking) == (OK, lacking)
    # Nobody has them who does not ask for them.
    assert not any(station.deployment.kv.prefix_caching for station in of_pools(both, sessions=turns).stations)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_says_why(case):
    pools, more, message = REFUSED[case]
    assert of_pools(pools, **more).status.startswith(message)


def test_a_trace_says_which_model_a_request_asks_for(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,model\n" + "10,2,qwen3-8b\n20,3,llama-3.1-8b\n" * 100)
    lengths = {"trace": str(path)}
    configuration = of_pools({"l": {**MIXED, **LLAMA}, "q": {**MIXED, **QWEN}}, lengths=lengths)
    assert configuration.status == OK and [one.extremes.prompt for one in configuration.stations] == [20, 10]
    assert of_pools({"l": {**MIXED, **LLAMA}}, lengths=lengths).status == (
        "infeasible: model qwen3-8b in the column model of the trace: no pool serves it; the models of the pools are "
        "llama-3.1-8b. Add a pool with model: qwen3-8b"
    )
    with pytest.raises(InputError, match=r"workload\.models: .*t\.csv has a column model, which says it already"):
        load({"l": {**MIXED, **LLAMA}}, BOTH, lengths)


def test_lanes_hold_what_the_draws_of_their_own_pool_bring():
    """Of 1,448 requests the decode pool gives 514 to one of three replicas, where a first pool would give 511."""
    pools = {"p": {**PREFILL, "replicas": 4}, "d": {**DECODE, **THREE}}
    workload = {"workload.requests": 1448, "workload.seeds": [4]}
    overrides = [f"{key}={value}" for key, value in workload.items()]
    whole = plan(load_scenario(_tree(pools, None, None, router={"decode": "random"}), overrides))
    assert [group.lane_requests for group in whole.groups[0].stations] == [1024, 1024]


def test_sessions_may_be_any_replicas_before_groups():
    """Where the prefill side goes by sessions, any replica of a grouped decode side may get all requests."""
    pools = {"p": {**PREFILL, "replicas": 4}, "d": {**DECODE, "replicas": 2}}
    tree = _tree(pools, None, None, router={"prefill": "session"}, transfer={"groups": 2})
    tree["workload"]["sessions"] = {"turns": {"mean": 3}, "think_from": "arrival"}
    (configuration,) = plan(load_scenario(tree)).configurations
    assert configuration.status == OK and [station.most_jobs for station in configuration.stations] == [200, 200]
