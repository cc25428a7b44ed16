"""LoRA adapters: what they take of memory and time, how many a batch names, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from evaluator.catalog import load_calibration, load_model
from evaluator.catalog.model import ALL_MODULES, ATTENTION, FEED_FORWARD, Adapters
from evaluator.cost import breakdown, decode_batch, fold, iteration_time, operators, prefill_batch, weight_bytes
from evaluator.cost.adapters import adapters_problem, naming
from evaluator.cost.iteration import AdapterGroups, adapters_named
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.weights import resident_bytes
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.estimation import iteration_time as batch_times
from evaluator.scenario.adapters import NamedAdapters
from tests.cost.fixtures import H100, LLAMA_8B, PERFECT, QWEN3_235B

ONE, BF16 = Parallel(), Precision()


def with_adapters(count=8, zipf=0.0, rank=16, resident=None, modules=ALL_MODULES, model=LLAMA_8B):
    return replace(model, adapters=Adapters(rank, resident or count, modules, NamedAdapters(count, zipf).popularity))


def named(adapters: NamedAdapters, sequences, places=np.inf):
    counts, chances = np.array(adapters.popularity).T
    most = np.full(len(counts), places)
    return adapters_named(AdapterGroups(counts, np.log(np.maximum(1e-300, 1.0 - chances)), most), sequences)


def test_an_adapter_of_llama_3_1_8b_has_as_many_parameters_as_peft_says():
    """PEFT prints 41,943,040 trainable parameters for rank 16 on all linear layers of Llama-3.1-8B."""
    model = with_adapters(1)
    assert resident_bytes(model, BF16, ONE) == 2 * 41_943_040
    assert resident_bytes(replace(model, adapters=Adapters(32, 3)), BF16, ONE) == 3 * 2 * 2 * 41_943_040
    parts = [resident_bytes(with_adapters(1, modules=part), BF16, ONE) for part in (ATTENTION, FEED_FORWARD)]
    assert sum(parts) == 2 * 41_943_040 and parts[0] == 2 * 32 * 16 * (3 * 4096 + 6144 + 4096 + 4096)
    assert weight_bytes(model, BF16, ONE) == weight_bytes(LLAMA_8B, BF16, ONE) + 2 * 41_943_040


def test_devices_share_one_half_of_each_adapter():
    """vLLM copies the half that faces the whole side of a product (``fully_sharded_loras`` off)."""
    model, four = with_adapters(1), Parallel(4)
    whole, part = resident_bytes(model, BF16, ONE), resident_bytes(model, BF16, four)
    # Whole: 5 matrices of hidden x r, and 2 of r x hidden. Divided: r x (qkv, gate and up), (out, down) x r.
    copied, divided = 2 * 32 * 16 * 7 * 4096, 2 * 32 * 16 * (6144 + 2 * 14336 + 4096 + 14336)
    assert (whole, part) == (copied + divided, copied + divided / 4)
    ranks = [resident_bytes(model, BF16, Parallel(1, 4), rank) for rank in range(4)]
    assert sum(ranks) == pytest.approx(whole)


@pytest.mark.parametrize("sequences", [1, 3, 40, 1000])
@pytest.mark.parametrize(("count", "zipf"), [(1, 0.0), (7, 1.0), (200, 0.0), (200, 1.0), (5000, 1.5)])
def test_expected_adapters_are_those_of_independent_draws(count, zipf, sequences):
    """Exact for groups of one popularity, within 1 % where a thousand are put into twenty groups; and as drawn."""
    adapters = NamedAdapters(count, zipf)
    assert sum(count * chance for count, chance in adapters.popularity) == pytest.approx(1.0)
    exact = -np.expm1(sequences * np.log(np.maximum(1e-300, 1.0 - adapters.chances))).sum()
    assert named(adapters, float(sequences)) == pytest.approx(
        exact, rel=1e-2 if len(adapters.popularity) > 7 else 1e-12
    )
    rng = np.random.default_rng(0)
    drawn = [len(np.unique(adapters.number_of(rng.random(sequences)))) for _ in range(300)]
    error = np.std(drawn) / np.sqrt(len(drawn))
    assert abs(np.mean(drawn) - exact) < 4 * error + 1e-9
    assert named(adapters, float(sequences)) <= min(count, sequences) * (1 + 1e-12)
    assert named(adapters, 0.0) == 0.0


@pytest.mark.parametrize("zipf", [0.0, 1.0])
def test_a_batch_names_no_more_adapters_than_there_are_places(zipf):
    assert named(NamedAdapters(1000, zipf), 256.0, 2.0) == 2.0
    assert named(NamedAdapters(1000, zipf), 1.0, 2.0) == pytest.approx(1.0)
    batch, held = {"decodes": 256, "context_tokens": 500}, {"max_loras": 2}
    times = [batch_times("llama-3.1-8b", "h100-sxm", **batch, lora=held, adapters={"count": n, "zipf": zipf})
             for n in (2, 1000)]  # fmt: skip
    assert times[1] == pytest.approx(times[0], rel=1e-2) and times[1] >= times[0]


def test_time_of_decodes_is_that_of_the_adapters_that_they_name():
    """At the peaks memory binds: bytes of the matrices of as many adapters, and of tokens' states, over bandwidth."""
    model = with_adapters(50)
    batch = decode_batch(20.0, 1000.0, None)
    more = [float(iteration_time(fold(operators(each, BF16, ONE), H100, PERFECT), batch)) for each in (model, LLAMA_8B)]
    each, expected = 2 * 41_943_040, 50 * (1 - (1 - 1 / 50) ** 20)
    # Each product reads its inputs, and reads and writes its outputs; between, r values per slice in fp32, both ways.
    sides = 2 * (4096 + 2 * 6144 + 4096 + 2 * 4096 + 4096 + 2 * 28672 + 14336 + 2 * 4096) + 8 * 16 * 7
    read = each * expected + 20 * 32 * sides
    assert more[0] - more[1] == pytest.approx(read / H100.memory_bandwidth, rel=1e-9)


def test_prompts_and_decodes_that_name_one_adapter_read_it_once():
    cost = fold(operators(with_adapters(1), BF16, ONE), H100, PERFECT)
    plain = fold(operators(LLAMA_8B, BF16, ONE), H100, PERFECT)
    batches = [decode_batch(sequences, 9.0, None) for sequences in (1.0, 2.0)]
    few, many = (float(iteration_time(cost, batch) - iteration_time(plain, batch)) for batch in batches)
    of_a_token = many - few
    assert few - of_a_token == pytest.approx(2 * 41_943_040 / H100.memory_bandwidth, rel=1e-6)
    long = prefill_batch(1.0, 4096.0, None)
    compute = 2 * 41_943_040 * 4096 / H100.peak_flops["bf16"]
    assert float(iteration_time(cost, long) - iteration_time(plain, long)) > compute


def test_a_batch_whose_adapters_are_known_takes_the_time_of_so_many():
    cost = fold(operators(with_adapters(50), BF16, ONE), H100, PERFECT)
    batch = decode_batch(20.0, 1000.0, None)
    times = [float(iteration_time(naming(cost, float(n)), batch)) for n in (0, 1, 7, 20)]
    slope = 2 * 41_943_040 / H100.memory_bandwidth
    assert np.diff(times) == pytest.approx([slope, 6 * slope, 13 * slope], rel=1e-9)
    assert times[0] < float(iteration_time(cost, batch)) < times[-1]


def test_designs_without_adapters_are_the_same_program():
    """Rows that nobody has are no operators: as many equations as with places that nobody names."""

    def equations(model):
        cost = fold(operators(model, BF16, ONE), H100, PERFECT)
        batch = decode_batch(20.0, 1000.0, None)
        return len(jax.make_jaxpr(iteration_time)(cost, batch).eqns)

    unnamed = replace(LLAMA_8B, adapters=Adapters(16, 8))
    assert operators(unnamed, BF16, ONE) == operators(LLAMA_8B, BF16, ONE)
    assert equations(unnamed) == equations(LLAMA_8B) < equations(with_adapters(8))


def test_the_breakdown_adds_up_and_names_them():
    model, calibration = with_adapters(50, 1.0), load_calibration("h100-sxm-vllm", "h100-sxm")
    batch = decode_batch(20.0, 1000.0, None)
    parts = breakdown(operators(model, BF16, ONE), H100, calibration, batch)
    (adapters,) = [part for part in parts if part.name == "adapters"]
    assert adapters.bound in ("memory", "overhead") and adapters.bytes > 2 * 41_943_040 * 10
    whole = iteration_time(fold(operators(model, BF16, ONE), H100, calibration), batch)
    assert sum(part.time_s for part in parts) == pytest.approx(float(whole), rel=1e-9)


def test_what_is_not_known_is_refused():
    ideal = load_calibration("datasheet", "h100-sxm")
    assert adapters_problem(with_adapters(), ideal) is None
    experts = replace(with_adapters(), layers=QWEN3_235B.layers, name="qwen3")
    assert "adapters of experts.router are not known" in str(adapters_problem(experts, ideal))
    assert "use lora.modules: attention, or another model" in str(adapters_problem(experts, ideal))
    attention = replace(experts, adapters=replace(experts.adapters, modules=ATTENTION))
    assert adapters_problem(attention, ideal) is None
    latent = replace(load_model("deepseek-v3"), adapters=attention.adapters)
    assert "adapters of attention.down" in str(adapters_problem(latent, ideal))
    fitted = replace(ideal, form="table", name="mine")
    assert "calibration mine, whose iterations were measured without" in str(adapters_problem(with_adapters(), fitted))


def test_estimate_takes_them():
    def of(**more):
        return estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=1000, output_tokens=100, batch=32, **more)

    plain, held = of(), of(lora={"max_loras": 100})
    asked = of(lora={"max_loras": 100}, adapters={"count": 100, "zipf": 1})
    assert held.memory.weight_bytes - plain.memory.weight_bytes == 100 * 2 * 41_943_040
    assert held.kv_capacity_tokens < plain.kv_capacity_tokens and held.tpot_s == plain.tpot_s < asked.tpot_s
    with pytest.raises(InputError, match=r"estimate: adapters: needs lora, .* such as \{max_loras: 8\}"):
        of(adapters={"count": 3})
    alone, three = (
        batch_times("llama-3.1-8b", "h100-sxm", decodes=[1, 3], context_tokens=100, lora={"max_loras": n},
                    adapters={"count": n})
        for n in (1, 3)
    )  # fmt: skip
    assert three[0] == pytest.approx(alone[0]) and three[1] > alone[1]
