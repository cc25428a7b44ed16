"""``make accuracy``: errors by slice, and what it says of a change."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from tests.benchmarks.accuracy import closed_batches, iterations, mlperf
from tests.benchmarks.accuracy.__main__ import CAMPAIGNS, TABLES, main
from tests.benchmarks.accuracy.slices import by_slice, judged, read, worse, write

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
        (["nobody"], "no campaign nobody; there are closed_batches, iterations, mlperf, servers"),
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
def test_slices_of_measurements_are_those_of_the_tables() -> None:
    """Which slices there are, and how many rows each has, does not hang on the model of the cost."""
    for name, campaign in (("closed_batches", closed_batches), ("iterations", iterations), ("mlperf", mlperf)):
        found, known = by_slice(pd.concat(campaign.rows(DATA))), read(TABLES / f"{name}.csv")
        assert found["rows"].to_dict() == known["rows"].to_dict()
