"""What a replica is built from."""

from __future__ import annotations

from dataclasses import dataclass, field

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.attention_kernels import AUTO
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.engines import DEFAULT_ENGINE
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import AS_PUBLISHED, Adapters, AskedOfSampler, Model
from evaluator.catalog.what_if import WhatIf
from evaluator.cost.feed_forward_apart import Apart
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.replica.changes import Change
from evaluator.speculation import Drafting


@dataclass(frozen=True)
class ReplicaSpec:
    """All that decides what one replica costs and holds. Hashable where it is of names.

    Model, hardware and calibration are names of the catalog, or what its readers return. ``engine`` is the serving
    engine whose kernels and host ``auto`` looks for, and which says what ``memory_fraction`` is a fraction of.
    ``max_num_batched_tokens`` and ``max_num_seqs`` bound an iteration, and with it the activations that take room from
    the KV cache. ``kv_blocks`` is the capacity of that cache in blocks where it is known, from the log of a server for
    instance: whether the model fits is then no question. ``change`` puts one input of the cost at a multiple of its
    value; memory stays. ``drafting``: of speculative decoding; None: there is none. ``asked``: of the sampler.
    ``grouped``: layers of a hybrid model keep their KV in groups, and so many batches are under way; 0: they do not.
    ``adapters``: LoRA adapters that it holds, and that requests name; None: none.
    ``eager``: the engine captures no CUDA graphs, and its host launches the kernels of every iteration.
    ``unequal``: how much longer than the mean the longest context of a batch of decodes is, of the mean; None: as the
    calibration set says. ``engine_version``: the release of the engine, on which its default tiles of experts depend;
    None: the newest. ``apart``: devices of their own for feed-forwards; None: there are none. ``attention_backend``:
    whose kernels of decode attention it runs. ``host_speed``: how many times as fast a thread of its host is as one of
    the host on which the set was measured. ``api_server_times``: what an API server takes on that; None: as the set
    says.
    """

    model: Model | WhatIf | str
    hardware: Hardware | WhatIf | str
    calibration: Calibration | str = "auto"
    precision: Precision = field(default_factory=Precision)
    parallel: Parallel = field(default_factory=Parallel)
    memory_fraction: float = 0.9
    block_tokens: int = 16
    kv_blocks: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    change: Change | None = None
    engine: str = DEFAULT_ENGINE
    drafting: Drafting | None = None
    asked: AskedOfSampler = AS_PUBLISHED
    grouped: int = 0
    eager: bool = False
    unequal: float | None = None
    adapters: Adapters | None = None
    engine_version: str | None = None
    apart: Apart | None = None
    attention_backend: str = AUTO
    host_speed: float = 1.0
    api_server_times: ApiServerTimes | None = None
