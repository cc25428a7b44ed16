"""What each key of a deployment is called on the command line of each engine: one table for both ways.

A key whose value an engine takes as it is, or by words of its own, is a row of ``ROWS``. Keys that several flags say
together are written and read by the engine's file (``vllm.py``, ``sglang.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.arguments.table import Arguments, Flags, arguments_of, get, leaves, put, tree_of
from evaluator.catalog.engine_rules import Release
from evaluator.catalog.engines import serving_engine

WHOLE = ("model", "hardware", "host", "api_server_times", "router", "transfer", "speculative", "lora",
         "feed_forward_apart")  # fmt: skip
"""Keys of a deployment whose sections are one value."""

EVERY_SERVER = {
    "kv.preemption": "recompute",
    "kv.offload_answers": False,
    "kv.offload_write": "write_through",
    "kv.layer_groups": False,
    "replicas": 1,
    "expert_parallel": 1,
    "redundant_experts": 0,
    "decode_context_parallel": 1,
    "prefill_context_parallel": 1,
    "eager": False,
    "attention_backend": "auto",
    "expert_exchange": "gather",
    "two_batch_overlap": False,
    "role": "mixed",
    "batching.tau": 1.0,
    "batching.schedule_conservativeness": 1.0,
    "batching.max_prefill_tokens": 16384,
    "batching.enable_mixed_chunk": False,
}
"""What a server of any engine is where its flags say nothing else, by our keys."""


@dataclass(frozen=True)
class FlagOfKey:
    """A key and its flag.

    ``words``: our value -> what the flag says; of those that say the same the first is what it is read as. ``also``:
    what the flag may say beside, read as ours. ``absent``: what the server does without the flag; None leaves the key
    to ``catalog.engines``.
    """

    key: str
    flag: str
    absent: Any = None
    words: Mapping[Any, Any] | None = None
    also: Mapping[Any, Any] = field(default_factory=dict)

    def said(self, value: Any) -> Any:
        """What the flag says for a value; None where it has no word for it."""
        return value if self.words is None else self.words.get(value)

    def meant(self, said: Any) -> Any:
        """Our value for what the flag says; None where there is none."""
        if self.words is None:
            return said
        # Reversed, so that of two values with one word the first stands in the end.
        meanings = {word: value for value, word in reversed(list(self.words.items()))}
        return (dict(self.also) | meanings).get(said)


@dataclass(frozen=True)
class StatedPool:
    """What a command line is written from: a pool's keys, everything stated, and what is known beside them.

    ``experts``: the model has routed experts. ``longest``: tokens of the longest request, prompt and output.
    ``checkpoint``: the formats that the published weights are in.
    """

    keys: Mapping[str, Any]
    repository: str
    experts: bool = False
    longest: int | None = None
    cached_prefixes: bool = False
    checkpoint: frozenset[str] = frozenset({"bf16"})
    draft: str | None = None  # repository of a draft model

    def __getitem__(self, key: str) -> Any:
        return get(self.keys, key)


@dataclass(frozen=True)
class CommandLine:
    """How one engine is started. ``does`` is what its servers do that no flag changes, by our keys.

    ``write`` gives the flags that several keys say together, ``read`` the keys that it takes of flags, which it gives
    with the flags that it has read. ``program`` are the words before the flags; ``model_flag`` names the model where it
    is not the first word behind them. ``since``: the releases that brought flags, where the table of defaults knows
    older ones. ``approximated``: flags that change times and have no key for all that they say, with the key beside
    which they do, and what is taken instead.
    """

    engine: str
    program: tuple[str, ...]
    model_flag: str | None
    rows: tuple[FlagOfKey, ...]
    does: Mapping[str, Any]
    write: Callable[[StatedPool], Flags]
    read: Callable[[Flags, dict[str, Any]], tuple[str, ...]]
    since: Mapping[str, Release] = field(default_factory=dict)
    approximated: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def arguments(self) -> Arguments:
        """As recorded of its version."""
        return arguments_of(self.engine)

    def flags(self, server: StatedPool) -> Flags:
        """Every flag of a server, nothing left to the engine where it has one."""
        # All flags are written, also those at the engine's default: defaults change from one version to the next, and
        # a script must start the design that was simulated.
        flags: Flags = {} if self.model_flag is None else {self.model_flag: server.repository}
        for row in self.rows:
            value = server[row.key]
            argument = None if value is None else row.said(value)
            if argument is not None:
                flags[row.flag] = argument
        release = self.release(server)
        # `write` comes last, since several keys together may change what a row said of one (vLLM's
        # --max-num-batched-tokens has room for the longest request). Flags that the release does
        # not know would keep its server from starting.
        return {flag: argument for flag, argument in (flags | self.write(server)).items() if self._has(flag, release)}

    def release(self, server: StatedPool) -> Release:
        """The release that a server is of."""
        return serving_engine(self.engine).release(server["engine_version"])

    def _has(self, flag: str, release: Release) -> bool:
        return self.since.get(flag, release) <= release

    def keys(self, flags: Flags, release: Release | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """(the keys that flags say, or the engine has without them, flags that mean nothing to a simulation).

        ``release``: whose server it is; None: the one that the arguments were recorded of.
        """
        tree: dict[str, Any] = {"engine": self.engine}
        # First what the engine does without being told, then what rows and ``read`` say of it.
        for key, value in self.does.items():
            put(tree, key, value)
        read_flags = set()
        for row in self.rows:
            value = row.meant(flags[row.flag]) if row.flag in flags else row.absent
            if release is not None and not self._has(row.flag, release):
                # `absent` is of the recorded version. An older release without the flag does what its own table says.
                rule = serving_engine(self.engine).rules.at(release).get(row.key)
                value = row.absent if rule is None else rule.value
            if value is not None:
                put(tree, row.key, value)
            # A word that no value of ours means stays among the flags that are told as ignored.
            if row.flag in flags and value is not None:
                read_flags.add(row.flag)
        read_flags |= set(self.read(flags, tree))
        return tree, tuple(flag for flag in flags if flag not in read_flags)


def unsaid(line: CommandLine, server: StatedPool, flags: Flags) -> dict[str, Any]:
    """The keys, by their dotted paths, that a reader of the command line would not have as the server has them."""
    # A command line is read back as it was written: what differs is what no flag says, and goes into a comment.
    wanted, read = leaves(server.keys, WHOLE), leaves(line.keys(flags, line.release(server))[0], WHOLE)
    differing = {key: value for key, value in wanted.items() if read.get(key) != _stated(value)}
    # What the engine has and the design has not is taken away by null.
    return differing | {key: None for key in read if key not in wanted}


def _stated(value: Any) -> Any:
    """A value without keys of its own that are None, which a reader of flags leaves out, as it does an empty list."""
    if isinstance(value, Mapping):
        return {key: inner for key, inner in value.items() if inner is not None}
    return None if value in ([], ()) else value


def restored(tree: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """What was read of a command line, with what ``unsaid`` gave."""
    flat = {**leaves(tree, WHOLE), **said}
    return tree_of({key: value for key, value in flat.items() if value is not None})
