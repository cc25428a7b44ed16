"""The file: a row as soon as it is known, and going on with it."""

import pytest

from evaluator.calibrate import read_tables
from evaluator.errors import InputError
from evaluator.measure.points import gemm
from evaluator.measure.rows import HEADER, MeasuredRows

POINT = gemm(16, 1024, 4096, "bf16")
ROW = {"op_class": "gemm", **POINT.columns, "time_s": "1e-05", "device": "GPU, of mine", "mode": "graph"}


def rows(path, **options):
    return MeasuredRows(path, "GPU, of mine", "mine", **options)


def test_rows_are_a_table_of_calibrate(tmp_path):
    path = tmp_path / "t.csv"
    rows(path).add(ROW)
    (table,) = read_tables([path])
    assert table.source == "own"
    assert table.rows[["m", "n", "k", "time_s"]].iloc[0].tolist() == [16, 1024, 4096, 1e-5]
    assert table.rows["hardware"].iloc[0] == "mine"


def test_what_is_there_is_known_and_kept(tmp_path):
    path = tmp_path / "t.csv"
    rows(path).add(ROW)
    again = rows(path, resume=True)
    assert again.times() == {POINT.key: 1e-5}
    again.add(ROW | {"m": 32})
    assert len(again.frame()) == 2 and path.read_text().count("op_class") == 1


def test_a_row_cut_short_is_measured_again(tmp_path):
    path = tmp_path / "t.csv"
    first = rows(path)
    first.add(ROW)
    whole = path.read_text()
    path.write_text(whole + "gemm,32,10")
    assert len(rows(path, resume=True).times()) == 1
    assert path.read_text() == whole


def test_a_new_run_starts_no_file_before_its_first_row(tmp_path):
    rows(tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize(
    ("text", "resume", "message"),
    [
        ("a\n", False, "is there already; go on with it by --resume"),
        ("a,b\n1,2\n", True, "was not written by this version of measure"),
        (",".join(HEADER) + "\n" + "," * HEADER.index("device") + "other,cpu,\n", True,
         "holds measurements of device other, but this is GPU, of mine"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_gone_on_with(tmp_path, text, resume, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        rows(path, resume=resume)
    assert path.read_text() == text


def test_another_name_for_the_device_is_another_table(tmp_path):
    path = tmp_path / "t.csv"
    rows(path).add(ROW)
    with pytest.raises(InputError, match="holds measurements of hardware mine, but this is yours"):
        MeasuredRows(path, "GPU, of mine", "yours", resume=True)
