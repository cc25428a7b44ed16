"""A sweep in shards: each writes its rows of one Zarr store, in any order and on any machine; ``gather`` finishes it.

The store is built beside the output, in ``NAME.chunks/FINGERPRINT/store.zarr``, so that NAME.zarr is whole as soon as
it is there. A shard that has written its rows says so in a file of its own, with the checksum of every file it wrote.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.errors import InputError
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.files import replacing
from evaluator.results.zarr_store import create, piece_rows, pieces_of, write_rows

if TYPE_CHECKING:
    import xarray as xr

MOST_SHARDS = 10_000
SWEEP, STORE = "sweep.json", "store.zarr"
FINGERPRINT = "sweep_fingerprint"
"""The attribute of a gathered store by which its shards know that they are in it."""
PLACE = "{shard}"
"""What stands for the number of the shard in the command of a sweep."""


@dataclass(frozen=True)
class Shard:
    """Number ``number`` of ``count`` parts of a sweep, counted from 1."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """``3/16``. InputError where it is something else."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if not match:
            raise InputError(f"--shard {text}: NUMBER/COUNT is wanted, such as 3/16")
        number, count = int(match[1]), int(match[2])
        if not 1 <= count <= MOST_SHARDS:
            raise InputError(f"--shard {text}: there can be 1 to {MOST_SHARDS:,} shards")
        if not 1 <= number <= count:
            raise InputError(f"--shard {text}: shards are counted from 1 to {count}")
        return Shard(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def rows(self, total: int) -> range:
        """The shard's rows of a sweep with ``total``; the last shards may have fewer, or none."""
        size = shard_rows(total, self.count)
        return range(min((self.number - 1) * size, total), min(self.number * size, total))


def shard_rows(total: int, count: int) -> int:
    """Rows of a shard: a whole number of pieces of the store."""
    # Rounded up to whole pieces, so that no two shards write one file.
    rows = -(-total // count)
    piece = piece_rows(rows)
    return -(-rows // piece) * piece


class ShardState(Enum):
    """What became of a shard that was to be computed."""

    COMPUTED = "its rows are written now"
    WRITTEN = "its rows were written before"
    GATHERED = "the store of its sweep is whole"


@dataclass(frozen=True)
class Store:
    """What the shards of one sweep have in common: the folder, all their rows, and how many they are."""

    folder: Path
    total: int
    count: int

    @property
    def piece(self) -> int:
        """Rows of a piece of the store's arrays."""
        # As in ``shard_rows``; of the sweep's numbers alone, so that every shard cuts the arrays into the same pieces.
        return piece_rows(-(-self.total // self.count))

    @property
    def path(self) -> Path:
        return self.folder / STORE

    def mark(self, number: int) -> Path:
        """The file that says that a shard is written."""
        return self.folder / f"shard-{number:05d}.json"

    def lock(self, shard: Shard) -> Path:
        """The lock file of a shard."""
        return self.folder / f".shard-{shard.number:05d}.lock"

    def forget(self, shard: Shard) -> None:
        """The rows of a shard count as not written."""
        self.mark(shard.number).unlink(missing_ok=True)

    def is_written(self, shard: Shard) -> bool:
        """Whether the rows of a shard are there and undamaged."""
        files = _read_json(self.mark(shard.number)).get("files")
        # By checksum: a copy that was cut short has the right names.
        return isinstance(files, Mapping) and all(_checksum(self.path / name) == sum_ for name, sum_ in files.items())

    def left(self, shard: Shard) -> FallbackReport:
        """What a written shard says of its engine."""
        return FallbackReport(**_read_json(self.mark(shard.number))["left"])

    def begin(self, header: Mapping[str, Any]) -> None:
        """The store without rows, and what is known of the whole sweep, where another shard has not made them yet."""
        # Made beside its place and renamed: another shard that finds the store finds it with its root.
        if not self.path.exists():
            part = self.folder / f".{STORE}.{os.getpid()}.part"
            try:
                create(part)
                with suppress(OSError):  # another shard was faster
                    part.rename(self.path)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        if not (self.folder / SWEEP).exists():
            with replacing(self.folder / SWEEP) as part:
                part.write_text(json.dumps({**header, "total": self.total, "count": self.count}), encoding="utf-8")

    def write(self, shard: Shard, ds: xr.Dataset | None, header: Mapping[str, Any], left: FallbackReport) -> None:
        """Write the rows of a shard, and then that it is written. InputError where they cannot be written.

        ``ds`` None: the shard has no rows. ``header`` as of ``common_of``, the same for all shards.
        """
        files: dict[str, int] = {}
        try:
            if ds is not None:
                self.begin(header)
                rows = shard.rows(self.total)
                # The mark comes last: a shard that was killed while it wrote counts as not written.
                for name in write_rows(self.path, ds, rows.start, self.total, self.piece):
                    for file in [
                        Path(name, "zarr.json"),
                        *pieces_of(self.path, name, rows.start, len(rows), self.piece),
                    ]:
                        # Read back from the disk and not from memory: what counts is what others will find.
                        files[file.as_posix()] = _checksum(self.path / file) or 0
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from error
        with replacing(self.mark(shard.number)) as part:
            part.write_text(json.dumps({"files": files, "left": asdict(left)}), encoding="utf-8")


def common_of(ds: xr.Dataset, fingerprint: str, command: str) -> dict[str, Any]:
    """What all shards of a sweep know alike, from the dataset of one of them.

    That are the ``attributes`` of the dataset, the names of its ``coordinates``, and the ``command`` of a shard.
    """
    coordinates = [str(name) for name in ds.coords if name not in ds.dims]
    attributes = {**ds.attrs, FINGERPRINT: fingerprint}
    return {"attributes": attributes, "coordinates": coordinates, "command": command}


def is_gathered(out: Path, fingerprint: str | None = None) -> bool:
    """Whether ``out`` is the whole store of the sweep with this fingerprint (None: of any that was run in shards).

    It has its name only once it is whole.
    """
    attributes = _read_json(out / "zarr.json").get("attributes")
    if not isinstance(attributes, Mapping) or FINGERPRINT not in attributes:
        return False
    return fingerprint is None or attributes[FINGERPRINT] == fingerprint


def stores_beside(chunks: Path) -> list[tuple[Store, dict[str, Any]]]:
    """The sharded sweeps below a folder of chunks, each with what is known of it, the newest first."""
    stores = []
    for path in chunks.glob(f"*/{SWEEP}"):
        header = _read_json(path)
        try:
            stores.append((Store(path.parent, int(header["total"]), int(header["count"])), header))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: is damaged; remove it and run any shard with --fresh") from None
    return sorted(
        stores, key=lambda entry: entry[0].path.stat().st_mtime if entry[0].path.exists() else 0.0, reverse=True
    )


def missing(store: Store) -> list[Shard]:
    """The shards of a sweep that have not written their rows, or whose files are damaged."""
    shards = [Shard(number, store.count) for number in range(1, store.count + 1)]
    return [shard for shard in shards if not store.is_written(shard)]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _checksum(path: Path) -> int | None:
    try:
        # Against copies that were cut short and damaged disks, not against anybody who means it: CRC is as fast as
        # the disk.
        return zlib.crc32(path.read_bytes())
    except OSError:
        return None
