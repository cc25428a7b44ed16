"""Finished chunks of a sweep that is not: kept beside its result, so that an interrupted sweep goes on with them.

They lie in ``NAME.chunks/FINGERPRINT/``: the fingerprint is a hash of all that the numbers depend on, so that a sweep
finds its own chunks again and no other's, and several sweeps of one output keep theirs beside one another.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evaluator.results.files import replacing
from evaluator.results.texts import shared

_NAME_LENGTH = 16  # characters of the fingerprint: enough for no two to meet


@dataclass(frozen=True)
class Checkpoint:
    """The folder of the finished chunks of one sweep (or of one shard of it)."""

    folder: Path

    @staticmethod
    def beside(output: Path, fingerprint: str, shards: int | None = None) -> Checkpoint:
        """The checkpoint of the sweep with this fingerprint that is written to ``output``, whole or in ``shards``."""
        name = fingerprint[:_NAME_LENGTH]
        return Checkpoint(chunks_folder(output) / (name if shards is None else f"{name}-in-{shards}"))

    def of(self, name: str) -> Checkpoint:
        """A part of the sweep with chunks of its own, such as its runs that were made longer."""
        return Checkpoint(self.folder / name)

    def finished(self, configs: Sequence[np.ndarray]) -> dict[int, dict[str, np.ndarray]]:
        """Chunks that need not be computed, by number; ``configs`` are the rows of every chunk, in their order."""
        chunks = read_chunks(self.folder)
        return {
            index: values
            for index, values in chunks.items()
            # Chunks of a plan that was cut otherwise are of no use, even under the same fingerprint.
            if index < len(configs) and np.array_equal(values["config"], configs[index])
        }

    def remove(self) -> None:
        """Nothing is left of the sweep; nor of the folder that it had in common with others, if it was the last."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()

    def others(self) -> int:
        """How many other sweeps keep chunks for the same output."""
        folders = [path for path in self.folder.parent.glob("*/") if path != self.folder]
        return sum(any(path.rglob("chunk-*.npz")) for path in folders)


def chunks_folder(output: Path) -> Path:
    """Where sweeps that are to be written to ``output`` keep what they have finished."""
    return output.with_name(f"{output.stem}.chunks")


def write_chunk(folder: str | Path, index: int, metrics: Mapping[str, np.ndarray]) -> Path:
    """Keep the results of one chunk (``metrics["config"]`` says which rows) until the sweep is whole.

    Plain .npz, because a netCDF file of seventy variables costs as much time as computing the chunk.
    """
    path = Path(folder) / f"chunk-{index:06d}.npz"
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, **metrics)  # type: ignore[arg-type]
    return path


def read_chunks(folder: str | Path) -> dict[int, dict[str, np.ndarray]]:
    """Finished chunks by index; what a killed run left half written, or a disk damaged, is passed over."""
    chunks = {}
    for path in sorted(Path(folder).glob("chunk-*.npz")):
        try:
            # Without pickles, which could run anything that somebody put into the folder.
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                values = shared({name: file[name] for name in file.files})
            # All columns of a chunk are as long: one that was cut short by a full disk is not.
            rows = {len(array) for array in values.values()}
            index = int(path.stem.removeprefix("chunk-"))
        except Exception:  # whatever the damage does to the reader, the chunk is computed anew
            continue
        if "config" in values and len(rows) == 1:
            chunks[index] = values
    return chunks


def combine(chunks: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Chunks one after the other, in the order of their ``config``; a variable that some lack is NaN there.

    The chunks are emptied, variable by variable: the rows of a million designs are not to be held twice.
    """
    pieces = list(chunks)
    rows = [len(piece["config"]) for piece in pieces]
    starts = np.cumsum([0, *rows])
    order = np.argsort(np.concatenate([piece["config"] for piece in pieces]), kind="stable")
    # The inverse permutation: the row of the result that each row of the pieces goes to.
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    joined = {}
    for name in dict.fromkeys(name for piece in pieces for name in piece):
        # Variable by variable, so that pieces and the whole are never both in memory.
        columns = [piece.pop(name, None) for piece in pieces]
        present = [values for values in columns if values is not None]
        # A variable that some chunks lack is NaN there: integers and booleans become floats.
        kinds = [values.dtype for values in present] + [np.dtype(float)] * (len(present) < len(columns))
        joined[name] = np.empty((order.size, *present[0].shape[1:]), np.result_type(*kinds))
        for number, start in enumerate(starts[:-1]):
            values, columns[number] = columns[number], None
            joined[name][places[start : start + rows[number]]] = np.nan if values is None else values
    return joined
