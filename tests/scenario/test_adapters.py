"""``deployment.lora`` and ``workload.adapters`` of files: what is read, refused, and computed by which simulator."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evaluator.arguments import COMMAND_LINES, StatedPool
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.keys import written
from evaluator.plan import plan
from evaluator.scenario import load_scenario, with_engine_defaults
from tests.scenario.build import scenario
from tests.simulation.engines import outcomes

NAMED, HELD = "workload.adapters={count: 40, zipf: 1}", "deployment.lora={max_loras: 40}"
CHUNKED = "deployment.batching.policy=chunked"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("deployment.lora={}", r"deployment\.lora\.max_loras: is required"),
        ("deployment.lora={max_loras: 0}", r"lora\.max_loras: must be an integer from 1"),
        ("deployment.lora={max_loras: 1, rank: 0}", r"lora\.rank: must be an integer from 1 to 4096"),
        ("deployment.lora={max_loras: 1, modules: mlp}", r"lora\.modules: .*all, attention.* feed_forward"),
        ("deployment.lora={max_loras: 1, max_cpu_loras: 2}", r"lora\.max_cpu_loras: unknown key"),
        ("deployment.lora={max_loras: 1, load_bandwidth: 20GB}", r"lora\.load_bandwidth: .*byte/s"),
        ("workload.adapters={zipf: 1}", r"workload\.adapters\.count: is required"),
        ("workload.adapters={count: 2, zipf: -1}", r"workload\.adapters\.zipf: must be at least 0"),
    ],
)
def test_bad_keys_are_refused(override, message):
    with pytest.raises(InputError, match=message):
        scenario(override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([NAMED], "infeasible: requests name adapters .* use lora: {max_loras: 8}"),
        ([NAMED, HELD, "deployment.model=deepseek-v3", "deployment.tensor_parallel=8", "deployment.hardware=b200-sxm"],
         "unsupported: lora on deepseek-v3: adapters of attention.down"),
        ([NAMED, HELD, "workload.sessions={turns: 3, think_s: 1s}", "deployment.kv.prefix_caching=true"],
         "unsupported: workload.adapters with kv.prefix_caching; use prefix_caching: false"),
        ([NAMED, "deployment.lora={max_loras: 3}", "deployment.batching.policy=continuous"],
         "unsupported: 40 workload.adapters, more than lora.max_loras 3, with policy continuous; use"),
        ([NAMED, "deployment.lora={max_loras: 3}", CHUNKED, "deployment.pipeline_parallel=2"],
         "with pipeline_parallel; use tensor_parallel, or as many max_loras"),
        (["deployment.lora={max_loras: 2000}"],
         r"weights per device \(167\.8 GB of places for adapters\) exceed .* remedy: lora\.max_loras <= \d+ or lora"),
        ([NAMED, "deployment.lora={max_loras: 3}", CHUNKED, "deployment.role=prefill"],
         "with role prefill; use role mixed, or as many max_loras"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_what_to_do(overrides, message):
    (configuration,) = plan(scenario(*overrides)).configurations
    assert re.search(message, configuration.status), configuration.status


def test_the_remedy_of_too_many_places_is_the_most_that_fit():
    def status(held):
        return plan(scenario(f"deployment.lora={held}")).configurations[0].status

    for held, key in (("{max_loras: 1000000, rank: 1}", "lora.max_loras"), ("{max_loras: 8, rank: 4096}", "lora.rank")):
        most = int(re.search(rf"{key} <= (\d+)", status(held)).group(1))
        name = key.removeprefix("lora.")
        fits, exceeds = (re.sub(rf"{name}: \d+", f"{name}: {count}", held) for count in (most, most + 1))
        # One more leaves no room for a block; at the most there is one, and the next reason is another.
        assert "does not fit" not in status(fits) and "does not fit" in status(exceeds)
    # No number of places helps where the model alone does not fit.
    large = plan(scenario("deployment.lora={max_loras: 2}", "deployment.model=llama-3.1-70b")).configurations[0].status
    assert "GB of places for adapters" in large and "lora.max_loras <=" not in large


@pytest.mark.parametrize("counts", [(None, 40), (40, None), (2, 40)])
def test_a_sweep_over_adapters_has_those_of_each_point(counts):
    """The same as each scenario by itself, in either order: points share what was checked of a deployment."""
    values = [None if count is None else {"count": count} for count in counts]
    swept = plan(scenario("deployment.lora={max_loras: 3}", CHUNKED, workload__adapters=values)).configurations
    for configuration, count in zip(swept, counts, strict=True):
        popularity = configuration.stations[0].design.model.adapters.popularity
        assert sum(each for each, _ in popularity) == (count or 0)
        assert bool(configuration.lacking) == (count == 40)


def test_a_pool_for_stages_holds_no_adapters():
    pools = "deployment.pools={llm: {role: mixed}, vision: {role: stage, hardware: l40s, lora: {max_loras: 4}}}"
    with pytest.raises(
        InputError, match=r"pools\.vision\.lora: is for pools that answer, .* leave it out of a stage's"
    ):
        scenario(pools)


@pytest.mark.parametrize(
    ("keys", "path"), [({"lora": 4}, "lora"), ({"lora": {"max_loras": 4}, "adapters": 3}, "adapters")]
)
def test_what_is_no_section_is_refused_in_python(keys, path):
    with pytest.raises(InputError, match=rf"estimate: {path}: "):
        estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=10, output_tokens=10, **keys)


def test_more_adapters_than_places_are_left_to_the_reference():
    (bound,) = plan(scenario(NAMED, "deployment.lora={max_loras: 3}", CHUNKED)).configurations
    assert bound.lacking == ("workload.adapters beyond lora.max_loras",) and bound.simulator == "token"
    (free,) = plan(scenario(NAMED, HELD, CHUNKED)).configurations
    assert free.lacking == ()


def test_both_engines_agree_where_every_adapter_has_a_place():
    fast, exact = (outcomes(simulator, NAMED, HELD, CHUNKED) for simulator in ("iteration", "token"))
    plain = outcomes("token", CHUNKED)
    for name in ("scheduled_s", "first_token_s", "last_token_s"):
        both = [getattr(each.times, name) for each in (fast, exact)]
        assert both[0] == pytest.approx(both[1], rel=1e-9)
    assert np.all(exact.times.last_token_s > plain.times.last_token_s - 1e-9)


def test_places_that_bind_make_requests_wait_and_loads_take_time():
    """With 39 of 40 places hardly anybody waits: times by the adapters that each batch names are those expected."""

    def mean(places, more=""):
        times = outcomes("token", NAMED, f"deployment.lora={{max_loras: {places}{more}}}", CHUNKED).times
        waits = times.scheduled_s - times.arrival_s
        return np.mean(waits), np.mean(times.last_token_s - times.first_token_s)

    (expected_wait, expected), (wait, exact) = mean(40), mean(39)
    # The expected number of adapters stands for the number of each batch: off by less than a percent here.
    assert exact == pytest.approx(expected, rel=0.01)
    few = mean(2)
    assert few[0] > 10 * wait > 0 and expected_wait == pytest.approx(wait, rel=0.2)
    assert mean(2, ", load_bandwidth: 1GB/s")[0] > few[0]


def test_sessions_keep_their_adapter():
    sessions = ["workload.sessions={turns: 3, think_s: 1s}", "deployment.kv.prefix_caching=false", CHUNKED]
    (one,) = plan(scenario(NAMED, "deployment.lora={max_loras: 3}", *sessions)).configurations
    assert one.status == "ok"


def test_vllm_is_told_of_them_and_its_command_line_is_read():
    line = COMMAND_LINES["vllm"]
    tree = {"lora": {"max_loras": 6, "rank": 24, "modules": "attention", "load_bandwidth": None}}
    keys = {**_stated(), **tree}
    flags = line.flags(StatedPool(keys, "meta-llama/Llama-3.1-8B"))
    assert flags["--enable-lora"] is True and flags["--max-loras"] == 6 and flags["--max-lora-rank"] == 32
    assert flags["--lora-target-modules"] == ["qkv_proj", "o_proj"]
    read, ignored = line.keys(flags)
    assert read["lora"] == {"max_loras": 6, "rank": 32, "modules": "attention"} and not set(ignored) & set(flags)
    assert line.keys({"--enable-lora": True})[0]["lora"] == {"max_loras": 1, "rank": 16, "modules": "all"}
    assert "lora" not in line.keys({"--max-loras": 4})[0]


def _stated():
    lengths = {"source": "fixed", "prompt_tokens": 100, "output_tokens": 10}
    workload = {"arrivals": {"process": "poisson", "rate_rps": 1}, "lengths": lengths}
    found = load_scenario({"workload": workload, "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"}})
    return written(with_engine_defaults(found.deployment))
