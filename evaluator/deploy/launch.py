"""How each pool of a design is started: the words of its command, and what no flag of its engine says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.arguments import (
    COMMAND_LINES,
    CONFIG,
    FLEET_NOTE,
    POOL_NOTE,
    TRTLLM,
    Arguments,
    StatedPool,
    get,
    tree_of,
    unsaid,
)
from evaluator.arguments.vllm import TIERS
from evaluator.catalog.engine_rules import dotted
from evaluator.catalog.engines import serving_engine
from evaluator.catalog.published import model_name, repository_of
from evaluator.catalog.read_model import load_model
from evaluator.deploy.design import Design, PoolDesign
from evaluator.errors import InputError
from evaluator.policies import policy
from evaluator.scenario.deployment import SHORTEST_FIRST
from evaluator.scenario.failures import RESENT
from evaluator.traffic.requests import Tokens, request_tokens
from evaluator.yaml import dumps_yaml

FIRST_PORT = 8000
LINES = {**COMMAND_LINES, TRTLLM.engine: TRTLLM}
NO_REPOSITORY = "MODEL_ID"
"""Stands where the repository of a model is not known."""

_OF_FLEET = (
    "hardware",
    "calibration",
    "host",
    "api_server_times",
    "replicas",
    "router",
    "usd_per_device_hour",
    "weight",
    "engine",
    "engine_version",
    "model",
    "role",
)
"""Keys that say nothing of a server: what runs it, how fast it is, how many there are, what they cost."""
_SCALING, _FAILING = "autoscaling", "failures"
NO_AUTOSCALER = "and no autoscaler is"
"""The end of a remark of what scales, which a target with an autoscaler takes out."""
_WHY = {
    "kv.admission": "a request of the design enters only if its whole KV fits, and the server preempts",
    "speculative": "how much is accepted is not the server's to say",
    "kv.offload_tiers": "SGLang's HiCache and LMCache have stores behind host memory, and rules of their own",
    "batching.planning": "",
    "batching.tau": "",
}


@dataclass(frozen=True)
class Launch:
    """One pool's servers. ``flags`` are the words of each flag, in their order; ``files`` are those that they name."""

    pool: PoolDesign
    program: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    note: dict[str, Any]
    remarks: tuple[str, ...]
    port: int
    repository: str
    files: dict[str, str] = field(default_factory=dict)

    def words(self, port: str | int | None = None, host: str | None = None) -> list[str]:
        """The whole command."""
        flags = [word for flag in self.flags for word in flag]
        return [*self.program, *flags, *(() if host is None else ("--host", host)), "--port", str(port or self.port)]


def launches(design: Design, model_id: str | None) -> list[Launch]:
    """Every pool of a design, with ports that follow one another."""
    port, all_launches = FIRST_PORT, []
    for pool in design.pools:
        all_launches.append(_launch(design, pool, port, model_id))
        # A port for each replica, as all may start on one machine.
        port += pool.replicas
    return all_launches


def _launch(design: Design, pool: PoolDesign, port: int, model_id: str | None) -> Launch:
    repository, missing = _repository(pool, model_id)
    server = StatedPool(
        pool.keys,
        repository,
        experts=pool.model.has_experts,
        longest=pool.longest,
        cached_prefixes=_cached_prefixes(design),
        checkpoint=frozenset(
            (pool.model.checkpoint.attention, pool.model.checkpoint.feed_forward, pool.model.checkpoint.experts)
        ),
        draft=_draft(pool),
    )
    line = LINES[pool.engine]
    flags = line.flags(server)
    # What the flags do not say is written beside them as a comment, so that ``import`` makes the same
    # deployment of the script.
    note = unsaid(line, server, flags)
    # The flags are read back as a reader of the script would: what a server of this release does without a
    # flag is told as its value.
    remarks = [*missing, *_remarks(pool, note, line.keys(flags, line.release(server))[0])]
    # Without a release the recorded one is served (`version_of`), which has all of its own flags.
    if server["engine_version"] is not None and not line.arguments.version.startswith(dotted(line.release(server))):
        remarks.append(
            f"flags are checked by the arguments of {line.arguments.version}, and those that release "
            f"{server['engine_version']} is known not to have are left out: it may lack others"
        )
    # The repository's name is enough to find the model again: the note would say it twice.
    if _read_back(repository) == note.get("model"):
        del note["model"]
    program = (*line.program, *(() if line.model_flag else (repository,)))
    line.arguments.words(flags)  # all are checked, also those of a YAML
    config = {flag.removeprefix(CONFIG): value for flag, value in flags.items() if flag.startswith(CONFIG)}
    files = {f"{pool.name}.yaml": dumps_yaml(tree_of(config))} if config else {}
    of_command = {flag: value for flag, value in flags.items() if not flag.startswith(CONFIG)}
    words = [*line.arguments.words(of_command), *(("--extra_llm_api_options", name) for name in files)]
    return Launch(pool, program, tuple(words), note, tuple(remarks), port, repository, files)


def arguments_of(launch: Launch) -> Arguments:
    """The recorded arguments that its flags were checked by."""
    return LINES[launch.pool.engine].arguments


def version_of(launch: Launch) -> str:
    """The release that serves a pool: the one that is said, where that stands for several the recorded or first one."""
    stated, recorded = launch.pool.keys.get("engine_version"), arguments_of(launch).version
    if stated is None:
        return recorded
    release = dotted(serving_engine(launch.pool.engine).release(stated))
    if f"{recorded}.".startswith(f"{release}."):
        return recorded
    # Images have tags of three numbers; a scenario may say two, which stand for every patch release.
    return f"{release}.0" if release.count(".") == 1 else str(stated).removeprefix("v")


def _repository(pool: PoolDesign, model_id: str | None) -> tuple[str, list[str]]:
    model, published = pool.model, isinstance(pool.keys["model"], str)  # else it is like one that is
    repository = model_id or ((pool.published or repository_of(model.name, model.source)) if published else None)
    if repository is not None:
        return repository, []
    return NO_REPOSITORY, [
        f"{NO_REPOSITORY} stands for the repository of {model.name}, which the catalog does not know: say it with "
        "--model-id ORGANISATION/NAME"
    ]


def _read_back(repository: str) -> str | None:
    """The model that a reader of the command takes it for."""
    try:
        return model_name(repository)
    # A repository that is of no model of ours is no fault here: then the note keeps saying which it is.
    except InputError:
        return None


def _draft(pool: PoolDesign) -> str | None:
    """The repository of a draft model."""
    drafts = pool.keys.get("speculative") or {}
    if not isinstance(drafts.get("model"), str):
        return None
    return repository_of(drafts["model"], load_model(drafts["model"]).source)


def _cached_prefixes(design: Design) -> bool:
    tokens: Tokens | None = None
    workload = design.traffic.workload
    # The trace's own column may say more than the workload's one number.
    if workload.trace is not None and workload.trace.cached_tokens is not None:
        tokens = request_tokens(workload, workload.seeds[0], workload.requests)
    return workload.cached_tokens > 0 or (tokens is not None and bool(tokens.cached_tokens.any()))


def _remarks(pool: PoolDesign, note: dict[str, Any], server: dict[str, Any]) -> list[str]:
    """What of a pool its engine has no flag for, in words."""
    # The note has what the flags do not say, for a reader by machine; here it is told to people, but for what makes no
    # difference to them. A key that is null in the note is one that the server has and the design has not; only a
    # missing KV capacity tells anything.
    without_flag = {
        key: value for key, value in note.items() if key not in _OF_FLEET and not key.startswith((_SCALING, _FAILING))
    }
    scales = any(key.startswith(_SCALING) and value is not None for key, value in note.items())
    failures = pool.keys.get(_FAILING) or {}
    resends = [f"failures.requests {RESENT}: is the router's to do, and the one that is written sends nothing again"]
    return (
        [f"autoscaling: all {pool.replicas} replicas are started, {NO_AUTOSCALER}"] * scales
        + (resends if failures.get("requests") == RESENT else [])
        + [
            remark
            for key, value in without_flag.items()
            if value is not None or key == "kv.capacity_tokens"
            for remark in _remarks_of(pool, key, value, get(server, key))
        ]
    )


def _remarks_of(pool: PoolDesign, key: str, value: Any, has: Any) -> list[str]:
    """Remarks on a key of which the server ``has`` another value than the design; none where that is no difference."""
    label = serving_engine(pool.engine).label
    if _does_the_same(pool, key, value):
        return []
    if key in ("precision.weights", "precision.attention"):
        of = "attention's weights" if key == "precision.attention" else "weights"
        return [f"{of} in {value} are those of another repository: name one that is quantised so with --model-id"]
    if key == "lora":
        return _remarks_of_adapters(label, value, has)
    if key == "kv.prefix_caching" and has:
        return ["prefix caching is on, since requests of the load have cached prefixes"]
    if key == "kv.prefix_caching" and pool.engine == "sglang" and pool.role == "decode":
        return [f"a decode server of {label} has no prefix cache beside drafts by this method, and the design has one"]
    if key == "speculative":
        acceptance = value["acceptance"]
        accepted = f"the design accepts drafts with chance {acceptance}; what a server accepts depends on texts"
        head = "DRAFT_MODEL_ID stands for the repository of the EAGLE head"
        return [accepted, head] if value["method"] == "eagle" else [accepted]
    if key == "batching.packing" and value == SHORTEST_FIRST and pool.engine == "vllm":
        return [
            f"{key} {value}: {label} has no flag for it; its order is that of --scheduling-policy priority, where a "
            "gateway sends the length that it predicts as the priority of each request"
        ]
    if key == "kv.offload_tiers" and pool.engine == "vllm":
        return [
            f"kv.offload_tiers: {label}'s tiers are folders: mount the storage there ({TIERS}/0-NAME, ..), one that "
            "replicas share in all of their servers, with one PYTHONHASHSEED; their bandwidth is that of the mount",
            f"kv.offload_tiers: no flag of {label} bounds what they keep: let an evictor of your own delete the files "
            "that were read the longest ago",
        ]
    if key == "batching.max_num_batched_tokens" and pool.engine == "vllm":
        return [f"{key} {value}: {label} takes no fewer without chunks than the longest request has, {pool.longest}"]
    reason = _WHY.get(key, "")
    return [
        f"{key} {value}: {label} has no flag for it{'' if has is None else f', and its server has {has}'}"
        f"{f' ({reason})' if reason else ''}"
    ]


def _does_the_same(pool: PoolDesign, key: str, value: Any) -> bool:
    """Whether a server without a flag for the key's value does all the same what the design does."""
    if key == "precision.activations":
        # Both engines quantise what goes into matrix products with such weights.
        return value == "fp8" and get(pool.keys, "precision.weights") in ("fp8", "fp8_block", "checkpoint")
    if key in ("batching.prediction_error", "batching.aging_tokens_per_s"):
        return True  # of who predicts the lengths, which is no server
    if key == "batching.planning":
        # The same where no batch is planned ahead; and SGLang does it where no flag says otherwise.
        return value == "at_once" or (pool.engine == "sglang" and value == "asynchronous")
    if pool.engine == "vllm":
        # A threshold above the longest request bounds nothing, and groups of layers are what vLLM keeps by itself.
        return key in ("batching.long_prefill_token_threshold", "kv.layer_groups")
    # SGLang's own order is what SGLang does.
    return pool.engine == "sglang" and key == "batching.policy" and policy(value).token_ratio


def _remarks_of_adapters(label: str, wanted: dict[str, Any], has: dict[str, Any] | None) -> list[str]:
    """What of ``deployment.lora`` the server has in another way."""
    places, rank = wanted["max_loras"], wanted["rank"]
    if has is None:
        return [f"lora: {places} places for adapters of rank {rank}: {label}'s own flags of adapters are left to you"]
    remarks = []
    if has["rank"] > rank:
        remarks.append(f"lora.rank {rank}: places have room for rank {has['rank']}, the next that {label} has")
    elif has["rank"] < rank:
        remarks.append(f"lora.rank {rank}: {label} takes adapters of rank {has['rank']} at most")
    if has["modules"] != wanted["modules"]:
        remarks.append(f"lora.modules {wanted['modules']}: this release has no flag for it, and places for all")
    if wanted.get("load_bandwidth") is not None:
        remarks.append(
            f"lora.load_bandwidth {wanted['load_bandwidth'] / 1e9:g} GB/s is the host's or its disks', which no flag "
            "sets"
        )
    return remarks


# --- scripts


def head(design: Design, launch_list: Sequence[Launch]) -> list[str]:
    """Comments at the top of a file: which design, what was predicted, what could not be said."""
    figures = design.predicted
    lines = [f"# {design.title}: {design.chosen} of {design.source} (config={design.config})"]
    for launch in launch_list:
        pool = launch.pool
        lines.append(
            f"# {pool.name}: {pool.replicas} x {pool.devices} {_hardware(pool)} with {pool.model.name}, "
            f"{serving_engine(pool.engine).label} {version_of(launch)}, arguments as of {arguments_of(launch).version}"
        )
    if predicted := _in_words(figures):
        lines.append(f"# predicted: {predicted}")
    for remark in remarks_of(design, launch_list):
        lines.append(f"# not the same: {remark}")
    # A line end in a file's name or a title would end the comment, and a shell run what follows.
    return [" ".join(line.split()) for line in lines]


def remarks_of(design: Design, launch_list: Sequence[Launch]) -> list[str]:
    """What the design has and its servers do not, each once, with the pool where there are several."""
    several = len(launch_list) > 1
    of_pools = [
        f"{launch.pool.name}: {remark}" if several else remark for launch in launch_list for remark in launch.remarks
    ]
    if design.engine == "trtllm" and not design.phases and sum(launch.pool.replicas for launch in launch_list) > 1:
        of_pools.append(
            f"router {design.router}: trtllm-serve has one for prefill and decode alone; put one of your own before "
            "these servers"
        )
    return list(dict.fromkeys([*design.left_out, *of_pools]))


def _hardware(pool: PoolDesign) -> str:
    hardware = pool.keys["hardware"]
    if isinstance(hardware, str):
        return hardware
    return str(hardware.get("name", f"of a device like {hardware.get('like', 'none')}"))


def _in_words(figures: dict[str, Any]) -> str:
    parts = []
    if "goodput_rps" in figures:
        parts.append(f"{figures['goodput_rps']:.3g} requests/s")
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")):
        for level in ("p50", "p90", "p99"):
            if level in figures.get(name, {}):
                parts.append(f"{label} {level} {1e3 * figures[name][level]:.4g} ms")
    if "output_tok_per_s" in figures:
        parts.append(f"{figures['output_tok_per_s']:.4g} output tokens/s")
    return ", ".join(parts)


def pool_note(launch: Launch) -> str:
    """The comment by which the pool is read again (``arguments.shell``)."""
    return POOL_NOTE + json.dumps({"pool": launch.pool.name, **launch.note})


def fleet_note(design: Design) -> str:
    """The comment by which what all pools share is read again."""
    note: dict[str, Any] = {"router": design.router}
    if design.phases:
        # None is a default, which a reader of the note has, too.
        note["transfer"] = {key: value for key, value in design.transfer.items() if value is not None}
    if design.autoscaling_devices is not None:
        note["autoscaling_devices"] = design.autoscaling_devices
    return FLEET_NOTE + json.dumps(note)


def manifest_head(design: Design, launch_list: Sequence[Launch]) -> str:
    """Comments at the top of a YAML, by which it is read again as well (``arguments.manifests``)."""
    notes = [pool_note(launch) for launch in launch_list]
    return "\n".join([*head(design, launch_list), fleet_note(design), *notes]) + "\n"


def quoted(words: Sequence[str]) -> str:
    """Words as a shell takes them."""
    return shlex.join(words)
