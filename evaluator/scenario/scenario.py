"""The validated scenario: frozen values in SI units, nothing optional left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.precision import Precision
from evaluator.routing import Choice


@dataclass(frozen=True)
class Arrivals:
    """When requests are sent. ``process`` says which of the other fields mean something."""

    process: str  # poisson | gamma | uniform | normal | burst | all_at_once | closed_loop | trace
    rate_rps: float | None = None
    cv: float | None = None  # gamma: coefficient of variation of the gaps
    std_s: float | None = None  # normal: standard deviation of the gaps
    on_s: float | None = None  # burst: seconds at factor x rate_rps, then
    off_s: float | None = None  # seconds with what is left, so that the mean stays rate_rps
    factor: float | None = None
    users: int | None = None  # closed_loop
    scale: float = 1.0  # trace: > 1 sends faster
    file: str | None = None  # trace


@dataclass(frozen=True)
class Lengths:
    """How long prompts and outputs are: a catalog distribution, a formula, or a trace file."""

    source: str  # a catalog name | fixed | lognormal | normal | uniform | zipf | trace
    parameters: Mapping[str, float] = field(default_factory=dict)
    file: str | None = None


@dataclass(frozen=True)
class Sessions:
    """What requests have in common: each begins with one of ``system_prompts`` prefixes of ``system_tokens`` tokens.

    The prompt of the drawn length follows it, so that a request's prompt is longer by ``system_tokens``.
    """

    system_prompts: int = 0
    system_tokens: int = 0


class Auto(int):
    """So many requests at first, and more, up to ``most``, for configurations that they leave undecided."""

    most: int

    def __new__(cls, first: int, most: int) -> Auto:
        found = super().__new__(cls, first)
        found.most = most
        return found

    def __repr__(self) -> str:
        return f"Auto({int(self)}, most={self.most})"

    def __reduce__(self) -> tuple[type[Auto], tuple[int, int]]:
        return Auto, (int(self), self.most)


@dataclass(frozen=True)
class Workload:
    """Traffic: ``requests`` per seed, of which the first and the last are cut from the statistics.

    They are ``warmup_requests``, with ``find_warmup`` also those after them that a run takes to settle, and
    ``cooldown_requests``, behind which nobody comes, so that they are served while the design empties.
    """

    arrivals: Arrivals
    lengths: Lengths
    requests: int
    warmup_requests: int
    seeds: tuple[int, ...]
    cached_tokens: int = 0  # leading prompt tokens whose KV is already there, where the trace does not say
    sessions: Sessions = field(default_factory=Sessions)
    find_warmup: bool = True
    cooldown_requests: int = 0

    @property
    def ends(self) -> tuple[int, int]:
        """How many requests are cut at the start, whatever is found in a run, and at the end."""
        return self.warmup_requests, self.cooldown_requests


@dataclass(frozen=True)
class Batching:
    """``max_num_batched_tokens`` None: as the engine has it, with room for the longest prompt where that is whole.

    As read from a file, ``policy`` and ``max_num_seqs`` are None where it does not say them, which means the engine's
    defaults (``unsaid.told``).

    ``long_prefill_token_threshold``: of chunks, the most prompt tokens of one request in an iteration; 0: no bound.
    ``packing``: which waiting request is looked at first.
    """

    policy: str = "chunked"  # a name of ``evaluator.policies``
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    packing: str = "fcfs"  # fcfs | least_work_left


@dataclass(frozen=True)
class KvCache:
    """``admission`` reserve: a request enters only if its whole KV fits, prompt and output.

    on_demand: KV is taken as tokens come; an admission leaves the fraction ``watermark`` of the cache free, and where
    KV runs out the request admitted last is preempted: computed anew, or copied to ``swap_bytes`` of host memory per
    device (None: as much as it takes) at ``swap_bandwidth`` (byte/s of a device). ``prefix_caching``: the whole blocks
    of system prompts are computed once and stay in the cache. As read from a file, ``memory_fraction`` and
    ``block_tokens`` are None where it does not say them: then they are the engine's (``unsaid.told``).
    """

    admission: str = "reserve"
    memory_fraction: float = 0.9
    block_tokens: int = 16
    watermark: float = 0.0
    preemption: str = "recompute"  # recompute | swap
    swap_bandwidth: float | None = None
    swap_bytes: float | None = None
    capacity_tokens: int | None = None
    prefix_caching: bool = False


@dataclass(frozen=True)
class Pool:
    """What is said of one of several pools. None: as it is said beside the pools.

    ``precision``, ``batching`` and ``kv`` hold None, too, for each of their keys that the pool does not say.
    """

    role: str  # mixed | prefill | decode
    model: str | WhatIf | None
    hardware: str | WhatIf | None
    precision: Precision
    calibration: str | None
    replicas: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    expert_parallel: int | None
    batching: Batching
    kv: KvCache
    usd_per_device_hour: float | None
    engine: str | None


@dataclass(frozen=True)
class Routers:
    """The routers of a prefill pool and of a decode pool."""

    prefill: Choice = "round_robin"
    decode: Choice = "round_robin"


@dataclass(frozen=True)
class LinkFigures:
    """A link that is not in the catalog: byte/s between a prefill and a decode replica, seconds until they arrive."""

    bandwidth: float
    latency: float = 0.0


@dataclass(frozen=True)
class Transfer:
    """How KV comes from a prefill pool to a decode pool; without these two pools it means nothing.

    ``granularity`` cache: all of it once the prompt is computed. layer: every layer as soon as it is computed.
    ``dtype`` auto: that of the narrower KV cache of the two. ``shared`` per_replica: every prefill replica has a link
    of its own and sends one request after the other over it. none: requests do not wait for one another.
    """

    link: str | LinkFigures = "rdma-400g"
    granularity: str = "cache"  # cache | layer
    dtype: str = "auto"
    shared: str = "per_replica"  # per_replica | none


@dataclass(frozen=True)
class Deployment:
    """One pool of identical replicas, or with ``pools`` what holds for each of them that says nothing else."""

    model: str | WhatIf
    hardware: str | WhatIf
    precision: Precision = field(default_factory=Precision)
    calibration: str = "auto"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    batching: Batching = field(default_factory=Batching)
    kv: KvCache = field(default_factory=KvCache)
    router: Choice | Routers = "round_robin"
    role: str = "mixed"  # mixed | prefill | decode
    usd_per_device_hour: float | None = None
    pools: Mapping[str, Pool] | None = None
    transfer: Transfer = field(default_factory=Transfer)
    engine: str = DEFAULT_ENGINE  # a name of ``catalog.engines``


@dataclass(frozen=True)
class Objective:
    """``metric`` (ttft, tpot, e2e, queue_wait, itl) at ``statistic`` (mean or p<percent>) at most ``bound_s``."""

    metric: str
    statistic: str
    bound_s: float


@dataclass(frozen=True)
class Axis:
    """One sweep axis: ``values`` as written (for coordinates), ``changes`` what each sets, key path -> value.

    The axis of a key path sets keys below it; one of designs has a name of its own and sets the key paths ``keys``.
    What else is among the changes are defaults that follow from them.
    """

    name: str
    values: tuple[Any, ...]
    changes: tuple[Mapping[str, Any], ...]
    keys: tuple[str, ...] = ()

    @property
    def keys_set(self) -> set[str]:
        """The key paths that any of its steps sets."""
        return {path for change in self.changes for path in change}


@dataclass(frozen=True)
class Scenario:
    """One question: a workload on a deployment under objectives, and the axes that vary it under conditions."""

    name: str
    workload: Workload
    deployment: Deployment
    slo: tuple[Objective, ...] = ()
    sweep: tuple[Axis, ...] = ()
    where: tuple[str, ...] = ()  # conditions that a point of the sweep fulfils
    text: str = ""
    path: str | None = None
