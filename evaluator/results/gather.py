"""The shards of a sweep, put together: checked, finished and given their name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.results.chances import CHANGED, with_chances
from evaluator.results.chunks import Checkpoint, chunks_folder
from evaluator.results.files import check_output
from evaluator.results.lock import exclusive, lock_of
from evaluator.results.schema import now
from evaluator.results.shards import PLACE, Shard, Store, is_gathered, missing, stores_beside
from evaluator.results.zarr_store import finish, overwrite


@dataclass(frozen=True)
class Gathered:
    """Either the store is whole and at ``path``, or ``commands`` compute the shards that are ``missing``.

    ``others`` are the folders of other sweeps of which shards were written for the same output.
    """

    path: Path
    designs: int
    shards: int
    missing: tuple[Shard, ...] = ()
    commands: tuple[str, ...] = ()
    others: tuple[Path, ...] = ()


def gather(out: str | Path) -> Gathered:
    """Put the shards of ``evaluator sweep --shard I/N --out OUT`` together, where all of them are there.

    Nothing is copied: the store that they wrote gets its attributes, the chances that take the rows of all, and its
    name. A shard whose files are not what it
    wrote is missing. Errors: InputError where no shard is there, where sweeps of several kinds are whole, and where
    another process writes ``out``.
    """
    path = check_output(out)
    # A sweep that runs to the same output, or a second gather, would move the store away in between.
    with exclusive(lock_of(path), path):
        stores = stores_beside(chunks_folder(path))
        store, header, absent = _chosen(path, stores)
        others = tuple(store_beside.folder for store_beside, _ in stores if store_beside is not store)
        if absent:
            commands = tuple(str(header.get("command", "")).replace(PLACE, str(shard)) for shard in absent)
            return Gathered(path, store.total, store.count, tuple(absent), commands, others)
        lefts = [store.left(Shard(number, store.count)) for number in range(1, store.count + 1)]
        # The note of each shard tells of its own rows: only the counts of all make the sentence of the sweep.
        note = reduce(add, lefts).note
        try:
            # Finished before it gets its name: whoever finds a store under its name finds it whole.
            finish(store.path, {**header["attributes"], **note, "created": now()}, header["coordinates"])
            _judge(store.path)
            _move(store.path, path)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
        Checkpoint(store.folder).remove()
    return Gathered(path, store.total, store.count, others=others)


def _chosen(path: Path, stores: Sequence[tuple[Store, dict[str, Any]]]) -> tuple[Store, dict[str, Any], list[Shard]]:
    """The sweep to gather and its missing shards: the one that is whole, else the one of which the largest part is.

    One stray shard of another count, or of another version of the scenario, is not what the others wait for.
    """
    if not stores and path.exists():
        if path.suffix != ".zarr":
            raise InputError(f"{path}: is no Zarr store, which is what shards write; there is nothing to gather")
        if not is_gathered(path):
            raise InputError(f"{path}: is not what the shards of a sweep make, and none lie beside it to gather")
        raise InputError(f"{path}: is there already and whole; no shards lie beside it to gather")
    if not stores:
        raise InputError(
            f"{path}: no shards to gather; write them with evaluator sweep SCENARIO --shard 1/16 --out {path}"
        )
    states = [(store, header, missing(store)) for store, header in stores]
    whole = [state for state in states if not state[2]]
    if len(whole) > 1:
        folders = " and ".join(str(state[0].folder) for state in whole)
        raise InputError(f"{path}: several sweeps are whole, in {folders}; remove the folders of those not wanted")
    return whole[0] if whole else min(states, key=lambda state: len(state[2]) / state[0].count)


def _judge(store: Path) -> None:
    """Chances by all rows: a shard knows only its own, and not the design's other rates in others."""
    import xarray as xr

    with xr.open_zarr(store, consolidated=False) as ds:
        judged = with_chances(ds)
        changed = {name: judged[name].values for name in CHANGED if name in judged}
    overwrite(store, changed)


def _move(store: Path, path: Path) -> None:
    """Give the store its name. Whatever stops it, the store is at one of the two places."""
    # A folder cannot be renamed onto another one that has files. The old store is put aside first and removed last,
    # which is what takes long and may be stopped.
    old = path.with_name(f".{path.name}.{os.getpid()}.part")
    if path.exists():
        path.rename(old)
    store.rename(path)
    shutil.rmtree(old, ignore_errors=True)
