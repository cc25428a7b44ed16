import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.results.chunks import combine, fingerprint_of, read_chunks, write_chunk


def chunk(*rows):
    values = np.array(rows, dtype=np.int64)
    return {"config": values, "ttft_s": np.outer(values, [1.0, 2.0]), "status": np.array([f"row {r}" for r in rows])}


def test_chunks_come_back_in_the_order_of_the_grid(tmp_path):
    mark = fingerprint_of("scenario")
    write_chunk(tmp_path / "c", 1, chunk(0, 3), mark)
    write_chunk(tmp_path / "c", 0, chunk(2, 1), mark)
    chunks = read_chunks(tmp_path / "c", mark)
    assert sorted(chunks) == [0, 1]
    whole = combine(chunks.values())
    np.testing.assert_array_equal(whole["config"], [0, 1, 2, 3])
    np.testing.assert_array_equal(whole["ttft_s"][:, 1], [0.0, 2.0, 4.0, 6.0])
    assert whole["status"][3] == "row 3"


def test_half_written_chunks_are_passed_over(tmp_path):
    mark = fingerprint_of("scenario")
    path = write_chunk(tmp_path, 0, chunk(0), mark)
    (tmp_path / "chunk-000001.npz").write_bytes(path.read_bytes()[:200])
    (tmp_path / "chunk-000002.npz").write_bytes(b"")
    (tmp_path / ".chunk-000003.npz.77.part").write_bytes(path.read_bytes())
    assert list(read_chunks(tmp_path, mark)) == [0]


def test_chunks_of_another_scenario_are_refused(tmp_path):
    write_chunk(tmp_path, 0, chunk(0), fingerprint_of("one"))
    with pytest.raises(InputError, match=r"holds chunks of another scenario or version \(chunk-000000\.npz\); remove"):
        read_chunks(tmp_path, fingerprint_of("two"))


def test_there_may_be_no_chunks(tmp_path):
    assert read_chunks(tmp_path / "absent", "x") == {}


def test_a_variable_that_a_chunk_lacks_is_nan():
    other = chunk(1) | {"itl_s": np.ones((1, 2))}
    whole = combine([chunk(0), other])
    np.testing.assert_array_equal(whole["itl_s"], [[np.nan, np.nan], [1.0, 1.0]])
