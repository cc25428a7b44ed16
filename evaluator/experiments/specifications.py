"""Specifications of experiments (JSON) -> ``Experiment``; what cannot be read is an experiment with its problem."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.errors import InputError
from evaluator.experiments.entry import ConfigEntry
from evaluator.experiments.experiment import (
    FITTED_VERSION,
    POOLED,
    UNRECORDED,
    Experiment,
    LoadStage,
    MeasuredMetrics,
    MeasuredWorkload,
)

MOST_REQUESTS = 5_000_000
NOT_MODELLED = ("cpu_kv_offload",)
_KEYS = (
    "exp_id", "experiment_name", "model", "gpu", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enable_expert_parallel", "expert_parallel_size", "weight_precision", "quantization", "kv_cache_dtype", "engine",
    "engine_version", "max_model_len_tokens", "max_model_len", "kv_block_size_tokens", "prefix_caching",
    "chunked_prefill", "max_num_seqs", "max_num_batched_tokens", "total_kv_blocks", "cpu_kv_blocks",
    "gpu_memory_utilization", "enforce_eager", "spec_source", "metrics_available", "description", "workload",
    *NOT_MODELLED,
)  # fmt: skip
_WORKLOAD_KEYS = ("workload_class", "stages", "shared_prefix", "num_requests", "description")
_STAGE_KEYS = ("stage_index", "rate_req_per_s", "duration_s", "num_requests")
_PROMPT_KEYS = (
    "num_unique_system_prompts", "num_users_per_system_prompt", "system_prompt_len_tokens", "question_len_tokens",
    "output_len_tokens", "enable_multi_turn_chat",
)  # fmt: skip
_CLOSED_LOOP = ("concurrency", "max_concurrency", "num_concurrent_users")


def identifier(value: Any) -> str:
    """An exp_id as text: 1, 1.0 and " 1 " are the same."""
    return re.sub(r"^(\d+)\.0+$", r"\1", "" if value is None else str(value).strip())


def read_specification(value: Any, number: int, rows: Mapping[str, Sequence[MeasuredMetrics]]) -> Experiment:
    """Entry ``number`` of a specification file with its measured rows; never raises InputError."""
    given = value if isinstance(value, Mapping) else {}
    key = identifier(given.get("exp_id")) or f"#{number}"
    try:
        # Looked at for its kind first: of a text or a number among the entries that is the message,
        # not a missing exp_id.
        if key.startswith("#"):
            ConfigEntry(value)
            raise InputError("exp_id is missing")
        return _with_measurements(_experiment(key, ConfigEntry(value)), rows.get(key, ()))
    except InputError as error:
        # As far as they can be read: the row of a refused experiment still says which it is.
        name, model, gpu = (str(given.get(field) or "unknown") for field in ("experiment_name", "model", "gpu"))
        return Experiment(key, name, model, gpu, problem=str(error))


def _experiment(key: str, entry: ConfigEntry) -> Experiment:
    length = "max_model_len_tokens" if entry.value.get("max_model_len_tokens") is not None else "max_model_len"
    tensor, data = entry.count("tensor_parallel_size", 1), entry.count("data_parallel_size", 1)
    workload, release = _workload(entry.inner("workload")), _release(entry)
    rules = serving_engine(DEFAULT_ENGINE).rules.of(release)
    return Experiment(
        id=key,
        name=str(entry.value.get("experiment_name") or key),
        model=entry.text("model"),
        gpu=entry.text("gpu"),
        tensor_parallel=tensor,
        pipeline_parallel=entry.count("pipeline_parallel_size", 1),
        data_parallel=data,
        expert_parallel=_expert_parallel(entry, tensor, data),
        weight_precision=_weights(entry),
        kv_precision=entry.text("kv_cache_dtype", "auto"),
        max_num_seqs=entry.said("max_num_seqs"),
        max_num_batched_tokens=entry.said("max_num_batched_tokens"),
        max_model_tokens=entry.said(length),
        kv_blocks=entry.said("total_kv_blocks"),
        block_tokens=entry.count("kv_block_size_tokens", 16),
        engine_version=release,
        memory_fraction=_fraction(entry, "gpu_memory_utilization", rules["kv.memory_fraction"].value),
        prefix_caching=entry.flag("prefix_caching", True),
        chunked_prefill=entry.flag("chunked_prefill", True),
        eager=entry.flag("enforce_eager", False),
        workload=workload,
        notes=tuple(_notes(entry)),
    )


def _weights(entry: ConfigEntry) -> str:
    """``quantization`` says it where ``weight_precision`` is absent, or only that nothing was recorded."""
    stated = entry.text("weight_precision", UNRECORDED)
    return entry.text("quantization", stated) if stated == UNRECORDED else stated


def _release(entry: ConfigEntry) -> str:
    """Whose defaults hold: what is recorded, as far as the table of vLLM's defaults knows it."""
    recorded = str(entry.value.get("engine_version") or "")
    try:
        serving_engine(DEFAULT_ENGINE).release(recorded)
    except InputError:
        return FITTED_VERSION
    return recorded


def _expert_parallel(entry: ConfigEntry, tensor: int, data: int) -> bool:
    """vLLM deals out whole experts to the devices of all data-parallel ranks, or a part of each to every device."""
    wanted = entry.flag("enable_expert_parallel", False)
    if entry.value.get("expert_parallel_size") is None:
        return wanted
    # vLLM has a switch and no size: all devices of all data-parallel ranks, or none.
    size = entry.count("expert_parallel_size")
    devices, more = tensor * data, " x data_parallel_size" if data > 1 else ""
    if size not in (1, devices) or (wanted and size != devices):
        raise InputError(f"expert_parallel_size must be 1 or tensor_parallel_size{more} ({devices}), got {size}")
    return wanted or size > 1


def _fraction(entry: ConfigEntry, key: str, default: float) -> float:
    """A share of one; above one it is in percent."""
    given = entry.number(key, default, least=1e-3)
    if given > 100:
        raise InputError(f"{key} must be a share of at most 1 (or 100 %), got {given:g}")
    # 90 and 0.9 are both written; no fraction of a memory is above one.
    return given / 100 if given > 1 else given


def _workload(entry: ConfigEntry) -> MeasuredWorkload:
    stages = tuple(_stage(stage, position) for position, stage in enumerate(entry.inners("stages")))
    indices = [stage.index for stage in stages]
    twice = next((index for index in indices if indices.count(index) > 1), None)
    if twice is not None:
        raise InputError(f"{entry.where}stages: stage_index {twice} is there twice")
    _no_closed_loop(entry)
    total = sum(stage.requests for stage in stages)
    if total > MOST_REQUESTS:
        raise InputError(f"{entry.where}stages: {total:,} requests are more than {MOST_REQUESTS:,}")
    prompts = entry.inner("shared_prefix")
    return MeasuredWorkload(
        name=entry.text("workload_class", "unnamed"),
        stages=stages,
        groups=prompts.count("num_unique_system_prompts"),
        prompts_per_group=prompts.count("num_users_per_system_prompt", 1),
        system_tokens=prompts.count("system_prompt_len_tokens", 0, least=0),
        question_tokens=prompts.count("question_len_tokens"),
        output_tokens=prompts.count("output_len_tokens"),
    )


def _stage(entry: ConfigEntry, position: int) -> LoadStage:
    """Two of rate, duration and number of requests say the third."""
    _no_closed_loop(entry)
    given = entry.value
    count = None if given.get("num_requests") is None else entry.count("num_requests")
    # A number of requests and a duration are enough; any other pair needs the rate.
    rate = None if count and given.get("rate_req_per_s") is None else entry.number("rate_req_per_s", least=1e-9)
    if rate is not None and count and given.get("duration_s") is None:
        duration = count / rate
    else:
        duration = entry.number("duration_s", least=1e-9)
    stage = LoadStage(entry.count("stage_index", position, least=0), rate or (count or 0) / duration, duration)
    if not stage.requests:
        raise InputError(f"{entry.where}rate_req_per_s x duration_s is no request ({stage.rate_rps:g} x {duration:g})")
    return stage


def _no_closed_loop(entry: ConfigEntry) -> None:
    for key in _CLOSED_LOOP:
        # 0 is no bound, as null is.
        if entry.value.get(key) not in (None, 0):
            raise InputError(f"{entry.where}{key} {entry.value[key]}: only rates are simulated, no closed loop")


def _notes(entry: ConfigEntry) -> list[str]:
    """What the specification says and the simulation does not heed."""
    workload = entry.inner("workload")
    notes = [f"{key} is not modelled" for key in NOT_MODELLED if entry.flag(key, False)]
    unread = entry.others(_KEYS) + workload.others((*_WORKLOAD_KEYS, *_CLOSED_LOOP))
    unread += workload.inner("shared_prefix").others(_PROMPT_KEYS)
    for stage in workload.inners("stages"):
        unread += stage.others((*_STAGE_KEYS, *_CLOSED_LOOP))
    # Once for all stages that have the key, in the order of the file.
    notes += [f"{key} is not read" for key in dict.fromkeys(re.sub(r"\[\d+\]", "[]", key) for key in unread)]
    engine = str(entry.value.get("engine") or "vllm")
    if not engine.strip().lower().startswith("vllm"):
        return [*notes, f"engine {engine} is simulated as vLLM"]
    release = re.match(r"v?(\d+)\.(\d+)", str(entry.value.get("engine_version") or ""))
    major, minor = map(int, FITTED_VERSION.split("."))
    # Five minor releases are some months of vLLM; the host's times of a release farther off may be
    # others than the sets were fitted to.
    if release and abs(int(release[2]) - minor) + 100 * abs(int(release[1]) - major) > 5:
        notes.append(f"engine_version {entry.value['engine_version']} is simulated as vLLM {FITTED_VERSION}")
    return notes


def _with_measurements(experiment: Experiment, rows: Sequence[MeasuredMetrics]) -> Experiment:
    """The experiment with the rows that belong to it, and notes of what was left out."""
    notes = list(experiment.notes)
    measured: dict[int, MeasuredMetrics] = {}
    stages = {stage.index for stage in experiment.workload.stages} | {POOLED}
    most = 1.5 * experiment.workload.output_tokens
    for row in rows:
        notes += row.notes
        if row.stage not in stages:
            notes.append(f"stage {row.stage} is not in the specification")
            continue
        # Counted again by a client from the text, it may be somewhat off what was generated, but not by half; such a
        # figure is of another run or of a broken counter, and its ITL would be divided by it.
        if row.counted_tokens is not None and not 1 < row.counted_tokens <= most:
            notes.append(f"implied_mean_output_tokens {row.counted_tokens:g} is ignored")
            row = replace(row, counted_tokens=None)
        if measured.setdefault(row.stage, row) is not row:
            notes.append(f"stage {row.stage} is measured twice: the first row counts")
    return replace(experiment, measured=tuple(measured.values()), notes=tuple(dict.fromkeys(notes)))
