"""Records of InferenceX (InferenceMAX before it): one object a run of its ``vllm bench serve``, or a list of them.

By its ``utils/process_result.py``, which divides throughputs by devices and takes milliseconds to seconds, and by the
rows of its website, which have the same metrics below ``metrics`` and call some fields otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evaluator.catalog.devices import recognised as device
from evaluator.errors import InputError
from evaluator.experiments.entry import as_number
from evaluator.experiments.generators.measured_run import MeasuredRun, closed_loop, number_in, statistics_by_ending

NAME = "InferenceX"
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
"""Our names of metrics -> its names, which are those of vLLM. ``intvty`` (1 / TPOT) says nothing more."""
CYCLES = 10
"""Requests for each user, of ``--num-prompts $((CONC * 10))`` in its scripts; a record does not say them."""
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trt": "trtllm", "trtllm": "trtllm"}
"""Words of ``framework``, alone or behind ``dynamo-``; other engines (atom) are not simulated."""
_WEBSITE = {"hardware": "hw", "spec_method": "spec_decoding"}


def recognised(content: Mapping[str, Any]) -> bool:
    """Whether an object of JSON is of this generator, by the keys that it alone has."""
    return {"conc", "framework", "precision"} <= set(content) and ("hw" in content or "hardware" in content)


def read(content: Mapping[str, Any], label: str) -> list[MeasuredRun]:
    """The run of one record: a closed loop of ``conc`` users, with the layout that the record says."""
    # Rows of the website become those of `process_result.py`, so that what follows reads one form.
    record = {_WEBSITE.get(key, key): value for key, value in content.items()}
    if isinstance(metrics := record.pop("metrics", None), Mapping):
        record |= metrics
    users = number_in(record, "conc", 1)
    latencies = statistics_by_ending(record, {ours: f"_{theirs}" for ours, theirs in METRICS.items()}, 1.0)
    layout, phases, notes = _layout(record)
    total, output = (_tokens_per_s(record, name, phases) for name in ("input", "output"))
    # The rate of prompts becomes that of both, which is the metric of ours.
    if total is not None and output is not None:
        total += output
    prompts, outputs = _lengths(record, latencies, total, output)
    rates = {"output_tok_per_s": output, "total_tok_per_s": total}
    framework = str(record["framework"]).lower().rpartition("dynamo-")[2]
    if framework not in ENGINES:
        raise InputError(f"framework {record['framework']} is not simulated; {', '.join(ENGINES)} are")
    # Acceptance of drafts is a figure of the model pair and the texts, and decides TPOT: guessing one would be no
    # comparison.
    if str(record.get("spec_decoding", "none")).lower() not in ("none", "", "false"):
        notes.append(
            f"measured with drafts ({record['spec_decoding']}), which the record does not describe: "
            "say them with deployment.speculative"
        )
    hardware = str(record["hw"])
    return [
        MeasuredRun(
            label,
            NAME,
            closed_loop(users, "conc"),
            int(CYCLES * users),
            latencies | {name: value for name, value in rates.items() if value},
            prompts,
            outputs,
            model=str(record["model"]) if record.get("model") else None,
            # Its runners are called h200-cw or b200-nb: the device and who lent it.
            gpu=hardware if device(hardware) else hardware.partition("-")[0],
            deployment={"engine": ENGINES[framework], **layout},
            weights=str(record["precision"]),
            notes=tuple(notes),
        )
    ]


def _layout(record: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float], list[str]]:
    """Keys of a deployment, devices by phase (``all`` where both are computed by the same), and what is to be told."""
    if not _is(record, "disagg"):
        # Single nodes say `tp`; rows of the website and several nodes that share each request say `decode_tp`.
        prefix = "" if "tp" in record else "decode_"
        layout = _workers(record, prefix)
        return layout, {"all": _devices(layout)}, []
    pools = {}
    for phase in ("prefill", "decode"):
        workers = _workers(record, f"{phase}_")
        pools[phase] = {"role": phase, **workers, "replicas": int(number_in(record, f"{phase}_num_workers", 1))}
    devices = {phase: _devices(pool) * pool["replicas"] for phase, pool in pools.items()}
    for phase, counted in devices.items():
        stated = as_number(record.get(f"num_{phase}_gpu"))
        # Throughputs are divided by this number of devices: with another one all of them would be off by their ratio.
        if stated is not None and stated != counted:
            raise InputError(
                f"num_{phase}_gpu is {stated:g}, and its workers have {counted:g} devices: a layout that is not known"
            )
    return {"pools": pools}, devices, ["how KV comes from prefill to decode: as in the scenario"]


def _workers(record: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Of the devices of one worker, the layout in our keys."""
    tensor = int(number_in(record, f"{prefix}tp", 1))
    experts = int(number_in(record, f"{prefix}ep", 1)) if f"{prefix}ep" in record else 1
    layout = {"tensor_parallel": tensor}
    if _is(record, f"{prefix}dp_attention"):
        # Attention is whole on each device then, and `tp` the number of devices.
        layout = {"tensor_parallel": 1, "data_parallel": tensor}
    return layout | ({"expert_parallel": experts} if experts > 1 else {})


def _devices(layout: Mapping[str, Any]) -> int:
    return int(layout["tensor_parallel"] * layout.get("data_parallel", 1))


def _tokens_per_s(record: Mapping[str, Any], of: str, devices: Mapping[str, float]) -> float | None:
    """Prompt (``input``) or answer (``output``) tokens of the whole deployment in a second.

    Of prefill and decode apart, each is divided by the devices of its own phase; of one deployment by all of them.
    """
    # Prompts are computed by the prefill pool alone, answers (but for the first token) by the decode pool.
    phase = {"input": "prefill", "output": "decode"}[of]
    count = devices.get("all", devices.get(phase, math.nan))
    value = as_number(record.get(f"{of}_tput_per_gpu"))
    if value is None and of == "input" and "all" in devices:  # the first records have both together alone
        both, output = (as_number(record.get(name)) for name in ("tput_per_gpu", "output_tput_per_gpu"))
        value = None if both is None or output is None else both - output
    return None if value is None or not 0 < value < math.inf else value * count


def _lengths(
    record: Mapping[str, Any], latencies: Mapping[str, float], total: float | None, output: float | None
) -> tuple[float | None, float | None]:
    """Mean tokens of prompts and outputs.

    ``isl`` and ``osl`` are the longest: lengths are drawn between a share of them (``RANDOM_RANGE_RATIO``, which a
    record does not have) and them. The means follow from what was measured: an answer of TPOT x (tokens - 1) after its
    first token, and prompts beside answers in the tokens of a second.
    """
    longest = {name: as_number(record.get(name)) for name in ("isl", "osl")}
    e2e, ttft, tpot = (latencies.get(f"{name}_mean") for name in ("e2e", "ttft", "tpot"))
    # Failing any of these the longest stand in: an upper bound, exact where RANDOM_RANGE_RATIO is 1.
    if not (e2e and ttft and tpot and total and output and e2e > ttft and total > output):
        return longest["isl"], longest["osl"]
    outputs = (e2e - ttft) / tpot + 1
    prompts = outputs * (total / output - 1)
    # TPOT is a mean over requests and the gaps are not all of one length: no more than what was asked for.
    return tuple(
        mean if most is None else min(mean, most)
        for mean, most in zip((prompts, outputs), (longest["isl"], longest["osl"]), strict=True)
    )  # type: ignore[return-value]


def _is(record: Mapping[str, Any], name: str) -> bool:
    """A flag, which the first records have as the words of a shell."""
    return str(record.get(name, False)).lower() == "true"
