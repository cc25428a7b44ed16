"""Requests per second of the request-level engine, and how far it is from the token-exact one for BestServe's case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from evaluator.cost.eager import Corrected, EagerCost
from evaluator.cost.request_times import tabulate
from evaluator.device import configure
from evaluator.policies import POLICIES
from evaluator.reference.request_level import Instances, WholeRequest, collocated, decode, prefill
from evaluator.stations.engine import LaneLimits, Requests, decisions, fcfs_reserved
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of
from tests.cost.eager.paper import paper_cost

RUNS, REQUESTS = 8, 1000
PROMPT, OUTPUT = 2048, 64
RING = 4096
CASES = (  # prompt and output tokens, most decodes of an instance, requests, requests/s
    (2048, 64, 64, 1000, (0.5, 1.5, 2.5, 3.5)),
    (2048, 64, 4, 1000, (0.5, 1.5, 2.5, 3.5)),
    (256, 2048, 64, 400, (0.1, 0.3, 0.5, 0.7)),
)


def arrivals(seed: int, rate: float, count: int, tokens: tuple[int, int]) -> list[WholeRequest]:
    """Poisson arrivals of equal requests."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / rate, count)).tolist()
    draws = rng.uniform(size=(2, count)).T.tolist()
    return [
        WholeRequest(at, float(tokens[0]), float(tokens[1]), *draw) for at, draw in zip(arrival, draws, strict=True)
    ]


def disaggregated(one: Instances, requests: list[WholeRequest]) -> None:
    """One instance for prompts and one that decodes."""
    prefill(one, requests)
    decode(one, requests)


@benchmark("request_level")
def request_level(quick: bool) -> Iterator[Row]:
    """Requests/s of 8 runs x 1,000 requests on two instances, from light load to overload."""
    costs: dict[str, Any] = {"tabulated cost": tabulate(paper_cost(), PROMPT, OUTPUT, 16)}
    if not quick:
        costs["eager cost"] = paper_cost()
    rates = np.linspace(0.5, 4.0, RUNS)

    def run(serve: Callable[[Instances, list[WholeRequest]], None], instances: Instances) -> None:
        for seed, rate in enumerate(rates):
            serve(instances, arrivals(seed, rate, REQUESTS, (PROMPT, OUTPUT)))

    for name, cost in costs.items():
        both, one = Instances(cost, 2, 4, 16), Instances(cost, 1, 4, 16)
        took = best_of(lambda both=both: run(collocated, both))
        yield Row(f"collocated, {name}", RUNS * REQUESTS / took.cpu_s / 1e3, "k requests/s", "per core-second")
        took = best_of(lambda one=one: run(disaggregated, one))
        yield Row(f"disaggregated, {name}", RUNS * REQUESTS / took.cpu_s / 1e3, "k requests/s", "per core-second")


@benchmark("pseudo_batch")
def pseudo_batch(quick: bool) -> Iterator[Row]:
    """Request-level against token-exact (policy continuous), two instances with the eager cost: ratios of latencies."""
    configure()
    cost = paper_cost(Corrected())
    for prompt, output, decodes, count, rates in CASES[:1] if quick else CASES:
        instances = Instances(tabulate(cost, prompt, output, 64), 2, 4, decodes)
        for rate in rates:
            served = arrivals(1, rate, count, (prompt, output))
            collocated(instances, served)
            arrival = np.array([each.arrival_s for each in served])
            found = _percentiles(*([getattr(each, name) for each in served] for name in _TIMES), arrival, output)
            exact = _percentiles(*_token_exact(cost, served, decodes), arrival, output)
            label = f"{prompt}/{output}, {decodes} decodes at most, {rate} requests/s"
            for name in found:
                note = f"{found[name] * 1e3:.1f} ms, token-exact {exact[name] * 1e3:.1f} ms"
                yield Row(f"{label}: {name}", found[name] / exact[name], "", note)


_TIMES = ("first_token_s", "last_token_s")


def _percentiles(
    first_s: Sequence[float], last_s: Sequence[float], arrival: np.ndarray, output: int
) -> dict[str, float]:
    values = {"ttft_s": first_s - arrival, "tpot_s": np.subtract(last_s, first_s) / (output - 1)}
    return {f"{name} p{q}": float(np.percentile(values[name], q)) for name in values for q in (50, 90)}


def _token_exact(cost: EagerCost, served: Sequence[WholeRequest], decodes: int) -> tuple[Any, ...]:
    """First and last tokens, every second request on either instance."""
    half = len(served) // 2
    limits = LaneLimits(
        decisions([POLICIES["continuous"]] * 2),
        prompts_resident=np.zeros(2, bool),
        max_num_seqs=np.full(2, float(decodes)),
        max_num_batched_tokens=np.full(2, 4.0 * served[0].prompt_tokens),
        kv_units=np.full(2, 1e9),
        window=np.zeros(2),
        users=np.full(2, 1 << 30, np.int32),
        requests=np.full(2, half, np.int32),
        measured_from=np.zeros(2, np.int32),
    )
    slots = REQUESTS // 2 + 1

    def split(name: str, fill: float, kind: type) -> np.ndarray:
        of_lane = np.full((2, slots), fill, kind)
        of_lane[:, :half] = np.array([getattr(each, name) for each in served]).reshape(half, 2).T
        return of_lane

    prompt, output = (split(name, 0, np.int32) for name in ("prompt_tokens", "output_tokens"))
    requests = Requests(split("arrival_s", np.inf, np.float64), prompt, prompt, output, prompt // 16)
    both = jax.tree.map(lambda *each: np.stack([np.asarray(one) for one in each]), cost, cost)
    found = fcfs_reserved.run_lanes(fcfs_reserved.Lane(both, limits), requests, fcfs_reserved.Structure(RING, False))
    return tuple(np.asarray(getattr(found, name))[:, :half].T.ravel() for name in _TIMES)
