"""The arguments of an engine as its own source has them, and command lines written and read by them.

``ENGINE.json`` beside this file is a table that ``tests/arguments/record.py`` makes of a wheel: for each flag its
other spellings, what it takes (``kind``) and the words that it allows. Kinds are ``switch`` (``--x`` or ``--no-x``),
``flag`` (``--x``), ``optional`` (``--x`` or ``--x WORD``), ``many`` (several words), ``json``, ``int``, ``float``,
``str``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.errors import InputError

Flags = dict[str, Any]
"""Flags by the first of their spellings, with their values; of a switch True or False."""

_NUMBER = re.compile(r"-?(\d|\.\d)")
_SHORT_COUNT = re.compile(r"([\d.]+)([kKmMgGtT])")
_OF_PLACES = (
    "--port",
    "--disaggregation-bootstrap-port",
    "--node-rank",
    "--base-gpu-id",
    "--data-parallel-rank",
    "--data-parallel-start-rank",
)
"""Flags that tell servers apart, which scripts compute."""
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vLLM ``human_readable_int`` and SGLang's of the same name: 1k is 1,000 and 1K is 1,024."""


@dataclass(frozen=True)
class Parsed:
    """A command line: flags with values, words that belong to none, and flags that the engine does not have."""

    flags: Flags
    words: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Arguments:
    """The arguments that one version of an engine takes."""

    engine: str
    version: str
    source: str
    entries: Mapping[str, Mapping[str, Any]]
    _spellings: dict[str, tuple[str, bool]] = field(default_factory=dict)  # -> (first spelling, whether it says yes)

    def __post_init__(self) -> None:
        for flag, entry in self.entries.items():
            for spelling in (flag, *entry.get("aliases", ())):
                self._spellings[spelling] = flag, True
                if entry["kind"] == "switch" and spelling.startswith("--"):
                    self._spellings[f"--no-{spelling[2:]}"] = flag, False

    def words(self, flags: Flags) -> list[tuple[str, ...]]:
        """The words of each flag, to be written to a shell. Errors: ValueError for what the engine would refuse."""
        return [words for flag, value in flags.items() if (words := self._words(flag, value))]

    def _words(self, flag: str, value: Any) -> tuple[str, ...]:
        if flag not in self.entries:
            raise ValueError(f"{self.engine} {self.version} has no {flag}")
        entry = self.entries[flag]
        if entry["kind"] in ("switch", "flag"):
            if value not in (True, False):
                raise ValueError(f"{flag} takes no value, got {value!r}")
            # A plain flag has no word for False: leaving it out is how it is said.
            return (flag,) if value else (f"--no-{flag[2:]}",) if entry["kind"] == "switch" else ()
        if entry["kind"] == "json":
            unknown = [key for key in value if key not in entry.get("keys", value)]
            if unknown:
                raise ValueError(f"{flag} of {self.engine} {self.version} has no key {unknown[0]}")
            return flag, json.dumps(value)
        if entry["kind"] == "many":
            return flag, *map(str, value)
        wanted: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float)}
        if not isinstance(value, wanted.get(entry["kind"], str)) or isinstance(value, bool):
            raise ValueError(f"{flag} takes {entry['kind']}, got {value!r}")
        if value not in entry.get("choices", (value,)):
            raise ValueError(f"{flag} takes one of {entry['choices']}, got {value!r}")
        return flag, str(value)

    def parse(self, words: Sequence[str]) -> Parsed:
        """A command line taken apart. Errors: InputError for a value that its flag does not take."""
        flags: Flags = {}
        free: list[str] = []
        unknown: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            # -1 is a value (--chunked-prefill-size -1), not a flag.
            if not word.startswith("-") or _NUMBER.match(word):
                free.append(word)
                continue
            spelling, equals, value = word.partition("=")
            spelling, dot, key = spelling.partition(".")
            if spelling.startswith("--"):  # both engines take --a_b for --a-b
                spelling = spelling.replace("_", "-")
            flag, yes = self._spellings.get(spelling) or self._begun(spelling)
            if not flag:
                unknown.append(spelling)
                # Whether an unknown flag takes a value is not known either: a word behind it is taken for one.
                if not equals and rest and not rest[0].startswith("-"):
                    rest.pop(0)
                continue
            given = [value] if equals else []
            kind = self.entries[flag]["kind"]
            if kind in ("switch", "flag"):
                flags[flag] = yes
                continue
            # One value of every kind; more of `many`, up to the next flag.
            while (rest and not given) or (rest and kind == "many" and not rest[0].startswith("-")):
                if rest[0].startswith("-") and not _NUMBER.match(rest[0]):
                    break
                given.append(rest.pop(0))
            if not given and kind != "optional":
                raise InputError(f"{spelling} of {self.engine} takes a value; there is none")
            if kind == "json" and dot:  # vLLM: --eplb-config.num_redundant_experts 2
                flags.setdefault(flag, {})[key] = _plain(given[0])
                continue
            flags[flag] = self._value(flag, given)
        return Parsed(flags, tuple(free), tuple(unknown))

    def _begun(self, spelling: str) -> tuple[str, bool]:
        """The flag that a spelling is the beginning of, if it is that of one alone (argparse ``allow_abbrev``)."""
        meant = {self._spellings[whole] for whole in self._spellings if whole.startswith(spelling)}
        return meant.pop() if spelling.startswith("--") and len(meant) == 1 else ("", True)

    def _value(self, flag: str, given: list[str]) -> Any:
        kind = self.entries[flag]["kind"]
        if kind == "many":
            return given
        text = given[0] if given else True
        # $((8000 + replica)) has no number before the script runs, and tells nothing of the design.
        if flag in _OF_PLACES and "$" in str(text):
            return text
        try:
            if kind == "json":
                value = json.loads(str(text))
                if not isinstance(value, dict):
                    raise ValueError
                return value
            if kind == "int":
                return _count(str(text))
            return float(text) if kind == "float" else text
        except ValueError:
            raise InputError(f"{flag} of {self.engine} takes {kind}, got {text!r}") from None


def _count(text: str) -> int:
    scaled = _SHORT_COUNT.fullmatch(text)
    return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else int(text)


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@cache
def arguments_of(engine: str) -> Arguments:
    """The recorded arguments of an engine."""
    table = json.loads(Path(__file__).with_name(f"{engine}.json").read_text(encoding="utf-8"))
    return Arguments(engine, table["version"], table["source"], table["arguments"])


# --- trees of keys, as sections of a scenario are


def get(tree: Mapping[str, Any], key: str) -> Any:
    """What is at a dotted key; None where nothing is."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set what is at a dotted key."""
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def leaves(tree: Mapping[str, Any], whole: Iterable[str] = (), prefix: str = "") -> dict[str, Any]:
    """Dotted keys -> values, without those that are None; keys of ``whole`` are not taken apart."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key not in whole:
            flat |= leaves(value, whole, f"{key}.")
        elif value is not None:
            flat[key] = value
    return flat


def tree_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that has these values at these dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        put(tree, key, value)
    return tree
