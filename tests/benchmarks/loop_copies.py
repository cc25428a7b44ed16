"""Whether the event loops copy arrays of all requests: each trip would take time by the length of the run.

XLA updates an array of a loop in place only where nothing reads its old content afterwards; how reads and writes are
put in order says ``stations.engine.common.rings``. Where the order is missed, results are right and short runs hardly
slower, so that neither tests nor benchmarks of 1,000 requests show it: a day of 170,000 requests took minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import in_process
from tests.stations.engine.copies import copied_on_a_trip, loops_in_pieces

REQUESTS = 4000
"""Of each case: more than any array has cells that is not of all requests or of what they have."""

_BASE = {
    "name": "loop-copies",
    "workload": {
        "arrivals": {"process": "poisson", "rate_rps": 8},
        "lengths": {
            "source": "lognormal", "prompt_mean": 300, "prompt_cv": 0.8, "prompt_max": 1000,
            "output_mean": 80, "output_cv": 0.7, "output_max": 300,
        },
        "requests": REQUESTS,
    },
    "deployment": {
        "model": "llama-3.1-8b",
        "hardware": "l40s",
        "kv": {"admission": "on_demand", "capacity_tokens": 20000},
    },
}  # fmt: skip
_TURNS = "workload.sessions={turns: {mean: 4, max: 8}, think_s: {mean: 2}}"
_USERS = "workload.arrivals={process: closed_loop, users: 40}"
_CONTENT = "deployment.kv.prefix_caching=true"
_FOUR = "deployment.replicas=4"
_APART = "deployment.pools={prefill: {role: prefill, replicas: 2}, decode: {role: decode, replicas: 2}}"
_SCALING = "deployment.autoscaling={metric: ttft, target: 1, every_s: 10s, min_replicas: 1, start_up_s: 5s}"
CASES: dict[str, tuple[str, ...]] = {
    "in order of arrival": ("deployment.kv.admission=reserve",),
    "on demand": (),
    "least work left": ("deployment.batching.packing=least_work_left",),
    "swapped out": ("deployment.kv.preemption=swap", "deployment.kv.swap_bandwidth=25GB/s"),
    "pipeline ranks": ("deployment.pipeline_parallel=2",),
    "drafts": ("deployment.speculative={method: ngram, tokens: 3, acceptance: 0.5}",),
    "planned ahead": ("deployment.batching.planning=asynchronous",),
    "SGLang": ("deployment.engine=sglang",),
    "prefix cache": (_CONTENT, _TURNS),
    "replicas": (_FOUR, "deployment.router=least_kv"),
    "users over replicas": (_FOUR, "deployment.router=least_outstanding", _TURNS, _USERS),
    "users over replicas, prefix cache": (_FOUR, "deployment.router=prefix_aware", _CONTENT, _TURNS, _USERS),
    "a router that guesses caches": (_FOUR, "deployment.router=prefix_approximate", _CONTENT, _TURNS),
    "a router that is told late": (
        _FOUR,
        "deployment.router={prefix_aware: {events_delay_s: 1s}}",
        _CONTENT,
        _TURNS,
    ),
    "users over replicas, planned ahead": (
        _FOUR,
        _CONTENT,
        _TURNS,
        _USERS,
        "deployment.batching.planning=asynchronous",
    ),
    "a fleet": (_FOUR, "deployment.router=least_outstanding", _SCALING),
    "prefill and decode apart": (
        _APART,
        "deployment.router=session",
        "deployment.transfer.backpressure=true",
        _CONTENT,
        _TURNS,
        _USERS,
    ),
    "stages on one clock with prefill and decode": (
        _APART,
        "deployment.transfer.backpressure=true",
        _TURNS,
        _USERS,
        "pipeline=[{stage: tool, seconds: 1s, servers: 4}, prefill, decode, {stage: postprocess, seconds: 1ms}]",
    ),
}
"""What is compiled, by the values that a scenario is given with ``--set``."""


@benchmark("loop-copies")
def loop_copies(quick: bool) -> Iterator[Row]:
    """Copies of arrays of all requests within the event loops, by what is compiled; there should be none."""
    for label, values in CASES.items():
        copies = copies_of_case(values)
        yield Row(label, len(copies), "copies", ", ".join(copies))


def copies_of_case(values: Iterable[str]) -> list[str]:
    """What the event loops of all programs copy that the sweep of a case compiles, arrays and where; and those of these
    loops that are not compiled whole, which run many times slower."""
    with tempfile.TemporaryDirectory() as name:
        folder, scenario = Path(name), Path(name) / "scenario.yaml"
        scenario.write_text(yaml.safe_dump(_BASE))
        # Unoptimised by LLVM: copies are XLA's, and are there or not before LLVM sees the program.
        flags = f"--xla_dump_to={folder / 'dump'} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
        in_process(
            "-m", "evaluator", "sweep", str(scenario), "--simulator", "iteration", "--quiet", "--top", "0",
            "--out", str(folder / "out.nc"), *(f"--set={value}" for value in values),
            environment={"EVALUATOR_CACHE": str(folder / "cache"), "XLA_FLAGS": flags},
        )  # fmt: skip
        programs = list((folder / "dump").glob("*run_lanes.cpu_after_optimizations.txt"))
        assert programs, "no program was dumped: XLA has other names for its files now"
        texts = [program.read_text() for program in programs]
        return [what for text in texts for what in (*copied_on_a_trip(text, REQUESTS), *loops_in_pieces(text))]
