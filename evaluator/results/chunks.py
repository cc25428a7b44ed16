"""Finished chunks of a sweep that is not: kept beside its result, so that an interrupted sweep goes on with them.

They lie in ``NAME.chunks/FINGERPRINT/``: the fingerprint is a hash of all that the numbers depend on, so that a sweep
finds its own chunks again and no other's, and several sweeps of one output keep theirs beside one another.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def finished(self, configs: Sequence[np.ndarray]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Chunks that need not be computed, by number; ``configs`` are the rows of every chunk, in their order."""
        for index, values in read_chunks(self.folder):
            # Chunks of a plan that was cut otherwise are of no use, even under the same fingerprint.
            if index < len(configs) and np.array_equal(values["config"], configs[index]):
                yield index, values

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


MOST_HEADER = 1 << 20
"""Bytes of a chunk's header. The names, types and shapes of all variables that there are take some 10,000."""


def write_chunk(folder: str | Path, index: int, metrics: Mapping[str, np.ndarray]) -> Path:
    """Keep the results of one chunk (``metrics["config"]`` says which rows) until the sweep is whole.

    Plain .npz, because a netCDF file of seventy variables costs as much time as computing the chunk. All variables are
    fields of one array: each as a file of its own in the archive costs as much as all of their bytes.
    """
    columns = {name: np.asarray(values) for name, values in metrics.items()}
    kinds = [(name, values.dtype, values.shape[1:]) for name, values in columns.items()]
    rows = np.empty(len(columns["config"]), dtype=kinds)
    for name, values in columns.items():
        rows[name] = values
    path = Path(folder) / f"chunk-{index:06d}.npz"
    with replacing(path) as part, part.open("wb") as file:
        np.savez(file, rows=rows)
    return path


def read_chunks(folder: str | Path) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Finished chunks with their index; what a killed run left half written, or a disk damaged, is passed over."""
    for path in sorted(Path(folder).glob("chunk-*.npz")):
        try:
            # Without pickles, which could run anything that somebody put into the folder.
            # NumPy refuses long headers, which it parses, lest others' crash it: this one names each variable.
            with path.open("rb") as raw, np.load(raw, allow_pickle=False, max_header_size=MOST_HEADER) as file:
                rows = file["rows"]
            values = {name: rows[name] for name in rows.dtype.names or ()}
            index = int(path.stem.removeprefix("chunk-"))
        except Exception:  # whatever the damage does to the reader, the chunk is computed anew
            continue
        if rows.ndim == 1 and "config" in values:
            yield index, values


class Rows:
    """The rows of all chunks as arrays of all of them, into which chunks are put as they come.

    A variable that some chunks lack is NaN there, for which integers and booleans become floats.
    """

    def __init__(self, configs: np.ndarray) -> None:
        """``configs`` (row,) are the configurations of all chunks, in any order; rows stand in theirs."""
        self._configs = np.sort(configs)
        self._columns: dict[str, np.ndarray] = {}
        self._places: list[np.ndarray] = []  # of each chunk that is there
        self._lacking: dict[str, list[np.ndarray]] = {}  # the rows that lack a variable
        self._order: dict[str, tuple[int, int]] = {}  # the first chunk that has a variable, and its place there

    def put(self, index: int, chunk: Mapping[str, np.ndarray]) -> None:
        """The rows of the chunk with this number."""
        places = np.searchsorted(self._configs, chunk["config"])
        for name in self._columns.keys() - chunk.keys():
            self._lacking.setdefault(name, []).append(places)
        # Texts as shared objects: NumPy gives every row the room of the longest status otherwise.
        for place, (name, values) in enumerate(shared(chunk).items()):
            column = self._columns.get(name)
            if column is None:
                column = np.empty((len(self._configs), *values.shape[1:]), values.dtype)
                self._lacking[name] = [*self._places]
            elif column.dtype != values.dtype:
                column = column.astype(np.result_type(column, values))
            column[places] = values
            self._columns[name] = column
            # By the number of the chunk, so that the order of variables does not depend on which chunk came first.
            self._order[name] = min(self._order.get(name, (index, place)), (index, place))
        self._places.append(places)

    def columns(self) -> dict[str, np.ndarray]:
        """The variables; all chunks are there."""
        if sum(map(len, self._places)) != len(self._configs):
            # A chunk that a worker lost would be rows that are missing without a word.
            raise AssertionError(f"{len(self._places)} chunks do not have all {len(self._configs)} rows")
        for name, lacking in self._lacking.items():
            if lacking:
                column = self._columns[name]
                self._columns[name] = column = column.astype(np.result_type(column, float))
                column[np.concatenate(lacking)] = np.nan
        return {name: self._columns[name] for name in sorted(self._order, key=self._order.__getitem__)}


def combine(chunks: Iterable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Chunks one after the other, in the order of their ``config``; a variable that some lack is NaN there.

    The chunks are emptied one after the other: the rows of a million designs are not to be held twice.
    """
    pieces = list(chunks)
    rows = Rows(np.concatenate([piece["config"] for piece in pieces]))
    for index, piece in enumerate(pieces):
        rows.put(index, piece)
        piece.clear()
    return rows.columns()
