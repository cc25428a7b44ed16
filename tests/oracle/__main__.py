"""Random configurations through an engine's own scheduler and through the reference, and whether they are equal.

``python -m tests.oracle`` in the environment of ``make oracle``, with ``--engine sglang`` in that of ``make
oracle-sglang``; ``--record`` writes the first cases of every feature to ``recordings/``, which ``make test`` compares
without the engine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import sys
import time
import traceback
from pathlib import Path

from tests.oracle.cases import as_data, equal_steps, families, first_difference

RECORDINGS = Path(__file__).parent / "recordings"

ENGINES = {
    "vllm": ("vLLM", "vllm_engine", "ours", "cases"),
    "sglang": ("SGLang", "sglang_engine", "sglang_ours", "sglang_cases"),
}
"""Its label; what drives it, what drives ours, and the random cases: modules beside this one."""


def main() -> int:
    """The number of cases that differ, at most 1."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--engine", choices=ENGINES, default="vllm")
    arguments.add_argument("--cases", type=int, default=120, help="of each feature")
    arguments.add_argument("--first", type=int, default=0, help="seed of the first")
    arguments.add_argument("--feature", action="append", help="those whose name contains this; all by default")
    arguments.add_argument("--record", type=int, default=0, metavar="N", help="write the first N cases of each")
    arguments.add_argument("--show", type=int, default=1, help="differences printed of each feature")
    asked = arguments.parse_args()
    label, *modules = ENGINES[asked.engine]
    engine, ours, cases = (importlib.import_module(f"tests.oracle.{name}") for name in modules)
    print(f"{label} {engine.VERSION}")
    print(f"{'feature':<34} {'cases':>6} {'equal':>6} {'iterations':>11} {'equal':>11} {'preemptions':>12} {'s':>6}")
    differing = 0
    for feature in families(cases.FEATURES, asked.feature):
        started, shown = time.perf_counter(), 0
        equal = iterations = same = preemptions = 0
        recorded = []
        for seed in range(asked.first, asked.first + asked.cases):
            case = cases.random_case(feature, seed)
            theirs = engine.serve(case)
            if seed < asked.record:
                recorded.append(as_data(case, theirs))
            iterations += len(theirs.steps)
            preemptions += sum(len(step.preempted) for step in theirs.steps)
            try:
                own = ours.serve(case)
                difference = first_difference(theirs, own, label)
                same += equal_steps(theirs, own)
            except Exception:
                difference = traceback.format_exc(limit=-4)
            equal += difference is None
            if difference is not None and shown < asked.show:
                shown += 1
                print(f"{feature}, seed {seed}: {_without_requests(case)}\n{difference}")
        differing += asked.cases - equal
        took = time.perf_counter() - started
        print(
            f"{feature:<34} {asked.cases:>6,} {equal:>6,} {iterations:>11,} {same:>11,} {preemptions:>12,}",
            f"{took:>6.1f}",
            flush=True,
        )
        if recorded:
            _write(asked.engine, feature, engine.VERSION, recorded)
    return int(differing > 0)


def _without_requests(case: object) -> str:
    return repr(case).split(", requests=")[0] + ")"


def _write(engine: str, feature: str, version: str, recorded: list[dict[str, object]]) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    name = "-".join(feature.replace(",", "").split())
    text = json.dumps({"engine": f"{engine} {version}", "feature": feature, "cases": recorded}, separators=(",", ":"))
    (RECORDINGS / f"{engine}-{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    sys.exit(main())
