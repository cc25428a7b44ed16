"""deployment.engine: the defaults of its scheduler, which explicit keys win over, in one pool and in several."""

from typing import Any

import pytest

from evaluator.cost.activations import LOGIT_BYTES
from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.replica import token_budget
from evaluator.scenario import expand, load_scenario, pools_of, with_engine_defaults


def tree(sweep=None, **deployment):
    return {
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 4},
            "lengths": {"source": "fixed", "prompt_tokens": 9000, "output_tokens": 10},
            "requests": 20,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **deployment},
        "sweep": sweep,
    }


def limits(**deployment):
    found = with_engine_defaults(load_scenario(tree(**deployment)).deployment)
    return (
        found.batching.policy, found.batching.max_num_seqs, token_budget(found, 9000), found.kv.memory_fraction,
        found.kv.block_tokens,
    )  # fmt: skip


def test_every_engine_has_defaults_of_its_own():
    assert limits() == limits(engine="vllm") == ("chunked", 1024, 8192, 0.92, 16)
    assert limits(engine="trtllm") == ("mixed", 2048, 9000 + 2048, 0.9, 32)
    assert limits(engine="sglang") == ("token_ratio", 2048, 8192, 0.836, 1)
    assert limits(engine="sglang", hardware="b200-sxm")[2:4] == (16384, 0.858)


def test_explicit_keys_win():
    batching = {"policy": "chunked", "max_num_seqs": 64, "max_num_batched_tokens": 512}
    assert limits(engine="trtllm", batching=batching) == ("chunked", 64, 512, 0.9, 32)
    kv = {"memory_fraction": 0.5, "block_tokens": 16}
    assert limits(engine="sglang", kv=kv)[3:] == (0.5, 16)
    assert limits(engine="trtllm", batching={"policy": "chunked"})[:3] == ("chunked", 2048, 8192)


def test_a_budget_that_is_said_bounds_the_sequences_that_are_not():
    assert limits(batching={"max_num_batched_tokens": 512})[1:3] == (512, 512)
    drafts = {"method": "ngram", "tokens": 3, "acceptance": 0.5}
    assert limits(batching={"max_num_batched_tokens": 512}, speculative=drafts)[1:3] == (128, 512)
    swept = plan(load_scenario(tree({"deployment.batching.max_num_batched_tokens": [256, 2048]}))).configurations
    assert [configuration.stations[0].deployment.batching.max_num_seqs for configuration in swept] == [256, 1024]
    assert [configuration.status for configuration in swept] == ["ok"] * 2


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match=r"deployment\.engine: .*'tgi'.*vllm, trtllm, sglang"):
        load_scenario(tree(engine="tgi"))


def test_engines_are_an_axis():
    configurations = plan(load_scenario(tree({"deployment.engine": ["vllm", "trtllm", "sglang"]}))).configurations
    stations = [configuration.stations[0] for configuration in configurations]
    assert [station.deployment.batching.policy for station in stations] == ["chunked", "mixed", "token_ratio"]
    assert [station.design.calibration.name for station in stations] == [
        "h100-sxm-vllm.serving", "h100-sxm-trtllm, served as h100-sxm-vllm.serving",
        "h100-sxm-sglang, served as h100-sxm-vllm.serving",
    ]  # fmt: skip
    assert [configuration.status for configuration in configurations] == ["ok"] * 3
    used = [station.design.memory.usable_bytes for station in stations]
    assert len(set(used)) == 3


def test_memory_is_counted_as_the_engine_counts_it():
    configurations = plan(load_scenario(tree({"deployment.engine": ["vllm", "trtllm", "sglang"]}))).configurations
    device, free, static = (configuration.stations[0].design for configuration in configurations)
    whole = device.hardware.memory_bytes

    def kv(design):
        return design.memory.kv.capacity_units * design.memory.kv.unit_bytes

    def left(design):
        return whole - design.memory.weight_bytes - design.memory.activation_bytes

    assert kv(device) == pytest.approx(left(device) - 0.08 * whole, rel=1e-3)
    assert kv(free) == pytest.approx(0.9 * left(free), rel=1e-3)
    assert kv(static) == pytest.approx(0.836 * whole - static.memory.weight_bytes, rel=1e-3)
    sampling = 1024 * device.model.vocabulary * LOGIT_BYTES  # 5.25 GB, which vLLM alone finds in the run it measures
    assert device.memory.activation_bytes > sampling > free.memory.activation_bytes
    assert sampling > static.memory.activation_bytes


def test_pools_have_engines_of_their_own():
    pools = {
        "first": {"role": "prefill", "engine": "sglang"},
        "second": {"role": "decode", "batching": {"max_num_seqs": 32}},
    }
    scenario = load_scenario(tree(engine="trtllm", pools=pools))
    (_, first), (_, second) = pools_of(scenario.deployment)
    assert (first.engine, with_engine_defaults(first).batching.policy) == ("sglang", "continuous")
    assert (second.engine, with_engine_defaults(second).batching.policy) == ("trtllm", "mixed")
    sequences = [with_engine_defaults(pool).batching.max_num_seqs for pool in (first, second)]
    assert sequences == [2048, 32]
    (configuration,) = plan(scenario).configurations
    names = [station.design.calibration.name for station in configuration.stations]
    assert [name.split(",")[0] for name in names] == ["h100-sxm-sglang", "h100-sxm-trtllm"]


def test_conditions_see_the_defaults_of_the_engine():
    axes = {"deployment.tensor_parallel": [1, 2, 4], "where": "max_num_seqs / tensor_parallel >= 512"}
    points = expand(load_scenario(tree(axes, engine="trtllm"))).points
    assert [point[1].tensor_parallel for point in points] == [1, 2, 4]
    with pytest.raises(InputError, match="leaves none"):
        expand(load_scenario(tree(axes, engine="vllm", hardware="l40s")))


@pytest.mark.parametrize(
    ("axis", "what", "expected"),
    [
        ({"deployment.engine": ["vllm", "trtllm"]}, {}, [1024, 2048]),
        ({"deployment.hardware": ["a100-sxm", "h100-sxm"]}, {}, [256, 1024]),
        ({"deployment.hardware.memory_bytes": ["40GB", "80GB"]}, {"hardware": {"like": "h100-sxm"}}, [256, 1024]),
        ({"deployment.batching.max_num_batched_tokens": [128, 2048]}, {}, [128, 1024]),
        ({"deployment.tensor_parallel": [1, 2]}, {"hardware": "cpu-grace"}, [128, 256]),
        (
            {"deployment.speculative.tokens": [1, 3]},
            {
                "speculative": {"method": "ngram", "acceptance": 0.5, "tokens": 1},
                "batching": {"max_num_batched_tokens": 512},
            },
            [256, 128],
        ),
        (
            {"limits": {"zip": [{"deployment.batching.max_num_seqs": 64}, {"deployment.hardware": "l40s"}]}},
            {},
            [64, 256],
        ),
    ],
)
def test_conditions_see_defaults_that_differ_over_the_sweep(axis, what, expected):
    def points(where: str, **more: Any) -> list[int]:
        found = expand(load_scenario(tree(axis | {"where": where}, **(what | more)))).points
        return [with_engine_defaults(point[1]).batching.max_num_seqs for point in found]

    assert points("max_num_seqs > 1") == expected
    for count in expected:
        assert points(f"max_num_seqs == {count}") == [count]
    with pytest.raises(InputError, match="leaves none of the 2 points"):
        points("max_num_seqs == 77")


def test_conditions_on_what_is_said_are_not_on_defaults():
    axis = {"deployment.engine": ["vllm", "trtllm"], "where": "max_num_seqs == 64"}
    assert len(expand(load_scenario(tree(axis, batching={"max_num_seqs": 64}))).points) == 2


def test_a_cache_of_less_than_a_block_is_refused():
    assert load_scenario(tree(kv={"capacity_tokens": 20})).deployment.kv.capacity_tokens == 20
    with pytest.raises(InputError, match=r"kv\.capacity_tokens: 20 tokens are less than a block of 32"):
        load_scenario(tree(engine="trtllm", kv={"capacity_tokens": 20}))


# --- engine_version


def test_a_release_has_its_own_defaults():
    assert limits(engine_version="0.15") == ("chunked", 1024, 8192, 0.9, 16)
    assert limits(hardware="b200-sxm")[2] == 16384 == 2 * limits(hardware="b200-sxm", engine_version="0.27")[2]
    assert limits(engine_version="0.15", kv={"memory_fraction": 0.5})[3] == 0.5
    axis = {"deployment.engine_version": ["0.15", "0.20.1"]}
    swept = plan(load_scenario(tree(axis))).configurations
    assert [each.stations[0].deployment.kv.memory_fraction for each in swept] == [0.9, 0.92]
    assert len(expand(load_scenario(tree(axis | {"where": "memory_fraction > 0.91"}))).points) == 1


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"engine_version": "0.7.3"}, r"deployment\.engine_version: vLLM 0\.7\.3 is not .* knows 0\.8 to 0\.33"),
        ({"engine_version": 0.2}, r"deployment\.engine_version: .*write 0\.20 in quotes"),
        ({"engine_version": True}, r"engine_version: expected a release such as '0\.15', got True"),
        ({"engine_version": "0.15", "engine": "sglang"}, r"engine_version: SGLang 0\.15 is not .* knows 0\.5 to 0\.5"),
        (
            {"async_scheduling": True, "batching": {"planning": "queued"}},
            r"deployment\.async_scheduling: is true beside batching\.planning: queued; say the one or the other",
        ),
        (
            {"pools": {"a": {"role": "prefill"}, "b": {"role": "decode", "engine_version": "0.99"}}},
            r"deployment\.pools\.b\.engine_version: vLLM 0\.99",
        ),
    ],
)
def test_what_no_engine_has_is_refused(deployment, message):
    with pytest.raises(InputError, match=message):
        load_scenario(tree(**deployment))


def test_an_axis_of_engines_beside_a_release_of_one_is_refused():
    with pytest.raises(InputError, match=r"SGLang 0\.15 is not in the table"):
        expand(load_scenario(tree({"deployment.engine": ["vllm", "sglang"]}, engine_version="0.15")))


def test_a_pool_of_another_engine_does_not_take_the_release_beside_it():
    pools = {"first": {"role": "prefill", "engine": "sglang"}, "second": {"role": "decode"}}
    scenario = load_scenario(tree(engine_version="0.15", pools=pools))
    (_, first), (_, second) = pools_of(scenario.deployment)
    assert (first.engine_version, second.engine_version) == (None, "0.15")


def test_async_scheduling_says_what_planning_does():
    for said, planning in ((None, "at_once"), (False, "at_once"), (True, "asynchronous")):
        deployment = load_scenario(tree(async_scheduling=said)).deployment
        assert with_engine_defaults(deployment).batching.planning == planning
    stated = load_scenario(tree(async_scheduling=True, batching={"planning": "asynchronous"})).deployment
    assert with_engine_defaults(stated).batching.planning == "asynchronous"
    # SGLang's overlap is simulated of its own order, which has no pipeline.
    for ranks, planning in ((1, "asynchronous"), (2, "at_once")):
        sglang = load_scenario(tree(engine="sglang", async_scheduling=True, pipeline_parallel=ranks)).deployment
        assert with_engine_defaults(sglang).batching.planning == planning


# --- KV and prefix caches as the engine has them


def kv_of(workload=None, simulator="auto", pipeline=None, **deployment):
    """The KV of the first pool, as planned."""
    given = tree(**deployment)
    given["workload"] |= {"lengths": {"source": "fixed", "prompt_tokens": 900, "output_tokens": 10}} | (workload or {})
    given["pipeline"] = pipeline
    return plan(load_scenario(given), simulator=simulator).configurations[0].stations[0].deployment.kv


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ({}, ("on_demand", True)),
        ({"engine_version": "0.15"}, ("on_demand", False)),
        ({"kv": {"admission": "reserve"}}, ("reserve", True)),
        ({"kv": {"full_prompt": False}}, ("on_demand", False)),
        ({"engine": "sglang"}, ("on_demand", False)),
        ({"engine": "trtllm"}, ("reserve", False)),
        ({"batching": {"policy": "continuous"}}, ("on_demand", True)),
        # whole prompts under a limit that was chosen for prompts alone, and a policy that knows no other way
        ({"batching": {"policy": "continuous", "max_num_batched_tokens": 4096}}, ("reserve", True)),
        ({"batching": {"policy": "static"}}, ("reserve", True)),
        ({"engine": "sglang", "batching": {"max_num_batched_tokens": 4096}}, ("on_demand", False)),
        ({"engine": "trtllm", "batching": {"policy": "chunked"}}, ("reserve", False)),
        ({"engine": "sglang", "batching": {"policy": "chunked"}}, ("on_demand", False)),
    ],
)
def test_kv_is_admitted_as_the_engine_does_it(deployment, expected):
    found = kv_of(**deployment)
    assert (found.admission, found.full_prompt) == expected


@pytest.mark.parametrize(
    ("deployment", "nearest"),
    [
        ({}, "token_ratio"),
        ({"replicas": 4, "tensor_parallel": 2}, "token_ratio"),
        ({"batching": {"enable_mixed_chunk": True}}, "token_ratio"),
        ({"batching": {"packing": "longest_prefix"}}, "token_ratio"),
        ({"pipeline_parallel": 2}, "continuous"),
        ({"pipeline_parallel": 2, "batching": {"enable_mixed_chunk": True}}, "chunked"),
        ({"model": "gpt-oss-20b"}, "continuous"),
        ({"model": "mixtral-8x7b", "data_parallel": 2}, "continuous"),
        ({"kv": {"admission": "reserve"}}, "continuous"),
        ({"kv": {"prefix_caching": True}}, "continuous"),  # nothing is known of the blocks
        ({"role": "prefill"}, "continuous"),
        ({"speculative": {"method": "ngram", "tokens": 3, "acceptance": 0.5}}, "continuous"),
    ],
)
def test_sglang_has_its_own_order_where_that_goes_with_the_rest(deployment, nearest):
    (configuration,) = plan(load_scenario(tree(engine="sglang", **deployment))).configurations
    assert configuration.stations[0].deployment.batching.policy == nearest
    assert not configuration.status.startswith("unsupported: policy token_ratio")


def test_kv_is_reserved_where_on_demand_is_not_computed():
    assert kv_of(workload={"reasoning": {"branches": 4}}).admission == "reserve"
    sides = {"a": {"role": "prefill", "batching": {"policy": "continuous"}}, "b": {"role": "decode"}}
    assert kv_of(pools=sides, simulator="request").admission == "reserve"


TURNS = {"sessions": {"turns": 3, "think_s": 1}}


@pytest.mark.parametrize(
    ("workload", "deployment", "expected"),
    [
        ({}, {}, False),  # nothing is known of the blocks
        (TURNS, {}, True),
        (TURNS, {"engine": "sglang"}, True),
        (TURNS, {"kv": {"prefix_caching": False}}, False),
        (TURNS, {"model": "gpt-oss-20b"}, False),  # some layers keep a window
        (TURNS, {"kv": {"preemption": "swap", "swap_bandwidth": "25GB/s"}}, False),
        (TURNS, {"pools": {"a": {"role": "prefill"}, "b": {"role": "decode"}}}, False),
        (TURNS, {"pools": {"a": {"role": "mixed"}, "b": {"role": "mixed"}}}, False),
        (TURNS, {"batching": {"policy": "lightllm"}, "kv": {"block_tokens": 1}}, False),
        # an approximation, which is to be asked for
        ({"sessions": {"system_prompts": 4, "system_tokens": 500}}, {}, False),
        ({"sessions": {"system_prompts": 4, "system_tokens": 500}}, {"kv": {"prefix_caching": True}}, True),
    ],
)
def test_prefixes_are_cached_as_the_engine_does_it(workload, deployment, expected):
    assert kv_of(workload=workload, **deployment).prefix_caching is expected


def test_traces_with_sessions_or_blocks_are_cached_and_others_not(tmp_path):
    def cached(columns, row):
        path = tmp_path / "trace.csv"
        rows = "".join(f"{number},1024,5{row}\n" for number in range(4))
        path.write_text(f"arrival_s,prompt_tokens,output_tokens{columns}\n{rows}")
        read = {"process": "trace", "file": str(path)}
        return kv_of(workload={"arrivals": read, "lengths": {"trace": str(path)}, "requests": 4}).prefix_caching

    assert not cached("", "")
    assert cached(",session", ",1")
    assert not cached(",cached_tokens,session", ",10,1")
