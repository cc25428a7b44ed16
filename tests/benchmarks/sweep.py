"""A whole sweep from scenario to file: requests per second end to end, and memory, as the grid grows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from evaluator.yaml import loads_yaml
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import ROOT, probe

REQUESTS = 1000
SIZES = {100: (5, 1), 1_000: (10, 5), 10_000: (50, 10), 100_000: (250, 20)}
"""Configurations -> (rates, values of max_num_seqs), times five devices and four tensor-parallel degrees."""
APART = {160: (4, 2), 16_000: (160, 5)}
"""The same of designs with prefill and decode apart, which count each request once."""
QUICK = 10_000
QUICKSTART = {100_020: 1_667, 1_000_020: 16_667}
"""Configurations -> rates of scenarios/quickstart.yaml, of whose designs some do not fit."""
DEVICES = (10_000, 100_000)
"""Hypothetical devices, one in each configuration, beside as many rates on one device."""


def scenario(configs: int, kind: str = "") -> dict:
    """The scenario of a kind: the grid of all sizes, ``apart``, ``devices``, ``rates``, of which every configuration
    fits; or ``quickstart``."""
    if kind == "quickstart":
        return _quickstart(configs)
    if kind in ("devices", "rates"):
        return _along(configs, kind)
    return _grid(configs, kind == "apart")


def _quickstart(configs: int) -> dict:
    path = ROOT / "scenarios" / "quickstart.yaml"
    asked = loads_yaml(path.read_text(encoding="utf-8"), path.name)
    asked["sweep"]["workload.arrivals.rate_rps"] = {"linspace": [0.5, 10, QUICKSTART.get(configs, 20)]}
    return asked


def _along(configs: int, kind: str) -> dict:
    """So many devices at one rate, or rates on one device. Both are near the same point: the engine does as much."""
    axes = {
        "devices": {"deployment.hardware.memory_bandwidth": {"linspace": ["3.3TB/s", "3.4TB/s", configs]}},
        "rates": {"workload.arrivals.rate_rps": {"linspace": [4, 4.1, configs]}},
    }
    alone = _grid(min(SIZES), apart=False)
    alone["workload"]["arrivals"]["rate_rps"] = 4.05
    return {**alone, "name": f"benchmark-{kind}-{configs}", "sweep": axes[kind]}


def _grid(configs: int, apart: bool) -> dict:
    """Every configuration fits, so that all of them are simulated; ``apart``: with a prefill and a decode pool."""
    rates, limits = (APART if apart else SIZES)[configs]
    pools = {
        "pools": {"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
        "transfer": {"link": "rdma-400g"},
    }
    return {
        "name": f"benchmark-{configs}",
        "workload": {
            "arrivals": {"process": "poisson", "rate_rps": 1},
            "lengths": {"source": "azure-conv-2023"},
            "requests": REQUESTS,
            "warmup_requests": REQUESTS // 10,
            "seeds": [0],
        },
        "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm", **(pools if apart else {})},
        "sweep": {
            "deployment.hardware": ["a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x"],
            "deployment.tensor_parallel": [1, 2, 4, 8],
            "deployment.batching.max_num_seqs": [256 // limits * (step + 1) for step in range(limits)],
            "workload.arrivals.rate_rps": {"linspace": [0.5, 20, rates]},
        },
    }


@benchmark("sweep")
def sweep(quick: bool) -> Iterator[Row]:
    """Wall time and peak memory of sweeps over 100 to 100,000 configurations."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"EVALUATOR_CACHE": str(Path(folder) / "cache")}
        probe("sweep_probe", str(min(SIZES)), folder, environment=kept)  # compiles
        for configs in (size for size in SIZES if size <= QUICK or not quick):
            repeats = 3 if configs <= QUICK else 1
            runs = [probe("sweep_probe", str(configs), folder, environment=kept) for _ in range(repeats)]
            yield from _rows(configs, {name: min(run[name] for run in runs) for name in runs[0]})
        if not quick:
            probe("sweep_probe", str(min(APART)), folder, "apart", environment=kept)  # compiles
            runs = [probe("sweep_probe", str(max(APART)), folder, "apart", environment=kept) for _ in range(3)]
            fastest = {name: min(run[name] for run in runs) for name in runs[0]}
            yield from _rows(max(APART), fastest, ", prefill and decode apart")
        yield from _hypothetical(DEVICES[0 if quick else 1], folder, kept)


@benchmark("million")
def million(quick: bool) -> Iterator[Row]:
    """Wall time and peak memory of scenarios/quickstart.yaml at so many rates that it has 1,000,020 designs."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"EVALUATOR_CACHE": str(Path(folder) / "cache")}
        probe("sweep_probe", "1200", folder, "quickstart", environment=kept)  # compiles
        for configs in (size for size in QUICKSTART if size <= 200_000 or not quick):
            found = probe("sweep_probe", str(configs), folder, "quickstart", environment=kept)
            yield from _rows(configs, found, ", quickstart")


def _hypothetical(devices: int, folder: str, kept: dict[str, str]) -> Iterator[Row]:
    """Devices that no file has, and the time that they take beside that of rates on one device."""
    probe("sweep_probe", str(min(SIZES)), folder, "rates", environment=kept)  # compiles
    wall_s = {kind: probe("sweep_probe", str(devices), folder, kind, environment=kept) for kind in ("rates", "devices")}
    yield from _rows(devices, wall_s["devices"], ", each a hypothetical device")
    times = wall_s["devices"]["wall_s"] / wall_s["rates"]["wall_s"]
    yield Row(f"{devices:,} hypothetical devices beside {devices:,} rates", times, "x the wall time")


def _rows(configs: int, found: dict[str, float], kind: str = "") -> Iterator[Row]:
    label = f"{configs:,} configurations{kind}"
    requests = found["ran"] * REQUESTS / 1e6
    yield Row(f"{label}: wall time", found["wall_s"], "s", f"of it {found['import_s']:.2g} s to load JAX")
    per_core = f"{requests / found['cpu_s']:.3g} M per core-second"
    yield Row(f"{label}: end to end", requests / found["wall_s"], "M requests/s", per_core)
    yield Row(f"{label}: peak memory", found["peak_bytes"] / 1e9, "GB")
