"""Hashes of what any number depends on beside its scenario: the sources of the package, and the catalog found here."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from evaluator.catalog.store import ENTRY_KINDS, data_folder


@cache
def code_here() -> str:
    """A hash of the code that computes: a checkout keeps its version number from one change to the next."""
    # Sorted, since the order of a folder's entries is the file system's own, and the hash of the same code must be one.
    return _of_files(sorted(Path(__file__).parents[1].rglob("*.py")))


def catalog_here() -> str:
    """A hash of all models, devices, defaults of engines, calibrations and so on that a name can mean here."""
    # A scenario's own text is in what depends on it; those of the catalog decide no number of another one.
    kinds = [kind for kind in ENTRY_KINDS if kind != "scenarios"]
    return _of_files([path for kind in kinds for folder in data_folder(kind) for path in sorted(folder.glob("*"))])


def _of_files(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file():
            # Zero bytes between them, so that no end of one file can pass for the start of the next.
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
