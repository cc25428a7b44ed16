import numpy as np
import pandas as pd
import pytest

from evaluator.errors import InputError
from evaluator.scenario.trace import read_trace

HEADER = "arrival_s,prompt_tokens,output_tokens"


def write(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_csv(tmp_path):
    text = "\ufeffsession,cached_tokens, arrival_s,output_tokens,prompt_tokens\na,0,0.5,3,7\n\nb,4,2,1,5\n"
    trace = read_trace(write(tmp_path, text))
    assert trace.requests == 2
    np.testing.assert_array_equal(trace.arrival_s, [0.5, 2.0])
    np.testing.assert_array_equal(trace.prompt_tokens, [7, 5])
    np.testing.assert_array_equal(trace.output_tokens, [3, 1])
    np.testing.assert_array_equal(trace.cached_tokens, [0, 4])
    assert trace.prompt_tokens.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 1.0


def test_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"arrival_s": [0.0, 1.5], "prompt_tokens": [3, 4], "output_tokens": [1, 2]}).to_parquet(path)
    trace = read_trace(str(path))
    np.testing.assert_array_equal(trace.arrival_s, [0.0, 1.5])
    np.testing.assert_array_equal(trace.output_tokens, [1, 2])
    pd.DataFrame({"arrival_s": [0.0, 1.5], "prompt_tokens": [3, None], "output_tokens": [1, 2]}).to_parquet(path)
    with pytest.raises(
        InputError, match=r"t\.parquet: row 2, prompt_tokens: must be an integer of at least 1, got nan"
    ):
        read_trace(str(path))
    pd.DataFrame({"arrival_s": ["x"], "prompt_tokens": [3], "output_tokens": [1]}).to_parquet(path)
    with pytest.raises(InputError, match=r"column arrival_s is not numeric"):
        read_trace(str(path))
    pd.DataFrame({"time": [1.0]}).to_parquet(path)
    with pytest.raises(InputError, match=r"no column arrival_s, .*; the columns there are time"):
        read_trace(str(path))
    path.write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"t\.parquet: not readable as Parquet"):
        read_trace(str(path))


def test_only_the_columns_in_use_are_needed(tmp_path):
    path = write(tmp_path, "prompt_tokens,output_tokens\n3,4\n")
    assert read_trace(path, ("prompt_tokens", "output_tokens")).arrival_s is None
    with pytest.raises(InputError, match=r"no column arrival_s; the columns there are prompt_tokens, output_tokens"):
        read_trace(path)


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path, f"{HEADER}\n0,1,1\n")
    assert read_trace(path).requests == 1
    write(tmp_path, f"{HEADER}\n0,1,1\n1,1,1\n")
    assert read_trace(path).requests == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv: the trace is empty \(expected a header with arrival_s, prompt_tokens, output_tokens\)"),
        (f"{HEADER}\n", r"t\.csv: the trace has no rows"),
        (
            "arrival,prompt_tokens\n0,1\n",
            r"t\.csv: no column arrival_s, output_tokens; the columns there are arrival, ",
        ),
        (f"{HEADER},arrival_s\n0,1,1,1\n", r"t\.csv: the column arrival_s is there twice"),
        (f"{HEADER}\n0,1,1\n1,2\n", r"t\.csv: row 2 has 2 values for 3 columns"),
        (f"{HEADER}\n0,1,1\n1,,2\n", r"t\.csv: row 2, prompt_tokens: '' is not a number"),
        (f"{HEADER}\n0,1,1\nnan,1,2\n", r"row 2, arrival_s: must be a finite number of seconds, got nan"),
        (f"{HEADER}\n0,1,1\ninf,1,2\n", r"row 2, arrival_s: must be a finite number of seconds, got inf"),
        (f"{HEADER}\n-1,1,1\n", r"row 1, arrival_s: must not be negative, got -1"),
        (f"{HEADER}\n0,1,1\n2,1,1\n1,1,1\n", r"row 3, arrival_s: must not be earlier than in the row before .*, got 1"),
        (f"{HEADER}\n0,0,1\n", r"row 1, prompt_tokens: must be an integer of at least 1, got 0"),
        (f"{HEADER}\n0,1,1\n1,5,0\n", r"row 2, output_tokens: must be an integer of at least 1, got 0"),
        (f"{HEADER}\n0,-3,1\n", r"row 1, prompt_tokens: must be an integer of at least 1, got -3"),
        (f"{HEADER}\n0,3,1.5\n", r"row 1, output_tokens: must be an integer of at least 1, got 1\.5"),
        (f"{HEADER}\n0,3,nan\n", r"row 1, output_tokens: must be an integer of at least 1, got nan"),
        (f"{HEADER},cached_tokens\n0,3,1,3\n", r"row 1, cached_tokens: must be less than prompt_tokens.*, got 3"),
        (f"{HEADER},cached_tokens\n0,3,1,-1\n", r"row 1, cached_tokens: must be an integer of at least 0, got -1"),
    ],
)
def test_messages(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_trace(write(tmp_path, text))


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: there is no such trace file"):
        read_trace(str(tmp_path / "none.csv"))


def test_the_traces_of_production_services(data_folder):
    trace = read_trace(str(data_folder / "azure_llm_trace_conv_2023.csv"))
    assert trace.requests == 19_366
    assert trace.arrival_s[0] == 0.0


def test_jsonl_as_mooncake_writes_it(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n\n'
        '{"timestamp": 1500, "input_length": 512, "output_length": 6, "hash_ids": [0]}\n',
        encoding="utf-8",
    )
    trace = read_trace(str(path))
    np.testing.assert_array_equal(trace.arrival_s, [0.0, 1.5])
    np.testing.assert_array_equal(trace.prompt_tokens, [700, 512])
    np.testing.assert_array_equal(trace.output_tokens, [5, 6])
    assert [trace.hash_ids[row].tolist() for row in range(2)] == [[0, 1], [0]]
    assert trace.session is None
    path.write_text('{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4}\n{"arrival_s": 2}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl: row 2 has no prompt_tokens"):
        read_trace(str(path))
    path.write_text('{"arrival_s": 1, "prompt_tokens": [3], "output_tokens": 4}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl: row 1, prompt_tokens: \[3\] is not a number"):
        read_trace(str(path))
    path.write_text("arrival_s,prompt_tokens\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl: row 1 is no JSON object: arrival_s,prompt_tokens"):
        read_trace(str(path))
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl: no column arrival_s"):
        read_trace(str(path))


def test_sessions_and_hashes_of_blocks(tmp_path):
    head = "session,hash_ids,prompt_tokens,output_tokens\n"
    path = write(tmp_path, head + 'b,"[3, 4]",9,1\na,"[3]",2,1\nb,[],3,1\n')
    trace = read_trace(path, ("prompt_tokens", "output_tokens"))
    np.testing.assert_array_equal(trace.session, [0, 1, 0])
    assert [trace.hash_ids[row].tolist() for row in range(3)] == [[3, 4], [3], []]
    frame = pd.DataFrame(
        {"prompt_tokens": [9, 2], "output_tokens": [1, 1], "session": [7, 5], "hash_ids": [[3, 4], [3]]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    same = read_trace(str(tmp_path / "t.parquet"), ("prompt_tokens", "output_tokens"))
    np.testing.assert_array_equal(same.session, [0, 1])
    assert [same.hash_ids[row].tolist() for row in range(2)] == [[3, 4], [3]]
    for bad in ("3 4", "[3.5]", '"[""x""]"', "{}"):
        with pytest.raises(InputError, match=r"t\.csv: row 1, hash_ids: must be a list of integers, got"):
            read_trace(write(tmp_path, head + f"a,{bad},9,1\n"), ("prompt_tokens", "output_tokens"))


@pytest.mark.parametrize(("unit", "per_s"), [("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)])
def test_other_units_since_1970_are_told(tmp_path, unit, per_s):
    rows = "\n".join(f"{int((1.7e9 + second) * per_s)},5,1" for second in range(3))
    with pytest.raises(
        InputError, match=rf"row 1, arrival_s: must be in seconds and looks like {unit} since 1970; divi"
    ):
        read_trace(write(tmp_path, f"{HEADER}\n{rows}\n"))


def test_times_of_a_clock_begin_with_the_first(tmp_path):
    rows = "\n".join(f"{1.7e9 + second},5,1" for second in (0.5, 1.5, 4.0))
    np.testing.assert_array_equal(read_trace(write(tmp_path, f"{HEADER}\n{rows}\n")).arrival_s, [0.0, 1.0, 3.5])
    late = read_trace(write(tmp_path, f"{HEADER}\n5,5,1\n6.25,5,1\n"))  # from the start of a trace, as it says
    np.testing.assert_array_equal(late.arrival_s, [5.0, 6.25])
