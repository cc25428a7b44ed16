"""How much three points help: ``python -m tests.benchmarks.own_server [CAMPAIGN...] [--write]``.

Each server of a campaign is fitted at three of its loads, as ``evaluator calibrate --serving`` does, and its other
runs are predicted by the set that ``auto`` takes and by the fitted one. ``between``: the lowest, the middle and the
highest load are fitted, and those between them predicted; ``beyond``: the three lowest, and the higher ones.
``lengths``: of the former fits, runs of other prompts and answers.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluator.calibrate.serving.own import fit_own
from evaluator.calibrate.serving.own_report import set_text
from evaluator.calibrate.serving.own_runs import own_runs
from evaluator.compare.results import EXPECTED, compare_results
from evaluator.compare.run import OK
from evaluator.errors import InputError
from evaluator.experiments.generators import MeasuredRun
from evaluator.experiments.names import model_name
from evaluator.replica import design
from evaluator.scenario import load_scenario, with_engine_defaults
from tests.benchmarks.accuracy import closed_batches

TABLE = Path(__file__).resolve().parents[2] / "calibration" / "errors" / "own_server.csv"
PER_USER = 3
"""Requests of each user of a closed loop: its batch is held for so many answers."""


@dataclass(frozen=True)
class Server:
    """``deployment``, ``sampling`` as in a scenario; ``ladder``: runs in order of load, ``others``: other lengths."""

    campaign: str
    name: str
    deployment: dict[str, Any]
    ladder: Sequence[MeasuredRun]
    others: Sequence[MeasuredRun] = ()
    sampling: dict[str, Any] | None = None

    def tree(self, calibration: str) -> dict[str, Any]:
        return {
            "name": "server",
            "workload": {
                "arrivals": {"process": "all_at_once"},
                "lengths": {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1},
                **({"sampling": self.sampling} if self.sampling else {}),
            },
            "deployment": {**self.deployment, "calibration": calibration},
        }


def run(name: str, users: int, requests: int, prompt: float, output: float, metrics: dict[str, float]) -> MeasuredRun:
    arrivals = {"process": "closed_loop", "users": users}
    return MeasuredRun(name, "table", arrivals, requests, metrics, float(prompt), float(output))


def mlenergy(data: Path) -> Iterator[Server]:
    """ML.ENERGY's chat on H100, vLLM 0.11.1: batches held full; what the file does not say as in ``closed_batches``."""
    table = pd.read_csv(data / closed_batches.FILE).drop_duplicates(["model_id", "num_gpus", "max_num_seqs"])
    for (model, gpus), rows in table.groupby(["model_id", "num_gpus"]):
        first = rows.iloc[0]
        try:
            of = closed_batches.design(first)
        except InputError:
            continue
        rows = rows.sort_values("max_num_seqs")
        # Beyond 256 of 1,024 requests a batch is not held for long.
        rows = rows[rows["max_num_seqs"] <= 256]
        short = model.rsplit("/", 1)[-1].lower().removesuffix("-fp8")
        if len(rows) < 4 or short in closed_batches.IMPORTED:
            continue
        deployment = {
            "model": closed_batches.MODELS.get(short) or model_name(short), "hardware": closed_batches.HARDWARE,
            "tensor_parallel": int(gpus), "expert_parallel": int(first["expert_parallel"]),
            "precision": {"weights": of.precision.weights}, "engine_version": closed_batches.RELEASE,
            "batching": {"max_num_seqs": 1024, "max_num_batched_tokens": 8192},
        }  # fmt: skip
        ladder = [
            run(
                f"{row.max_num_seqs} users", int(row.max_num_seqs), PER_USER * int(row.max_num_seqs),
                closed_batches.PROMPT_TOKENS, row.avg_output_len,
                {"output_tok_per_s": row.output_throughput_tokens_per_sec},
            )
            for row in rows.itertuples()
        ]  # fmt: skip
        kind = "dense" if first["architecture"].startswith("Dense") else "experts"
        sampling = {"top_p": 0.95, "penalties": True}
        yield Server(f"ML.ENERGY, {kind}", f"{model} on {gpus} GPUs", deployment, ladder, sampling=sampling)


def splitwise(data: Path) -> Iterator[Server]:
    """Splitwise's closed batches on the engine of 2023: TTFT is of the prompts of a whole batch in one iteration."""
    table = pd.read_csv(data / "splitwise_perf_model.csv")
    table = table[~(table["is_synthetic"] | table["is_exact_duplicate"] | table["is_suspect"])]
    keys = ["batch_size", "prompt_tokens", "output_tokens"]
    for (gpu, model, ranks), rows in table.groupby(["gpu", "model", "tensor_parallel_size"]):
        means = rows.groupby(keys)[["prompt_time_s", "token_time_s"]].mean().reset_index()
        runs = {
            (row.batch_size, row.prompt_tokens, row.output_tokens): run(
                f"{row.batch_size} x {row.prompt_tokens} + {row.output_tokens}", int(row.batch_size),
                int(row.batch_size), row.prompt_tokens, row.output_tokens,
                {"ttft_mean": row.prompt_time_s, "tpot_mean": row.token_time_s},
            )
            for row in means.itertuples()
        }  # fmt: skip
        ladder = [one for (_, prompt, output), one in sorted(runs.items()) if (prompt, output) == (512, 128)]
        others = [one for (_, prompt, output), one in sorted(runs.items()) if (prompt, output) != (512, 128)]
        deployment = {
            "model": {"llama2-70b": "llama-2-70b"}.get(model, model), "hardware": f"{gpu[:4]}-sxm",
            "tensor_parallel": int(ranks), "batching": {"max_num_seqs": 256, "max_num_batched_tokens": 65536},
        }  # fmt: skip
        yield Server(f"Splitwise, {gpu[:4].upper()}", f"{model} TP {ranks}", deployment, ladder, others)


ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}


def argonne(data: Path) -> Iterator[Server]:
    """Argonne's closed batches with vLLM and TensorRT-LLM of 2024; the ladder is at prompts and answers of 1,024."""
    table = pd.read_csv(data / "argonne_runs.csv")
    table = table[(table["table"] == "all_results") & ~table["is_repeated_key"] & table["gpu"].isin(["A100", "H100"])]
    table = table[table["engine"].isin(list(ENGINES))]
    for (gpu, engine, model), rows in table.groupby(["gpu", "engine", "model"]):
        rows = rows[rows["num_gpus"] == rows["num_gpus"].max()]
        short = model.rsplit("/", 1)[-1].lower().removesuffix("-hf").replace("meta-", "")
        try:
            known = model_name(short)
        except InputError:
            continue
        runs = {
            (row.input_tokens, row.batch_size): run(
                f"{row.batch_size} x {row.input_tokens} + {row.output_tokens}", int(row.batch_size),
                int(row.batch_size), row.input_tokens, row.output_tokens, {"e2e_mean": row.latency_s},
            )
            for row in rows.itertuples() if row.output_tokens > 1
        }  # fmt: skip
        ladder = [one for (prompt, _), one in sorted(runs.items()) if prompt == 1024]
        others = [one for (prompt, _), one in sorted(runs.items()) if prompt != 1024]
        deployment = {
            "model": known, "hardware": f"{gpu.lower()}-sxm", "engine": ENGINES[engine],
            "tensor_parallel": int(rows["num_gpus"].max()),
        }  # fmt: skip
        if len(ladder) >= 4:
            yield Server(
                f"Argonne, {gpu}, {engine}", f"{known} on {deployment['tensor_parallel']}", deployment, ladder, others
            )


CAMPAIGNS = {"mlenergy": mlenergy, "splitwise": splitwise, "argonne": argonne}


def judged(server: Server, slices: Sequence[str] = ("between", "beyond")) -> pd.DataFrame:
    """A row for each figure that was kept aside: its errors by ``auto`` and by the fitted set, and the expected one."""
    parts = []
    before = load_scenario(server.tree("auto"))
    ladder = [one for one in server.ladder if _runs(one, before)]
    if len(ladder) < 4:
        return pd.DataFrame()
    middle = len(ladder) // 2
    chosen = {"between": [ladder[0], ladder[middle], ladder[-1]], "beyond": ladder[:3]}
    for which, fitted in ((name, chosen[name]) for name in slices):
        aside = {which: [one for one in ladder if one not in fitted]}
        if which == "between":
            aside["lengths"] = [one for one in server.others if _runs(one, before)]
        parts.append(_judged(server, before, fitted, aside).assign(fitted=which))
    return pd.concat(parts, ignore_index=True).assign(campaign=server.campaign, server=server.name)


def _runs(one: MeasuredRun, scenario: Any) -> bool:
    return bool((compare_results([one], scenario)["status"] == OK).all())


def _judged(
    server: Server, before: Any, fitted: list[MeasuredRun], aside: dict[str, list[MeasuredRun]]
) -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        runs = own_runs(fitted, before)
        built = design(with_engine_defaults(runs[0].scenario.deployment), 0, runs[0].scenario.workload.sampling.asked)
        fit = fit_own(runs, built, "mine", Path(folder))
        mine = Path(folder) / "mine.yaml"
        mine.write_text(set_text(fit))
        after = load_scenario(server.tree(str(mine)))
        rows = [
            {"slice": "left out of the three", "metric": one.metric, "before": 100 * (one.base / one.measured - 1),
             "after": 100 * (one.held_out / one.measured - 1), "expected": np.nan}
            for one in fit.figures
        ]  # fmt: skip
        for name, others in aside.items():
            if others:
                first, second = compare_results(others, before), compare_results(others, after)
                rows += [
                    {"slice": name, "metric": was.metric, "before": was.error_pct, "after": now.error_pct,
                     "expected": getattr(now, EXPECTED)}
                    for was, now in zip(first.itertuples(), second.itertuples(), strict=True)
                ]  # fmt: skip
    return pd.DataFrame(rows)


def by_slice(rows: pd.DataFrame) -> pd.DataFrame:
    """A line per campaign, slice and metric: absolute errors before and after, and how often the expected one held."""
    within = (rows["after"].abs() <= rows["expected"]).where(rows["expected"].notna())
    grouped = rows.assign(before=rows["before"].abs(), after=rows["after"].abs(), within=within).groupby(
        ["campaign", "slice", "metric"]
    )
    return pd.DataFrame(
        {
            "servers": grouped["server"].nunique(),
            "figures": grouped.size(),
            "before_mean_pct": grouped["before"].mean(),
            "after_mean_pct": grouped["after"].mean(),
            "before_median_pct": grouped["before"].median(),
            "after_median_pct": grouped["after"].median(),
            "within_expected_pct": 100 * grouped["within"].mean(),
        }
    ).round(1)


def main(arguments: list[str] | None = None) -> int:
    """Judge the campaigns that are named, all where none is."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.own_server", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EVALUATOR_DATA", "../shared/data")))
    parser.add_argument("--write", action="store_true", help=f"put the table into {TABLE}")
    parser.add_argument("--only", default="", metavar="TEXT", help="servers with this in their name")
    parser.add_argument("--rows", type=Path, metavar="FILE.csv", help="keep all errors here, beside those that it has")
    given = parser.parse_args(arguments)
    tables = [pd.read_csv(given.rows)] if given.rows and given.rows.exists() else []
    for name in given.campaigns or CAMPAIGNS:
        for server in CAMPAIGNS[name](given.data):
            table = judged(server) if given.only in server.name else pd.DataFrame()
            if len(table):
                tables.append(table)
                if given.rows:
                    pd.concat(tables, ignore_index=True).to_csv(given.rows, index=False)
                means = table.groupby(["slice", "metric"])[["before", "after"]].agg(lambda each: each.abs().mean())
                print(f"{server.campaign}: {server.name}\n{means.round(1).to_string()}", flush=True)
    table = by_slice(pd.concat(tables, ignore_index=True))
    print(table.to_string())
    if given.write:
        TABLE.write_text(
            "# Errors of runs kept aside: `python -m tests.benchmarks.own_server --write`\n" + table.to_csv()
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
