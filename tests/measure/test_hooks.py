"""The recorder of vLLM's iterations, on a scheduler that stands in for vLLM's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import evaluator
from evaluator.calibrate.table import read_table

HOOK = Path(evaluator.__path__[0]) / "measure" / "hooks" / "vllm_iterations.py"


class Scheduler:
    """What the recorder needs of vLLM's: batches that a test says, and who is left behind them."""

    def __init__(self, config):
        self.vllm_config, self.running, self.waiting = config, [], []

    def schedule(self, throttle_prefills=False):
        return self.batch

    def update_from_output(self, output, tokens):
        return {0: tokens}

    def shutdown(self):
        pass


def batch(new=(), cached=()):
    """``new``: (request, tokens, computed before); ``cached``: the same and the tokens that it has answered."""
    return SimpleNamespace(
        num_scheduled_tokens={request: tokens for request, tokens, *_ in (*new, *cached)},
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=before) for name, _, before in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[each[0] for each in cached], num_computed_tokens=[each[2] for each in cached],
            num_output_tokens=[each[3] for each in cached],
        ),
    )  # fmt: skip


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    names = ["vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.scheduler"]
    modules = {name: ModuleType(name) for name in names}
    modules["vllm"].__version__ = "0.28.0+cpu"
    modules[names[-1]].Scheduler = Scheduler
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("RECORD_ITERATIONS", str(tmp_path / "iterations.csv"))
    monkeypatch.delenv("RECORD_MODEL", raising=False)
    spec = importlib.util.spec_from_file_location("vllm_iterations", HOOK)
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    clock = iter(range(1, 100))
    monkeypatch.setattr(hook.time, "perf_counter", lambda: float(next(clock)))
    return hook


def config(asynchronous=False, served="qwen3-8b"):
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        model_config=SimpleNamespace(served_model_name=served),
        parallel_config=SimpleNamespace(tensor_parallel_size=2),
    )


def test_rows_are_batches_with_the_time_to_the_next_and_calibrate_reads_them(recorder, tmp_path):
    scheduler = recorder.RecordingScheduler(config())
    scheduler.running = ["a"]
    for scheduler.batch in (
        batch(new=[("a", 100, 0), ("b", 50, 32)]),
        batch(new=[("c", 10, 0)], cached=[("a", 1, 100, 1), ("b", 1, 82, 1)]),
        batch(cached=[("a", 1, 101, 2), ("b", 84, 0, 2)]),  # b was preempted: all of it is computed anew
        batch(),  # nothing to compute: no iteration
        batch(cached=[("a", 1, 102, 3)]),
    ):
        output = scheduler.schedule()
        assert scheduler.update_from_output(output, "tokens") == {0: "tokens"}
    scheduler.running = []
    scheduler.update_from_output(output, "tokens")  # the last one ends with its answer, not with the next request
    scheduler.schedule()
    scheduler.shutdown()
    rows = read_table(tmp_path / "iterations.csv").rows
    columns = ["prompts", "prompt_tokens", "past_tokens", "decodes", "context", "time_s"]
    assert rows[columns].to_numpy().tolist() == [
        [2, 75, 16, 0, 0, 1], [1, 10, 0, 2, 92, 1], [1, 84, 0, 1, 102, 1], [0, 0, 0, 1, 103, 1],
    ]  # fmt: skip
    assert (rows["tensor_parallel"] == 2).all() and rows["model"].unique().tolist() == ["qwen3-8b"]
    assert rows["engine_version"].unique().tolist() == ["0.28.0"]


def test_a_server_that_plans_ahead_is_refused_and_a_model_may_be_named(recorder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="add --no-async-scheduling"):
        recorder.RecordingScheduler(config(asynchronous=True))
    monkeypatch.setenv("RECORD_MODEL", "mine")
    scheduler = recorder.RecordingScheduler(config(served=["a", "b"]))
    scheduler.batch = batch(new=[("a", 3, 0)])
    scheduler.schedule()
    scheduler.update_from_output(scheduler.batch, "tokens")
    scheduler.shutdown()
    assert ",mine,2," in (tmp_path / "iterations.csv").read_text()
