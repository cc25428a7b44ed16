"""Serving experiments: what was run (JSON) and what was measured (CSV), joined and checked."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.yaml import read_text

POOLED = -1
"""Stage index of a row that pools the requests of all stages."""

_COLUMN = re.compile(r"(ttft|itl|tpot|e2e)_(mean|p[0-9.]+)_ms")
THROUGHPUT = "throughput_req_per_s"
UNRECORDED = "fp16_or_bf16"
"""The label of weights whose precision was not recorded."""


@dataclass(frozen=True)
class Stage:
    """``round(rate x duration)`` requests whose exponential gaps are scaled to fill the duration exactly."""

    index: int
    rate_rps: float
    duration_s: float

    @property
    def requests(self) -> int:
        """How many requests the stage sends."""
        return round(self.rate_rps * self.duration_s)


@dataclass(frozen=True)
class Workload:
    """Fixed prompts, a system prompt per group and a question each, sent round robin over and over."""

    name: str
    stages: tuple[Stage, ...]
    groups: int
    prompts_per_group: int
    system_tokens: int
    question_tokens: int
    output_tokens: int  # asked for, and generated: the load generator has the server ignore ends of sequence


@dataclass(frozen=True)
class Measured:
    """One row of measurements: ``values`` by metric name (``ttft_mean``, ``e2e_p99``, ...) in seconds or 1/s.

    ``counted_tokens`` is the mean output that the client counted (the text that it got, tokenised again), which its ITL
    is per token of: up to a quarter less than the server generated.
    """

    stage: int
    values: Mapping[str, float]
    counted_tokens: float | None


@dataclass(frozen=True)
class Experiment:
    """One server under one workload. ``kv_blocks`` None: what fits; ``measured`` may be empty."""

    id: str
    name: str
    model: str
    gpu: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: bool
    weight_precision: str
    kv_precision: str
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int | None
    block_tokens: int
    memory_fraction: float
    prefix_caching: bool
    chunked_prefill: bool
    workload: Workload
    measured: tuple[Measured, ...] = field(default=())

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages that are reported: each, and all together where there are several."""
        each = tuple(stage.index for stage in self.workload.stages)
        return each if len(each) == 1 else (*each, POOLED)

    def row(self, stage: int) -> Measured | None:
        """The measurements of a stage; of a single stage also those of all requests, which are the same."""
        wanted = (stage, POOLED) if len(self.workload.stages) == 1 else (stage,)
        return next((row for at in wanted for row in self.measured if row.stage == at), None)


def read_experiments(specs: str | Path, actuals: str | Path) -> list[Experiment]:
    """The experiments of a specification file with their measured rows, in the order of the file.

    Errors: InputError naming file and experiment for anything missing; experiments without measurements stay.
    """
    rows = _read_actuals(Path(actuals))
    try:
        content = json.loads(read_text(specs))
    except json.JSONDecodeError as error:
        raise InputError(f"{specs}, line {error.lineno}: not JSON ({error.msg})") from None
    entries = content.get("experiments") if isinstance(content, Mapping) else content
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise InputError(f"{specs}: expected a list of experiments, or an object with the key experiments")
    found = [_experiment(_Entry(entry, f"{specs}: experiment {number}"), rows) for number, entry in enumerate(entries)]
    if not any(experiment.measured for experiment in found):
        raise InputError(f"{actuals}: no row has the exp_id of an experiment of {specs}")
    return found


class _Entry:
    """A JSON object whose keys are read with their type; errors name the place."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected an object, got {value!r}")
        self.value = value
        self.where = f"{where} ({value['exp_id']})" if "exp_id" in value else where

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        given = self.value.get(key)
        if given is None and default is not None:
            return default
        if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given < math.inf:
            raise InputError(f"{self.where}: {key} must be a number of at least {least:g}, got {given!r}")
        return float(given)

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        number = self.number(key, None if default is None else float(default), float(least))
        if number != int(number):
            raise InputError(f"{self.where}: {key} must be an integer, got {number:g}")
        return int(number)

    def text(self, key: str, default: str | None = None) -> str:
        given = self.value.get(key, default)
        if given is None and default is not None:
            return default
        if not isinstance(given, str) or not given:
            raise InputError(f"{self.where}: {key} must be a text, got {given!r}")
        return given

    def inner(self, key: str) -> _Entry:
        return _Entry(self.value.get(key), f"{self.where}: {key}")


def _experiment(entry: _Entry, rows: Mapping[str, tuple[Measured, ...]]) -> Experiment:
    key = str(entry.value.get("exp_id", ""))
    if not key:
        raise InputError(f"{entry.where}: exp_id is missing")
    blocks = entry.value.get("total_kv_blocks")
    return Experiment(
        id=key,
        name=entry.text("experiment_name", key),
        model=entry.text("model"),
        gpu=entry.text("gpu"),
        tensor_parallel=entry.count("tensor_parallel_size", 1),
        pipeline_parallel=entry.count("pipeline_parallel_size", 1),
        data_parallel=entry.count("data_parallel_size", 1),
        expert_parallel=entry.value.get("enable_expert_parallel") is True,
        weight_precision=_weights(entry),
        kv_precision=entry.text("kv_cache_dtype", "auto"),
        max_num_seqs=entry.count("max_num_seqs", 128),
        max_num_batched_tokens=entry.count("max_num_batched_tokens", 2048),
        kv_blocks=None if blocks is None else entry.count("total_kv_blocks"),
        block_tokens=entry.count("kv_block_size_tokens", 16),
        memory_fraction=entry.number("gpu_memory_utilization", 0.9),
        prefix_caching=entry.value.get("prefix_caching") is not False,
        chunked_prefill=entry.value.get("chunked_prefill") is not False,
        workload=_workload(entry.inner("workload")),
        measured=rows.get(key, ()),
    )


def _weights(entry: _Entry) -> str:
    """``quantization`` says it where ``weight_precision`` is absent, or only that nothing was recorded."""
    stated = entry.text("weight_precision", UNRECORDED)
    return entry.text("quantization", stated) if stated == UNRECORDED else stated


def _workload(entry: _Entry) -> Workload:
    stages = entry.value.get("stages")
    if not isinstance(stages, Sequence) or not stages:
        raise InputError(f"{entry.where}: stages must be a list of rates and durations")
    prompts = entry.inner("shared_prefix")
    return Workload(
        name=entry.text("workload_class", "unnamed"),
        stages=tuple(_stage(_Entry(stage, f"{entry.where}: stages"), at) for at, stage in enumerate(stages)),
        groups=prompts.count("num_unique_system_prompts"),
        prompts_per_group=prompts.count("num_users_per_system_prompt", 1),
        system_tokens=prompts.count("system_prompt_len_tokens", 0, least=0),
        question_tokens=prompts.count("question_len_tokens"),
        output_tokens=prompts.count("output_len_tokens"),
    )


def _stage(entry: _Entry, position: int) -> Stage:
    return Stage(
        entry.count("stage_index", position, least=0),
        entry.number("rate_req_per_s", least=1e-9),
        entry.number("duration_s", least=1e-9),
    )


def _read_actuals(path: Path) -> dict[str, tuple[Measured, ...]]:
    """Rows by experiment; empty cells are not measured."""
    reader = csv.DictReader(io.StringIO(read_text(path).removeprefix("\ufeff"), newline=""))
    columns = {name: f"{match[1]}_{match[2]}" for name in reader.fieldnames or () if (match := _COLUMN.fullmatch(name))}
    if "exp_id" not in (reader.fieldnames or ()) or not columns:
        raise InputError(f"{path}: expected columns exp_id, stage_index and measurements such as ttft_mean_ms")
    found: dict[str, list[Measured]] = {}
    for number, row in enumerate(reader, 1):
        cells = _numbers(path, number, row, (*columns, THROUGHPUT, "stage_index", "implied_mean_output_tokens"))
        values = {metric: cells[name] * 1e-3 for name, metric in columns.items() if name in cells}
        if THROUGHPUT in cells:
            values["throughput_rps"] = cells[THROUGHPUT]
        stage = int(cells.get("stage_index", POOLED))
        measured = Measured(stage, values, cells.get("implied_mean_output_tokens"))
        found.setdefault(str(row["exp_id"]), []).append(measured)
    return {key: tuple(rows) for key, rows in found.items()}


def _numbers(path: Path, number: int, row: Mapping[str, str], names: Sequence[str]) -> dict[str, float]:
    cells = {}
    for name in names:
        text = (row.get(name) or "").strip()
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{path}: row {number}, {name}: {text!r} is not a number") from None
        if math.isfinite(value):
            cells[name] = value
    return cells
