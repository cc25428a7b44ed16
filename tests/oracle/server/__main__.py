"""A real server beside its prediction: ``make oracle-server``.

vLLM serves a small model on this machine's processors, its iterations are recorded under some loads and fitted, its own
load generator sends others, and every request of these is predicted. ``--out`` keeps all results; ``--predict`` takes
those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from tests.oracle.server import serving
from tests.oracle.server.loads import FITTED, JUDGED, WARM_UP, prefix_of, write_model
from tests.oracle.server.prediction import (
    RECORDING,
    Loads,
    cut,
    frontend_s,
    machine,
    predicted,
    record,
    requests_of,
    table,
    write_scenario,
    write_set,
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--vllm", type=Path, help="the command of vLLM")
    arguments.add_argument("--out", type=Path, default=Path(".cache/oracle-server"))
    arguments.add_argument("--rounds", type=int, default=2, help="how often each load is sent; two tell the noise")
    arguments.add_argument("--busy", action="store_true", help="with a neighbour that always works, for machines that "
                           "are not quiet")  # fmt: skip
    arguments.add_argument("--predict", action="store_true", help="of the results in --out, without a server")
    arguments.add_argument("--record", action="store_true", help=f"put the requests and the set into {RECORDING.name}, "
                           "to which tests hold the prediction")  # fmt: skip
    asked = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    out = asked.out.resolve()
    if not asked.predict:
        with serving.busy() if asked.busy else nullcontext():
            measure(asked.vllm.resolve(), out, asked.rounds)
    loads = predict(out)
    if asked.record:
        record(out, loads, RECORDING)


def measure(vllm: Path, out: Path, rounds: int) -> None:
    model = write_model(out / "model")
    recorded = out / "recorded.csv"
    with serving.server(vllm, model, recorded, out / "server.log"):
        serving.bench(vllm, model, WARM_UP, out / "warm-up.json")
        for name, load in FITTED.items():
            _told(name, serving.bench(vllm, model, load, out / "fitted" / f"{slug(name)}.json"))
        for number in range(rounds):
            for name, load in JUDGED.items():
                _told(name, serving.bench(vllm, model, load, out / f"round-{number + 1}" / f"{slug(name)}.json"))


def predict(out: Path) -> Loads:
    fitted = [json.loads((out / "fitted" / f"{slug(name)}.json").read_text()) for name in FITTED]
    rows = cut(out / "recorded.csv", fitted, out / "iterations.csv")
    print(f"{machine()}; {rows:,} iterations")
    command = [
        sys.executable, "-m", "evaluator", "calibrate", "iterations.csv", "--hardware", "my-cpu.yaml",
        "--form", "polynomial", "--beyond", "extend", "--out", "my-server.yaml",
    ]  # fmt: skip
    write_scenario(out)
    # The package that this file belongs to, also where another one is installed.
    here = {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run(command, cwd=out, check=True, env=dict(os.environ) | here)
    frontend = frontend_s(out, requests_of(fitted[0]))
    write_set(out, frontend)
    print(f"around the engine: {1e3 * frontend:.2f} ms a request")
    loads = {}
    for name in JUDGED:
        files = sorted(out.glob(f"round-*/{slug(name)}.json"))
        measured = [requests_of(json.loads(file.read_text())) for file in files]
        loads[name] = [(run, predicted(out, run, prefix_of(name))) for run in measured]
    print(table(loads))
    return loads


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "." else "-" for letter in name).replace("--", "-")


def _told(name: str, result: dict) -> None:
    means = f"mean TTFT {result['mean_ttft_ms']:.1f} ms, TPOT {result['mean_tpot_ms']:.1f} ms"
    sent = f"{result['completed']} requests in {result['duration']:.1f} s"
    print(f"{name:20s} {sent}, {means}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
