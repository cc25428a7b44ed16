"""The recordings of tests/benchmarks/equality.py: every case can be read, and no difference goes unseen."""

import shutil

import numpy as np
import pytest
import typer
import xarray as xr

from evaluator.cli.app import app
from tests.benchmarks import equality


@pytest.fixture
def recordings(tmp_path):
    """Two folders with the same case in them: its text, a dataset and a table."""
    ttft_s = xr.DataArray([0.5, np.nan, 2.0], dims="config", attrs={"units": "s"})
    status = xr.DataArray(np.array(["ok", "infeasible", "ok"]), dims="config")
    for name in ("before", "after"):
        folder = tmp_path / name / "datasets/case"
        folder.mkdir(parents=True)
        (folder / "said.txt").write_text("$ sweep case\nexit code 0\n  --engine iteration\n")
        (folder / "result.csv").write_text("metric,error\nttft,0.25\n")
        dataset = xr.Dataset({"ttft_s": ttft_s, "status": status}, attrs={"title": "case", "created": name})
        dataset.to_netcdf(folder / "result.nc", engine="h5netcdf")
    return tmp_path / "before", tmp_path / "after"


def changed(folder, **variables):
    path = folder / "datasets/case/result.nc"
    dataset = xr.load_dataset(path, engine="h5netcdf").assign(variables)
    dataset.to_netcdf(path, engine="h5netcdf")


def told(recordings):
    return [text for text, _ in equality.differences(*recordings)]


def test_cases():
    """Each has a name of its own, says what it runs, and the gallery is whole."""
    cases = equality.cases()
    assert len({case.name for case in cases}) == len(cases) and all(case.lines for case in cases)
    gallery = {path.stem for path in (equality.CASES.parents[2] / "scenarios").glob("*.yaml")}
    assert gallery <= {case.name.removeprefix("datasets/") for case in cases}
    commands = typer.main.get_command(app).commands
    below = [f"{name} {inner}" for name, command in commands.items() for inner in getattr(command, "commands", ())]
    assert {*commands, *below} <= {line.removesuffix(" --help") for case in cases for line in case.lines}


def test_equal_recordings(recordings, capsys):
    """When a dataset was made is no difference."""
    assert equality.compare(*recordings) == 0
    assert capsys.readouterr().out == "1 cases: 0 differences\n"


def test_the_last_bit_of_a_number(recordings, capsys):
    changed(recordings[1], ttft_s=("config", [0.5, np.nan, np.nextafter(2.0, 3.0)], {"units": "s"}))
    assert equality.compare(*recordings) == 1
    assert "result.nc: ttft_s: 1 of 3 differ, by 4.44e-16 at most, relatively 2.22e-16" in capsys.readouterr().out


def test_a_number_that_is_none(recordings):
    changed(recordings[1], ttft_s=("config", [0.5, 1.0, 2.0], {"units": "s"}))
    assert told(recordings) == [
        "datasets/case/result.nc: ttft_s: 1 of 3 differ, none finite in both; 1 not finite in both"
    ]


def test_texts_attributes_and_variables_of_a_dataset(recordings):
    changed(recordings[1], status=("config", np.array(["ok", "ok", "ok"])), tpot_s=("config", [1.0, 1.0, 1.0]))
    found = "\n".join(told(recordings))
    assert "status: 1 of 3 differ, first at [1]" in found and "+ ok" in found and "tpot_s: only after" in found
    changed(recordings[0], ttft_s=("config", [0.5, np.nan, 2.0], {"units": "ms"}))
    assert "ttft_s: attribute units" in "\n".join(told(recordings))


def test_a_variable_that_is_new_on_purpose(recordings, monkeypatch, capsys):
    monkeypatch.setattr(equality, "ADDED", {"tpot_s": "asked for"})
    changed(recordings[1], tpot_s=("config", [1.0, 1.0, 1.0]))
    assert equality.compare(*recordings) == 0
    assert capsys.readouterr().out == "1 cases: 0 differences\n1 differ as intended: asked for\n"
    assert equality.compare(*recordings[::-1]) == 1  # but what is lost is lost


def test_a_table(recordings):
    (recordings[1] / "datasets/case/result.csv").write_text("metric,error\nttft,0.5\n")
    assert (
        told(recordings)[1] == "datasets/case/result.csv: column error: 1 of 1 differ, by 0.25 at most, relatively 0.5"
    )


def test_a_file_or_a_case_that_is_in_one_alone(recordings):
    before, after = recordings
    (after / "datasets/case/result.csv").unlink()
    assert told(recordings) == [f"datasets/case/result.csv: is only in {before}"]
    shutil.rmtree(after / "datasets/case")
    assert told(recordings) == [f"1 cases are only in {before}: datasets/case"]


def test_an_intended_text(recordings, monkeypatch, capsys):
    """It is counted with its reason and is no difference; white space may differ then, and nothing else."""
    path = recordings[1] / "datasets/case/said.txt"
    path.write_text("$ sweep case\nexit code 0\n    --simulator iteration\n")
    monkeypatch.setattr(equality, "CHANGES", ())
    assert "2 lines differ\n    -   --engine" in told(recordings)[0]
    monkeypatch.setattr(equality, "CHANGES", [("--engine", "--simulator", "a better word")])
    assert equality.compare(*recordings) == 0
    assert capsys.readouterr().out == "1 cases: 0 differences\n1 differ as intended: a better word\n"
    path.write_text("$ sweep case\nexit code 1\n    --simulator iteration\n")
    assert equality.compare(*recordings) == 1


def test_what_there_is_may_grow(recordings, capsys):
    """A list of entries that differs is told with its reason; one that is gone, or a text beside it, is a change."""
    old, new = (folder / "datasets/case/said.txt" for folder in recordings)
    old.write_text("error: unknown hardware 'h100'; did you mean h20? (there are: h20, h200)\n")
    new.write_text("error: unknown hardware 'h100'; did you mean h800? (there are: h20, h200, h800)\n")
    assert equality.compare(*recordings) == 0
    assert capsys.readouterr().out == "1 cases: 0 differences\n1 differ as intended: the catalog has other entries\n"
    new.write_text("error: unknown device 'h100'; did you mean h800? (there are: h20, h200, h800)\n")
    assert equality.compare(*recordings) == 1
    new.write_text("error: unknown hardware 'h100'\n")
    assert equality.compare(*recordings) == 1
    error = "expected error    TTFT {}, TPOT 7 %,\n                  68 % of {}\n"
    old.write_text("TTFT              1.0 ms\n" + error.format("5 %", "82 runs") + "\nprefill\n")
    new.write_text(
        "TTFT              1.0 ms\n" + error.format("6 %", "84 runs on\n                  2") + "\nprefill\n"
    )
    assert [reason for _, reason in equality.differences(*recordings)] == ["expected errors are of other measured runs"]
    new.write_text(new.read_text().replace("1.0 ms", "1.1 ms"))
    assert [reason for _, reason in equality.differences(*recordings)] == [""]
