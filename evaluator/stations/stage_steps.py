"""A step of a stage around the LLM in the configurations of a chunk: what the plan says of it, and its devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.metrics.power import power_law
from evaluator.plan import Configuration
from evaluator.plan.route import RequestRoutes, StagePlan, StepPlan
from evaluator.stages import Batched, Delay, Served, Shipped
from evaluator.stations.contract import ChunkJobs, RequestTimes, RunKey, Use

Serve = Callable[[ChunkJobs], tuple[RequestTimes, *tuple[Use, ...]]]


@dataclass(frozen=True, eq=False)
class StepStation:
    """A step of a stage in the configurations of a chunk; ``all_routes`` [config][seed] say what it does there.

    ``serve`` is the engine's pool of a step that computes a model.
    """

    configurations: Sequence[Configuration]
    all_routes: Sequence[Sequence[RequestRoutes]]
    place: int  # of the stage
    number: int  # of the step
    serve: Serve | None = None

    @property
    def label(self) -> str:
        """Its name in results."""
        return self.planned(0).label

    def planned(self, config: int) -> StepPlan:
        """What the plan of a configuration says of it."""
        pipeline = self.configurations[config].pipeline
        assert pipeline is not None
        return pipeline.stages[self.place].steps[self.number]

    def step(self, run: RunKey) -> Any:
        """What it does in a configuration and seed."""
        work = self.all_routes[run[0]][run[1]].first[self.place].work
        assert work is not None
        return work.steps[self.number]

    def visited(self, run: RunKey) -> NDArray[np.bool_] | None:
        """Which requests come here, (request,); None: all."""
        return self.all_routes[run[0]][run[1]].first[self.place].comers

    def servers(self, config: int) -> int:
        """As many as the step says, else as its pool has replicas."""
        pipeline, pool = self.configurations[config].pipeline, self.planned(config).pool
        assert pipeline is not None
        # Of any seed: what depends on it are times and bytes, never how many servers there are.
        servers = self.step((config, 0)).servers
        return int(servers or (1 if pool is None else pipeline.pools[pool].replicas))

    def queues_at(self, config: int) -> Hashable:
        """Where those who come wait. Steps of two stages on one pool wait for one another; without a pool each by
        itself."""
        planned = self.planned(config)
        return (self.place, self.number) if planned.pool is None else (planned.pool, planned.kind)

    def stage(self, config: int) -> StagePlan:
        """The stage of which it is a step."""
        pipeline = self.configurations[config].pipeline
        assert pipeline is not None
        return pipeline.stages[self.place]

    def all_servers(self, config: int) -> int:
        """Those of all its queues; of what has no end of them, one."""
        step, count = self.step((config, 0)), 1
        if getattr(step, "queue", None) is not None:
            count = int(np.max(step.queue, initial=0)) + 1
        # A delay serves any number at a time, so that its utilisation is that of one server in the mean.
        return count * (self.servers(config) if isinstance(step, Served | Batched) else 1)

    def factor(self, config: int, name: str) -> float:
        """By how much a variant changes an input of the hardware."""
        change = self.configurations[config].pipeline.change  # type: ignore[union-attr]
        return change.factor if change is not None and change.input == name else 1.0


def queue_of(step: Any, requests: int) -> NDArray[np.int64]:
    """The queue of a step to which each request comes, (request,): the only one of most; below 0: it passes by."""
    queue = getattr(step, "queue", None)
    return np.zeros(requests, dtype=np.int64) if queue is None else np.asarray(queue, dtype=np.int64)


def is_delay(step: Any) -> bool:
    """Whether nobody waits for another at a step that serves each request by itself: a delay, or a link for each."""
    return isinstance(step, Delay) or (isinstance(step, Shipped) and not step.shared)


def seconds_of(step_station: StepStation, config: int, step: Any, requests: int) -> NDArray[np.float64]:
    """What each request takes at a step that serves it by itself, (request,), without the latency of a link."""
    if isinstance(step, Shipped):
        seconds = np.asarray(step.bytes, dtype=np.float64) / step.bandwidth
        seconds = seconds / step_station.factor(config, "link_bandwidth")
    else:
        seconds = np.asarray(step.seconds, dtype=np.float64)
    return np.broadcast_to(seconds, requests)


def on_pool(step_station: StepStation, use: Use) -> Use:
    """With the devices of the pools on which the step runs; those of an engine's pool are there already."""
    # A station's own engine pool has stated its devices in its use.
    if step_station.serve is not None or all(
        step_station.planned(config).pool is None for config in range(len(step_station.configurations))
    ):
        return use
    figures: dict[str, list[float]] = {name: [] for name in _FIGURES}
    laws = []
    for config, configuration in enumerate(step_station.configurations):
        name, pipeline = step_station.planned(config).pool, configuration.pipeline
        assert pipeline is not None and name is not None
        pool, price = pipeline.pools[name], pipeline.price(name)
        device = pool.hardware
        row = (
            float(pool.replicas * pool.devices), device.peak_flops.get("bf16", np.nan), device.memory_bandwidth,
            device.power_w, device.idle_power_w, price,
        )  # fmt: skip
        for column, value in zip(figures.values(), row, strict=True):
            column.append(np.nan if value is None else float(value))
        laws.append(power_law(device.architecture))
    columns: dict[str, Any] = {name: np.array(column) for name, column in figures.items()}
    return replace(use, power_law=np.array(laws), **columns)


_FIGURES = ("devices", "peak_flops", "peak_bandwidth", "power_w", "idle_power_w", "usd_per_hour")
