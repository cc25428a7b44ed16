import pytest

from evaluator.results import write
from tests.results.build import HARDWARE, RATE, sweep

pytest.importorskip("plotly")


@pytest.fixture
def result(tmp_path):
    return write(sweep(HARDWARE, RATE), tmp_path / "result.nc")


def test_report_writes_the_page_and_says_how_large_it_is(evaluator, result, tmp_path):
    code, out, err = evaluator("report", result, "--out", tmp_path / "pages" / "page.html")
    assert (code, out) == (0, "")
    assert "page.html: 24 designs, 2." in err and "MB; open it in a browser" in err
    assert (tmp_path / "pages" / "page.html").stat().st_size < 6e6


def test_quiet(evaluator, result, tmp_path):
    assert evaluator("report", result, "--out", tmp_path / "page.html", "--quiet") == (0, "", "")


def failure(evaluator, *arguments):
    code, out, err = evaluator("report", *arguments)
    assert code == 2 and out == ""
    return err


def test_no_such_file(evaluator, tmp_path):
    err = failure(evaluator, tmp_path / "none.nc", "--out", tmp_path / "page.html")
    assert err == f"error: {tmp_path / 'none.nc'}: no such file\n"


def test_not_a_result_file(evaluator, tmp_path):
    (tmp_path / "text.nc").write_text("this is no netCDF")
    assert "text.nc: not a readable result file" in failure(
        evaluator, tmp_path / "text.nc", "--out", tmp_path / "p.html"
    )
    assert "unknown kind of result file '.csv'" in failure(evaluator, tmp_path / "x.csv", "--out", tmp_path / "p.html")


def test_a_file_of_another_schema(evaluator, tmp_path):
    ds = sweep(HARDWARE)
    ds.attrs["schema_version"] = "99"
    write(ds, tmp_path / "new.nc")
    err = failure(evaluator, tmp_path / "new.nc", "--out", tmp_path / "page.html")
    assert "new.nc: written with schema 99, this version reads 1" in err


def test_a_netcdf_file_of_something_else(evaluator, tmp_path):
    write(sweep(HARDWARE).drop_vars("status"), tmp_path / "other.nc")
    err = failure(evaluator, tmp_path / "other.nc", "--out", tmp_path / "page.html")
    assert "other.nc: not a result of evaluator sweep or optimize: there is no status in it" in err


def test_a_page_that_cannot_be_written(evaluator, result, tmp_path):
    assert "the name must end in .html or .htm" in failure(evaluator, result, "--out", tmp_path / "page.png")
    assert "is a folder" in failure(evaluator, result, "--out", _folder(tmp_path / "page.html"))
    assert "folder cannot be" in failure(evaluator, result, "--out", result / "page.html")


def _folder(path):
    path.mkdir()
    return path


def test_plotly_is_missed_before_anything_is_read(evaluator, tmp_path, monkeypatch):
    monkeypatch.setattr("evaluator.report.page.page.find_spec", lambda name: None)
    err = failure(evaluator, tmp_path / "none.nc", "--out", tmp_path / "page.html")
    assert "a page needs plotly; install it with: pip install 'evaluator[report]'" in err
