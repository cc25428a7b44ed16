"""Where the catalog's files are: the user's folders first, then the current directory's, then the package's own."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from evaluator.errors import InputError

ENTRY_KINDS = {
    "models": ("models/llm", "model"),
    "hardware": ("models/hardware", "hardware"),
    "lengths": ("models/lengths", "length distribution"),
    "links": ("models/links", "link"),
    "storage": ("models/storage", "storage"),
    "experts": ("models/experts", "list of tuned experts"),
    "delta_rule": ("models/delta_rule", "list of kernels of the gated delta rule"),
    "attention": ("models/attention", "kernels of decode attention"),
    "exchanges": ("models/exchanges", "kernels that exchange tokens among experts"),
    "engines": ("models/engines", "table of an engine's defaults"),
    "calibrations": ("calibration", "calibration"),
    "errors": ("calibration/errors", "table of errors"),
    "scenarios": ("scenarios", "scenario"),
}
"""Kind -> (folder below a search root, what one entry is called in messages)."""
_PACKAGE = Path(__file__).resolve().parents[1]


_FOUND: dict[tuple[str, str, str, str], Path] = {}


class _Here(NamedTuple):
    """What a plan of many designs asks once: its ``roots`` (``roots_asked``), the files that were found, and which
    there are."""

    roots: tuple[str, str]
    found: dict[tuple[str, str], Path]
    there: dict[tuple[str, str], bool]


_HERE: ContextVar[_Here | None] = ContextVar("found", default=None)


def data_folder(kind: str) -> tuple[Path, ...]:
    """The existing folders that hold files of ``kind``, in the order in which they are searched.

    They are below each folder of the environment variable EVALUATOR_PATH, the current directory, and the package's
    own data (inside the package when installed, beside it in a checkout). InputError for a folder of EVALUATOR_PATH
    that is not there.
    """
    below, _ = _kind(kind)
    folders: dict[Path, None] = {}
    for root in _roots():
        folder = Path(os.path.realpath(os.path.join(root, below)))  # Path.resolve fails on links that form a loop
        if folder.is_dir():
            folders.setdefault(folder)
    return tuple(folders)


def _roots() -> list[str]:
    given = [part for part in os.environ.get("EVALUATOR_PATH", "").split(os.pathsep) if part]
    for folder in given:
        if not os.path.isdir(folder):
            raise InputError(f"EVALUATOR_PATH: there is no folder {folder}")
    # A wheel has the data inside the package, a checkout beside it: there, it is one tree with models/ and
    # calibration/.
    packaged = _PACKAGE / "data" if os.path.isdir(_PACKAGE / "data") else _PACKAGE.parent
    return [*given, os.getcwd(), str(packaged)]


def names(kind: str) -> list[str]:
    """The names of all entries of ``kind`` (models, hardware, storage, ...: see ``ENTRY_KINDS``), sorted."""
    return sorted({path.stem for folder in data_folder(kind) for path in folder.glob("*.yaml") if path.is_file()})


def has(kind: str, name: str) -> bool:
    """Whether ``name`` is among ``names(kind)``, without a look at the other entries."""
    here = _HERE.get()
    if here is not None and (kind, name) in here.there:
        return here.there[kind, name]
    below, _ = _kind(kind)
    # By ``os.path``, since objects of Path cost more than the question.
    there = any(os.path.isfile(os.path.join(root, below, f"{name}.yaml")) for root in _roots())
    if here is not None:
        here.there[kind, name] = there
    return there


def find(kind: str, name: str) -> Path:
    """The file of the entry ``name``, or of a path to a YAML, absolute; InputError with close matches."""
    if not isinstance(name, str) or not name:
        raise InputError(f"{_kind(kind)[1]}: expected a name, got {name!r}")
    if name.endswith((".yaml", ".yml")):
        if Path(name).is_file():
            return Path(name).resolve()
        raise InputError(f"{_kind(kind)[1]}: there is no file '{name}'")
    # A sweep over the figures of a device asks for the same few files a hundred thousand times.
    here = _HERE.get()
    if here is not None and (kind, name) in here.found:
        return here.found[kind, name]
    asked = (kind, name, *roots_asked())
    cached = _FOUND.get(asked)
    # Looked at again: a session may write, rename or remove files of its catalog between two questions.
    if cached is None or not os.path.isfile(cached):
        cached = _FOUND[asked] = _search(kind, name)
    if here is not None:
        here.found[kind, name] = cached
    return cached


def roots_asked() -> tuple[str, str]:
    """What the folders in which entries are looked for follow from: EVALUATOR_PATH, and the current directory."""
    here = _HERE.get()
    return (os.environ.get("EVALUATOR_PATH", ""), os.getcwd()) if here is None else here.roots


@contextmanager
def looked_for_once() -> Iterator[None]:
    """Within it a file is where it was found, or not there: a plan of many designs is of the same files."""
    # Of this thread alone: others may be between two plans.
    before = _HERE.set(_Here(roots_asked(), {}, {}))
    try:
        yield
    finally:
        _HERE.reset(before)


def _search(kind: str, name: str) -> Path:
    # A name with a slash is a path without its ending, and must not lead out of the catalog's folders.
    for folder in data_folder(kind) if Path(name).name == name else ():
        path = folder / f"{name}.yaml"
        if path.is_file():
            return path.resolve()
        if path.is_symlink():
            raise InputError(f"{_kind(kind)[1]} '{name}': {path} is a link that leads to no file")
    raise InputError(f"unknown {_kind(kind)[1]} '{name}'{suggestion(name, names(kind))}")


def close_matches(word: str, allowed: list[str]) -> str:
    """The part of a message about an unknown word that tells what may have been meant; empty where nothing is close."""
    meant = str(word).lower()
    # Of several words each is tried where they are like nothing together: the maker is in no name of NVIDIA H100.
    close = _close(meant, allowed) or next(filter(None, (_close(part, allowed) for part in meant.split())), [])
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _close(meant: str, allowed: list[str]) -> list[str]:
    alike = difflib.get_close_matches(meant, allowed, n=3, cutoff=0.5)
    # Variants of the word first: of H100 there are h100-sxm and h100-pcie, though h800 has as many letters in common.
    variants = [name for name in allowed if meant and name.startswith(f"{meant}-")]
    return list(dict.fromkeys([*difflib.get_close_matches(meant, variants, n=3, cutoff=0.0), *alike]))[:3]


def suggestion(word: str, allowed: list[str]) -> str:
    """The end of a message about an unknown word: close matches, then all that is allowed."""
    return f"{close_matches(word, allowed)} (there are: {', '.join(allowed) or 'none'})"


def _kind(kind: str) -> tuple[str, str]:
    if kind not in ENTRY_KINDS:
        raise InputError(f"unknown kind of catalog entry '{kind}'{suggestion(kind, list(ENTRY_KINDS))}")
    return ENTRY_KINDS[kind]
