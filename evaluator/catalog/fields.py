"""Reading data files strictly: every key of a mapping is wanted and of its type, or refused with its place."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evaluator.catalog.store import find, has, names, roots_asked, suggestion
from evaluator.errors import InputError
from evaluator.units import parse_quantity
from evaluator.yaml import load_yaml

_MISSING: Any = object()
Entry = TypeVar("Entry")
MOST_FILES = 4096
"""Entries that a process keeps: many times those of any catalog, and a bound for a session that writes its own."""


def load(kind: str, name: str, read: Callable[[Any, str, str], Entry]) -> Entry:
    """The entry ``name`` of a kind of the catalog's files, or of a path to a YAML. Each file is read once, until
    ``forget_changed`` finds that it is another.

    ``read`` makes it of the file's content, the file's name for messages, and the name that the entry must have.
    Errors: InputError where there is no such entry, and those of ``read``.
    """
    return _load_file(find(kind, name), read)


def load_called(kind: str, name: str, read: Callable[[Any, str, str], Entry], entry_of: Callable[[str], str]) -> Entry:
    """``load`` by the name that an entry has here, or by one that others give it: ``entry_of`` tells the entry, or
    gives the name back. Asked after the look at the catalog, whose names a sweep asks for thousands of times."""
    try:
        return load(kind, name, read)
    except InputError:
        entry = entry_of(name) if isinstance(name, str) else name
        if entry == name:
            raise
        return load(kind, entry, read)


def load_if_any(kind: str, name: str, read: Callable[[Any, str, str], Entry], otherwise: Entry) -> Entry:
    """``load``, or ``otherwise`` where the catalog has no such entry, and what the file would tell goes without."""
    return load(kind, name, read) if has(kind, name) else otherwise


@functools.lru_cache(maxsize=MOST_FILES)
def _load_file(path: Path, read: Callable[[Any, str, str], Any]) -> Any:
    # Kept by path and reader; the entries are frozen, since all plans of a process share them.
    _READ[path] = _stamp(path)
    return read(load_yaml(path), path.name, path.stem)


_READ: dict[Path, tuple[int, int] | None] = {}
_TIMES_FORGOTTEN = [0]


def forget_changed() -> None:
    """Read files of the catalog again where one of them changed, as one does that is edited between two calls of a
    session. Called where a run begins and nowhere within it: all of a run is of the same files.
    """
    if any(_stamp(path) != stamp for path, stamp in list(_READ.items())):
        _READ.clear()
        _load_file.cache_clear()
        _TIMES_FORGOTTEN[0] += 1


def times_forgotten() -> int:
    """How often a file was found to be another (``catalog_folders``)."""
    return _TIMES_FORGOTTEN[0]


def catalog_folders() -> tuple[str, str, int]:
    """Where the catalog's files are, and how often one changed: a key of caches, so that another is asked anew."""
    return *roots_asked(), times_forgotten()


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class Fields:
    """The keys of one mapping; ``where`` names the file and the key path in messages.

    Each getter raises InputError for a missing or ill-typed value (a default makes a key optional);
    ``finish`` refuses the keys that nobody asked for.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected a mapping of keys to values, got {_shown(value)}")
        self.values = value
        self.where = where
        self._asked: dict[str, None] = {}  # each key once, in the order of asking

    def place(self, key: str) -> str:
        """``key`` with the place it is in, for messages."""
        return f"{self.where}: {key}" if self.where.endswith((".yaml", ".yml", ".json")) else f"{self.where}.{key}"

    def raw(self, key: str, default: Any = _MISSING) -> Any:
        """The value as the file has it."""
        # Asked, whether it is there or not: `finish` offers all of them as the keys that it knows.
        self._asked[key] = None
        if key in self.values:
            return self.values[key]
        if default is _MISSING:
            raise InputError(f"{self.place(key)}: missing")
        return default

    def text(self, key: str, default: Any = _MISSING) -> str:
        """A string that is not empty."""
        value = self.raw(key, default)
        if value is not default and not (isinstance(value, str) and value.strip()):
            raise InputError(f"{self.place(key)}: expected a text, got {_shown(value)}")
        return value

    def title(self, key: str, default: Any = _MISSING) -> str:
        """What something is called: one line of at most 100 characters, as it stands in tables and in scripts."""
        name = self.text(key, default)
        if name and (len(name) > 100 or not name.isprintable()):
            raise InputError(
                f"{self.place(key)}: expected a name of at most 100 characters on one line, got {_shown(name)}"
            )
        return name

    def named(self, expected: str | None) -> str:
        """The title ``name``, which must be ``expected``: the name of the file, where it is read from one."""
        name = self.title("name")
        if expected is not None and name != expected:
            raise InputError(f"{self.place('name')}: '{name}' is not the file's name '{expected}'")
        return name

    def choice(self, key: str, allowed: Sequence[str], default: Any = _MISSING) -> str:
        """One of ``allowed``."""
        value = self.raw(key, default)
        # By identity, so that a default need not be among the choices, and None can stand for "not said".
        if value is not default and value not in allowed:
            raise InputError(f"{self.place(key)}: {_shown(value)} is unknown{suggestion(value, list(allowed))}")
        return value

    def integer(self, key: str, default: Any = _MISSING, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``."""
        value = self.raw(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(f"{self.place(key)}: expected a whole number of at least {minimum}, got {_shown(value)}")
        return value

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        """True or false."""
        value = self.raw(key, default)
        if value is not default and not isinstance(value, bool):
            raise InputError(f"{self.place(key)}: expected true or false, got {_shown(value)}")
        return value

    def number(self, key: str, default: Any = _MISSING, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high]."""
        value = self.raw(key, default)
        if value is default:
            return value
        # YAML reads `yes` as true, which Python takes for 1; and `.inf` would pass where there is no upper bound.
        plain = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not plain or not low <= value <= high:
            span = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
            raise InputError(f"{self.place(key)}: expected a number {span}, got {_shown(value)}")
        return float(value)

    def quantity(self, key: str, unit: str, default: Any = _MISSING, zero: bool = False) -> float:
        """A positive quantity (or zero where ``zero``) in SI, from a number or a text with a unit."""
        value = self.raw(key, default)
        if value is default:
            return value
        result = parse_quantity(value, unit, self.place(key))
        if result < 0 or (result == 0 and not zero):
            raise InputError(f"{self.place(key)}: must be {'at least 0' if zero else 'above 0'}, got {_shown(value)}")
        return result

    def sequence(self, key: str, default: Any = _MISSING) -> Sequence[Any]:
        """A list with at least one entry."""
        value = self.raw(key, default)
        if value is not default and not (isinstance(value, list) and value):
            raise InputError(f"{self.place(key)}: expected a list with at least one entry, got {_shown(value)}")
        return value

    def inner(self, key: str, default: Any = _MISSING) -> Fields:
        """The mapping below ``key``."""
        return Fields(self.raw(key, default), self.place(key))

    def sources(self, figures: Sequence[str]) -> dict[str, str]:
        """Where each of ``figures`` is from: the texts of the mapping ``sources``, which names them and no others."""
        inner = self.inner("sources")
        texts = {key: inner.text(key) for key in figures}
        inner.finish()
        return texts

    def finish(self) -> None:
        """Refuse the keys that no getter asked for."""
        unknown = [key for key in self.values if key not in self._asked]
        if unknown:
            raise InputError(f"{self.place(str(unknown[0]))}: unknown key{suggestion(unknown[0], list(self._asked))}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def devices_of(given: Fields) -> Iterator[tuple[str, Fields]]:
    """The devices of a section by name, each with its own section; InputError for one that the catalog has not."""
    for device in device_names(given):
        yield device, given.inner(device)


def device_names(given: Fields, beside: str | None = None) -> list[str]:
    """The devices that a section names, but for the key ``beside``; InputError for one that the catalog has not."""
    named = [str(device) for device in given.values if device != beside]
    for device in named:
        if not has("hardware", device):
            raise InputError(f"{given.place(device)}: no such device{suggestion(device, names('hardware'))}")
    return named
