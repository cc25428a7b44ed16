import numpy as np
import pandas as pd
import pytest

from evaluator.errors import InputError
from evaluator.results import write_requests
from evaluator.results.requests import requests_table
from tests.metrics.build import changed, outcomes


def test_one_row_per_request(tmp_path):
    o = outcomes(configs=2, seeds=2, requests=30, warmup=5)
    replica = np.arange(30) % 3 * np.ones((2, 2, 1), dtype=int)
    o = changed(o, replica=replica, status=np.array(["ok", "infeasible: x"]))
    table = requests_table(o, configs=[7, 8], seeds=[10, 11])
    assert len(table) == 60
    assert set(table["config"]) == {7}
    assert list(table.columns) == [
        *("config", "seed", "request", "replica", "arrival_s", "scheduled_s", "first_token_s", "last_token_s"),
        *("queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "prompt_tokens", "output_tokens", "cached_tokens", "measured"),
    ]
    row = table.iloc[41]
    assert (row["seed"], row["request"], row["replica"]) == (11, 11, 2)
    assert row["ttft_s"] == pytest.approx(o.times.first_token_s[0, 1, 11] - o.times.arrival_s[0, 1, 11])
    for name in ("a.csv", "a.parquet"):
        path = write_requests(table, tmp_path / name)
        back = pd.read_csv(path) if name.endswith("csv") else pd.read_parquet(path)
        pd.testing.assert_frame_equal(back, table)


def test_other_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"unknown kind of table '\.xlsx'; use \.csv or \.parquet"):
        write_requests(pd.DataFrame(), tmp_path / "a.xlsx")
