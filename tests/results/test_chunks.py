import os

import numpy as np
import pytest

from evaluator.results.chunks import Checkpoint, Rows, combine, read_chunks, write_chunk
from evaluator.results.fingerprint import fingerprint_of
from tests.scenario.build import scenario


def chunk(*rows):
    values = np.array(rows, dtype=np.int64)
    return {"config": values, "ttft_s": np.outer(values, [1.0, 2.0]), "status": np.array([f"row {r}" for r in rows])}


def test_chunks_come_back_in_the_order_of_the_grid(tmp_path):
    write_chunk(tmp_path / "c", 1, chunk(0, 3))
    write_chunk(tmp_path / "c", 0, chunk(2, 1))
    chunks = dict(read_chunks(tmp_path / "c"))
    assert sorted(chunks) == [0, 1]
    whole = combine(chunks.values())
    np.testing.assert_array_equal(whole["config"], [0, 1, 2, 3])
    np.testing.assert_array_equal(whole["ttft_s"][:, 1], [0.0, 2.0, 4.0, 6.0])
    assert whole["status"][3] == "row 3"


def test_chunks_of_very_many_variables_are_read_again(tmp_path):
    """NumPy by itself reads no header of more than 10,000 characters."""
    many = {f"a_variable_with_a_long_name_{number}": np.array([[0.0]]) for number in range(500)}
    write_chunk(tmp_path, 0, chunk(0) | many)
    ((_, values),) = read_chunks(tmp_path)
    assert values.keys() == (chunk(0) | many).keys()


def test_half_written_chunks_are_passed_over(tmp_path):
    path = write_chunk(tmp_path, 0, chunk(0))
    (tmp_path / "chunk-000001.npz").write_bytes(path.read_bytes()[:200])
    (tmp_path / "chunk-000002.npz").write_bytes(b"")
    (tmp_path / ".chunk-000003.npz.77.part").write_bytes(path.read_bytes())
    (tmp_path / "chunk-zero.npz").write_bytes(path.read_bytes())
    assert list(dict(read_chunks(tmp_path))) == [0]


@pytest.mark.parametrize("seed", range(40))
def test_damaged_chunks_are_passed_over_or_as_they_were(tmp_path, seed):
    rng = np.random.default_rng(seed)
    written = chunk(*range(5))
    path = write_chunk(tmp_path, 0, written)
    content = bytearray(path.read_bytes())
    for _ in range(rng.integers(1, 5)):
        content[rng.integers(len(content))] = rng.integers(256)
    path.write_bytes(content[: rng.integers(1, len(content))] if seed % 4 == 0 else content)
    for _, values in read_chunks(tmp_path):
        for name in set(values) & set(written):
            np.testing.assert_array_equal(values[name], written[name])


def test_only_the_chunks_of_the_same_rows_are_taken_up(tmp_path):
    kept = Checkpoint.beside(tmp_path / "a.nc", "f" * 64)
    assert kept.folder == tmp_path / "a.chunks" / ("f" * 16)
    write_chunk(kept.folder, 0, chunk(0, 1))
    write_chunk(kept.folder, 1, chunk(2, 3))
    write_chunk(kept.folder, 7, chunk(4))
    assert list(dict(kept.finished([np.array([0, 1]), np.array([2, 4])]))) == [0]
    assert kept.others() == 0
    write_chunk(Checkpoint.beside(tmp_path / "a.nc", "0" * 64).folder, 0, chunk(0))
    assert kept.others() == 1
    kept.remove()
    assert [path.name for path in (tmp_path / "a.chunks").iterdir()] == ["0" * 16]


@pytest.mark.parametrize("kind", ["llm", "hardware", "lengths", "links", "storage", "engines"])
def test_a_fingerprint_is_of_what_the_numbers_depend_on(kind, tmp_path, monkeypatch):
    mark = fingerprint_of(scenario())
    assert mark == fingerprint_of(scenario()) and len(mark) == 64
    assert mark != fingerprint_of(scenario("workload.seeds=[1]"))
    assert mark != fingerprint_of(scenario(), "token")
    folder = tmp_path / "models" / kind
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("a")
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    mine = fingerprint_of(scenario())
    assert mine != mark
    os.utime(folder / "mine.yaml", (0, 0))
    assert fingerprint_of(scenario()) == mine
    (folder / "mine.yaml").write_text("b")
    assert fingerprint_of(scenario()) != mine


def test_there_may_be_no_chunks(tmp_path):
    assert list(read_chunks(tmp_path / "absent")) == []


def test_a_variable_that_a_chunk_lacks_is_nan():
    other = chunk(1) | {"itl_s": np.ones((1, 2))}
    whole = combine([chunk(0), other])
    np.testing.assert_array_equal(whole["itl_s"], [[np.nan, np.nan], [1.0, 1.0]])


def test_rows_do_not_depend_on_the_order_in_which_chunks_come():
    chunks = [chunk(0, 3) | {"met": np.array([True, False])}, chunk(2) | {"itl_s": np.ones(1), "met": np.array([True])}]
    chunks.append(chunk(1))
    found = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        rows = Rows(np.array([0, 3, 2, 1]))
        for index in order:
            rows.put(index, chunks[index])
        found.append(rows.columns())
    assert [[*columns] for columns in found] == [["config", "ttft_s", "status", "met", "itl_s"]] * 3
    for columns in found:
        for name, values in found[0].items():
            assert columns[name].dtype == values.dtype
            np.testing.assert_array_equal(columns[name], values)
    np.testing.assert_array_equal(found[0]["met"], [1.0, np.nan, 1.0, 0.0])
    np.testing.assert_array_equal(found[0]["itl_s"], [np.nan, np.nan, 1.0, np.nan])


def test_rows_that_are_missing_are_told():
    rows = Rows(np.array([0, 1]))
    rows.put(0, chunk(1))
    with pytest.raises(AssertionError, match="1 chunks do not have all 2 rows"):
        rows.columns()
