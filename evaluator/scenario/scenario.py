"""The validated scenario: frozen values in SI units, nothing optional left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.parallel import GATHER
from evaluator.cost.precision import Precision
from evaluator.routing import Choice
from evaluator.speculation import Speculative, decode_tokens

NO_KEY = {"key": False}
"""Metadata of a field that is none of the keys of its section: it is filled in for each of several pools."""


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
class ModelShare:
    """Of the requests those that ask for one model, or take one pipeline: ``share`` of all, relative to the others.

    ``lengths`` None: as those of the workload.
    """

    share: float
    lengths: Lengths | None = None


@dataclass(frozen=True)
class Geometric:
    """Whole numbers from 1 on with P(n) = (1 - 1/mean)^(n - 1) / mean; larger ones than ``max`` become ``max``."""

    mean: float
    max: int | None = None


@dataclass(frozen=True)
class Exponential:
    """Seconds from an exponential distribution."""

    mean: float


@dataclass(frozen=True)
class Sessions:
    """What requests have in common: each begins with one of ``system_prompts`` prefixes of ``system_tokens`` tokens.

    The prompt of the drawn length follows it, so that a request's prompt is longer by ``system_tokens``.

    A session has ``turns``. The prompt of a turn is all that was said before in its session, prompts and outputs, and
    then new text, of which the drawn length is. A turn is sent ``think_s`` after the turn before: after its last token
    (``think_from`` answer), or after its own arrival, however long it takes (arrival). ``hash_block_tokens`` are those
    of a block of a trace's ``hash_ids``.
    """

    system_prompts: int = 0
    system_tokens: int = 0
    turns: int | Geometric = 1
    think_s: float | Exponential = 0.0
    think_from: str = "answer"  # answer | arrival
    hash_block_tokens: int = 512

    @property
    def continued(self) -> bool:
        """Whether sessions have more than one turn."""
        return self.turns.mean > 1 if isinstance(self.turns, Geometric) else self.turns > 1

    @property
    def feedback(self) -> bool:
        """Whether it depends on the answers when requests are sent."""
        return self.continued and self.think_from == "answer"


@dataclass(frozen=True)
class Reasoning:
    """What a request generates before and beside its answer: ``scale`` times the drawn output, on several branches.

    After the prompt, which is computed once, ``branches`` sequences decode side by side. Each continues the prompt in
    its own way, with KV of its own behind that of the prompt. ``branch_lengths`` drawn: each has an output length of
    its own; same: all have that of the request. The request ends with the last of them, or with the ``first`` so many:
    then the others stop where they are.
    """

    scale: float = 1.0
    branches: int = 1
    first: int | None = None
    branch_lengths: str = "drawn"  # drawn | same

    @property
    def several(self) -> bool:
        """Whether a request decodes on several branches."""
        return self.branches > 1


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

    ``models``: which models the requests ask for, by name; none where a trace says it, or where there is but one.
    ``pipelines``: which of several ways through the stages they take, likewise (``Stage.only``).
    """

    arrivals: Arrivals
    lengths: Lengths
    requests: int
    warmup_requests: int
    seeds: tuple[int, ...]
    cached_tokens: int = 0  # leading prompt tokens whose KV is already there, where the trace does not say
    sessions: Sessions = field(default_factory=Sessions)
    models: Mapping[str, ModelShare] = field(default_factory=dict)
    find_warmup: bool = True
    pipelines: Mapping[str, ModelShare] = field(default_factory=dict)
    cooldown_requests: int = 0
    reasoning: Reasoning = field(default_factory=Reasoning)

    @property
    def ends(self) -> tuple[int, int]:
        """How many requests are cut at the start, whatever is found in a run, and at the end."""
        return self.warmup_requests, self.cooldown_requests


@dataclass(frozen=True)
class Batching:
    """``max_num_batched_tokens`` None: as the engine has it, with room for the longest prompt where that is whole.

    As read from a file, ``policy`` and ``max_num_seqs`` are None where it does not say them, which means the engine's
    defaults (``unsaid.told``); the values here are vLLM's on a small device.

    ``long_prefill_token_threshold``: of chunks, the most prompt tokens of one request in an iteration; 0: no bound.
    ``packing``: which waiting request is looked at first. ``tau`` is of the request-level engine alone, which lets a
    request decode all the time among a share 1 / tau of those that it finds.
    """

    policy: str = "chunked"  # a name of ``evaluator.policies``
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    packing: str = "fcfs"  # fcfs | least_work_left
    tau: float = 1.0  # BestServe takes 2.5, which lets all decode too fast (``plan.request_level``)


@dataclass(frozen=True)
class KvCache:
    """``admission`` reserve: a request enters only if its whole KV fits, prompt and output.

    on_demand: KV is taken as tokens come; an admission leaves the fraction ``watermark`` of the cache free, and where
    KV runs out the request admitted last is preempted: computed anew, or copied to ``swap_bytes`` of host memory per
    device (None: as much as it takes) at ``swap_bandwidth`` (byte/s of a device). ``prefix_caching``: blocks whose
    content is known (``Sessions``, or columns of a trace) are computed once; those of mere system prompts then stay in
    the cache, others are evicted in the order in which they were last used. As read from a file, ``memory_fraction``
    and ``block_tokens`` are None where it does not say them: then they are the engine's (``unsaid.told``).
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
    ``weight`` is the pool's share of the requests, relative to the other pools that serve the same phase and model;
    None: its replicas, so that every replica gets as many.
    """

    role: str  # mixed | prefill | decode | stage
    weight: float | None
    model: str | WhatIf | None
    hardware: str | WhatIf | None
    precision: Precision
    calibration: str | None
    replicas: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    expert_parallel: int | None
    data_parallel: int | None
    redundant_experts: int | None
    expert_exchange: str | None
    batching: Batching
    kv: KvCache
    usd_per_device_hour: float | None
    engine: str | None
    speculative: Speculative | None


@dataclass(frozen=True)
class Routers:
    """The routers of the prefill side and of the decode side."""

    prefill: Choice = "round_robin"
    decode: Choice = "round_robin"


@dataclass(frozen=True)
class LinkFigures:
    """A link that is not in the catalog: byte/s between a prefill and a decode replica, seconds until they arrive."""

    bandwidth: float
    latency: float = 0.0


@dataclass(frozen=True)
class Transfer:
    """How KV comes from the prefill side to the decode side; without both sides it means nothing.

    ``granularity`` cache: all of it once the prompt is computed. layer: every layer as soon as it is computed.
    ``dtype`` auto: that of the narrower KV cache of the two. ``shared`` per_replica: every prefill replica has a link
    of its own and sends one request after the other over it. none: requests do not wait for one another.
    ``figures`` per_replica: those of the link are of all devices of a replica together. per_device: of each device.
    ``groups``: the replicas of both sides are split into so many, and a request stays within its group.
    ``backpressure``: a prefill replica keeps the KV of a request until it is sent, which begins when the decode replica
    has reserved room for it.
    """

    link: str | LinkFigures = "rdma-400g"
    granularity: str = "cache"  # cache | layer
    dtype: str = "auto"
    shared: str = "per_replica"  # per_replica | none
    figures: str = "per_replica"  # per_replica | per_device
    groups: int = 1
    backpressure: bool = False


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline: ``kind`` is prefill, decode or a name of ``evaluator.stages``.

    ``parameters`` are those of the kind, None for prefill and decode. ``pool`` is a pool with role stage; None: none is
    described. ``only``: names of ``workload.pipelines``, whose requests alone pass it; empty: all do.

    ``back_to`` is the name of a stage before it: a request comes here ``times`` times, each time goes back there, and
    then passes it by. ``tokens``: of a decode, what it gives, in the place of the request's output.
    """

    kind: str
    parameters: Any = None
    pool: str | None = None
    only: tuple[str, ...] = ()
    back_to: str | None = None
    times: int | Geometric | None = None
    tokens: int | None = None

    @property
    def of_llm(self) -> bool:
        """Whether the pools that give the answers are meant."""
        return self.kind in LLM_STAGES


LLM_STAGES = ("prefill", "decode")


@dataclass(frozen=True)
class Deployment:
    """One pool of identical replicas, or with ``pools`` what holds for each of them that says nothing else.

    ``pipeline`` are the stages by name, in their order; none means prefill and decode.
    """

    model: str | WhatIf
    hardware: str | WhatIf
    precision: Precision = field(default_factory=Precision)
    calibration: str = "auto"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    redundant_experts: int = 0
    expert_exchange: str = GATHER
    batching: Batching = field(default_factory=Batching)
    kv: KvCache = field(default_factory=KvCache)
    router: Choice | Routers = "round_robin"
    role: str = "mixed"  # mixed | prefill | decode
    usd_per_device_hour: float | None = None
    weight: float | None = field(default=None, metadata=NO_KEY)  # of one of several pools, see ``Pool``
    pools: Mapping[str, Pool] | None = None
    transfer: Transfer = field(default_factory=Transfer)
    engine: str = DEFAULT_ENGINE  # a name of ``catalog.engines``
    speculative: Speculative | None = None
    pipeline: Mapping[str, Stage] = field(default_factory=dict, metadata=NO_KEY)  # a section of its own

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of all replicas: each has a scheduler and a KV cache, and routers choose among them."""
        return self.replicas * self.data_parallel

    @property
    def decode_tokens(self) -> int:
        """Tokens that a decode takes of an iteration: one, or with drafts as many as it verifies."""
        return decode_tokens(self.speculative)


@dataclass(frozen=True)
class Objective:
    """``metric`` (ttft, tpot, e2e, queue_wait, itl) at ``statistic`` (mean or p<percent>) at most ``bound_s``.

    ``relax`` is in the bound already: it is 1 + relax times what the file says.
    """

    metric: str
    statistic: str
    bound_s: float
    relax: float = 0.0


@dataclass(frozen=True)
class Budget:
    """What a design may take; None: as much as it likes. ``fill``: each gets as many replicas as the budget takes."""

    devices: int | None = None
    usd_per_hour: float | None = None
    fill: bool = False


@dataclass(frozen=True)
class Demand:
    """The rate that a design has to serve within its objectives; None: as much as it can."""

    rate_rps: float | None = None


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
    budget: Budget = field(default_factory=Budget)  # of a search, as is the demand
    demand: Demand = field(default_factory=Demand)
    text: str = ""
    path: str | None = None
