"""Finished chunks of a sweep that is not: kept beside its result, so that an interrupted sweep can go on."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from evaluator.errors import InputError
from evaluator.results.files import replacing
from evaluator.results.schema import SCHEMA_VERSION
from evaluator.version import __version__

_UNREADABLE = (zipfile.BadZipFile, OSError, ValueError, KeyError, EOFError)


def write_chunk(folder: str | Path, index: int, metrics: Mapping[str, np.ndarray], fingerprint: str) -> Path:
    """Keep the results of one chunk (``metrics["config"]`` says which rows) until the sweep is whole.

    ``fingerprint`` is all that the numbers depend on (``fingerprint_of``). Plain .npz, because a netCDF file of seventy
    variables costs as much time as computing the chunk.
    """
    path = Path(folder) / f"chunk-{index:06d}.npz"
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, **metrics, fingerprint=np.array(fingerprint))  # type: ignore[arg-type]
    return path


def fingerprint_of(*parts: str) -> str:
    """SHA-256 over the texts and the package's version: results of another scenario or version are not mixed in."""
    return hashlib.sha256("\0".join((__version__, SCHEMA_VERSION, *parts)).encode()).hexdigest()


def read_chunks(folder: str | Path, fingerprint: str) -> dict[int, dict[str, np.ndarray]]:
    """Finished chunks by index; what a killed run left half written is passed over, to be computed again.

    Errors: InputError where the folder holds chunks of another scenario.
    """
    chunks = {}
    for path in sorted(Path(folder).glob("chunk-*.npz")):
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                values = {name: file[name] for name in file.files}
            found = str(values.pop("fingerprint"))
            index = int(path.stem.removeprefix("chunk-"))
        except _UNREADABLE:
            continue
        if found != fingerprint:
            raise InputError(
                f"{folder}: holds chunks of another scenario or version ({path.name}); "
                "remove the folder, choose another --out, or run without --resume"
            )
        chunks[index] = values
    return chunks


def combine(chunks: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Chunks one after the other, in the order of their ``config``; a variable that some lack is NaN there."""
    pieces = list(chunks)
    names = dict.fromkeys(name for piece in pieces for name in piece)
    shapes = {name: piece[name].shape[1:] for piece in pieces for name in piece}

    def part(piece: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        return piece[name] if name in piece else np.full((_rows(piece), *shapes[name]), np.nan)

    joined = {name: np.concatenate([part(piece, name) for piece in pieces]) for name in names}
    order = np.argsort(joined["config"], kind="stable")
    return {name: values[order] for name, values in joined.items()}


def _rows(metrics: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(metrics.values())))
