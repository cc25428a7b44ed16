"""Hostile inputs to what stands around a scenario: scripts, results, pages, load generators, parts, names.

Kinds for ``python -m tests.benchmarks.hostile --surfaces N``. A case is several commands in turn, or calls of Python,
and what must not be in the files that come of it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

import evaluator
from evaluator import parts
from evaluator.arguments import COMMAND_LINES
from evaluator.deploy import TARGETS
from evaluator.report.search import RANKS

RESULTS = Path(__file__).parents[1] / "experiments/results"
Step = list[str] | Callable[[], Any]
BASE: dict[str, Any] = {
    "name": "small",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 4},
        "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 8},
        "requests": 20,
    },
    "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", "batching": {"max_num_seqs": 8}},
    "slo": {"ttft": {"p90": "1s"}},
}
MARK = "touch stolen"
"""What a shell or a browser would run, were it not quoted."""
TEXTS = [
    f"$({MARK})", f"`{MARK}`", f"x'; {MARK}; '", f'x"; {MARK}; "', f"x\n{MARK}\n", f"x\r\n{MARK}", f"\x1b[2J{MARK}",
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "{{7*7}}", "%s%n", "=1+1", "-rf", "--model",
    "../../etc/passwd", "größe", "\u202eright to left", "a" * 3000, " ", "", "\ud800", "null", "~", "!!python/object:x",
    "x: [y", "# x", "&a *a", "NaN",
]  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 0, 1e300, float("nan"), float("inf"), 10**40, 0.5, "", "x", [], {}, [1], {"p90": 1}, [None],
    {"like": "h100-sxm"}, "5ms", *TEXTS[:3],
]  # fmt: skip


def write(path: Path, tree: Any) -> str:
    path.write_text(yaml.safe_dump(tree, allow_unicode=False), encoding="utf-8")
    return str(path)


def with_(section: str, **values: Any) -> dict[str, Any]:
    tree = json.loads(json.dumps(BASE))
    return {**tree, section: {**tree.get(section, {}), **values}}


@cache
def small() -> xr.Dataset:
    """Four designs that ran."""
    return evaluator.sweep(
        {**BASE, "sweep": {"deployment.tensor_parallel": [1, 2], "deployment.replicas": [1, 2]}}, simulator="token"
    )


def saved(path: Path, ds: xr.Dataset) -> str:
    ds.to_netcdf(path, engine="h5netcdf")
    return str(path)


def targets(rng: random.Random, folder: Path) -> Iterator[Step]:
    """``deploy`` of good results with odd options, and of results whose scenario somebody changed."""
    ds = small().copy()
    if rng.random() < 0.6:
        tree = yaml.safe_load(ds.attrs["scenario"])
        key = rng.choice(
            ["model", "hardware", "router", "engine", "precision", "kv", "speculative", "transfer", "pools"]
        )
        tree["deployment"][key] = rng.choice([*ODD, *TEXTS])
        ds.attrs["scenario"] = rng.choice([yaml.safe_dump(tree), rng.choice(TEXTS), "", str(rng.choice(ODD))])
    name = rng.choice(["a.nc", "a\ntouch stolen\n.nc", "$(touch stolen).nc", "a b.nc"])
    options = [
        ["--select", rng.choice([*TEXTS, "tp=2", "tp=9", "1", "#99", "config=-1", "config=1e9", "replicas=1,tp=x"])],
        ["--to", rng.choice([*TARGETS, "x", ""])], ["--model-id", rng.choice(TEXTS)], [],
    ]  # fmt: skip
    words = [word for option in rng.sample(options, 2) for word in option]
    yield ["deploy", saved(folder / name, ds), *words, "--out", str(folder / "out")]


def shell(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Scripts that start a server, or that only look so."""
    lines = [
        "vllm serve meta-llama/Llama-3.1-8B-Instruct", "python -m sglang.launch_server --model-path Qwen/Qwen3-14B",
        f"trtllm-serve {rng.choice(TEXTS)!r}", "vllm", "exec env A=1 nohup vllm serve $MODEL &", "",
    ]  # fmt: skip
    flags = sorted(
        {flag for line in COMMAND_LINES.values() for flag in getattr(line.arguments, "flags", {})} or {"--tp"}
    )
    line = rng.choice(lines)
    for _ in range(rng.randint(0, 5)):
        value = rng.choice([*TEXTS, "1", "8", "-1", "1e9", "0.9", '{"method": "ngram"}', "{", "auto", "fp8"])
        line += f" {rng.choice([*flags, '--tensor-parallel-size', '--max-num-seqs', '--kv-cache-dtype', '--x'])}"
        line += rng.choice([f" {value}", f"={value}", " \\\n", " $TP", "", f" '{value}'", " \\"])
    text = rng.choice(["#!/bin/sh\n", "MODEL=x\nTP=2\n", "", "\ufeff", 'for i in "$@"; do\n']) + line
    text += rng.choice(["", "\n", "\nwait\n", "\nvllm serve x\n", "\n# evaluator: {", '\n# evaluator: {"pool": 3}\n'])
    (folder / "serve.sh").write_text(text, encoding="utf-8", errors="surrogatepass")
    tree = with_("deployment", **{"from": str(folder / "serve.sh")})
    if rng.random() < 0.5:
        del tree["deployment"]["model"]
    yield rng.choice([
        ["sweep", write(folder / "s.yaml", tree), "--dry-run"], ["catalog", "import", str(folder / "serve.sh")],
    ])  # fmt: skip


def damaged(value: Any, rng: random.Random) -> Any:
    """A tree with one leaf that is another, or away."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.15:
            del changed[key]
        else:
            changed[key] = damaged(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], damaged(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def generators(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Files of load generators, cut, changed, or of another kind."""
    source = rng.choice(sorted(path for path in RESULTS.iterdir() if path.is_file()))
    text = source.read_text(encoding="utf-8")
    how = rng.choice(["cut", "leaf", "leaf", "leaf", "lines", "bytes", "whole"])
    if how == "cut":
        text = text[: rng.randrange(len(text))]
    elif how == "leaf" and source.suffix == ".json":
        tree = json.loads(text)
        for _ in range(rng.randint(1, 3)):
            tree = damaged(tree, rng)
        text = json.dumps(tree)
    elif how == "lines":
        rows = text.splitlines()
        rng.shuffle(rows)
        text = "\n".join(rows)
    path = folder / source.name
    path.write_bytes(b"\xff\xfe" + text.encode() if how == "bytes" else text.encode("utf-8", "surrogatepass"))
    words = ["compare", str(path)]
    if rng.random() < 0.5:
        words += ["--scenario", write(folder / "s.yaml", with_("workload", requests=rng.choice([1, 20, 5])))]
    else:
        words += ["--set", "deployment.hardware=h100-sxm", "--set", "deployment.model=llama-3.1-8b"]
    yield [*words, "--out", str(folder / "rows.csv")]


def layouts(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Budgets that enumerate layouts, beside what forbids or breaks that."""
    tree = json.loads(json.dumps(BASE))
    tree["budget"] = {
        "devices": rng.choice([1, 2, 4, 3, *ODD[:8]]), "fill": rng.choice([True, True, False, "x"]),
        "layouts": rng.choice([True, True, False, 3]), **rng.choice([{}, {"usd_per_hour": rng.choice(ODD[:8])}]),
    }  # fmt: skip
    more = [
        {"pools": {"p": {"role": "prefill"}, "d": {"role": "decode"}}}, {"tensor_parallel": 2}, {"replicas": 3},
        {"model": "mixtral-8x7b"}, {"hardware": "l4"}, {"model": "llama-3.1-405b"}, {"engine": "sglang"},
        {"hardware": {"name": rng.choice(TEXTS), "like": "l40s", "memory_bytes": rng.choice(["1GB", "80GB", 1e-3])}},
    ]  # fmt: skip
    for change in rng.sample(more, rng.randint(0, 2)):
        tree["deployment"] |= change
    if rng.random() < 0.3:
        tree["sweep"] = {rng.choice(["deployment.tensor_parallel", "deployment.replicas"]): [1, 2, 64]}
    words = ["--rank-by", rng.choice([*RANKS, "x"])] if rng.random() < 0.5 else []
    words += ["--rate", rng.choice(["1", "0", "nan", "1e9", "-1"])] if rng.random() < 0.3 else []
    yield ["optimize", write(folder / "s.yaml", tree), "--simulator", "token", *words]


def named(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Devices, models and scenarios under hostile names: swept, reported, and deployed."""
    name = rng.choice(TEXTS)
    tree = json.loads(json.dumps(BASE))
    described = {"name": name, "like": "h100-sxm", "memory_bandwidth": {"times": 2}}
    where = rng.choice(["hardware", "model", "swept", "scenario", "pool", "file"])
    if where == "hardware":
        tree["deployment"]["hardware"] = described
    elif where == "model":
        tree["deployment"]["model"] = {"name": name, "like": "llama-3.1-8b", "layers": 16}
    elif where == "swept":
        tree["sweep"] = {"deployment.hardware": ["h100-sxm", described]}
    elif where == "scenario":
        tree["name"] = name
    elif where == "pool":
        tree["deployment"]["pools"] = {name: {"role": "mixed"}}
    else:
        tree["workload"] = {"arrivals": {"process": "trace", "file": name}}
    yield ["sweep", write(folder / "s.yaml", tree), "--simulator", "token", "--out", str(folder / "a.nc")]
    if (folder / "a.nc").exists():
        yield ["report", str(folder / "a.nc"), "--out", str(folder / "a.html")]
        yield ["deploy", str(folder / "a.nc"), "--out", str(folder / "out"), "--to", rng.choice(list(TARGETS)[:4])]


def page(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Results whose texts are hostile and whose numbers are none."""
    ds = small().copy(deep=True)
    for name in rng.sample(sorted(map(str, ds.variables)), 3):
        values = ds[name].values
        if values.dtype.kind in "UO":
            changed = np.array([rng.choice(TEXTS).replace("\ud800", "?") for _ in range(values.size)])
            ds[name] = (ds[name].dims, changed.reshape(values.shape), ds[name].attrs)
        elif values.dtype.kind == "f":
            ds[name] = (
                ds[name].dims,
                np.full(values.shape, rng.choice([np.nan, np.inf, -1.0, 1e308, 0.0])),
                ds[name].attrs,
            )
    attribute = rng.choice([*ds.attrs, "title", "search", "ranked_by"])
    ds.attrs[attribute] = rng.choice(TEXTS).replace("\ud800", "?")
    path = saved(folder / "a.nc", ds)
    yield rng.choice([
        ["report", path, "--out", str(folder / "a.html")], ["report", path, "--out", str(folder / "a.html")],
        ["deploy", path, "--out", str(folder / "out")],
    ])  # fmt: skip


def kv(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Keys of the KV cache, managers among them, in every combination."""
    choices = {
        "manager": [None, "pow2", "x", 3, [], *TEXTS[:2]], "admission": ["reserve", "on_demand", "x"],
        "prefix_caching": [True, False, 1], "block_tokens": [1, 16, 0, 1e9], "capacity_tokens": [None, 1, 64, 1e18],
        "preemption": ["recompute", "swap", "x"], "watermark": [0, 0.5, 1, 2], "memory_fraction": [0.9, 1e-9, 1, 2],
    }  # fmt: skip
    chosen = {key: rng.choice(choices[key]) for key in rng.sample(list(choices), rng.randint(1, 4))}
    policy = rng.choice(["chunked", "continuous", "lightllm", "sarathi", "orca", "static", "hostile"])
    tree = with_("deployment", kv=chosen, batching={"policy": policy, "max_num_seqs": rng.choice([1, 8])})
    yield ["sweep", write(folder / "s.yaml", tree), "--simulator", "token"]


def own_parts(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Records that are none, names that are taken, functions that fail."""

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of the user")

    gives = rng.choice([lambda units: units * rng.choice([0, -1, 0.5, np.nan, 1e18]), lambda units: None, fails, "x"])
    name = rng.choice(["hostile", "reserve", "chunked", "round_robin", *TEXTS, 3, None])
    records: list[Callable[[], Any]] = [
        lambda: parts.KvManager(name, "x", units=gives),
        lambda: parts.KvManager(name, "x"),
        lambda: parts.BatchingPolicy(
            name, label="x", source="x", **{rng.choice(["whole_prompts", "x"]): rng.choice(ODD)}
        ),
        lambda: parts.Router(name, "x", parts.by_turns(gives)),
        lambda: parts.Router(name, "x", rng.choice(ODD)),
        lambda: rng.choice(ODD),
    ]
    make = rng.choice(records)

    def register_and_run() -> None:
        made = make()
        parts.register(made)
        key = {"KvManager": "kv.manager", "BatchingPolicy": "batching.policy"}.get(type(made).__name__, "router")
        tree = {**BASE, "sweep": {f"deployment.{key}": [name]}}
        tree["deployment"] = {**BASE["deployment"], "replicas": 2}
        evaluator.sweep(tree, simulator="token")

    yield register_and_run


def python(rng: random.Random, folder: Path) -> Iterator[Step]:
    """Functions of the package with what they do not expect."""
    odd = rng.choice([*ODD, np.array([1, np.nan]), np.zeros((2, 0)), [[1, 2], [3]], range(3)])
    name = rng.choice(["llama-3.1-8b", "x", "", None, 3])
    calls: list[Callable[[], Any]] = [
        lambda: evaluator.iteration_time(name, "h100-sxm", prompt_tokens=odd),
        lambda: evaluator.iteration_time("llama-3.1-8b", "h100-sxm", decodes=odd, context_tokens=[1, 2]),
        lambda: evaluator.iteration_time("llama-3.1-8b", odd, decodes=4, context_tokens=9),
        lambda: evaluator.sweep(odd),
        lambda: evaluator.sweep(BASE, simulator=odd),
        lambda: evaluator.simulate(BASE, simulator="token", iterations=odd),
        lambda: evaluator.optimize(BASE, rate_rps=odd, simulator="token"),
        lambda: evaluator.read(odd),
        lambda: evaluator.gather(odd),
        lambda: evaluator.load_scenario(BASE, [str(odd)]),
        lambda: evaluator.sweep({**BASE, rng.choice(["deployment", "workload", "budget", "pipeline"]): odd}),
    ]
    yield rng.choice(calls)


SURFACES = (targets, shell, generators, layouts, named, page, kv, own_parts, python, named, generators, shell)


def leaked(folder: Path) -> str:
    """What of the files that came of a case a shell or a browser would run; empty: nothing."""
    for path in sorted(folder.rglob("*")):
        if path.name == "stolen":
            return "a command ran"
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            if "<img src=x" in text or text.count("<script") != text.count("</script>") or "<script>alert" in text:
                return f"{path.name} holds a tag of the input"
        if path.suffix in (".sh", ".yaml") and path.parent.name == "out":
            text = path.read_text(encoding="utf-8")
            if re.search(rf"^\s*{MARK}", text, re.MULTILINE):
                return f"{path.name} has a line of the input"
            if path.suffix == ".sh" and (sh := shutil.which("sh")):
                if subprocess.run([sh, "-n", str(path)], capture_output=True).returncode:
                    return f"{path.name} is no script"
                # Every program that the script starts is replaced by one that does nothing: what else runs is a leak.
                quiet = "vllm() { :; }; python() { :; }; python3() { :; }; trtllm-serve() { :; }; wait() { :; }\n"
                inert = re.sub(r"^(\s*)(exec|env)\s", r"\1", text, flags=re.MULTILINE)
                subprocess.run([sh, "-c", quiet + inert], cwd=path.parent, capture_output=True, timeout=20)
                if (path.parent / "stolen").exists():
                    return f"{path.name} runs a command of the input"
    return ""
