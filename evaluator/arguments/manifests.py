"""YAML that starts servers, read as the deployment that they make: Dynamo, llm-d, Kubernetes and Docker Compose.

Of Dynamo a ``DynamoGraphDeployment`` (``examples/backends/*/deploy`` of ai-dynamo/dynamo), of llm-d the values of its
chart llm-d-modelservice (``guides/pd-disaggregation/ms-pd/values.yaml``); of Kubernetes Deployments, StatefulSets and
their kin.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluator.arguments.shell import (
    FLEET_NOTE,
    POOL_NOTE,
    VLLM_IMAGE,
    Started,
    StartedServer,
    check_length,
    deployment_of,
    read_note,
    read_script,
    servers_of,
)
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml

_DOCUMENT = re.compile(r"^(apiVersion|kind|services|modelArtifacts|decode|prefill)\s*:", re.MULTILINE)
"""Keys of which each of these files has one at its beginning of a line; in a shell script they would be no command."""
_ROUTERS = {"round-robin": "round_robin", "random": "random"}
"""Router modes of Dynamo's frontend -> ours, but for ``kv``, of which others of its options say what it knows."""
_ROUTER_FLAGS = {
    "--router-mode": "DYN_ROUTER_MODE",
    "--router-ttl-secs": "DYN_ROUTER_TTL_SECS",
    "--router-predicted-ttl-secs": "DYN_ROUTER_PREDICTED_TTL_SECS",
}
"""Flags of its frontend -> variables of the same meaning (docs.nvidia.com/dynamo, Frontend Configuration Reference)."""
_EVENTS = "DYN_ROUTER_USE_KV_EVENTS"
_SHELLS = ("sh", "bash")


@dataclass(frozen=True)
class _Container:
    """A container that may start a server. ``role`` None: as its command says."""

    name: str
    words: tuple[str, ...]
    replicas: int = 1
    role: str | None = None


def read_servers(text: str, where: str, model: str | None = None) -> Started:
    """The deployment that a shell script or a manifest starts, told by the text; ``model`` as of ``read_script``.

    Errors: as of ``read_script``; InputError with the place for YAML that cannot be read.
    """
    if not _DOCUMENT.search(text):
        return read_script(text, where, model)
    check_length(text, where)
    parts = [loads_yaml(part, where) for part in re.split(r"^---.*$", text, flags=re.MULTILINE)]
    documents = [part for part in parts if isinstance(part, Mapping)]
    notes, fleet = _notes(text, where)
    containers: list[_Container] = []
    for number, document in enumerate(documents, 1):
        place = where if len(documents) == 1 else f"{where} document {number}"
        try:
            containers += _containers(document)
            fleet = {**_router(document), **fleet}  # deploy's own note knows more than a mode
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            # Somebody's file may have a list where a mapping belongs, and anything as a number of replicas.
            raise InputError(f"{place}: not as such files are built ({type(error).__name__}: {error})") from None
    started: list[StartedServer] = []
    for container in containers:
        note = _note_of(container, notes)
        for line in _lines(container.words):
            started += [
                replace(server, note=note, replicas=container.replicas, role=container.role)
                for server in servers_of(line, where)
            ]
    if not started:
        raise InputError(f"{where}: no container starts a server of vLLM or SGLang that can be read")
    return deployment_of(started, fleet, where, model)


def _containers(document: Mapping[str, Any]) -> Iterator[_Container]:
    if document.get("kind") == "DynamoGraphDeployment":
        yield from _dynamo(document["spec"]["services"])
    elif "modelArtifacts" in document:
        yield from _llmd(document)
    elif "kind" in document:
        yield from _kubernetes(document)
    else:
        for name, service in (document.get("services") or {}).items():
            # Compose runs the command behind the entrypoint; either may be one text, as a shell would read it.
            words = _run(service.get("image"), service.get("entrypoint"), service.get("command"))
            yield _Container(str(name), words, int((service.get("deploy") or {}).get("replicas", 1)))


def _dynamo(services: Mapping[str, Any]) -> Iterator[_Container]:
    for name, service in services.items():
        container = ((service.get("extraPodSpec") or {}).get("mainContainer")) or {}
        role = service.get("subComponentType")
        words = (*_words(container.get("command")), *_words(container.get("args")))
        yield _Container(
            str(name), words, int(service.get("replicas", 1)), role if role in ("prefill", "decode") else None
        )


def _llmd(values: Mapping[str, Any]) -> Iterator[_Container]:
    """The chart starts vLLM itself: it adds the model, and how many devices share it, to the arguments of a side."""
    model = values["modelArtifacts"].get("name") or str(values["modelArtifacts"]["uri"]).removeprefix("hf://")
    sides = {side: values.get(side) or {} for side in ("prefill", "decode")}
    # A side is there unless it says otherwise; without prefill servers those of decode do both.
    apart = bool(sides["prefill"]) and sides["prefill"].get("create", True)
    for side, pods in sides.items():
        if not pods or not pods.get("create", True):
            continue
        parallelism = pods.get("parallelism") or {}
        shared = [
            *("--tensor-parallel-size", str(parallelism.get("tensor", 1))),
            *("--data-parallel-size", str(parallelism.get("data", 1))),
        ]
        for container in pods["containers"]:
            words: tuple[str, ...] = (*_words(container.get("command")), *_words(container.get("args")))
            if container.get("modelCommand", "vllmServe") == "vllmServe":
                words = ("vllm", "serve", str(model), *shared, *words)
            replicas = int(pods.get("replicas", 1))
            yield _Container(str(container.get("name", side)), words, replicas, side if apart else "mixed")


def _kubernetes(manifest: Mapping[str, Any]) -> Iterator[_Container]:
    """Containers of a Deployment, a StatefulSet, a Pod and their kin; nothing of a Service."""
    spec = manifest.get("spec") or {}
    pod = (spec.get("template") or {}).get("spec") or spec
    name = str((manifest.get("metadata") or {}).get("name", ""))
    for container in pod.get("containers") or ():
        words = _run(container.get("image"), container.get("command"), container.get("args"))
        yield _Container(name or str(container.get("name", "")), words, int(spec.get("replicas", 1)))


def _run(image: Any, entrypoint: Any, arguments: Any) -> tuple[str, ...]:
    """The words that a container runs; those of vLLM's image, which starts vLLM itself, as ``docker run`` has them."""
    program, words = _words(entrypoint), _words(arguments)
    of_image = not program and VLLM_IMAGE.fullmatch(str(image))
    # A shell or a line of its own behind the image stands for a program: people leave the entrypoint out.
    if of_image and len(words) > 1 and words[0].rsplit("/", 1)[-1] not in _SHELLS:
        return ("docker", "run", str(image), *words)
    return (*program, *words)


def _words(said: Any) -> tuple[str, ...]:
    """Words of a command: a list of them, or one text."""
    return tuple(shlex.split(said)) if isinstance(said, str) else tuple(str(word) for word in said or ())


def _lines(words: Sequence[str]) -> Iterator[str]:
    """Lines of shell: those behind ``sh -c``, else the words as one; a word of several is a whole command line."""
    if words and words[0].rsplit("/", 1)[-1] in _SHELLS and "-c" in words[:3]:
        yield "\n".join(words[words.index("-c", 0, 3) + 1 :])
    elif len(words) == 1:
        yield words[0]
    else:
        yield shlex.join(words)


def _router(document: Mapping[str, Any]) -> dict[str, Any]:
    """The router of Dynamo's frontend, by its variable or its flag; nothing where a file has none."""
    if document.get("kind") != "DynamoGraphDeployment":
        return {}
    for service in document["spec"]["services"].values():
        if service.get("componentType") != "frontend":
            continue
        container = (service.get("extraPodSpec") or {}).get("mainContainer") or {}
        words = (*_words(container.get("command")), *_words(container.get("args")))
        variables = (*(service.get("envs") or ()), *(container.get("env") or ()))
        settings = {str(env.get("name")): env.get("value") for env in reversed(variables)}
        # A flag comes before the variable.
        settings |= {name: words[words.index(flag) + 1] for flag, name in _ROUTER_FLAGS.items() if flag in words[:-1]}
        if any(flag in words for flag in ("--no-router-kv-events", "--no-kv-events")):
            settings[_EVENTS] = "false"
        mode = str(settings.get("DYN_ROUTER_MODE"))
        router = _by_prefix(settings) if mode == "kv" else _ROUTERS.get(mode)
        return {"router": router} if router else {}
    return {}


def _by_prefix(said: Mapping[str, Any]) -> Any:
    """What Dynamo's kv mode knows of the caches: what events tell, or what it has sent, for a while."""
    if str(said.get(_EVENTS)).lower() in ("false", "0"):
        # Its default, see ``RouterConfig``: 120 s.
        return {"prefix_approximate": {"ttl_s": float(said.get("DYN_ROUTER_TTL_SECS") or 120.0)}}
    predicted = said.get("DYN_ROUTER_PREDICTED_TTL_SECS")
    return {"prefix_aware": {"predicted_ttl_s": float(predicted)}} if predicted else "prefix_aware"


def _notes(text: str, where: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What ``deploy`` wrote as comments: by the pool's name what no flag says, and of the deployment."""
    notes: dict[str, dict[str, Any]] = {}
    fleet: dict[str, Any] = {}
    for row in text.splitlines():
        if row.startswith(FLEET_NOTE):
            fleet = read_note(row.removeprefix(FLEET_NOTE), where)
        elif row.startswith(POOL_NOTE):
            note = read_note(row.removeprefix(POOL_NOTE), where)
            notes[_plain(str(note.get("pool", "")))] = note
    return notes, fleet


def _note_of(container: _Container, notes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The note of the pool that a container is of: ``decode-0`` and ``DecodeWorker`` are of ``decode``."""
    name = _plain(container.name)
    pools = [pool for pool in notes if name.startswith(pool)]
    note = notes[max(pools, key=len)] if pools else {}
    # How many there are the manifest says itself, and its owner may have changed it.
    return {key: value for key, value in note.items() if key != "replicas"}


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name).lower()
