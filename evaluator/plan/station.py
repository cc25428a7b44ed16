"""One pool of a configuration, with what its jobs ask of a replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.engines import serving_engine
from evaluator.catalog.model import AS_PUBLISHED
from evaluator.cost.frontend import Frontend
from evaluator.cost.memory import KvLayout, kv_units
from evaluator.kv_managers import manager
from evaluator.plan.simulators import on_demand
from evaluator.policies import policy
from evaluator.replica import ReplicaBuild, design
from evaluator.scenario import Deployment, Workload
from evaluator.scenario.deployment import ASYNCHRONOUS
from evaluator.speculation import Speculative, mean_tokens
from evaluator.traffic.jobs import Demand, Extremes, held_units
from evaluator.traffic.requests import shared_tokens
from evaluator.traffic.roles import ROLES, Role

_SHARES = 200
"""How many prompt lengths an autoscaler goes by, at even shares of the requests: half a percent each."""


@dataclass(frozen=True)
class DrawnLengths:
    """Lengths of the requests that come to a pool: prompt tokens to compute, at even shares, and the tokens that a
    decoding sequence holds in the mean over its decodes."""

    prompts: tuple[float, ...]
    context: float

    @staticmethod
    def of(demands: Sequence[Demand]) -> DrawnLengths:
        """The lengths of the requests of all seeds."""
        prompts = np.concatenate([demand.compute_tokens for demand in demands])
        places = (np.arange(_SHARES) + 0.5) / _SHARES
        held = np.concatenate([demand.prompt_tokens + 0.5 * demand.output_tokens for demand in demands])
        # Long answers count for more: they are in the batch for longer.
        decodes = np.concatenate([demand.output_tokens for demand in demands])
        return DrawnLengths(tuple(np.quantile(prompts, places).tolist()), float(np.average(held, weights=decodes)))


@dataclass(frozen=True)
class StationPlan:
    """One pool of a configuration: what it is deployed as, and what its largest jobs ask of a replica.

    ``number`` is its place among the pools of its configuration, in the order in which a request passes them.
    ``largest_units``: KV units of the largest job with several branches; None where no job has several.
    ``kept_units`` of the KV cache of each replica hold prefixes that jobs share, and never come free. ``most_jobs``:
    the most that any replica serves under any seed, where the pool is one of several on its side or has groups.
    ``lengths``: where an autoscaler asks what a replica bears.
    """

    name: str
    deployment: Deployment
    design: ReplicaBuild
    extremes: Extremes
    max_num_batched_tokens: int
    kept_units: int = 0
    most_jobs: int | None = None
    number: int = 0
    largest_units: int | None = None
    lengths: DrawnLengths | None = None

    @property
    def role(self) -> Role:
        """Which part of a request's tokens it computes."""
        return ROLES[self.deployment.role]

    @property
    def lockstep(self) -> int:
        """Data-parallel ranks that start every iteration together; 1: none do."""
        return self.design.lockstep

    @property
    def speculative(self) -> Speculative | None:
        """What its decodes draft; a prefill side has none, and computes the prompts of what drafts all the same."""
        return None if self.role.first_token_only else self.deployment.speculative

    @property
    def frontend(self) -> Frontend:
        """What a request pays around its iterations; those that a prefill side has planned ahead are of its decodes."""
        per_iteration = mean_tokens(self.deployment.speculative)
        frontend = Frontend.of(self.design.calibration, per_iteration)
        if self.deployment.batching.planning != ASYNCHRONOUS:
            return frontend
        # Where batches are planned ahead, the iteration that a request waits for it is in its times already. What sets
        # fitted to servers have beyond it (0.2 iterations of vLLM 0.15) is of no planning, and stays.
        return replace(frontend, lookahead_steps=max(0.0, frontend.lookahead_steps - per_iteration))

    @property
    def api_servers(self) -> int:
        """API servers of a replica, over all of its data-parallel ranks."""
        deployment = self.deployment
        stated = deployment.api_servers
        return (
            serving_engine(deployment.engine).api_servers(deployment.engine_version, deployment.data_parallel)
            if stated is None
            else stated
        )

    @property
    def api_server_times(self) -> ApiServerTimes | None:
        """What each of them takes; None where that is nothing or not known, so that no token waits for another."""
        times = self.design.calibration.api_server_times
        return times if times is not None and times.any else None

    @property
    def drafts(self) -> int:
        """Tokens that a decode verifies beside its own."""
        return 0 if self.speculative is None else self.speculative.tokens

    def held_units(self, demand: Demand) -> np.ndarray:
        """KV units that each job holds at its end, (job,)."""
        units, registered = held_units(demand, self.design.ready.kv, self.drafts), manager(self.deployment.kv.manager)
        return units if registered is None or registered.units is None else registered.units(units)

    @property
    def usd_per_device_hour(self) -> float | None:
        """What the scenario says, else the catalog; None: not known."""
        stated = self.deployment.usd_per_device_hour
        return self.design.hardware.usd_per_hour if stated is None else stated

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.design.devices * self.deployment.replicas


def station_of(name: str, deployment: Deployment, extremes: Extremes, workload: Workload | None = None) -> StationPlan:
    """A pool whose largest requests are these. Prefixes that those of a ``workload`` share are kept there."""
    longest = longest_prompt(deployment, extremes)
    asked = AS_PUBLISHED if workload is None else workload.sampling.asked
    # The longest prompt first: where it is computed whole, the activations need room for it, which the KV cache
    # then lacks.
    adapters = None if workload is None else workload.adapters
    built, shared_units = design(deployment, longest, asked, extremes.unequal, adapters), 0
    shared = 0 if workload is None else shared_tokens(workload, deployment)
    if built.replica is not None and workload is not None and shared:
        shared_units = workload.sessions.system_prompts * int(kv_units(built.replica.kv, shared))
    return StationPlan(name, deployment, built, extremes, built.spec.max_num_batched_tokens, shared_units)


def longest_prompt(deployment: Deployment, extremes: Extremes) -> int:
    """Most tokens that one request computes in a row; after a preemption what it had generated is among them."""
    if on_demand(deployment) and policy(deployment.batching.policy).whole_prompts:
        return extremes.kv_tokens
    return extremes.prompt


def watermark_units(deployment: Deployment, kv: KvLayout) -> int:
    """KV units that an admission leaves free; rounded down as vLLM does."""
    return int(deployment.kv.watermark * kv.capacity_units) if on_demand(deployment) else 0


def _to_host(station: StationPlan, bandwidth: float | None) -> float:
    """Bytes per second of a device to host memory; a sensitivity to the links' bandwidth concerns it."""
    assert bandwidth is not None
    change = station.design.change
    return bandwidth * (change.factor if change and change.input == "link_bandwidth" else 1.0)


def host_space(station: StationPlan) -> tuple[int, float]:
    """Under the prefix cache of a replica: (blocks that host memory has room for, seconds in which one is copied)."""
    kv, block_bytes = station.deployment.kv, station.design.ready.kv.unit_bytes
    # Each device has a part of every block, and copies it over a link of its own.
    blocks = int((kv.offload_bytes or 0.0) / station.deployment.tensor_parallel // block_bytes)
    return blocks, block_bytes / _to_host(station, kv.offload_bandwidth)


class TierSpace(NamedTuple):
    """A tier of storage behind the host memory of a replica, in blocks of its cache: how many it has (inf: no bound),
    the seconds in which one is copied, and those that each transfer waits first; the replicas that share it."""

    blocks: float
    block_s: float
    latency_s: float
    shared_by: int


def tier_spaces(station: StationPlan) -> list[TierSpace]:
    """The tiers behind host memory; those without a byte are none."""
    deployment, spaces = station.deployment, []
    block_bytes = station.design.ready.kv.unit_bytes * deployment.tensor_parallel
    for tier in deployment.kv.offload_tiers:
        figures = tier.figures
        if figures.capacity_bytes:
            sharing = figures.sharing(deployment.ranks)
            block_s = block_bytes / figures.bandwidth
            # Not by //, which makes no number of an infinite capacity.
            blocks = figures.capacity_bytes / block_bytes
            blocks = math.floor(blocks) if math.isfinite(blocks) else blocks
            spaces.append(TierSpace(blocks, block_s, figures.latency_s, sharing))
    return spaces


def swap_space(station: StationPlan) -> tuple[float, float]:
    """For preemption by swapping: (KV units that host memory has room for, seconds in which one is copied there)."""
    kv, layout = station.deployment.kv, station.design.ready.kv
    bandwidth = _to_host(station, kv.swap_bandwidth)
    # Whole units: half a block in host memory is of no use.
    return math.inf if kv.swap_bytes is None else kv.swap_bytes // layout.unit_bytes, layout.unit_bytes / bandwidth
