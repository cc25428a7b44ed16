"""Shell scripts that start servers, read as the deployment that they start."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.arguments.flags import CommandLine, restored
from evaluator.arguments.sglang import SGLANG
from evaluator.arguments.vllm import VLLM
from evaluator.catalog.published import model_name
from evaluator.errors import InputError

COMMAND_LINES: dict[str, CommandLine] = {line.engine: line for line in (VLLM, SGLANG)}
"""The engines whose command lines are written and read."""

POOL_NOTE, FLEET_NOTE = "# evaluator: ", "# evaluator, of all pools: "
"""Comments with what no flag says, as JSON: of the pool of the next command, and of the deployment."""

_STARTS: tuple[tuple[tuple[str, ...], CommandLine], ...] = (
    (("vllm", "serve"), VLLM),
    # The module before it was ``vllm serve``, in whose scripts most recipes on the web still are.
    (("-m", "vllm.entrypoints.openai.api_server"), VLLM),
    (("-m", "vllm.entrypoints.cli.main", "serve"), VLLM),
    (("-m", "sglang.launch_server"), SGLANG),
    (("sglang", "serve"), SGLANG),
    # Dynamo's workers, which hand their engine's flags on.
    (("-m", "dynamo.vllm"), VLLM),
    (("-m", "dynamo.sglang"), SGLANG),
)
_DYNAMO_ROLES = {"--is-prefill-worker": "prefill", "--is-decode-worker": "decode"}
"""Switches of Dynamo's workers of vLLM that say the role; those of SGLang take SGLang's own flag."""
VLLM_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:[:@]\S+)?")
"""vLLM's own image, whose entrypoint is ``vllm serve``: behind it there are flags alone, as in vLLM's documentation."""
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_ENDS = re.compile(r"[;&|()<>]+|\d?>&?\d?")
MOST_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Started:
    """The deployment of a script, as the section of a scenario.

    ``ignored``: flags that the engine has and that mean nothing to a simulation; ``unknown``: those that the recorded
    version of the engine (``engines``) does not have; ``approximated``: those that change times and are not simulated
    as they say, with what is taken instead.
    """

    tree: dict[str, Any]
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    engines: tuple[str, ...]
    approximated: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedServer:
    """A command that starts ``replicas`` servers. ``role`` None: as its flags say."""

    line: CommandLine
    words: tuple[str, ...]
    note: Mapping[str, Any]
    replicas: int = 1
    role: str | None = None


def read_script(text: str, where: str, model: str | None = None) -> Started:
    """``model`` is that of servers whose own is called as the catalog knows none, such as a folder.

    Errors: InputError where no server is started, servers of two engines are, or a value cannot be read.
    """
    commands, fleet = _commands(text, where)
    if not commands:
        starts = ", ".join(" ".join(words) for words, _ in _STARTS)
        raise InputError(f"{where}: starts no server that can be read; looked for {starts}")
    return deployment_of(commands, fleet, where, model)


def deployment_of(
    commands: Sequence[StartedServer], fleet: Mapping[str, Any], where: str, model: str | None
) -> Started:
    """One pool of servers that are started alike, or several by name. ``model`` and errors: as of ``read_script``."""
    pools: dict[str, dict[str, Any]] = {}
    ignored: dict[str, None] = {}
    unknown: dict[str, None] = {}
    approximated: dict[str, None] = {}
    for command in commands:
        name, tree = _pool(command, ignored, unknown, approximated, where, model)
        # Compared with as many replicas, since the pool found first has counted those behind it.
        same = next((other for other, pool in pools.items() if {**pool, "replicas": tree["replicas"]} == tree), None)
        if same is not None:  # one line for each replica
            pools[same]["replicas"] += tree["replicas"]
            continue
        # Two pools of one role without a note have no names of their own: decode and decode_.
        while name in pools:
            name += "_"
        pools[name] = tree
    engines = tuple(dict.fromkeys(command.line.engine for command in commands))
    if len(pools) == 1 and next(iter(pools.values()))["role"] == "mixed":
        (tree,) = pools.values()
    else:
        tree = {"pools": pools}
    return Started({**tree, **fleet}, tuple(ignored), tuple(unknown), engines, tuple(approximated))


def _pool(
    command: StartedServer,
    ignored: dict[str, None],
    unknown: dict[str, None],
    approximated: dict[str, None],
    where: str,
    model: str | None,
) -> tuple[str, dict[str, Any]]:
    line = command.line
    try:
        parsed = line.arguments.parse(command.words)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    flags = dict(parsed.flags)
    repository = next((flags.pop(flag) for flag in ("--model", "--model-path") if flag in flags), None)
    repository = repository or (parsed.words[0] if parsed.words else None)
    tree, meaningless = line.keys(flags)
    tree["replicas"] = command.replicas
    roles = [_DYNAMO_ROLES[flag] for flag in parsed.unknown if flag in _DYNAMO_ROLES]
    tree["role"] = next(iter(roles), command.role or tree["role"])
    # Only beside what they are about: without --enable-lora the other flags of adapters do nothing.
    taken = {flag: instead for flag, (key, instead) in line.approximated.items() if tree.get(key)}
    ignored.update(dict.fromkeys(flag for flag in meaningless if flag not in taken))
    approximated.update(dict.fromkeys(f"{flag} ({taken[flag]})" for flag in meaningless if flag in taken))
    unknown.update(dict.fromkeys(flag for flag in parsed.unknown if flag not in _DYNAMO_ROLES))
    note = dict(command.note)
    name = str(note.pop("pool", {"prefill": "prefill", "decode": "decode"}.get(tree["role"], "servers")))
    if "model" not in note:
        if repository is None:
            raise InputError(f"{where}: {' '.join(line.program)} says no model")
        tree["model"] = _model_of(str(repository), where, model)
    draft = tree.get("speculative", {}).get("model")
    if draft is not None and "speculative" not in note:
        tree["speculative"]["model"] = model_name(str(draft))
    return name, restored(tree, note)


def _model_of(repository: str, where: str, model: str | None) -> str:
    """The catalog's name of what a server loads."""
    try:
        return model_name(repository)
    except InputError as error:
        # Many servers load a folder, whose name tells no model: then it is for the scenario to say.
        if model is None:
            raise InputError(f"{where}: {error}") from None
        return model


def check_length(text: str, where: str) -> None:
    """InputError for a text that is longer than any script or manifest that starts servers."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{where}: {len(text):,} characters are no script that starts servers")


def _commands(text: str, where: str) -> tuple[list[StartedServer], dict[str, Any]]:
    """The commands that start servers, and what a comment says of all pools."""
    check_length(text, where)
    commands, note, fleet = [], {}, {}
    variables: dict[str, str] = {}
    for row in _rows(text):
        if row.startswith(FLEET_NOTE):
            fleet = read_note(row.removeprefix(FLEET_NOTE), where)
        elif row.startswith(POOL_NOTE):
            note = read_note(row.removeprefix(POOL_NOTE), where)
        elif not row.startswith("#"):
            for words in _simple_commands(row, where):
                # Filled before it is assigned: a variable may be made of one that was set above it.
                words = _assigned([_filled(word, variables) for word in words], variables)
                started = _started(words)
                if started is not None:
                    commands.append(StartedServer(*started, note))
                    # A note is of the next command alone; else the pools behind it would get what it says.
                    note = {}
    return commands, fleet


def servers_of(command: str, where: str) -> list[StartedServer]:
    """The servers that a command line, or lines of them, start; none where it is another program's."""
    return _commands(command, where)[0]


def _rows(text: str) -> Iterator[str]:
    """Lines, with those that a backslash continues."""
    row = ""
    for part in text.replace("\r\n", "\n").split("\n"):
        row += part.strip() if not row else " " + part.strip()
        if row.endswith("\\") and not row.startswith("#"):
            row = row[:-1].rstrip()
            continue
        if row:
            yield row
        row = ""
    if row:
        yield row


def read_note(text: str, where: str) -> dict[str, Any]:
    """The JSON of a comment that ``deploy`` wrote."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        note = None
    if not isinstance(note, dict):
        raise InputError(f"{where}: a comment of evaluator is damaged, it is no JSON: {text[:60]}")
    return note


def _simple_commands(row: str, where: str) -> Iterator[list[str]]:
    """The words of each command of a line: what ``;``, ``&``, pipes and redirections divide."""
    # punctuation_chars divides at ; & | < > without spaces around them, as a shell does; quotes protect them.
    lexer = shlex.shlex(row, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if _ENDS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError as error:
        raise InputError(f"{where}: not readable as a shell's line ({error}): {row[:60]}") from None
    yield words


def _filled(word: str, variables: Mapping[str, str]) -> str:
    """A word with the variables that the script sets, or gives a default."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        # Of a variable that nobody sets the text stays: of a port nobody minds, and where a number is wanted the
        # message shows it.
        return variables.get(name, match[3] if match[3] is not None else match[0])

    return _VARIABLE.sub(value, word)


def _assigned(words: list[str], variables: dict[str, str]) -> list[str]:
    """The words without assignments before them; a line of nothing else sets variables of the script."""
    position = 1 if words[:1] == ["export"] else 0
    assignments = {}
    while position < len(words) and (match := _ASSIGNMENT.fullmatch(words[position])):
        assignments[match[1]] = match[2]
        position += 1
    if position == len(words):
        variables.update(assignments)
    return words[position:]


def _started(words: list[str]) -> tuple[CommandLine, tuple[str, ...]] | None:
    """The engine that a command starts, and the words behind its program; None where it starts none."""
    for program, line in _STARTS:
        size = len(program)
        for position in range(len(words) - size + 1):
            # Anywhere in the line, behind env, nohup, numactl or docker run; a program may be named by its path.
            if (words[position].rsplit("/", 1)[-1], *words[position + 1 : position + size]) == program:
                return line, tuple(words[position + size :])
    # ``docker run ... vllm/vllm-openai:v0.28.0 --model ...`` names no program: the image has it.
    for position, word in enumerate(words[:-1]):
        if "run" in words[:position] and VLLM_IMAGE.fullmatch(word):
            return VLLM, tuple(words[position + 1 :])
    return None
