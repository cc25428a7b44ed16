"""How often and how long a sweep compiles: once per structure, whatever the number of configurations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import probe

MODELS = {
    "llama-3.1-8b": "dense",
    "qwen3-30b-a3b": "MoE",
    "gpt-oss-20b": "windowed, MoE",
    "deepseek-v2-lite": "MLA, MoE",
}
RATES = (4, 40)  # swept values; the second sweep must compile no more than the first


def scenario(rates: int) -> dict:
    """Models of all kinds under all policies and ``rates`` rates."""
    return {
        "name": "compilations",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "azure-conv-2023"},
            "requests": 200,
            "warmup_requests": 20,
            "seeds": [0],
        },
        # On demand those that run short of KV would need a general program, too.
        "deployment": {"model": "llama-3.1-8b", "hardware": "h200-sxm", "kv": {"admission": "reserve"}},
        "sweep": {
            "deployment.model": list(MODELS),
            "deployment.batching.policy": ["static", "continuous", "chunked", "mixed"],
            "workload.arrivals.rate_rps": {"linspace": [0.5, 20, rates]},
        },
    }


@benchmark("compilations")
def compilations(quick: bool) -> Iterator[Row]:
    """Programs compiled by a sweep over models of all kinds, policies and rates, with and without the cache."""
    cold_s = 0.0
    for rates in RATES:
        with tempfile.TemporaryDirectory() as folder:
            runs = {
                state: probe("compilations_probe", str(rates), environment={"EVALUATOR_CACHE": folder})
                for state in ("no cache", "cached")
            }
        for state, found in runs.items():
            label = f"{found['configs']} configurations, {state}"
            expected = found["structures"]
            verdict = "one each" if found["programs"] == expected else "NOT ONE EACH"
            yield Row(f"{label}: engine programs", found["programs"], "", f"{expected} structures: {verdict}")
            yield Row(
                f"{label}: all XLA compilations",
                found["compilations"],
                "",
                f"{found['cache_hits']} of them from the cache",
            )
            cold_s = found["compile_s"] if state == "no cache" else cold_s
            note = (
                "trace, lower and compile" if state == "no cache" else f"{found['compile_s'] / cold_s:.2f} x no cache"
            )
            yield Row(f"{label}: compiling", found["compile_s"], "s", f"{note}; {found['wall_s']:.1f} s in all")
