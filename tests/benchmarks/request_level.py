"""Requests per second of the request-level engine, and how far it is from the token-exact one for BestServe's case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from evaluator.cost.eager import Corrected, EagerCost
from evaluator.cost.request_times import tabulate
from evaluator.device import configure
from evaluator.policies import POLICIES
from evaluator.stations.engine import LaneLimits, Requests, decisions, fcfs_reserved
from evaluator.stations.request_level import (
    Departures,
    RequestLane,
    RequestLevelStructure,
    ServedRequests,
    run_collocated,
    run_decode,
    run_prefill,
)
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of
from tests.cost.eager.paper import paper_cost

LANES, REQUESTS = 256, 1000
PROMPT, OUTPUT = 2048, 64
SIDES = RequestLevelStructure(2, 4, 16)
RING = 4096
CASES = (  # prompt and output tokens, most decodes of an instance, requests, requests/s
    (2048, 64, 64, 1000, (0.5, 1.5, 2.5, 3.5)),
    (2048, 64, 4, 1000, (0.5, 1.5, 2.5, 3.5)),
    (256, 2048, 64, 400, (0.1, 0.3, 0.5, 0.7)),
)


def arrivals(seed: int, rate: float, count: int, tokens: tuple[int, int], slots: int) -> ServedRequests:
    """Poisson arrivals of equal requests."""
    rng = np.random.default_rng(seed)
    fields = (
        np.cumsum(rng.exponential(1.0 / rate, count)),
        *(np.full(count, float(each)) for each in tokens),
        *rng.uniform(size=(2, count)),
    )
    fills = np.inf, 0.0, 1.0, 0.0, 0.0
    return ServedRequests(
        *(np.append(each, np.full(slots - count, fill)) for each, fill in zip(fields, fills, strict=True))
    )


def stacked(values: list[Any]) -> Any:
    """With a leading lane axis."""
    return jax.tree.map(lambda *each: np.stack([np.asarray(one) for one in each]), *values)


def lane(cost: Any, instances: int, prompts: int, decodes: int, requests: int = REQUESTS) -> RequestLane:
    """Numbers of one lane at the paper's tau."""
    return RequestLane(
        cost,
        np.int32(instances),
        max_prompts=np.int32(prompts),
        max_prompt_tokens=np.float64(np.inf),
        max_decodes=np.int32(decodes),
        tau=np.float64(2.5),
        requests=np.int32(requests),
    )


def disaggregated(sides: RequestLane, requests: ServedRequests) -> Departures:
    """One instance for prompts and one that decodes."""
    one = SIDES._replace(instances=1)
    first_token_s = run_prefill(sides, requests, one).last_token_s
    return run_decode(sides, requests._replace(arrival_s=first_token_s), one)


@benchmark("request_level")
def request_level(quick: bool) -> Iterator[Row]:
    """Requests/s of 256 lanes x 1,000 requests on two instances, from light load to overload."""
    configure()
    costs = {"tabulated cost": tabulate(paper_cost(), PROMPT, OUTPUT, 16)}
    if not quick:
        costs["eager cost"] = paper_cost()
    rates = np.linspace(0.5, 4.0, LANES)
    requests = stacked([arrivals(i, rate, REQUESTS, (PROMPT, OUTPUT), REQUESTS) for i, rate in enumerate(rates)])
    for name, cost in costs.items():
        both, prefills = stacked([lane(cost, 2, 4, 16)] * LANES), stacked([lane(cost, 1, 4, 16)] * LANES)
        took = best_of(lambda both=both: jax.block_until_ready(run_collocated(both, requests, SIDES)))
        yield Row(f"collocated, {name}", LANES * REQUESTS / took.cpu_s / 1e6, "M requests/s", "per core-second")
        took = best_of(lambda one=prefills: jax.block_until_ready(disaggregated(one, requests)))
        yield Row(f"disaggregated, {name}", LANES * REQUESTS / took.cpu_s / 1e6, "M requests/s", "per core-second")


@benchmark("pseudo_batch")
def pseudo_batch(quick: bool) -> Iterator[Row]:
    """Request-level against token-exact (policy continuous), two instances with the eager cost: ratios of latencies."""
    configure()
    cost = paper_cost(Corrected())
    for prompt, output, decodes, count, rates in CASES[:1] if quick else CASES:
        served = [arrivals(1, rate, count, (prompt, output), REQUESTS) for rate in rates]
        lanes = stacked([lane(tabulate(cost, prompt, output, 64), 2, 4, decodes, count) for _ in rates])
        found = run_collocated(lanes, stacked(served), RequestLevelStructure(2, 4, 64))
        for place, rate in enumerate(rates):
            fast = _percentiles(Departures(*(np.asarray(each[place, :count]) for each in found)), served[place], output)
            exact = _percentiles(_token_exact(cost, served[place], count, decodes), served[place], output)
            label = f"{prompt}/{output}, {decodes} decodes at most, {rate} requests/s"
            for name in fast:
                note = f"{fast[name] * 1e3:.1f} ms, token-exact {exact[name] * 1e3:.1f} ms"
                yield Row(f"{label}: {name}", fast[name] / exact[name], "", note)


def _percentiles(times: Departures, served: ServedRequests, output: int) -> dict[str, float]:
    arrival = served.arrival_s[: len(times.first_token_s)]
    ttft_s, tpot_s = times.first_token_s - arrival, (times.last_token_s - times.first_token_s) / (output - 1)
    values = {"ttft_s": ttft_s, "tpot_s": tpot_s}
    return {f"{name} p{q}": float(np.percentile(values[name], q)) for name in values for q in (50, 90)}


def _token_exact(cost: EagerCost, served: ServedRequests, count: int, decodes: int) -> Departures:
    """Every second request on either instance."""
    half = count // 2
    limits = LaneLimits(
        decisions([POLICIES["continuous"]] * 2),
        prompts_resident=np.zeros(2, bool),
        max_num_seqs=np.full(2, float(decodes)),
        max_num_batched_tokens=np.full(2, 4.0 * served.prompt_tokens[0]),
        kv_units=np.full(2, 1e9),
        window=np.zeros(2),
        users=np.full(2, 1 << 30, np.int32),
        requests=np.full(2, half, np.int32),
        measured_from=np.zeros(2, np.int32),
    )
    slots = REQUESTS // 2 + 1

    def split(values: np.ndarray, fill: float, kind: type) -> np.ndarray:
        of_lane = np.full((2, slots), fill, kind)
        of_lane[:, :half] = values[:count].reshape(half, 2).T
        return of_lane

    prompt, output = (split(each, 0, np.int32) for each in (served.prompt_tokens, served.output_tokens))
    requests = Requests(split(served.arrival_s, np.inf, np.float64), prompt, prompt, output, prompt // 16)
    lanes = fcfs_reserved.Lane(stacked([cost, cost]), limits)
    found = fcfs_reserved.run_lanes(lanes, requests, fcfs_reserved.Structure(RING, False))
    times = found.scheduled_s, found.first_token_s, found.last_token_s
    return Departures(*(np.asarray(each)[:, :half].T.ravel() for each in times), np.arange(count) % 2)
