"""A sweep in shards: the same rows bit for bit as in one run."""

from __future__ import annotations

import pytest

from evaluator import results
from evaluator.errors import InputError
from evaluator.results.gather import gather
from evaluator.results.shards import Shard, ShardState
from evaluator.run import sweep, sweep_shard
from tests.execution.build import Interrupting
from tests.results.build import same
from tests.scenario.build import scenario


@pytest.mark.parametrize("count", [1, 3, 5])
def test_shards_are_the_single_run_bit_for_bit(grid, swept, count, tmp_path):
    """In any order, one of them interrupted and gone on with; of five the last has no rows."""
    out = tmp_path / "a.zarr"
    shards = [Shard(number, count) for number in range(count, 0, -1)]
    with pytest.raises(KeyboardInterrupt):
        sweep_shard(grid, shards[-1], out, progress=Interrupting())
    for shard in shards[1:]:
        assert sweep_shard(grid, shard, out, command="sweep --shard {shard}") is ShardState.COMPUTED
    if count > 1:
        found = gather(out)
        assert (found.missing, found.commands) == ((shards[0],), (f"sweep --shard {count}/{count}",))
        assert not out.exists()
    assert sweep_shard(grid, shards[0], out) is ShardState.COMPUTED
    assert sweep_shard(grid, shards[0], out) is ShardState.WRITTEN
    assert gather(out).missing == ()
    back = results.read(out)
    same(back, swept)
    assert len(back.attrs.pop("sweep_fingerprint")) == 64
    assert {name: text for name, text in back.attrs.items() if name != "created"} == {
        name: text for name, text in swept.attrs.items() if name != "created"
    }
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_a_shard_of_a_gathered_sweep_is_not_computed_again(tmp_path):
    out, one = tmp_path / "a.zarr", scenario(workload__arrivals__rate_rps=[1, 2])
    for number in (1, 2):
        sweep_shard(one, Shard(number, 2), out)
    gather(out)
    for shard in (Shard(1, 2), Shard(3, 5)):
        assert sweep_shard(one, shard, out, progress=Interrupting()) is ShardState.GATHERED
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]
    assert sweep_shard(one, Shard(1, 2), out, fresh=True) is ShardState.COMPUTED
    other = scenario(workload__arrivals__rate_rps=[1, 3])
    assert sweep_shard(other, Shard(1, 2), out) is ShardState.COMPUTED


def test_the_command_says_what_became_of_a_shard(evaluator, tmp_path):
    out = tmp_path / "a.zarr"
    asked = ("sweep", "policies", "--set", "sweep=null", "--set", "workload.requests=60", "--out", out)
    begin, end = f"shard 1/1 of {out}: ", f". When all are there: evaluator gather {out}\n"
    code, _, told = evaluator(*asked, "--shard", "1/1")
    assert code == 0 and told.endswith(f"{begin}wrote 1 designs{end}")
    code, _, told = evaluator(*asked, "--shard", "1/1")
    assert code == 0 and told.endswith(f"{begin}was written before; --fresh computes it anew{end}")
    assert evaluator("gather", out)[0] == 0
    code, _, told = evaluator(*asked, "--shard", "1/1")
    assert code == 0
    assert told.endswith(f"{out}: is there already and whole, with shard 1/1; --fresh computes it anew\n")


def test_shards_of_another_scenario_are_another_sweep(grid, tmp_path):
    out = tmp_path / "a.zarr"
    few = scenario(workload__arrivals__rate_rps=[1, 2])
    sweep_shard(few, Shard(1, 2), out)
    sweep_shard(scenario(workload__arrivals__rate_rps=[1, 3]), Shard(2, 2), out)
    assert [shard.number for shard in gather(out).missing] in ([1], [2])
    sweep_shard(few, Shard(2, 2), out)
    assert gather(out).missing == ()
    assert results.read(out)["rate_rps"].values.tolist() == [1, 2]


def test_what_the_reference_computed_is_told_of_all_shards(tmp_path):
    axes = {"deployment__kv__preemption": ["recompute", "swap"], "deployment__replicas": [1, 2]}
    mixed = scenario("deployment.kv={admission: on_demand, swap_bandwidth: 25GB/s}", **axes)
    for number in (1, 2):
        sweep_shard(mixed, Shard(number, 2), tmp_path / "a.zarr")
    gather(tmp_path / "a.zarr")
    note = results.read(tmp_path / "a.zarr").attrs.get("engine_note")
    assert note == sweep(mixed).attrs.get("engine_note")


def test_shards_are_written_as_zarr(grid, tmp_path):
    with pytest.raises(InputError, match=r"a\.nc: shards are put together as Zarr; choose an --out that ends"):
        sweep_shard(grid, Shard(1, 2), tmp_path / "a.nc")
