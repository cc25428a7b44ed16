"""One sweep in a process of its own, which prints what JAX compiled: RATES."""

from __future__ import annotations

import json
import sys
import time

from evaluator import device, sweep
from evaluator.device import configure
from evaluator.scenario import load_scenario
from tests.benchmarks.compilations import scenario

COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> None:
    asked = load_scenario(scenario(int(sys.argv[1])))
    configure()
    import jax

    spent: list[tuple[str, str, float]] = []  # event, function, seconds
    events: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, took, **about: spent.append((name, about.get("fun_name", ""), took))
    )
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
    start = time.perf_counter()
    result = sweep(asked)
    wall = time.perf_counter() - start

    compiled = [took for name, _, took in spent if name == COMPILED]
    # Of the engine alone: the functions inside it report their tracing too, which is part of its own.
    simulator = [took for name, function, took in spent if "/compile/" in name and "run_lanes" in function]
    print(
        json.dumps(
            {
                "configs": int(result.sizes["config"]) if "config" in result.sizes else int(result["status"].size),
                "structures": _structures(asked),
                "programs": sum(function._cache_size() for function in device._counted),
                "compilations": len(compiled),
                "cache_hits": sum(name.endswith("/cache_hits") for name in events),
                "compile_s": sum(simulator),
                "wall_s": wall,
            }
        )
    )


def _structures(asked) -> int:
    """Groups of the plan that differ in what a program is compiled for."""
    from evaluator.plan import plan

    stations = [station for group in plan(asked).groups for station in group.stations]
    return len({(one.ring, one.key.windowed, one.rows, one.lane_requests) for one in stations})


if __name__ == "__main__":
    main()
