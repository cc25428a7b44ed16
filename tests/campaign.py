"""A small campaign: two servers on one GPU, one of a GPU that nobody knows, measured by the engine itself."""

import csv
import json

import pytest

COLUMNS = ("exp_id", "stage_index", "ttft_mean_ms", "ttft_p90_ms", "itl_mean_ms", "e2e_mean_ms",
           "implied_mean_output_tokens", "throughput_req_per_s")  # fmt: skip


def entry(
    exp_id,
    model="meta-llama/Llama-3.1-8B-Instruct",
    gpu="H100-SXM-80GB",
    tensor=1,
    rates=(2.0, 6.0),
    duration_s=20,
    **more,
):
    stages = [
        {"stage_index": number, "rate_req_per_s": rate, "duration_s": duration_s} for number, rate in enumerate(rates)
    ]
    return {
        "exp_id": exp_id,
        "model": model,
        "gpu": gpu,
        "tensor_parallel_size": tensor,
        "weight_precision": "fp16_or_bf16",
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "total_kv_blocks": None,
        "workload": {
            "workload_class": "small",
            "stages": stages,
            "shared_prefix": {
                "num_unique_system_prompts": 3,
                "num_users_per_system_prompt": 2,
                "system_prompt_len_tokens": 100,
                "question_len_tokens": 200,
                "output_len_tokens": 40,
            },
        },
    } | more


def row(exp_id, stage, ttft=20.0, itl=7.0, output=39.5, e2e=None, **more):
    e2e = ttft + itl * (output - 1) if e2e is None else e2e
    return {"exp_id": exp_id, "stage_index": stage, "ttft_mean_ms": ttft, "itl_mean_ms": itl, "e2e_mean_ms": e2e,
            "implied_mean_output_tokens": output} | more  # fmt: skip


@pytest.fixture
def campaign(tmp_path):
    """Writes specs and actuals; returns their paths."""

    def write(entries, rows):
        specs, actuals = tmp_path / "specs.json", tmp_path / "actuals.csv"
        specs.write_text(json.dumps({"experiments": list(entries)}))
        with actuals.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        return specs, actuals

    return write


@pytest.fixture
def small(campaign):
    entries = [entry("a"), entry("b", tensor=2, rates=(4.0,)), entry("c", gpu="Abacus-3")]
    rows = [row("a", 0), row("a", 1), row("a", -1), row("b", 0, itl=5.0), row("b", -1, itl=5.0), row("c", 0)]
    return campaign(entries, rows)
