"""Which experts the measured MoE calls visit, by the rules of their collector, against counts by hand and the times."""

import numpy as np
import pandas as pd
import pytest

from evaluator.calibrate import read_tables
from evaluator.calibrate.kernels import predictor
from evaluator.calibrate.sources.aiconfigurator import moe
from evaluator.calibrate.sources.routing import balanced_visits, power_law_visits
from evaluator.catalog import load_calibration, load_hardware
from evaluator.cost import rates
from evaluator.cost.coefficients import reach

FRAME = pd.DataFrame({
    "gpu": "b200_sxm", "engine": "vllm", "engine_version": "0.24.0", "kernel": "k", "dtype": "fp8_block",
    "num_tokens": 32, "hidden_size": 7168, "intermediate_size": 2048, "top_k": 8, "num_experts": 256,
    "moe_tp_size": 1, "moe_ep_size": [1, 2, 4, 64], "routing_distribution": "balanced", "latency_us": 100.0,
})  # fmt: skip


def test_balanced_calls_visit_all_experts_alike():
    assert balanced_visits(8, 16, 2, False).tolist() == [1] * 16
    assert balanced_visits(40, 16, 2, False).tolist() == [5] * 16
    assert np.flatnonzero(balanced_visits(2, 16, 2, False)).tolist() == [0, 4, 8, 12]


def test_a_router_by_groups_leaves_half_of_the_experts_alone():
    """32 tokens of DeepSeek-V3, one expert in each of 8 groups: the first four groups stay, and the first experts of
    the first group fill up what the other four would have been."""
    visits = balanced_visits(32, 256, 8, True)
    assert visits[:5].tolist() == [32, 32, 32, 32, 5] and (visits[5:128] == 1).all() and not visits[128:].any()
    assert balanced_visits(32, 256, 8, False).tolist() == [1] * 256


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (16, 128, 8), (1000, 160, 6), (16384, 512, 10)])
def test_a_power_law_keeps_the_number_of_visits(tokens, experts, top_k):
    visits = power_law_visits(tokens, experts, top_k, 1.2)
    assert visits.sum() == tokens * top_k and visits.min() >= 0 and visits.max() <= tokens
    assert (np.diff(visits) >= 0).all() and visits.max() > tokens * top_k / experts


def test_the_measured_rank_has_its_part():
    """The rank that holds the first experts: alone and as the first of two it has all visits, half of them at 64."""
    found = moe(FRAME)
    assert found["visits"].tolist() == [256, 256, 256 - 64, 3 * 32 + 32]
    assert found["experts_touched"].tolist() == [128, 128, 64, 4]
    plain = moe(FRAME.assign(hidden_size=4096))
    assert plain["visits"].tolist() == [256, 128, 64, 4] and plain["experts_touched"].tolist() == [256, 128, 64, 4]


def test_what_is_chance_is_left_out():
    """By a power law the load of the fullest rank, and what a router by groups makes of it."""
    skewed = FRAME.assign(routing_distribution="power_law_1.2")
    assert moe(skewed).empty
    assert moe(skewed.assign(hidden_size=4096))["expert_parallel"].tolist() == [1]
    generated = FRAME.assign(engine="trtllm", kernel="moe_torch_flow_min_latency", dtype="nvfp4", hidden_size=4096)
    assert moe(generated)["experts_touched"].tolist() == [128, 128, 64, 4]
    assert moe(generated.assign(num_experts=8, top_k=2, moe_ep_size=1)).empty


def test_calls_that_visit_something_else_are_left_out():
    """SGLang's of Mixtral and Gemma 4 on several ranks; those of other engines, one rank and other shapes stay."""
    mixtral = FRAME.assign(num_experts=8, top_k=2, hidden_size=4096, intermediate_size=14336, moe_ep_size=[1, 2, 4, 8])
    gemma = FRAME.assign(num_experts=128, hidden_size=2816, intermediate_size=704)
    qwen = FRAME.assign(num_experts=128, hidden_size=4096, intermediate_size=1536)
    kept = {
        (name, engine): moe(frame.assign(engine=engine))["expert_parallel"].tolist()
        for name, frame in (("mixtral", mixtral), ("gemma", gemma), ("qwen", qwen))
        for engine in ("sglang", "vllm")
    }
    assert kept == {
        ("mixtral", "sglang"): [1], ("mixtral", "vllm"): [1, 2, 4, 8],
        ("gemma", "sglang"): [1], ("gemma", "vllm"): [1, 2, 4, 64],
        ("qwen", "sglang"): [1, 2, 4, 64], ("qwen", "vllm"): [1, 2, 4, 64],
    }  # fmt: skip


def test_two_ranks_of_mixtral_take_as_long_as_one_with_sglang(data_folder):
    """The time of all visits, where those of vLLM take half as long: what the rows that are left out are."""
    columns = ["gpu", "engine", "num_tokens", "hidden_size", "num_experts", "routing_distribution", "moe_tp_size"]
    ratios = {}
    for name in ("aic_engines_moe.parquet", "aic_moe.parquet"):
        filters = [("gpu", "==", "h100_sxm"), ("hidden_size", "==", 6144), ("num_experts", "==", 8),
                   ("dtype", "==", "bfloat16"), ("num_tokens", "==", 8192), ("moe_tp_size", "==", 1),
                   ("routing_distribution", "==", "balanced")]  # fmt: skip
        frame = pd.read_parquet(data_folder / name, filters=filters, columns=[*columns, "moe_ep_size", "latency_us"])
        for engine, calls in frame.groupby("engine", observed=True):
            time = calls.set_index("moe_ep_size")["latency_us"]
            ratios[engine] = float(time[2] / time[1])
    assert ratios["sglang"] == pytest.approx(1.0, abs=0.05)
    assert ratios["vllm"] == pytest.approx(0.5, abs=0.05) == ratios["trtllm"]


def test_one_of_two_ranks_takes_as_long_as_one_device(data_folder):
    """DeepSeek-V3's shape on B200: the first of two ranks is measured with all the visits, and predicted so."""
    (table,) = read_tables([data_folder / "aic_moe.parquet"])
    rows = table.rows[(table.rows["hardware"] == "b200-sxm") & (table.rows["hidden"] == 7168)
                      & (table.rows["experts"] == 256) & (table.rows["intermediate"] == 2048)]  # fmt: skip
    device = load_hardware("b200-sxm")
    rate = rates(device, load_calibration("b200-sxm-vllm", "b200-sxm"))
    rows = rows.assign(predicted_s=np.asarray(predictor("grouped_gemm", rows, reach(device))(rate)))
    one, two, four = (rows[rows["expert_parallel"] == ranks].set_index("tokens") for ranks in (1, 2, 4))
    few = one.index[one.index <= 256]
    assert (two["time_s"] / one["time_s"])[few].median() == pytest.approx(1.0, abs=0.01)
    assert (two["predicted_s"] / one["predicted_s"])[few].median() == pytest.approx(1.0, abs=0.01)
    assert (four["time_s"] / two["time_s"])[few].median() == pytest.approx(
        (four["predicted_s"] / two["predicted_s"])[few].median(), abs=0.07
    )


def test_per_tensor_fp8_of_vllm_on_blackwell_is_left_out(data_folder):
    (table,) = read_tables([data_folder / "aic_moe.parquet"])
    kernels = table.rows.loc[table.rows["hardware"] == "b200-sxm", "kernel"]
    assert not kernels.str.startswith("vllm_modelopt").any() and kernels.str.startswith("vllm_fp8moe").any()
