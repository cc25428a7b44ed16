"""Results of vllm bench serve -> the same requests through the fitted set, and how far off each figure is."""

from __future__ import annotations

import csv
import json
import lzma
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from evaluator import load_scenario, simulate
from tests.oracle.server.loads import BLOCK, BUDGET, CONFIG, SEQUENCES

SCENARIO, SET, HARDWARE, MODEL = "server.yaml", "my-server.yaml", "my-cpu.yaml", "models/llm/tiny-llama.yaml"


@dataclass(frozen=True, eq=False)
class Requests:
    """A run's requests in order of sending, each (request,); ``users`` of a closed loop. Seconds from the first."""

    users: int | None
    sent_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    e2e_s: np.ndarray

    @property
    def tpot_s(self) -> np.ndarray:
        return (self.e2e_s - self.ttft_s) / np.maximum(self.output_tokens - 1, 1)


def requests_of(result: Mapping[str, Any]) -> Requests:
    """The requests of a result that was saved in detail."""
    sent = np.array(result["start_times"])
    order = np.argsort(sent, kind="stable")
    prompt, output, ttft = (np.array(result[name])[order] for name in ("input_lens", "output_lens", "ttfts"))
    e2e = ttft + np.array([sum(gaps) for gaps in result["itls"]])[order]
    return Requests(result["max_concurrency"], (sent - sent.min())[order], prompt, output, ttft, e2e)


Loads = Mapping[str, Sequence[tuple[Requests, Requests]]]
"""For each load what was measured and predicted in each round."""
RECORDING = Path(__file__).parent / "recording.json.xz"
_KEPT = ("sent_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s")


def record(folder: Path, loads: Loads, path: Path) -> None:
    """The measured requests of all loads, and what they were predicted by."""
    content = {
        "of": f"vLLM 0.28.0 on CPU (torch 2.13.0), {machine()}",
        "files": {name: (folder / name).read_text() for name in (SCENARIO, SET, HARDWARE, MODEL)},
        "loads": {
            name: [{"users": run.users} | {column: np.round(getattr(run, column), 5).tolist() for column in _KEPT}
                   for run, _ in runs]
            for name, runs in loads.items()
        },
    }  # fmt: skip
    path.write_bytes(lzma.compress(json.dumps(content).encode()))


def recorded(path: Path, folder: Path) -> dict[str, list[Requests]]:
    """The measured requests of a recording, whose files are written to ``folder``."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    for name, text in content["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {
        name: [Requests(run["users"], *(np.array(run[column]) for column in _KEPT)) for run in runs]
        for name, runs in content["loads"].items()
    }


def machine() -> str:
    """What the processor calls itself."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{named or platform.machine()}, {os.cpu_count()} processors"


def cut(recorded: Path, results: Sequence[Mapping[str, Any]], out: Path) -> int:
    """Writes the iterations that ran while these results came to be; how many.

    ``time.perf_counter`` is one clock for all processes of a machine, so that the server's times are the client's.
    """
    rows = pd.read_csv(recorded)
    within = np.zeros(len(rows), dtype=bool)
    for result in results:
        begun = min(result["start_times"])
        within |= rows["start_s"].between(begun, begun + result["duration"]).to_numpy()
    rows[within].to_csv(out, index=False)
    return int(within.sum())


def write_scenario(folder: Path) -> None:
    """Model, device and deployment, as a user describes a server of their own."""
    hardware = {
        "name": "my-cpu", "kind": "cpu", "peak_flops": {"bf16": "0.17TFLOP/s"}, "memory_bytes": "16GB",
        "memory_bandwidth": "20GB/s", "links": [{"name": "nic", "bandwidth": "1GB/s", "latency_s": "10us"}],
        "power_w": None, "idle_power_w": None, "usd_per_hour": None,
    }  # fmt: skip
    hardware["links"][0]["devices"] = None
    figures = ("peak_flops", "memory_bytes", "memory_bandwidth", "links.nic.bandwidth", "links.nic.latency_s")
    hardware["sources"] = dict.fromkeys(figures, "nothing is computed with it: iterations are measured")
    deployment = {
        "model": "tiny-llama", "hardware": HARDWARE, "calibration": SET, "engine": "vllm", "engine_version": "0.28",
        "batching": {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": BUDGET}, "kv": {"block_tokens": BLOCK},
    }  # fmt: skip
    workload = {
        "arrivals": {"process": "poisson", "rate_rps": 4}, "requests": 200,
        "lengths": {"source": "fixed", "prompt_tokens": 160, "output_tokens": 32},
    }  # fmt: skip
    scenario = {"name": "my-server", "workload": workload, "deployment": deployment}
    attention = {name: CONFIG[f"num_{other}"] for name, other in
                 (("heads", "attention_heads"), ("kv_heads", "key_value_heads"))}  # fmt: skip
    layer = {"count": CONFIG["num_hidden_layers"], "dense": {"intermediate": CONFIG["intermediate_size"]},
             "softmax_attention": attention | {"head_dim": CONFIG["head_dim"]}}  # fmt: skip
    model = {"name": "tiny-llama", "source": "made up", "hidden": CONFIG["hidden_size"],
             "vocabulary": CONFIG["vocab_size"], "max_positions": CONFIG["max_position_embeddings"],
             "layers": [layer]}  # fmt: skip
    for name, content in ((HARDWARE, hardware), (SCENARIO, scenario), (MODEL, model)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))


def write_set(folder: Path, frontend: float) -> None:
    """Adds to the fitted set what a request takes outside the engine."""
    path = folder / SET
    text = [line for line in path.read_text().splitlines() if not line.startswith("frontend_s:")]
    path.write_text("\n".join([*text, f"frontend_s: {1e3 * frontend:.3f}ms"]) + "\n")


def frontend_s(folder: Path, alone: Requests) -> float:
    """By how much first tokens of a single user come later than the engine's iterations say."""
    write_set(folder, 0.0)
    return float(max(0.0, (alone.ttft_s - predicted(folder, alone).ttft_s).mean()))


def predicted(folder: Path, run: Requests, prefix: int = 0) -> Requests:
    """The same requests as simulated: at their measured times, or as the users of a closed loop send them."""
    trace = folder / "trace.csv"
    with trace.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["arrival_s", "prompt_tokens", "output_tokens"]
        writer.writerow([*names, "hash_ids"] if prefix else names)
        for row, sent, prompt, output in zip(
            range(len(run.sent_s)), run.sent_s, run.prompt_tokens, run.output_tokens, strict=True
        ):
            blocks = -(-int(prompt) // BLOCK)
            hashes = [at if (at + 1) * BLOCK <= prefix else 1000 * (row + 1) + at for at in range(blocks)]
            writer.writerow([sent, prompt, output, json.dumps(hashes)] if prefix else [sent, prompt, output])
    closed = {"process": "closed_loop", "users": run.users}
    workload = {
        "arrivals": closed if run.users else {"process": "trace", "file": str(trace)}, "lengths": {"trace": str(trace)},
        "requests": len(run.sent_s), "warmup_requests": 0, "seeds": [0],
    } | ({"sessions": {"hash_block_tokens": BLOCK}} if prefix else {})  # fmt: skip
    tree = yaml.safe_load((folder / SCENARIO).read_text()) | {"workload": workload}
    for key, name in (("hardware", HARDWARE), ("calibration", SET), ("model", MODEL)):
        tree["deployment"][key] = str(folder / name)
    times = simulate(load_scenario(tree), simulator="token").requests
    sent, ttft, e2e = (times[name].to_numpy() for name in ("arrival_s", "ttft_s", "e2e_s"))
    return Requests(run.users, sent, run.prompt_tokens, run.output_tokens, ttft, e2e)


FIGURES = ("TTFT mean", "TTFT p99", "TPOT mean", "TPOT p99", "E2E mean", "E2E p99", "requests/s")


def figures(run: Requests) -> np.ndarray:
    """FIGURES of a run, milliseconds and 1/s."""
    values = []
    for times in (run.ttft_s, run.tpot_s[run.output_tokens > 1], run.e2e_s):
        values += [1e3 * times.mean(), 1e3 * np.quantile(times, 0.99)]
    ends = run.sent_s + run.e2e_s
    return np.array([*values, len(ends) / (ends.max() - run.sent_s.min())])


def same_order(one: Requests, other: Requests) -> float:
    """The share of pairs of requests that complete in the same order."""
    first, second = (np.sign(np.subtract.outer(run.sent_s + run.e2e_s, run.sent_s + run.e2e_s)) for run in (one, other))
    pairs = np.triu_indices(len(one.sent_s), 1)
    return float((first[pairs] == second[pairs]).mean())


def table(loads: Loads) -> str:
    """For each load the measured figures, the repeat's difference and the errors, and the share of pairs in order."""
    lines = ["| load | | " + " | ".join(FIGURES) + " | order |", "|---" * (len(FIGURES) + 3) + "|"]
    for name, runs in loads.items():
        measured = np.array([figures(run) for run, _ in runs])
        of_predicted = np.array([figures(run) for _, run in runs])
        errors = 100 * (of_predicted.mean(axis=0) / measured.mean(axis=0) - 1)
        order = np.mean([same_order(*pair) for pair in runs])
        lines.append(f"| {name} | measured | " + " | ".join(f"{value:.4g}" for value in measured.mean(axis=0)) + " | |")
        if len(runs) > 1:
            # Half of the range of the rounds: of two, how far each is from their mean.
            noise = 50 * np.ptp(measured, axis=0) / measured.mean(axis=0)
            again = same_order(runs[0][0], runs[1][0])
            lines.append(
                "| | rounds, ± % | " + " | ".join(f"{value:.1f}" for value in noise) + f" | {100 * again:.1f} % |"
            )
        lines.append("| | error, % | " + " | ".join(f"{value:+.1f}" for value in errors) + f" | {100 * order:.1f} % |")
    return "\n".join(lines)
