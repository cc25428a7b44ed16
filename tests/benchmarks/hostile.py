"""Hostile inputs and signals by the hundred, counted by what becomes of them: ``python -m tests.benchmarks.hostile``.

Every input must end in a result (0) or in a refusal that names its place (2): never in a traceback, a fault of ours (1)
or a wait. Every signal must end the process with its own code. What comes of each is printed by kind; what must not be
is printed whole, with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from evaluator.cli.app import app
from evaluator.errors import InputError, InputWarning

LONGEST_S = 60.0
BASE: dict[str, Any] = {
    "name": "small",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 8},
        "requests": 20,
    },
    "deployment": {
        "model": "llama-3.1-8b", "hardware": "h100-sxm", "replicas": 1, "tensor_parallel": 1,
        "precision": {"weights": "checkpoint"}, "batching": {"max_num_seqs": 8}, "kv": {"memory_fraction": 0.9},
    },
    "slo": {"ttft": {"p90": "1s"}},
    "sweep": {"deployment.replicas": [1, 2]},
}  # fmt: skip
ODD: list[Any] = [
    None, True, "", " ", "x", "nan", "1e400", "-1", "0", "5ms", "80GB", "1e300s", "../../etc/passwd", "\x00", "größe",
    "$(id)", "=1+1", "<script>", "a" * 5000, 0, -1, 1, 3, 0.5, 1e-300, 1e300, -0.0, math.inf, -math.inf, math.nan,
    2**63, 10**40, [],
    {}, [1], [None], {"like": "h100-sxm"}, {"p90": 1}, {"between": [1, 2]}, {"linspace": [0, 1, 3]}, [[1]],
    {"zip": []}, {"times": 1e9}, [1, 1], ["1s", "1ms"], {1: 2}, {"process": "closed_loop", "users": 3},
    {"turns": 3, "think_s": "1s"},
]  # fmt: skip
KEYS = """
name workload workload.arrivals workload.arrivals.process workload.arrivals.rate_rps workload.arrivals.cv
workload.lengths workload.lengths.prompt_tokens workload.lengths.output_tokens workload.requests
workload.warmup_requests workload.seeds workload.sessions workload.sessions.turns workload.cached_tokens
workload.reasoning workload.models workload.find_warmup deployment deployment.model deployment.hardware
deployment.hardware.memory_bandwidth deployment.hardware.peak_flops.times deployment.replicas
deployment.tensor_parallel deployment.pipeline_parallel deployment.expert_parallel deployment.data_parallel
deployment.precision.weights deployment.precision.kv deployment.engine deployment.calibration deployment.batching
deployment.batching.policy deployment.batching.max_num_seqs deployment.batching.max_num_batched_tokens
deployment.kv deployment.kv.memory_fraction deployment.kv.block_tokens deployment.kv.capacity_tokens
deployment.kv.prefix_caching deployment.kv.admission deployment.router deployment.pools deployment.speculative
deployment.usd_per_device_hour pipeline slo slo.ttft.p90 slo.tpot.mean slo.relax slo.confidence budget budget.devices
demand.rate_rps sweep sweep.where sweep.sample sweep.table sweep.designs
""".split()
TRACES = ["arrival_s,prompt_tokens,output_tokens", "0,10,2\n", "1,10,2\n", "1e300,10,2\n", "nan,1,1\n", "-1,1,1\n",
          "1700000000,9,3\n", "1.7e12,9,3\n", "0,1e18,1\n", "0,9999999,1\n", "0,0,0\n", "0,1\n", "\ufeff", '"', "\n",
          ",,,\n", "x,y,z\n"]  # fmt: skip
MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "vocab_size": 100,
    "num_hidden_layers": 4, "max_position_embeddings": 2048,
}  # fmt: skip
PLACES = {
    "models/llm": "deployment.model", "models/hardware": "deployment.hardware", "calibration": "deployment.calibration",
    "models/links": "deployment.transfer.link", "models/lengths": "workload.lengths.source",
}  # fmt: skip
Case = tuple[str, list[str]]


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a key path; axes of a sweep are keys that hold dots."""
    section, _, rest = path.partition(".")
    keys = [section, rest] if section == "sweep" and rest else path.split(".")
    for key in keys[:-1]:
        below = tree.get(key)
        tree[key] = dict(below) if isinstance(below, dict) else {}
        tree = tree[key]
    tree[keys[-1]] = value


def scenario(rng: random.Random, folder: Path) -> Case:
    """One to three odd values at keys that there are."""
    tree = json.loads(json.dumps(BASE))
    for _ in range(rng.choice([1, 1, 2])):
        put(tree, rng.choice(KEYS), rng.choice(ODD))
    (folder / "s.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    command = rng.choice(
        [["sweep", "--simulator", "token"], ["sweep", "--dry-run"], ["optimize", "--simulator", "token"]]
    )
    return "scenario", [command[0], str(folder / "s.yaml"), *command[1:]]


EXTREME: dict[str, list[Any]] = {
    "workload.arrivals": [
        {"process": "poisson", "rate_rps": 1e-9}, {"process": "poisson", "rate_rps": 1e9},
        {"process": "gamma", "rate_rps": 3, "cv": 4}, {"process": "closed_loop", "users": 500},
        {"process": "all_at_once"}, {"process": "burst", "rate_rps": 5, "factor": 2, "on_s": 1e-6, "off_s": 1e-6},
        {"process": "normal", "rate_rps": 2, "std_s": 1e6},
    ],
    "workload.lengths": [
        {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1}, {"source": "azure-conv-2023"},
        {"source": "fixed", "prompt_tokens": 120_000, "output_tokens": 2},
        {"source": "lognormal", "prompt_mean": 50, "prompt_cv": 20, "output_mean": 1, "output_cv": 9},
    ],
    "workload.requests": [1, 2, 3, 64], "workload.warmup_requests": [0, 19], "workload.seeds": [[0], [0, 1, 2**40]],
    "workload.sessions": [{"turns": 3, "think_s": 0}, {"turns": 2, "think_s": "1000000s"}, {"system_tokens": 99}],
    "deployment.replicas": [1, 70], "deployment.tensor_parallel": [2, 8, 64], "deployment.data_parallel": [2],
    "deployment.batching": [
        {"policy": "static", "max_num_seqs": 1}, {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"policy": "continuous", "max_num_batched_tokens": 1_000_000}, {"max_num_seqs": 100_000},
    ],
    "deployment.kv": [
        {"capacity_tokens": 128}, {"memory_fraction": 0.2}, {"prefix_caching": True}, {"block_tokens": 5000},
        {"admission": "on_demand", "capacity_tokens": 320, "block_tokens": 16},
    ],
    "deployment.precision.weights": ["int4", "fp32", "nvfp4"], "deployment.model": ["llama-3.1-405b", "gpt-oss-120b"],
    "deployment.hardware": ["l4", "mi300x", {"name": "x", "like": "h100-sxm", "memory_bandwidth": {"times": 1e-3}}],
    "deployment.pools": [{"p": {"role": "prefill"}, "d": {"role": "decode"}}, {"a": {"role": "mixed"}}],
    "deployment.router": ["random", "least_kv", "session"],
    "deployment.speculative": [
        {"method": "ngram", "tokens": 2, "acceptance": 0}, {"method": "ngram", "tokens": 7, "acceptance": 1},
    ],
    "slo": [{"ttft": {"p99.9": "1us"}}, {"e2e": {"mean": "1e9s"}}, {"itl": {"p50": "1ms"}}, {}],
    "pipeline": [
        ["prefill", "decode", {"stage": "postprocess", "seconds": "1s", "servers": 1}],
        [{"stage": "tool", "seconds": 0}, "prefill", "decode"],
    ],
    "sweep.where": ["replicas > 0", "1/(replicas-1) > 0"], "budget": [{"devices": 1}, {"devices": 4, "fill": True}],
}  # fmt: skip
"""Values that are allowed, at their ends."""


def extreme(rng: random.Random, folder: Path) -> Case:
    """Several of EXTREME at a time: most of these run."""
    tree = json.loads(json.dumps(BASE))
    for path in rng.sample(list(EXTREME), rng.randint(1, 3)):
        put(tree, path, rng.choice(EXTREME[path]))
    (folder / "s.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = rng.choice([["sweep", "--sensitivity"], ["sweep"], ["sweep", "--by-seed"], ["optimize"], ["simulate"]])
    select = ["--select", "replicas=1"] if command[0] == "simulate" else []
    return "extreme", [command[0], str(folder / "s.yaml"), *command[1:], "--simulator", "token", *select]


def axis(rng: random.Random, folder: Path) -> Case:
    """An axis of odd steps, with a condition."""
    tree = json.loads(json.dumps(BASE))
    put(tree, f"sweep.{rng.choice(KEYS)}", rng.choice([[rng.choice(ODD), rng.choice(ODD)], rng.choice(ODD)]))
    if rng.random() < 0.5:
        word = rng.choice(["replicas", "1/(replicas-1)", "model", "replicas % 0", "rate_rps ** 400", "x", "(", "'a'"])
        put(
            tree,
            "sweep.where",
            f"{word} {rng.choice(['>', '==', '!=', 'in', 'and'])} {rng.choice(['0', '1', '[1]', 'replicas'])}",
        )
    (folder / "s.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return "axis", ["sweep", str(folder / "s.yaml"), "--simulator", "token", "--top", "1"]


def trace(rng: random.Random, folder: Path) -> Case:
    """Rows that are none, clocks of other units, odd ends."""
    text = rng.choice([TRACES[0] + "\n", TRACES[0] + "\n", "", rng.choice(TRACES)])
    (folder / "t.csv").write_text(text + "".join(rng.choices(TRACES[1:], k=rng.randint(0, 4))), encoding="utf-8")
    tree = json.loads(json.dumps(BASE))
    tree["workload"] = {
        "arrivals": {"process": "trace", "file": str(folder / "t.csv"), "scale": rng.choice([1, 1e-9, 1e9])}
    }
    (folder / "s.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = rng.choice(
        [["sweep", "--simulator", "token"], ["simulate", "--simulator", "token", "--select", "replicas=1"]]
    )
    return "trace", [command[0], str(folder / "s.yaml"), *command[1:]]


def table(rng: random.Random, folder: Path) -> Case:
    """Designs, measurements, runs and requests in files that hold something else."""
    cells = ["1", "", "x", "1e300", "nan", "-1", "=1", "h100-sxm", "gemm", "\x00", "[1]", "1e400", "0"]
    heads = ["tensor_parallel", "op_class", "m", "n", "k", "time_s", "arrival_s", "prompt_tokens", "output_tokens",
             "ttft_s", "e2e_s", "exp_id", "deployment.model", "", "workload.seeds", "rate_rps"]  # fmt: skip
    names = rng.sample(heads, rng.randint(1, 8))
    rows = [",".join(rng.choice(cells) for _ in names) for _ in range(rng.randint(0, 3))]
    text = rng.choice(["", "\ufeff", "{", "[1,2]\n"]) + "\n".join([",".join(names), *rows]) + "\n"
    (folder / "a.csv").write_text(text, encoding="utf-8")
    (folder / "s.yaml").write_text(
        yaml.safe_dump({**BASE, "sweep": {"table": str(folder / "a.csv")}}), encoding="utf-8"
    )
    (folder / "one.yaml").write_text(
        yaml.safe_dump({key: BASE[key] for key in ("workload", "deployment")}), encoding="utf-8"
    )
    return "table", rng.choice([
        ["sweep", str(folder / "s.yaml"), "--simulator", "token"],
        ["calibrate", str(folder / "a.csv"), "--hardware", "h100-sxm", "--out", str(folder / "c.yaml")],
        ["compare", str(folder / "a.csv"), "--scenario", str(folder / "one.yaml")],
        ["compare", str(folder / "a.csv"), str(folder / "a.csv")],
    ])  # fmt: skip


def result(rng: random.Random, folder: Path) -> Case:
    """Results that are damaged, of another kind, or somebody's folder."""
    import numpy as np
    import xarray as xr

    path = folder / rng.choice(["a.nc", "a.zarr", "a.txt", "a"])
    how = rng.choice(["folder", "text", "empty", "other", "types", "loop"])
    if how == "folder":
        path.mkdir()
        (path / "mine").touch()
    elif how == "loop":
        path.symlink_to(path)
    elif how in ("other", "types") and path.suffix == ".nc":
        values = np.arange(3.0) if how == "types" else np.array(["ok"] * 3)
        xr.Dataset({"status": ("config", values), "slo_met": ("config", values)}).to_netcdf(path, engine="h5netcdf")
    else:
        path.write_text("" if how == "empty" else "hello")
    return "result", rng.choice([
        ["report", str(path), "--out", str(folder / "p.html")], ["gather", str(path)],
        ["sweep", "closed-loop", "--simulator", "token", "--dry-run", "--out", str(path)],
    ])  # fmt: skip


def model(rng: random.Random, folder: Path) -> Case:
    """A config.json with odd values, under odd names."""
    content = {**MODEL, **{rng.choice([*MODEL, "quantization_config", "rope_scaling", "num_experts"]): rng.choice(ODD)
                           for _ in range(rng.randint(0, 3))}}  # fmt: skip
    text = rng.choice(["", "\ufeff", "x"]) + json.dumps(content)
    (folder / "config.json").write_text(rng.choice([text, text, text[: len(text) // 2]]), encoding="utf-8")
    words = ["catalog", "import", str(folder / "config.json")]
    name = rng.choice([None, None, *(value for value in ODD if isinstance(value, str) and "\x00" not in value)])
    return "model", words if name is None else [*words, "--name", name]


def files(rng: random.Random, folder: Path) -> Case:
    """Models, hardware and sets of the user's own that cannot be what they seem."""
    kind = rng.choice(list(PLACES))
    (folder / kind).mkdir(parents=True)
    path = folder / kind / "mine.yaml"
    how = rng.choice(["loop", "folder", "text", "list", "odd"])
    if how == "loop":
        path.symlink_to("mine.yaml")
    elif how == "folder":
        path.mkdir()
    else:
        content = {"text": "hello", "list": [1], "odd": {"name": "mine", "kind": rng.choice(ODD[:20]), "hidden": 1}}[
            how
        ]
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
    tree = json.loads(json.dumps(BASE))
    put(tree, PLACES[kind], "mine")
    (folder / "s.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    os.environ["EVALUATOR_PATH"] = rng.choice([str(folder), str(folder), str(folder / "nowhere")])
    words = [["sweep", str(folder / "s.yaml"), "--simulator", "token"], ["catalog", "show", "mine"],
             ["catalog", "models"], ["catalog", "hardware"]]  # fmt: skip
    return "catalog", rng.choice(words)


KINDS: tuple[Callable[[random.Random, Path], Case], ...] = (
    extreme, extreme, extreme, extreme, scenario, scenario, axis, trace, table, result, model, files,
)  # fmt: skip


def try_inputs(count: int, seed: int) -> Counter[tuple[str, str]]:
    """What becomes of so many inputs."""
    found: Counter[tuple[str, str]] = Counter()
    runner = CliRunner()
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as name:
            os.environ.pop("EVALUATOR_PATH", None)
            kind, words = KINDS[number % len(KINDS)](rng, Path(name))
            start = time.monotonic()
            done = runner.invoke(app, words)
            took = time.monotonic() - start
        outcome = "SLOW" if took > LONGEST_S else _outcome(done)
        found[kind, outcome] += 1
        if outcome.isupper():
            told = done.stderr.strip()[-600:] or repr(done.exception)
            print(
                f"{outcome}: input {number} of seed {seed}, {took:.1f} s: {' '.join(words)}\n  {told}", file=sys.stderr
            )
    os.environ.pop("EVALUATOR_PATH", None)
    return found


def try_surfaces(count: int, seed: int) -> Counter[tuple[str, str]]:
    """The same of what stands around a scenario (``hostile_surfaces``), with what is in the files that come of it."""
    from tests.benchmarks.hostile_surfaces import SURFACES, leaked

    found: Counter[tuple[str, str]] = Counter()
    runner = CliRunner()
    for number in range(count):
        rng, make = random.Random(f"surface {seed} {number}"), SURFACES[number % len(SURFACES)]
        with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            outcome, told, start = "done", "", time.monotonic()
            for step in make(rng, Path(name)):
                if callable(step):
                    outcome, told = _called(step)
                else:
                    done = runner.invoke(app, step)
                    outcome, told = _outcome(done), f"{' '.join(step)!r}\n  {done.stderr.strip()[-600:]}"
                    if outcome == "FAULT" and done.exception is not None:
                        told += "".join(traceback.format_exception(done.exception)[-3:])
                if outcome != "done":
                    break
            leak = leaked(Path(name))
            if leak:
                outcome, told = "LEAK", f"{leak}\n  {told}"
            elif time.monotonic() - start > LONGEST_S:
                outcome = "SLOW"
        found[make.__name__, outcome] += 1
        if outcome.isupper():
            print(f"{outcome}: surface {number} of seed {seed}, {make.__name__}: {told}", file=sys.stderr)
    return found


def _outcome(done: Any) -> str:
    """What became of a command."""
    fault = "internal error" in done.stderr or "Traceback" in done.stderr
    fault |= done.exception is not None and not isinstance(done.exception, SystemExit)
    if fault or done.exit_code not in (0, 2, 3):
        return "FAULT"
    if done.exit_code and not done.stderr.strip():
        return "SILENT"
    return "refused" if done.exit_code else "done"


def _called(step: Callable[[], Any]) -> tuple[str, str]:
    """What became of a call, with what it said. What the user's own function raises, and wrong types, are Python's."""
    try:
        step()
    except InputError as error:
        return "refused", str(error)
    except Exception as error:
        told = "".join(traceback.format_exception(error)[-4:])
        return ("refused" if isinstance(error, TypeError | ValueError) or "of the user" in told else "FAULT"), told
    return "done", ""


def try_signals(count: int, longest_s: float, seed: int) -> Counter[tuple[str, str]]:
    """What becomes of processes to which a signal is sent at once, and later and later up to ``longest_s``."""
    rng, found = random.Random(seed), Counter[tuple[str, str]]()
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
    for number in range(count):
        sent = list(codes)[number % 3]
        with tempfile.TemporaryDirectory() as name:
            words = [
                "sweep",
                "closed-loop",
                "-q",
                "--top",
                "0",
                "--out",
                f"{name}/a.nc",
                "--set",
                f"workload.requests={300 + number}",
            ]
            process = subprocess.Popen(
                [sys.executable, "-m", "evaluator", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, **({"EVALUATOR_CACHE": name} if number % 2 else {})}, preexec_fn=_heed,
            )  # fmt: skip
            time.sleep(longest_s * number / count + rng.random() * 0.005)
            ended = process.poll() is not None
            start = time.monotonic()
            process.send_signal(sent)
            _, told = process.communicate(timeout=LONGEST_S)
            took = time.monotonic() - start
        if ended:
            outcome = "had ended"
        elif process.returncode == codes[sent] and "Traceback" not in told:
            outcome = "ended with its code"
        elif process.returncode == -sent:  # before the program's first line, or after its last
            outcome = "ended by the system"
        else:
            outcome = f"FAULT {process.returncode}"
        outcome = "SLOW" if took > 10 else outcome
        found["signal", outcome] += 1
        if outcome[:4] in ("FAUL", "SLOW"):
            print(f"{outcome}: {sent.name} after {longest_s * number / count:.3f} s: {told[-600:]}", file=sys.stderr)
    return found


def _heed() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=400)
    parser.add_argument("--surfaces", type=int, default=200)
    parser.add_argument("--signals", type=int, default=100)
    parser.add_argument("--within", type=float, default=3.0, help="Seconds within which the signals come.")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found = try_inputs(asked.inputs, asked.seed) + try_surfaces(asked.surfaces, asked.seed)
    found += try_signals(asked.signals, asked.within, asked.seed)
    for (kind, outcome), count in sorted(found.items()):
        print(f"{count:6,}  {kind:10s} {outcome}")
    sys.exit(any(outcome.split()[0].isupper() for _, outcome in found))


if __name__ == "__main__":
    main()
