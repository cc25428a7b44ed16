"""A row per iteration: they tile the time of each replica, and their tokens are those of the requests."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluator.errors import InputError
from evaluator.results.iterations import write_iterations
from evaluator.run import simulate
from tests.scenario.build import scenario

TIGHT = ("deployment.kv.admission=on_demand", "deployment.kv.capacity_tokens=6400", "workload.arrivals.rate_rps=40")


@pytest.fixture(scope="module")
def one():
    return simulate(scenario("deployment.replicas=2", "workload.seeds=[0, 1]", *TIGHT), iterations=True)


def test_iterations_of_a_replica_follow_one_another(one):
    for _, rows in one.iterations.groupby(["seed", "pool", "replica"]):
        ends = rows["start_s"] + rows["duration_s"]
        assert (rows["duration_s"] > 0).all()
        assert (rows["start_s"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all()


def test_tokens_are_those_of_the_requests(one):
    """Each prompt is computed once, and each output token but the last; what was preempted more than once."""
    table = one.iterations
    tokens: dict[tuple[int, int], int] = {}
    for seed, requests, counts in zip(table["seed"], table["requests"], table["tokens"], strict=True):
        for request, count in zip(requests, counts, strict=True):
            tokens[seed, request] = tokens.get((seed, request), 0) + count
    preempted = {
        (seed, request) for seed, gone in zip(table["seed"], table["preempted"], strict=True) for request in gone
    }
    assert preempted
    for row in one.requests.itertuples():
        least = row.prompt_tokens + row.output_tokens - 1
        found = tokens[row.seed, row.request]
        assert found > least if (row.seed, row.request) in preempted else found == least


def test_requests_are_first_scheduled_where_the_table_says(one):
    table = one.iterations
    first: dict[tuple[int, int], float] = {}
    for seed, start, requests in zip(table["seed"], table["start_s"], table["requests"], strict=True):
        for request in requests:
            first.setdefault((seed, request), start)
    found = [first[row.seed, row.request] for row in one.requests.itertuples()]
    np.testing.assert_allclose(found, one.requests["scheduled_s"], rtol=1e-12)


def test_kv_in_use_is_that_of_the_summary(one):
    used = one.iterations.groupby("seed")["kv_units"].max()
    assert used.max() <= 6400 // 16
    assert one.summary["preemptions"].item() == pytest.approx(
        one.iterations["preempted"].map(len).groupby(one.iterations["seed"]).sum().mean()
    )


def test_written_as_csv_and_parquet(one, tmp_path):
    for name, read in (("it.csv", pd.read_csv), ("it.parquet", pd.read_parquet)):
        again = read(write_iterations(one.iterations, tmp_path / name))
        assert list(again.columns) == list(one.iterations.columns) and len(again) == len(one.iterations)
    row = pd.read_csv(tmp_path / "it.csv", keep_default_na=False)["requests"][5]
    assert [int(each) for each in str(row).split()] == one.iterations["requests"][5]


def test_none_unless_asked_for_and_none_of_the_request_level():
    assert simulate(scenario()).iterations is None
    with pytest.raises(InputError, match="iterations are what simulator request does not compute"):
        simulate(scenario(), iterations=True, simulator="request")
