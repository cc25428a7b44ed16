"""Shards of a sweep that nobody ran: which rows they are, what is missing, and what a disk can do to them."""

import itertools
import json
import time

import numpy as np
import pytest

from evaluator import results
from evaluator.errors import InputError
from evaluator.results import zarr_store
from evaluator.results.chunks import chunks_folder
from evaluator.results.fallback_report import FallbackReport
from evaluator.results.gather import gather
from evaluator.results.shards import MOST_SHARDS, Shard, Store, common_of, shard_rows
from tests.forked import Forked
from tests.results.build import BATCHING, HARDWARE, RATE, axis, measured, same

AXES = (HARDWARE, BATCHING, axis("deployment.flag", True, False), RATE)
TOTAL = 96
LEFT = FallbackReport("iteration", 24, 2, {"swap": 2})


@pytest.fixture(scope="module")
def whole():
    """With one variable of each type and shape, since Zarr takes its time by the array, and one that tests damage."""
    ds = measured(AXES)
    kinds = {(variable.dims, variable.dtype): name for name, variable in ds.data_vars.items()}
    return ds[[*kinds.values(), "ttft_s"]]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "big.zarr"


def store_of(out, count, name="0123456789abcdef"):
    return Store(chunks_folder(out) / f"{name}-in-{count}", TOTAL, count)


def write(whole, out, number, count, **options):
    store, shard = store_of(out, count, **options), Shard(number, count)
    rows = shard.rows(TOTAL)
    part = whole.isel(config=slice(rows.start, rows.stop)) if rows else None
    store.folder.mkdir(parents=True, exist_ok=True)
    store.write(shard, part, common_of(whole, "abc", f"evaluator sweep x.yaml --shard {{shard}} --out {out}"), LEFT)
    return store


@pytest.mark.parametrize("total", [1, 2, 5, 96, 100_003, 1_000_000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 1000])
def test_rows_are_in_one_shard_each_and_pieces_in_one_process_each(total, count):
    rows = [Shard(number, count).rows(total) for number in range(1, count + 1)]
    assert rows[0].start == 0
    assert sum(map(len, rows)) == total
    assert all(before.stop == after.start for before, after in itertools.pairwise(rows))
    piece = Store(None, total, count).piece
    assert 1 <= piece <= zarr_store.MOST_ROWS and shard_rows(total, count) % piece == 0
    assert all(some.start % piece == 0 for some in rows if some)


@pytest.mark.parametrize(("count", "most"), [(1, 65_536), (1, 7), (3, 7), (5, 65_536), (17, 65_536)])
def test_shards_in_any_order_are_the_dataset(whole, out, count, most, monkeypatch):
    monkeypatch.setattr(zarr_store, "MOST_ROWS", most)
    for number in np.random.default_rng(count).permutation(count) + 1:
        write(whole, out, int(number), count)
    found = gather(out)
    assert (found.designs, found.shards, found.missing) == (TOTAL, count, ())
    back = results.read(out)
    same(back, whole)
    assert all(
        back[name].dtype == whole[name].dtype and back[name].attrs == whole[name].attrs for name in back.variables
    )
    assert back.attrs["engine_note"].startswith(f"{2 * count} of {24 * count:,} configurations were computed token")


def test_a_store_written_whole_is_the_same(whole, out):
    same(results.read(results.write(whole, out)), whole)
    results.write(results.unstack(whole), out)
    same(results.read(out), results.unstack(whole))


def test_missing_shards_are_named_with_their_commands(whole, out, evaluator):
    for number in (1, 4):
        write(whole, out, number, 4)
    code, printed, err = evaluator("gather", out)
    assert code == 2
    assert printed.splitlines() == [f"evaluator sweep x.yaml --shard {n}/4 --out {out}" for n in (2, 3)]
    assert err == (
        f"error: {out}: 2 of 4 shards are missing: 2, 3; the commands above compute them, in any order and on any "
        "machine\n"
    )
    for number in (2, 3):
        write(whole, out, number, 4)
    assert evaluator("gather", out) == (0, "", f"wrote {out}: 96 designs of 4 shards\n")
    told = f"error: {out}: is there already and whole; no shards lie beside it to gather\n"
    assert evaluator("gather", out) == (2, "", told)


def test_nothing_to_gather(out):
    with pytest.raises(
        InputError, match=r"big\.zarr: no shards to gather; write them with evaluator sweep SCENARIO --sh"
    ):
        gather(out)


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "unmarked", "half marked"])
def test_a_damaged_shard_is_missing(whole, out, how):
    stores = [write(whole, out, number, 3) for number in (1, 2, 3)]
    file, mark = stores[0].path / "ttft_s" / "c" / "1" / "0", stores[0].mark(2)
    content = file.read_bytes()
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:-1])
    elif how == "flipped":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "unmarked":
        mark.unlink()
    else:
        mark.write_text(mark.read_text()[:50])
    assert gather(out).missing == (Shard(2, 3),)
    write(whole, out, 2, 3)
    assert gather(out).missing == ()
    same(results.read(out), whole)


def test_of_several_sweeps_the_whole_one_is_gathered(whole, out):
    for number in (1, 2):
        write(whole, out, number, 2)
    write(whole, out, 1, 3)
    assert gather(out).shards == 2
    assert store_of(out, 3).mark(1).exists() and results.read(out).sizes["config"] == TOTAL
    for number in (1, 2, 3):
        write(whole, out, number, 3)
    for number in (1, 2):
        write(whole, out, number, 2)
    with pytest.raises(InputError, match=r"several sweeps are whole, in .*-in-\d and .*-in-\d; remove the fol"):
        gather(out)


def test_a_stray_shard_is_not_what_the_others_wait_for(whole, out, evaluator):
    for number in (1, 3):
        write(whole, out, number, 3)
    write(whole, out, 2, 4)
    code, printed, err = evaluator("gather", out)
    assert (code, printed) == (2, f"evaluator sweep x.yaml --shard 2/3 --out {out}\n")
    stray = f"; shards of other sweeps lie in {store_of(out, 4).folder}; remove them, if not wanted\n"
    assert err.endswith(stray)
    write(whole, out, 2, 3)
    assert evaluator("gather", out) == (0, "", f"wrote {out}: 96 designs of 3 shards{stray}")


def test_what_is_known_of_the_sweep_may_be_damaged(whole, out):
    store = write(whole, out, 1, 1)
    (store.folder / "sweep.json").write_text("{")
    with pytest.raises(InputError, match=r"sweep\.json: is damaged; remove it and run any shard with --fresh"):
        gather(out)


def test_a_gather_replaces_what_was_there(whole, out):
    results.write(whole.isel(config=[0]), out)
    write(whole, out, 1, 1)
    assert results.read(out).sizes["config"] == 1
    gather(out)
    assert results.read(out).sizes["config"] == TOTAL
    assert [path.name for path in out.parent.iterdir()] == ["big.zarr"]


def test_many_processes_write_at_once(whole, out, tmp_path):
    """Which of them creates the store and its arrays makes no difference."""
    results.write(whole, tmp_path / "whole.nc")
    program = (
        "import sys, time; from pathlib import Path; from evaluator import results;"
        "from tests.results import test_shards;"
        "whole = results.read(sys.argv[1]); time.sleep(max(0, float(sys.argv[2]) - time.time()));"
        "[test_shards.write(whole, Path(sys.argv[3]), int(n), 6) for n in sys.argv[4:]]"
    )
    start = time.time() + 2
    running = [Forked(program, [tmp_path / "whole.nc", start, out, *range(first, 7, 3)]) for first in (1, 2, 3)]
    ended = [(one.communicate(60)[1], one.returncode) for one in running]
    assert [code for _, code in ended] == [0, 0, 0], ended
    assert gather(out).missing == ()
    same(results.read(out), whole)


def test_shards_are_few_enough_to_be_files():
    with pytest.raises(InputError, match=r"--shard 1/20000: there can be 1 to 10,000 shards"):
        Shard.parse("1/20000")
    assert Shard.parse(f" {MOST_SHARDS}/{MOST_SHARDS}").number == MOST_SHARDS


def test_a_mark_is_plain_json(whole, out):
    store = write(whole, out, 1, 2)
    told = json.loads(store.mark(1).read_text())
    assert told["left"] == {"simulator": "iteration", "designs": 24, "left": 2, "reasons": {"swap": 2}}
    assert "ttft_s/c/0/0" in told["files"]


def test_what_is_no_store_of_shards_is_not_called_whole(tmp_path, whole):
    (tmp_path / "empty.zarr").mkdir()
    (tmp_path / "text.zarr").write_text("hello")
    results.write(whole, tmp_path / "single.zarr")
    results.write(whole, tmp_path / "a.nc")
    for name in ("empty.zarr", "text.zarr", "single.zarr"):
        with pytest.raises(
            InputError, match=rf"{name}: is not what the shards of a sweep make, and none lie beside it"
        ):
            gather(tmp_path / name)
    with pytest.raises(InputError, match=r"a\.nc: is no Zarr store, which is what shards write"):
        gather(tmp_path / "a.nc")
