import os
import tracemalloc

import numpy as np

from evaluator.results import read, write
from evaluator.results.chunks import combine
from evaluator.results.files import _most_bytes
from evaluator.results.texts import as_objects, decoded, distinct, shared, text_bytes
from tests.results.build import measured


def test_equal_texts_are_one_object():
    texts = as_objects(np.array(["ok", "größer als", "ok"]))
    assert texts.tolist() == ["ok", "größer als", "ok"] and texts[0] is texts[2]
    again = as_objects(np.array(["ok"], dtype=np.dtypes.StringDType()))
    assert again[0] is texts[0]
    assert text_bytes(texts) == 2 + 12 + 2


def test_what_is_equal_but_of_other_types_has_texts_of_its_own():
    mixed = np.empty(4, dtype=object)
    mixed[:] = [1, True, 1.0, "1"]
    assert as_objects(mixed).tolist() == ["1", "True", "1.0", "1"]
    mixed[:] = ["b", None, "a", "b"]
    assert [part.tolist() for part in distinct(mixed)] == [["None", "a", "b"], [2, 0, 1, 2]]


def test_numbers_stay_what_they_are():
    columns = shared({"a": np.array([1.0]), "b": np.array([True]), "c": np.array(["x"])})
    assert [values.dtype.kind for values in columns.values()] == ["f", "b", "O"]


def test_datasets_hold_long_texts_once_and_as_they_are_read_again(tmp_path):
    ds = measured()
    assert ds["status"].dtype == object
    back = read(write(ds, tmp_path / "a.nc"))
    assert back["status"].dtype == object and back["status"].values.tolist() == ds["status"].values.tolist()


def test_room_is_reserved_for_all_that_a_file_takes(tmp_path):
    ds = measured()
    for text in ("ok", "does not fit: " + "ü" * 300):
        ds["status"] = ("config", as_objects(np.full(ds.sizes["config"], text)))
        assert os.path.getsize(write(ds, tmp_path / "a.nc")) <= _most_bytes(ds)


def test_chunks_are_joined_without_holding_them_twice():
    chunks, rows = 50, 2_000
    pieces = [
        {"config": np.arange(rows) * chunks + at, **{f"m{k}": np.full(rows, float(at)) for k in range(20)}}
        for at in range(chunks)
    ]
    whole = sum(values.nbytes for piece in pieces for values in piece.values())
    tracemalloc.start()
    try:
        joined = combine(pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not any(pieces) and peak < 1.4 * whole  # the pieces were made before the tracing
    np.testing.assert_array_equal(joined["config"], np.arange(chunks * rows))
    np.testing.assert_array_equal(joined["m7"], np.arange(chunks * rows) % chunks)


def test_a_variable_that_a_chunk_lacks_is_unknown_there():
    joined = combine([{"config": np.array([1]), "a": np.array([2.0])}, {"config": np.array([0])}])
    assert joined["a"][1] == 2.0 and np.isnan(joined["a"][0])


def test_the_different_texts_of_a_column_are_sorted_and_numbered():
    for texts in (np.array(["b", "a", "größer", "b"]), as_objects(np.array(["b", "a", "größer", "b"]))):
        names, places = distinct(texts)
        by_numpy = np.unique(texts.astype(str), return_inverse=True)
        assert names.tolist() == by_numpy[0].tolist() and places.tolist() == by_numpy[1].tolist()
    assert [part.size for part in distinct(np.array([], dtype=str))] == [0, 0]


def test_texts_of_a_file_are_decoded_once_for_equal_ones():
    texts = decoded(np.array([["größer".encode(), b"ok"], [b"ok", b""]], dtype=object))
    assert texts.tolist() == [["größer", "ok"], ["ok", ""]] and texts[0, 1] is texts[1, 0]
