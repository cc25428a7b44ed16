"""``make accuracy``: errors by slice, and what it says of a change."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pandas as pd
import pytest

from evaluator.accuracy.cases import LOAD_NAMES
from evaluator.catalog import load_calibration, load_model
from evaluator.experiments import Experiment
from evaluator.experiments.experiment import MeasuredWorkload
from tests.benchmarks.accuracy import closed_batches, held_out, kernels, pictures, requests
from tests.benchmarks.accuracy.__main__ import CAMPAIGNS, QUICK, TABLES, main
from tests.benchmarks.accuracy.slices import by_slice, judged, kind_of, read, worse, write
from tests.benchmarks.pictures import LARGEST, PAGES

DATA = Path(os.environ.get("EVALUATOR_DATA", "../shared/data"))


def _table(**errors: list[float]) -> pd.DataFrame:
    parts = [
        judged("servers", [name] * len(values), "itl", 1 + pd.Series(values) / 100, pd.Series([1.0] * len(values)))
        for name, values in errors.items()
    ]
    return by_slice(pd.concat(parts))


def test_a_slice_has_its_errors_in_percent_and_survives_the_file(tmp_path: Path) -> None:
    table = _table(few=[-10.0, 0.0, 4.0], many=[20.0])
    assert table.loc[("servers", "few", "itl"), ["rows", "median_pct", "median_absolute_pct"]].tolist() == [3, 0, 4]
    assert table.loc[("servers", "few", "itl"), "mean_absolute_pct"] == pytest.approx(4.7)
    write(table, tmp_path / "deep" / "servers.csv")
    pd.testing.assert_frame_equal(read(tmp_path / "deep" / "servers.csv"), table)
    assert worse(table, table) == []


def test_what_became_worse_is_told() -> None:
    before = _table(small=[1.0], large=[-40.0], gone=[3.0], better=[9.0])
    after = _table(small=[1.4], large=[-41.5], better=[-2.0], new=[50.0])
    assert worse(before, after) == ["servers / gone / itl: no longer runs"]  # 0.4 points, and 1.5 of 40: as it was
    told = worse(before, _table(small=[-1.8], large=[-42.5], gone=[3.0], better=[9.0]))
    assert [line.split(":")[0] for line in told] == ["servers / large / itl"] * 2 + ["servers / small / itl"] * 2


def test_rows_without_a_measurement_are_of_no_slice() -> None:
    nothing = judged("servers", ["a", "a"], "itl", pd.Series([1.0, float("nan")]), pd.Series([1.0, 1.0]))
    assert len(nothing) == 1


def test_unknown_campaigns_and_folders_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (["nobody"], f"no campaign nobody; there are {', '.join(CAMPAIGNS)}"),
        (["iterations", "--data", str(tmp_path / "none")], "is no folder: name that of the measurements"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_every_campaign_has_a_table() -> None:
    for name in CAMPAIGNS:
        table = read(TABLES / f"{name}.csv")
        assert len(table) and table.index.is_unique and (table["rows"] > 0).all()


@pytest.mark.skipif(not (DATA / closed_batches.FILE).exists(), reason="EVALUATOR_DATA names no measurements")
@pytest.mark.parametrize("name", QUICK)
def test_slices_of_measurements_are_those_of_the_tables(name: str) -> None:
    """Which slices there are, and how many rows each has, does not hang on the model of the cost: one that ran and no
    longer runs fails here, of the slower campaigns in `make accuracy`."""
    found, known = by_slice(pd.concat(CAMPAIGNS[name](DATA))), read(TABLES / f"{name}.csv")
    assert [told for told in worse(known, found) if told.endswith("no longer runs")] == []
    assert found["rows"].to_dict() == known["rows"].to_dict()


def test_quick_campaigns_alone_and_what_no_longer_runs_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CAMPAIGNS, "mlperf", lambda _: iter([_row("mlperf", "here")]))
    monkeypatch.setattr("tests.benchmarks.accuracy.__main__.QUICK", ("mlperf",))
    asked = ["--quick", "--data", str(tmp_path), "--tables", str(tmp_path)]
    assert main([*asked, "--write"]) == 0
    assert main(asked) == 0
    assert "no slice is worse than it was" in capsys.readouterr().out
    monkeypatch.setitem(CAMPAIGNS, "mlperf", lambda _: iter([_row("mlperf", "elsewhere")]))
    assert main(asked) == 1
    assert "mlperf / here / itl: no longer runs" in capsys.readouterr().out


def _row(campaign: str, part: str) -> pd.DataFrame:
    return judged(campaign, [part], "itl", pd.Series([1.1]), pd.Series([1.0]))


@pytest.mark.skipif(not (DATA / kernels.FILE).exists(), reason="EVALUATOR_DATA names no measurements")
def test_kernels_are_judged_as_calibrate_judges_them() -> None:
    """All rows that were kept aside give the errors that stand in the set; the campaign takes a sample of them."""
    name = "mi300x-vllm"
    table = by_slice(pd.concat(kernels.rows(DATA, [name], every=1, most=None)))
    stated = load_calibration(name, "any", foreign=True).fit["errors"]["gemm_block"]["held_out"]
    row = table.loc[("kernels", "mi300x, vllm, gemm_block", "time")]
    assert row["rows"] == stated["rows"]
    assert row["median_absolute_pct"] == pytest.approx(100 * stated["median"], abs=0.06)
    sample = by_slice(pd.concat(kernels.rows(DATA, [name]))).loc[row.name]
    assert sample["rows"] == kernels.MOST
    assert sample["median_absolute_pct"] == pytest.approx(row["median_absolute_pct"], abs=0.7)


def test_servers_held_out_are_those_of_the_table_of_errors() -> None:
    table = by_slice(pd.concat(held_out.rows(DATA)))
    slices = {name.rsplit(", ", 1)[0] for _, name, _ in table.index}
    assert slices == set(held_out.PARTITIONS.values())


@pytest.mark.parametrize(("name", "kind"), [("llama-3.1-8b", "dense"), ("mixtral-8x7b", "experts")])
def test_kinds_of_models(name: str, kind: str) -> None:
    assert kind_of(load_model(name)) == kind


def test_a_request_that_gave_up_has_the_prompt_of_its_turn() -> None:
    workload = MeasuredWorkload("chat", (), 1, 2, 16, 40, 100)
    experiment = Experiment("1", "chat", "llama-3.1-8b", "H100", workload=workload)
    table = pd.DataFrame(
        {"arrival_s": [0.0, 1.0, 2.0, 3.0], "stage": 0, "prompt_tokens": [50, 70, None, 70], "output_tokens": 90}
    )
    load = requests.load_of(experiment, table)
    assert load.prompt_tokens.tolist() == [50, 70, 50, 70]
    assert load.output_tokens.tolist() == [100] * 4  # what was asked for: the client counts fewer
    assert load.compute_tokens.tolist() == [50, 54, 2, 6]  # the system prompt, then whole blocks of the same prompt


def test_the_page_of_errors_shows_every_picture_and_each_is_small() -> None:
    text = (PAGES / "errors.md").read_text(encoding="utf-8")
    for name in pictures.PICTURES:
        assert f"]({name})" in text and (PAGES / name).stat().st_size < LARGEST


def test_the_page_of_errors_has_the_figures_of_the_table() -> None:
    """The first three columns of what was held out: signed medians and mean absolute errors, up to 48 at a time."""
    text, table = (PAGES / "errors.md").read_text(encoding="utf-8"), read(TABLES / "held_out.csv")
    lines = text[text.index("| kept aside") :].split("\n\n")[0].splitlines()[2:]
    kept = ["runs", "other_layouts", "other_models", "other_devices", "transferred", "sheet_and_runs", "kernels"]
    for line, case in zip(lines, [*kept, "datasheet"], strict=True):
        part = f"{held_out.PARTITIONS[case]}, {LOAD_NAMES[0]} at a time"
        shown = [float(figure) for figure in re.findall(r"-?\d+(?:\.\d)?(?= ?[(%)])", line)]
        known = [
            table.loc[("servers, held out", part, metric), column]
            for metric in ("ttft_mean", "itl_mean", "e2e_mean")
            for column in ("median_pct", "mean_absolute_pct")
        ]
        assert shown == pytest.approx(known, abs=0.51)  # large ones in whole points
