"""Reading tables: ours, the known sources', and what is refused."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluator.calibrate import calibrate, read_tables
from evaluator.calibrate.devices import UNKNOWN, Processors
from evaluator.calibrate.document import document
from evaluator.calibrate.errors import error_summary
from evaluator.calibrate.kernels import predictor
from evaluator.calibrate.selection import select
from evaluator.calibrate.sources import aiter
from evaluator.calibrate.table import COLUMNS, TEXT, Table, checked
from evaluator.catalog import load_calibration, load_hardware
from evaluator.cost import rates, reach
from evaluator.errors import InputError
from tests.thorough import THOROUGH

GEMM = pd.DataFrame({"op_class": "gemm", "m": [1, 2], "n": 8, "k": 8, "time_s": [1e-5, 2e-5]})


def test_our_own_columns(tmp_path):
    GEMM.to_csv(tmp_path / "mine.csv", index=False)
    (table,) = read_tables([tmp_path / "mine.csv"])
    assert (table.source, len(table.rows), table.rows["dtype"].iloc[0]) == ("own", 2, "bf16")
    assert table.rows["m"].dtype == float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op_class": "gem"}, "op_class 'gem' is unknown; there are: gemm"),
        ({"k": np.nan}, "rows of gemm need numbers of at least 0 in column k"),
        ({"time_s": 0.0}, "time_s must be above 0"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        checked(GEMM.assign(**change), "mine.csv")


def test_what_an_iteration_may_leave_out():
    """Beside other classes, whose cells in these columns are empty."""
    row = {"op_class": "iteration", "model": "llama-2-70b", "tensor_parallel": 4, "prompts": 1, "prompt_tokens": 9}
    rows = pd.concat([GEMM, pd.DataFrame([row | {"decodes": 0, "context": 0, "time_s": 0.1}])])
    found = checked(rows, "mine.csv")
    assert found[["expert_parallel", "past_tokens"]].iloc[-1].tolist() == [1.0, 0.0]
    assert found["past_tokens"].iloc[:2].isna().all()
    with pytest.raises(InputError, match="rows of iteration need numbers of at least 0 in column past_tokens"):
        checked(rows.assign(past_tokens=-1), "mine.csv")


def test_the_readme_names_the_columns():
    text = (Path(__file__).resolve().parents[2] / "calibration" / "README.md").read_text()
    section = text[text.index("## The columns of a table") : text.index("## Measuring a device")]
    told = {}
    for line in section.splitlines():
        classes, _, columns = line.strip("| ").partition(" | ")
        told |= {name: set(re.findall(r"`(\w+)`", columns)) - {"model"} for name in re.findall(r"`(\w+)`", classes)
                 if line.startswith("| `") and columns != "columns"}  # fmt: skip
    assert told == {name: set(columns) for name, columns in COLUMNS.items()}
    optional = section[section.index("Optional:") :]
    assert set(TEXT) - {"model"} <= set(re.findall(r"`(\w+)`", optional))


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"ends in \.csv or \.parquet"):
        read_tables([tmp_path / "notes.txt"])
    pd.DataFrame({"a": [1]}).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(InputError, match="neither a column op_class nor the columns of a known source"):
        read_tables([tmp_path / "other.csv"])


def test_runs_of_a_server_are_sent_to_compare(tmp_path):
    (tmp_path / "specs.json").write_text("[]")
    pd.DataFrame({"exp_id": [1], "ttft_mean_ms": [9.0]}).to_csv(tmp_path / "actuals.csv", index=False)
    for name in ("specs.json", "actuals.csv"):
        with pytest.raises(InputError, match=rf"{name}: .*compare SPECS.json ACTUALS.csv --fit FOLDER"):
            read_tables([tmp_path / name])


def test_other_hardware_is_named():
    table = Table("t", "", "own", checked(GEMM.assign(hardware="l40s"), "t"))
    with pytest.raises(InputError, match="no measurement of h100-sxm; there are: l40s"):
        calibrate([table], "h100-sxm", "x")


def test_kv_in_the_cache_is_left_out():
    rows = pd.DataFrame(
        {"op_class": "attention_decode", "batch": 1, "past_tokens": [100, 100_000], "heads": 32, "kv_heads": 8}
        | {"head_dim": 128, "time_s": 1e-4}
    )
    tables = [Table("t", "", "own", checked(rows, "t"))]
    (part,), left = select(tables, "h100-sxm", Processors(132, 50e6))
    assert len(part.rows) == 1 and part.rows["past_tokens"].iloc[0] == 100_000 and sum(left.values()) == 1
    (part,), _ = select(tables, "h100-sxm", UNKNOWN)
    assert len(part.rows) == 2


SOURCES = {
    "aic_custom_all_reduce.csv": {"all_reduce"},
    "aic_nccl.csv": {"all_gather", "all_to_all"},
    "aic_devices_all_reduce.csv": {"all_reduce"},
    "aic_devices_collectives.csv": {"all_gather", "all_to_all"},
    "aiter_gemm.parquet": {"gemm"},
    "aiter_fmoe.parquet": {"grouped_gemm"},
    "infersim_gemm.csv": {"gemm"},
    "infersim_attention.csv": {"attention_prefill", "attention_decode"},
    "splitwise_perf_model.csv": {"iteration"},
    "vidur_mlp.csv": {"gemm", "elementwise"},
    "vidur_all_reduce.csv": {"all_reduce"},
    "lls_rtxpro6000_llama31_8b_layer_profile.csv": {"gemm", "elementwise"},
    "lls_rtxpro6000_llama31_8b_attention_profile.parquet": {
        "attention_mixed",
        "attention_prefill",
        "attention_decode",
    },
    "lls_layer_profiles.csv": {"gemm", "elementwise"},
    "lls_attention_profiles.parquet": {"attention_mixed", "attention_prefill", "attention_decode"},
    "lls_attention_skew.parquet": {"attention_mixed", "attention_decode"},
    "lls_moe_profiles.csv": {"grouped_gemm"},
    "lls_tpu_v6e_layers.parquet": {"gemm"},
    "lls_tpu_v6e_attention.parquet": {"attention_prefill", "attention_decode"},
    "ascend_910b_matmul.csv": {"gemm"},
    "ascend_910b_attention.csv": {"attention_prefill", "attention_decode"},
    "ascend_910b_moe.csv": {"grouped_gemm"},
    "aic_moe.parquet": {"grouped_gemm"},
}


@pytest.mark.parametrize("name", SOURCES)
def test_known_sources(data_folder, name):
    (table,) = read_tables([data_folder / name])
    assert set(table.rows["op_class"].unique()) == SOURCES[name]
    assert (table.rows["time_s"] > 0).all() and table.rows["time_s"].max() < 100


def test_all_reduce_of_h100_in_graph_mode(data_folder):
    """A latency, a ramp and a bandwidth for each group size: within 12 % in the median on messages not seen."""
    fitted = calibrate([data_folder / "aic_custom_all_reduce.csv"], "h100-sxm", "x")
    error = (fitted.judged["predicted_s"] / fitted.judged["time_s"] - 1).abs()
    assert error.median() < 0.12
    one_megabyte = fitted.judged[(fitted.judged["devices"] == 8) & (fitted.judged["message_bytes"] == 2**20)]
    assert one_megabyte["predicted_s"].iloc[0] == pytest.approx(15e-6, rel=0.2)


def test_chunks_with_history_and_mixed_batches(data_folder):
    """The only measurements with a history: RTX PRO 6000, within 8 % in the median on shapes not seen.

    Of the mixed batches every fourth, of which a fit takes 2,500 still, and no decodes alone.
    """
    (table,) = read_tables([data_folder / "lls_rtxpro6000_llama31_8b_attention_profile.parquet"])
    mixed, prefill = (table.rows[table.rows["op_class"] == f"attention_{kind}"] for kind in ("mixed", "prefill"))
    few = replace(table, rows=pd.concat([mixed.iloc[:: 1 if THOROUGH else 4], prefill], ignore_index=True))
    fitted = calibrate([few], "rtx-pro-6000", "x")
    summary = error_summary(fitted.judged)
    assert summary["attention_mixed"]["held_out"]["median"] < 0.08
    assert summary["attention_prefill"]["in_sample"]["median"] < 0.08


def test_collectives_over_pcie_have_figures_by_group(data_folder):
    """L40S: from 2 to 8 devices the bandwidth falls by a factor of 13, so that one for all would miss by 70 %."""
    (table,) = read_tables([data_folder / "aic_nccl.csv"])
    names = ("all_gather", "all_to_all") if THOROUGH else ("all_gather",)
    fitted = calibrate([replace(table, rows=table.rows[table.rows["op_class"].isin(names)])], "l40s", "x")
    for name in names:
        assert error_summary(fitted.judged)[name]["held_out"]["median"] < 0.1
    groups = document(fitted)["efficiencies"]["all_gather"]["devices"]
    assert groups[2]["bandwidth_efficiency"] > 10 * groups[8]["bandwidth_efficiency"]


def test_the_skew_table_is_of_three_calls(data_folder):
    """Its calls of equal contexts take three times what the attention profile has; its rows are of one call."""
    skewed, profile = (
        read_tables([data_folder / name])[0].rows
        for name in ("lls_attention_skew.parquet", "lls_rtxpro6000_llama31_8b_attention_profile.parquet")
    )
    equal = pd.read_parquet(data_folder / "lls_attention_skew.parquet")
    one = equal[(equal["gpu"] == "RTXPRO6000") & equal["model"].str.contains("Llama")]
    at = ["tensor_parallel_size", "pc", "kp", "n", "kv_big"]
    names = ["tensor_parallel_size", "prefill_chunk_tokens", "prefill_past_kv_tokens", "num_decode_seqs",
             "decode_kv_tokens_per_seq"]  # fmt: skip
    raw = pd.read_parquet(data_folder / "lls_rtxpro6000_llama31_8b_attention_profile.parquet")
    both = one.merge(raw, left_on=at, right_on=names)
    assert len(both) > 10_000 and (both["t_max_us"] / both["latency_us"]).median() == pytest.approx(3.0, abs=0.02)
    assert skewed["time_s"].median() == pytest.approx(equal["t_skew_us"].median() * 1e-6 / 3, rel=1e-9)
    assert "unequal" not in profile and skewed["unequal"].min() > 0


def test_experts_are_touched_as_often_as_the_table_says(data_folder):
    (table,) = read_tables([data_folder / "lls_moe_profiles.csv"])
    rows, device = table.rows, load_hardware("rtx-pro-6000")
    rate = rates(device, load_calibration("rtx-pro-6000-vllm", "rtx-pro-6000"))
    time = np.asarray(predictor("grouped_gemm", rows, reach(device))(rate))
    error = np.abs(time / rows["time_s"] - 1)
    assert np.median(error) < 0.09
    few, many = (time[(rows["tokens"] == 32) & (rows["experts_touched"] == experts)] for experts in (8, 128))
    assert many > 8 * few


def test_experts_without_vectors_or_on_many_devices_are_left_out_and_those_without_gates_are_known(data_folder):
    (table,) = read_tables([data_folder / "aic_moe.parquet"])
    parts, left = select([table], "h100-sxm", UNKNOWN)
    assert all((part.rows["intermediate"] % 16 == 0).all() for part in parts)
    assert left["experts whose width is no multiple of 16"] > 0
    assert left["experts over more than 8 devices"] > 0
    # vLLM's list of tuned shapes has none that is spread over as many devices.
    assert max(part.rows["expert_parallel"].max() for part in parts) == 8
    shapes = table.rows[table.rows["gated"] == 0][["hidden", "experts", "hardware"]].drop_duplicates()
    assert set(shapes["experts"]) == {128, 512} and "a100-sxm" not in set(shapes["hardware"])


def test_winners_of_amd_count_for_both_products_of_a_die_and_of_equal_shapes_the_fastest_does():
    rows = pd.DataFrame(
        {
            "device": ["MI300X or MI325X", "MI300X or MI325X", "MI350X or MI355X", "MI350X or MI355X", "gfx1250"],
            "compute_units": [304, 304, 256, 256, 64], "precision": "bf16", "batch": [1, 1, 1, 4, 1],
            "m": 64, "n": 4096, "k": 4096, "latency_us": [30.0, 20.0, 10.0, 40.0, 9.0], "is_suspect": False,
        }
    )  # fmt: skip
    found = aiter.gemm(rows).set_index("hardware")["time_s"]
    # A batch of products is another operator.
    assert found.to_dict() == pytest.approx({"mi300x": 2e-5, "mi325x": 2e-5, "mi355x": 1e-5, "gfx1250": 9e-6})


def test_experts_of_amd_are_those_that_were_measured():
    """Times that were copied from other sizes, and kernels that unpack weights, are left out."""
    one = {"device": "MI350X or MI355X", "compute_units": 256, "activation_dtype": "fp8", "weight_dtype": "fp8",
           "num_experts": 257, "topk": 9, "hidden_size": 7168, "expert_intermediate_size": 256, "num_tokens": 64,
           "latency_us": 100.0, "is_copied": False, "is_suspect": False}  # fmt: skip
    others = [{"is_copied": True, "num_tokens": 1}, {"is_suspect": True, "num_tokens": 2}, {"activation_dtype": "bf16"}]
    found = aiter.experts(pd.DataFrame([one, *(one | other for other in others)]))
    assert found[["hardware", "dtype", "tokens", "experts", "top_k"]].values.tolist() == [["mi355x", "fp8", 64, 257, 9]]


def test_absurd_and_empty_tables(tmp_path):
    with pytest.raises(InputError, match=r"t: rows of gemm: 1e\+300 in column m is more than 1e\+15"):
        checked(GEMM.assign(m=1e300), "t")
    (tmp_path / "a.csv").write_text("op_class,m,n,k,time_s\n")
    with pytest.raises(InputError, match=r"a\.csv: the table has no rows; a row is a measurement"):
        read_tables([tmp_path / "a.csv"])
