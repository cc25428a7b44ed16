"""The closed-form estimate of one design."""

import subprocess
import sys
from dataclasses import replace

import pytest

import evaluator
from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.cost import Parallel, fold, iteration_time, operators
from evaluator.cost.batch import decode_batch, prefill_batch
from evaluator.cost.precision import Precision
from evaluator.errors import InputError
from evaluator.estimation import estimate
from evaluator.report.estimate import format_estimate
from tests.cost.fixtures import GPT_OSS_20B, H100, LLAMA_8B, LLAMA_70B, MAMBA, calibration


def estimated(model=LLAMA_8B, **changes):
    given = dict(calibration=calibration(), prompt_tokens=2048, output_tokens=256)
    return estimate(model, H100, **(given | changes))


def test_phases_are_the_iteration_time():
    result = estimated(batch=4)
    parameters = fold(operators(LLAMA_8B, Precision(), Parallel()), H100, calibration())
    assert result.ttft_s == float(iteration_time(parameters, prefill_batch(4.0, 2048, None)))
    middle = float(iteration_time(parameters, decode_batch(4.0, 2048 + 128, None)))
    assert result.decode.time_s == middle
    assert result.tpot_s == pytest.approx(middle, rel=1e-12)  # affine in the context: the mean is the middle
    assert result.e2e_s == pytest.approx(result.ttft_s + 255 * result.tpot_s, rel=1e-12)
    assert result.output_tok_per_s == pytest.approx(4 * 256 / result.e2e_s)


def test_operators_add_up():
    result = estimated(batch=4, tensor_parallel=2)
    for phase in (result.prefill, result.decode):
        assert sum(part.time_s for part in phase.operators) == pytest.approx(phase.time_s, rel=1e-12)
        assert 0 < phase.mfu < 1 and 0 < phase.mbu < 1
    assert result.prefill.mfu > result.decode.mfu
    assert result.decode.mbu > result.prefill.mbu


def test_memory():
    result = estimated(LLAMA_70B, tensor_parallel=4)
    assert result.status == "ok"
    assert result.memory.weight_bytes == pytest.approx(2 * 70.55e9 / 4, rel=1e-3)
    assert result.kv_bytes_per_token == 327_680 / 4
    assert result.max_sequences == int(result.kv_capacity_tokens // (2048 + 256))


def test_too_large_a_model_is_a_status_with_a_remedy():
    result = estimated(LLAMA_70B)
    assert result.status.startswith("does not fit: 141.1 GB of weights")
    assert "tensor_parallel >= 4" in result.status
    assert result.max_sequences == 0 and result.prefill.time_s > 0


def test_too_large_a_batch_is_a_status():
    result = estimated(batch=500, max_num_seqs=256, max_num_batched_tokens=2048)
    assert result.max_sequences == (0.92 * 80e9 - 2 * 8030261248 - result.memory.activation_bytes) // (131072 * 2304)
    assert "holds 182 such sequences at a time, not 500; remedy: a batch <= 182" in result.status


def test_a_batch_beyond_max_num_seqs_is_a_status():
    assert "max_num_seqs lets 4 sequences run at a time, not 8" in estimated(batch=8, max_num_seqs=4).status
    assert "not 8" in estimated(batch=4, pipeline_parallel=2, max_num_seqs=4).status  # two batches are in flight
    assert estimated(batch=4, max_num_seqs=4).status == "ok"


def test_prompts_beyond_the_token_budget_are_told():
    told = "with all 4,096 prompt tokens in one iteration, which max_num_batched_tokens divides"
    assert told in format_estimate(estimated(prompt_tokens=2048, batch=2, max_num_batched_tokens=4095))
    assert "divides" not in format_estimate(estimated(prompt_tokens=2048, batch=2, max_num_batched_tokens=4096))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": 0}, "prompt: must be at least 1, not 0"),
        ({"output_tokens": 0}, "output: must be at least 1"),
        ({"batch": 0}, "batch: must be at least 1"),
        ({"rate_rps": -1.0}, "rate: must be a positive number"),
        ({"rate_rps": float("nan")}, "rate: must be a positive number"),
        ({"memory_fraction": 1.5}, "memory_fraction: must be above 0 and at most 1, not 1.5"),
        ({"memory_fraction": float("nan")}, "memory_fraction: must be"),
        ({"max_num_seqs": 0}, "max_num_seqs: must be at least 1, not 0"),
        ({"block_tokens": 0}, "block_tokens: must be at least 1, not 0"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 65}, "64 are fewer than 65 sequences decode in an iteration"),
        (
            {"engine": "trtllm", "prompt_tokens": 20000, "max_num_batched_tokens": 8192},
            "8,192 are fewer than the 20,000 of a prompt, which policy mixed computes whole",
        ),
        ({"prompt_tokens": 131072}, "exceed the 131072 positions of llama-8b"),
        ({"tensor_parallel": 3}, "does not divide the 32 attention heads"),
    ],
)
def test_unusable_input(changes, message):
    with pytest.raises(InputError, match=message):
        estimated(**changes)


def test_single_token_output():
    result = estimated(output_tokens=1)
    assert result.e2e_s == result.ttft_s
    assert result.tpot_s != result.tpot_s


@pytest.mark.parametrize("model", [GPT_OSS_20B, MAMBA], ids=lambda model: model.name)
def test_windows_and_states(model):
    result = estimated(model, batch=2, rate_rps=0.1)
    assert result.status == "ok" and result.load is not None and not result.load.saturated
    assert "operator" in format_estimate(result)


def test_pipeline_counts_a_batch_per_stage():
    one, two = estimated(batch=2), estimated(batch=2, pipeline_parallel=2)
    host = 256 * (1e-3 + 2 * 1e-5)  # the second rank has a host of its own, in every one of 256 iterations
    assert two.e2e_s == pytest.approx(one.e2e_s + host, rel=0.01)
    assert two.output_tok_per_s * two.e2e_s == pytest.approx(2 * one.output_tok_per_s * one.e2e_s, rel=1e-9)


def test_text():
    text = format_estimate(estimated(LLAMA_70B, tensor_parallel=4, batch=8, rate_rps=1.0))
    for part in (
        "llama-70b on 4 x h100 (TP 4, PP 1, EP 1)",
        "KV capacity",
        "attention.decode",
        "memory",
        "utilisation",
    ):
        assert part in text
    assert "saturated" in format_estimate(estimated(rate_rps=1e6))
    assert max(map(len, text.splitlines())) <= 120
    infinite = format_estimate(estimated(MAMBA))
    assert "no KV" in infinite


def test_faster_hardware_is_faster():
    fast = replace(H100, memory_bandwidth=2 * H100.memory_bandwidth)
    slow = estimated()
    quick = estimate(LLAMA_8B, fast, calibration=calibration(), prompt_tokens=2048, output_tokens=256)
    assert quick.tpot_s < slow.tpot_s


def test_needs_no_jax():
    code = "import sys, evaluator.estimation; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_of_the_catalog_will_do():
    by_name = estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=100, output_tokens=10)
    assert by_name == estimate(
        load_model("llama-3.1-8b"),
        load_hardware("h100-sxm"),
        calibration=load_calibration("auto", "h100-sxm"),
        prompt_tokens=100,
        output_tokens=10,
    )


@pytest.mark.parametrize("split", [dict(tensor_parallel=2), dict(tensor_parallel=2, pipeline_parallel=2)])
def test_one_request_alone_is_the_simulators_request(split):
    """A prompt in one piece, then decodes, as a client sees them: both engines and the closed form count the same."""
    from evaluator.run import sweep

    alone = {
        "name": "alone",
        "workload": {
            "arrivals": {"process": "all_at_once"},
            "lengths": {"source": "fixed", "prompt_tokens": 1500, "output_tokens": 200},
            "requests": 1,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **split},
        "sweep": {"deployment.calibration": ["datasheet", "auto"]},
    }
    found = sweep(alone)
    for place, name in enumerate(alone["sweep"]["deployment.calibration"]):
        known = estimate("llama-3.1-8b", "h100-sxm", calibration=name, prompt_tokens=1500, output_tokens=200, **split)
        assert found["ttft_s_mean"].values[place] == pytest.approx(known.ttft_s, rel=1e-9)
        assert found["e2e_s_mean"].values[place] == pytest.approx(known.e2e_s, rel=1e-9)
        assert (known.client_delay_s > 0) == (name == "auto") == ("before and after" in format_estimate(known))


def test_iterations_planned_ahead_last_as_long_as_iterations_with_drafts_do():
    """All three drafts are accepted: TTFT is later by so many iterations of four tokens, not of one."""
    from evaluator.run import simulate

    drafts = {"method": "ngram", "tokens": 3, "acceptance": 1.0}
    alone = {
        "workload": {
            "arrivals": {"process": "all_at_once"},
            "lengths": {"source": "fixed", "prompt_tokens": 1500, "output_tokens": 197},
            "requests": 1,
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "speculative": drafts},
    }
    given = {"prompt_tokens": 1500, "output_tokens": 197}
    (row,) = simulate(alone).requests.to_dict("records")
    known = estimate("llama-3.1-8b", "h100-sxm", speculative=drafts, **given)
    assert row["ttft_s"] == pytest.approx(known.ttft_s, rel=1e-9)
    assert row["e2e_s"] == pytest.approx(known.e2e_s, rel=1e-9)
    frontend = load_calibration("auto", "h100-sxm")
    expected = frontend.frontend_s + frontend.lookahead_steps * known.decode.time_s
    assert known.client_delay_s == pytest.approx(expected, rel=1e-3)


def test_a_rate_near_zero_is_a_request_alone():
    result = estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=1500, output_tokens=200, rate_rps=1e-6)
    assert result.load.ttft_s == pytest.approx(result.ttft_s, rel=1e-3)
    assert result.load.tpot_s == pytest.approx(result.tpot_s, rel=1e-3)


def test_the_steady_state_is_near_the_simulated_one():
    """Prompts of 400 tokens come in one iteration of some: TPOT within 3 %, and TTFT but for the queue of prompts."""
    from evaluator.run import sweep

    lengths = {"source": "fixed", "prompt_tokens": 400, "output_tokens": 256}
    ds = sweep(
        {
            "workload": {"arrivals": {"process": "poisson", "rate_rps": 1}, "lengths": lengths, "requests": 2000},
            "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
            "sweep": {"workload.arrivals.rate_rps": [2, 16, 24]},
        }
    )
    for row, rate in enumerate(ds.rate_rps.values):
        load = estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=400, output_tokens=256, rate_rps=float(rate)).load
        assert load.tpot_s == pytest.approx(float(ds.tpot_s_mean[row]), rel=0.03)
        assert load.ttft_s == pytest.approx(float(ds.ttft_s_mean[row]), rel=0.1)


def test_a_single_token_has_no_time_per_token():
    text = format_estimate(estimated(output_tokens=1))
    assert "TPOT              -\n" in text and "nan" not in text


def test_data_parallel_ranks():
    """Each rank has the batch; throughput and load are those of all of them."""
    given = {"prompt_tokens": 1000, "output_tokens": 100, "batch": 8, "expert_parallel": 4}
    ranks = estimate("qwen3-30b-a3b", "h100-sxm", data_parallel=4, rate_rps=20.0, **given)
    together = estimate("qwen3-30b-a3b", "h100-sxm", tensor_parallel=4, **given)
    assert ranks.status == "ok" and ranks.parallel.devices == 4
    assert ranks.output_tok_per_s == pytest.approx(4 * 8 * 100 / (ranks.e2e_s - ranks.client_delay_s))
    assert ranks.memory.weight_bytes > together.memory.weight_bytes  # attention is whole on every device
    assert ranks.load is not None and ranks.load.rate_rps == 20.0
    alone = estimate("qwen3-30b-a3b", "h100-sxm", data_parallel=4, rate_rps=40.0, **given)
    assert alone.load is not None and alone.load.capacity_rps == pytest.approx(ranks.load.capacity_rps)
    assert "(TP 1, PP 1, EP 4, DP 4)" in format_estimate(ranks)
    assert "batch 8 on each of 4 ranks" in format_estimate(ranks)


def test_data_parallel_of_a_dense_model_is_that_of_as_many_replicas():
    given = {"prompt_tokens": 1000, "output_tokens": 100}
    four = estimate("llama-3.1-8b", "h100-sxm", data_parallel=4, rate_rps=20.0, **given)
    one = estimate("llama-3.1-8b", "h100-sxm", rate_rps=5.0, **given)
    assert (four.ttft_s, four.tpot_s, four.memory) == (one.ttft_s, one.tpot_s, one.memory)
    assert four.output_tok_per_s == pytest.approx(4 * one.output_tok_per_s)
    assert four.load.utilisation == one.load.utilisation


def test_how_ranks_exchange_tokens():
    given = {"prompt_tokens": 500, "output_tokens": 50, "data_parallel": 8, "expert_parallel": 8, "batch": 32}
    gathered, sent = (
        estimate("qwen3-30b-a3b", "h100-sxm", expert_exchange=each, **given) for each in ("gather", "all_to_all")
    )
    assert sent.ttft_s < gathered.ttft_s and sent.kv_capacity_tokens > gathered.kv_capacity_tokens
    with pytest.raises(InputError, match=r"expert_exchange: must be one of gather, all_to_all, deepep, .*, not pplx"):
        estimate("qwen3-30b-a3b", "h100-sxm", expert_exchange="pplx", **given)


EAGLE = {"method": "eagle", "tokens": 3, "acceptance": [0.8, 0.6, 0.45], "vocabulary": 32_000}
NGRAM = {"method": "ngram", "tokens": 4, "acceptance": 0.7}


@pytest.mark.parametrize("speculative", [EAGLE, NGRAM], ids=["eagle", "ngram"])
def test_operators_add_up_with_drafts(speculative):
    """The model's, the host's, and those of all passes of what drafts."""
    result = estimated(batch=4, tensor_parallel=2, speculative=speculative, calibration=calibration(step_s=1e-3))
    for phase in (result.prefill, result.decode):
        assert sum(part.time_s for part in phase.operators) == pytest.approx(phase.time_s, rel=1e-12)
        assert sum(part.share for part in phase.operators) == pytest.approx(1.0)
        assert 0 < phase.mfu < 1 and 0 < phase.mbu < 1
    drafting = sum(part.time_s for part in result.decode.operators if part.name.startswith("draft."))
    assert result.drafts.draft_s == pytest.approx(drafting, rel=1e-9)
    assert result.drafts.draft_s + result.drafts.verify_s == result.decode.time_s
    assert (drafting > 0) == (speculative is EAGLE)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (0.7, (1 - 0.7**5) / 0.3), (1.0, 5.0)])
def test_tokens_of_an_iteration_are_those_of_leviathan(rate, expected):
    """Equation 1 of arXiv:2211.17192; the last iteration of an output gives no more than what is left."""
    result = estimated(output_tokens=20_001, prompt_tokens=10, speculative={**NGRAM, "acceptance": rate})
    assert result.drafts.tokens_per_iteration == pytest.approx(expected, rel=1e-4)
    assert result.drafts.iterations == pytest.approx(20_000 / expected, rel=1e-4)


def test_short_outputs_with_drafts():
    """Of three tokens after the first, two drafts of chance a: 3 iterations, 2 or 1, enumerated by hand."""
    a = 0.6
    speculative = {"method": "ngram", "tokens": 2, "acceptance": a}
    once = estimated(output_tokens=2, speculative=speculative)
    assert once.drafts.iterations == pytest.approx(1.0)
    found = estimated(output_tokens=4, speculative=speculative)
    one, two = 1 - a, a * (1 - a)  # chances that an iteration gives so many tokens
    assert found.drafts.iterations == pytest.approx(1 + one * (1 + one) + two)
    alone = estimated(output_tokens=1, speculative=speculative)
    assert alone.drafts.iterations == 0 and alone.e2e_s == alone.ttft_s


def test_drafts_that_are_never_accepted_cost_what_plain_decoding_and_verification_do():
    plain, never = estimated(), estimated(speculative={**NGRAM, "tokens": 1, "acceptance": 0.0})
    assert never.drafts.iterations == 255
    assert never.tpot_s > plain.tpot_s
    assert never.tpot_s < 1.05 * plain.tpot_s  # of one sequence: a row more of products that are bound by the weights
    assert estimated(speculative={**NGRAM, "acceptance": 1.0}).tpot_s < 0.25 * plain.tpot_s


def test_the_load_with_drafts_obeys_littles_law():
    result = estimated(rate_rps=2.0, speculative=NGRAM)
    assert result.load.concurrency == pytest.approx(2.0 * result.load.e2e_s)
    assert result.load.tpot_s == pytest.approx((result.load.e2e_s - result.load.ttft_s) / 255)
    assert result.load.tpot_s < estimated(rate_rps=2.0).load.tpot_s


def test_what_an_estimate_refuses_of_drafts():
    with pytest.raises(InputError, match=r"estimate: speculative.acceptance: 2 rates for 3 drafted tokens"):
        estimated(speculative={**EAGLE, "acceptance": [0.8, 0.6]})
    with pytest.raises(InputError, match=r"estimate: speculative.acceptance: is required"):
        estimated(speculative={"method": "ngram", "tokens": 3})
    with pytest.raises(InputError, match=r"speculative.method mtp with llama-8b, which was published without"):
        estimated(speculative={"method": "mtp", "tokens": 1, "acceptance": 0.5})
    with pytest.raises(InputError, match="prompt and output of 4,999 tokens exceed its 4,096 positions"):
        model, speculative = load_model("mixtral-8x7b"), {**NGRAM, "method": "draft", "model": "llama-2-7b"}
        estimated(model, tensor_parallel=4, prompt_tokens=4743, speculative=speculative)


def test_text_of_an_estimate_with_drafts():
    text = format_estimate(estimated(speculative=EAGLE))
    assert "drafts            eagle x 3 at 0.8/0.6/0.45: 1" in text
    assert "draft.feed_forward.gate_up" in text and "rejection_sampling" in text
    assert "GPUs, speculative decoding" in " ".join(text.split())


def test_a_prediction_module_needs_nothing_more_than_its_model():
    plain, mtp = (
        estimated(load_model("deepseek-v3"), tensor_parallel=8, speculative=given)
        for given in (None, {"method": "mtp", "tokens": 1, "acceptance": 0.85})
    )
    more = mtp.memory.weight_bytes - plain.memory.weight_bytes
    assert more == pytest.approx(11.5e9 / 8, rel=0.1)  # 11.5e9 unique parameters of 14e9 (its model card), in fp8
    assert plain.tpot_s / 1.85 < mtp.tpot_s < 0.7 * plain.tpot_s  # two tokens touch more experts than one


@pytest.mark.parametrize(
    ("split", "devices", "told"),
    [
        ({"prefill_context_parallel": 4}, 16, "(TP 4, PP 1, EP 1, PCP 4)"),
        (
            {"feed_forward_apart": {"devices": 8, "attention_ranks": 2, "micro_batches": 1}},
            16,
            "attention in 2 ranks, feed-forwards on 8 devices, 1 micro-batch",
        ),
    ],
)
def test_devices_that_do_not_compute_alike_have_times_and_no_operators(split, devices, told):
    given = dict(prompt_tokens=8000, output_tokens=200, batch=4, tensor_parallel=4)
    result = estimate("deepseek-v3", "b200-sxm", **given, **split)
    assert (result.status, result.devices) == ("ok", devices)
    batch = {"prompt_tokens": 8000, "prompts": 4}
    assert result.prefill.time_s == pytest.approx(
        float(evaluator.iteration_time("deepseek-v3", "b200-sxm", tensor_parallel=4, **batch, **split, unequal=0.0))
    )
    assert result.prefill.operators == result.decode.operators == ()
    text = format_estimate(result)
    assert f"on {devices} x" in text and told in text and "operator" not in text


def test_attention_of_flashinfer_reads_narrow_kv_more_slowly():
    given = dict(prompt_tokens=8000, output_tokens=200, batch=32, tensor_parallel=4, precision=Precision(kv="fp8"))
    own, other = (
        estimate("llama-3.1-70b", "b200-sxm", attention_backend=name, **given) for name in ("auto", "flashinfer")
    )
    assert other.tpot_s > 1.2 * own.tpot_s and other.ttft_s == pytest.approx(own.ttft_s, rel=1e-3)
    assert "attention by flashinfer" in format_estimate(other) and "attention by" not in format_estimate(own)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attention_backend": "triton"}, "attention_backend: must be one of auto, flashinfer, not triton"),
        ({"prefill_context_parallel": 0}, "prefill_context_parallel: must be a whole number of at least 1, not 0"),
        ({"tensor_parallel": 2.5}, "tensor_parallel: must be a whole number of at least 1, not 2.5"),
        ({"feed_forward_apart": {"attention_ranks": 2}}, r"feed_forward_apart\.devices"),
        ({"feed_forward_apart": {"devices": 2}}, "feed_forward_apart"),  # a dense model
    ],
)
def test_layouts_that_are_none_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        estimate("llama-3.1-8b", "h100-sxm", prompt_tokens=10, output_tokens=10, **wrong)
