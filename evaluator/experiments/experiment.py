"""Serving experiments: what was run (JSON) and what was measured (CSV), joined and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FITTED_VERSION = "0.15"
"""Release of vLLM that the shipped serving sets were fitted to, and that a server counts as which says none."""
UNRECORDED = "fp16_or_bf16"
"""The label of weights whose precision was not recorded."""

POOLED = -1
"""Stage index of a row that pools the requests of all stages."""


@dataclass(frozen=True)
class LoadStage:
    """``round(rate x duration)`` requests whose exponential gaps are scaled to fill the duration exactly."""

    index: int
    rate_rps: float
    duration_s: float

    @property
    def requests(self) -> int:
        """How many requests the stage sends."""
        return round(self.rate_rps * self.duration_s)


@dataclass(frozen=True)
class MeasuredWorkload:
    """Fixed prompts, a system prompt per group and a question each, sent round robin over and over."""

    name: str
    stages: tuple[LoadStage, ...]
    groups: int
    prompts_per_group: int
    system_tokens: int
    question_tokens: int
    output_tokens: int  # asked for, and generated: the load generator has the server ignore ends of sequence


NO_WORKLOAD = MeasuredWorkload("unknown", (), 1, 1, 0, 1, 1)


@dataclass(frozen=True)
class MeasuredMetrics:
    """One row of measurements: ``values`` by metric name (``ttft_mean``, ``e2e_p99``, ...) in seconds or 1/s.

    ``counted_tokens`` is the mean output that the client counted (the text that it got, tokenised again), which its ITL
    is per token of: up to a quarter less than the server generated.
    """

    stage: int
    values: Mapping[str, float]
    counted_tokens: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One server under one workload. ``kv_blocks`` None: what fits; a limit that is None is vLLM's on the device;
    ``measured`` may be empty.

    ``engine_version``: the release of vLLM whose defaults hold. ``problem`` says why a specification cannot be read,
    and the rest of it means nothing then; ``notes`` say what is not heeded of the specification or the measurements.
    """

    id: str
    name: str
    model: str
    gpu: str
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    weight_precision: str = UNRECORDED
    kv_precision: str = "auto"
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int = 16
    engine_version: str = FITTED_VERSION
    memory_fraction: float = 0.9
    prefix_caching: bool = True
    chunked_prefill: bool = True
    eager: bool = False
    workload: MeasuredWorkload = NO_WORKLOAD
    measured: tuple[MeasuredMetrics, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that are reported: each, and all together where there are several."""
        indices = tuple(stage.index for stage in self.workload.stages)
        return indices if len(indices) == 1 else (*indices, POOLED)

    def row(self, stage: int) -> MeasuredMetrics | None:
        """The measurements of a stage; of a single stage also those of all requests, which are the same."""
        wanted = (stage, POOLED) if len(self.workload.stages) == 1 else (stage,)
        return next((row for index in wanted for row in self.measured if row.stage == index), None)
