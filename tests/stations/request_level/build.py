"""Random lanes for the request-level engine and its reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from evaluator.cost.request_times import IterationTimes, PhaseTimes
from evaluator.device import configure
from evaluator.reference.request_level import Instances, WholeRequest
from evaluator.stations.request_level import RequestLane, RequestLevelStructure, ServedRequests
from tests.reference.build import random_cost

SLOTS = 40
STRUCTURE = RequestLevelStructure(instances=3, prompts=5, boxes=6)  # larger than any lane of the tests

configure()


@dataclass(frozen=True)
class Case:
    """Prefill and decode instances (collocated ones: the first) and their requests, fields of (request,)."""

    sides: tuple[Instances, Instances]
    requests: ServedRequests

    def reference_requests(self) -> list[WholeRequest]:
        return [WholeRequest(*map(float, row)) for row in zip(*self.requests, strict=True)]

    def lane(self, side: int) -> RequestLane:
        instances = self.sides[side]
        return RequestLane(
            instances.cost,
            instances=np.int32(instances.count),
            max_prompts=np.int32(instances.max_prompts),
            max_prompt_tokens=np.float64(instances.max_prompt_tokens),
            max_decodes=np.int32(instances.max_decodes),
            tau=np.float64(instances.tau),
            requests=np.int32(len(self.requests.arrival_s)),
        )

    def slots(self) -> ServedRequests:
        missing = SLOTS - len(self.requests.arrival_s)
        fills = np.inf, 0.0, 1.0, 0.0, 0.0
        return ServedRequests(
            *(np.concatenate([each, np.full(missing, fill)]) for each, fill in zip(self.requests, fills, strict=True))
        )


def random_case(seed: int, cost: PhaseTimes | None = None) -> Case:
    """Light to overloaded, prompts and outputs of all lengths, single tokens and arrivals at one time among them."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, SLOTS + 1))
    cost = IterationTimes(random_cost(rng, experts=False, windowed=False)) if cost is None else cost

    def instances() -> Instances:
        most = zip(STRUCTURE, (1, 1, 1), strict=True)
        sizes = [int(rng.integers(least, size + 1)) for size, least in most]
        tokens = float(rng.choice([np.inf, rng.uniform(1000.0, 8000.0)]))
        return Instances(cost, *sizes, tau=float(rng.uniform(0.8, 4.0)), max_prompt_tokens=tokens)

    gaps = rng.exponential(10.0 ** rng.uniform(-2.5, 0.0), n) * (rng.uniform(size=n) < 0.8)
    requests = ServedRequests(
        arrival_s=np.cumsum(gaps),
        prompt_tokens=rng.integers(1, 3000, n).astype(float),
        output_tokens=np.maximum(rng.integers(-4, 60, n), 1).astype(float),
        prefill_draw=rng.uniform(size=n),
        decode_draw=rng.uniform(size=n),
    )
    return Case((instances(), instances()), requests)


def stacked(values: list[Any]) -> Any:
    return jax.tree.map(lambda *each: np.stack([np.asarray(one) for one in each]), *values)
