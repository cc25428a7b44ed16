"""Variants of a plan in one call: as scenarios that were written with them, whatever the engine and the chunks."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from threading import Barrier, Event
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from evaluator.device import compilation_cache, configure
from evaluator.execution.schedule import Crew, chunks_of, computed, statistics_of
from evaluator.execution.workers import WorkerPool, _environment
from evaluator.keys import key, quantity
from evaluator.plan import plan
from evaluator.registry import Registry
from evaluator.run import sweep
from evaluator.simulation.summaries import summaries
from evaluator.stages import KINDS, Delay, StageKind, Work, register
from tests.execution.build import Interrupting
from tests.results.build import same
from tests.scenario.build import scenario

LEVELS = np.array([0.5, 0.9, 0.95, 0.99])
RATES = [2.0, 5.5, 11.0]
AXES = {"deployment__model": ["llama-3.1-8b", "llama-3.1-70b"], "deployment__tensor_parallel": [1, 2]}


def equal(values, ds):
    """To the bit, row by row."""
    for name in values:
        np.testing.assert_array_equal(values[name], np.asarray(ds[name]), err_msg=name)


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_members_at_other_rates_are_the_scenario_at_these_rates(simulator, monkeypatch):
    configure()
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 2)
    known = sweep(scenario(**AXES, workload__arrivals__rate_rps=RATES), simulator=simulator)
    whole = plan(scenario(**AXES), simulator=simulator)
    configurations = [configuration for configuration in whole.configurations for _ in RATES]
    equal(statistics_of(whole, whole.at_rates(configurations, RATES * len(whole.configurations)), LEVELS), known)


def test_variants_of_several_groups_keep_their_order():
    configure()
    fixed = "deployment.pipeline_parallel=2"
    axes = {"deployment__batching__planning": ["at_once", "queued"]}
    known = sweep(scenario(fixed, **axes, workload__arrivals__rate_rps=RATES))
    whole = plan(scenario(fixed, **axes))
    one, two = whole.configurations
    found = statistics_of(whole, whole.at_rates([one, two, two, one], [2.0, 11.0, 2.0, 5.5]), LEVELS)
    assert found["engine"].tolist() == ["iteration", "token", "token", "iteration"]
    equal(found, known.isel(config=[0, 5, 3, 1]))
    assert statistics_of(whole, [], LEVELS) == {}


def test_workers_make_the_same_variants(monkeypatch):
    whole = plan(scenario(deployment__tensor_parallel=[1, 2]), simulator="token")
    variants = whole.at_rates([*whole.configurations, *whole.configurations], [3.0, 4.0, 5.0, 6.0])
    here = statistics_of(whole, variants, LEVELS)
    monkeypatch.setattr("evaluator.execution.schedule.TOKEN_REQUESTS_PER_CHUNK", 120)
    asked = []
    compute = WorkerPool.compute
    monkeypatch.setattr(
        WorkerPool,
        "compute",
        lambda pool_of_workers, chunk: asked.append(len(chunk)) or compute(pool_of_workers, chunk),
    )
    equal(statistics_of(whole, variants, LEVELS), here)
    assert asked == [2, 2]


def of_workers(monkeypatch):
    """Worker processes for the compiled engine of a few small chunks, and how many rows each was asked for."""
    for name, value in {"WORTH_WORKERS": 0, "CONFIGS_PER_CHUNK": 2}.items():
        monkeypatch.setattr(f"evaluator.execution.schedule.{name}", value)
    asked, compute = [], WorkerPool.compute
    monkeypatch.setattr(WorkerPool, "compute", lambda pool, chunk: asked.append(len(chunk)) or compute(pool, chunk))
    return asked


def test_workers_of_the_compiled_engine_give_the_same_bits(monkeypatch):
    whole = plan(scenario(**AXES, workload__arrivals__rate_rps=RATES), simulator="iteration")
    asked = of_workers(monkeypatch)
    chunks = list(chunks_of(whole))
    here = [summaries(whole, chunk, LEVELS) for chunk in chunks]
    # The lock as if another thread computed here all the time.
    with closing(Crew(whole, chunks, LEVELS)) as crew, crew._here:
        for chunk, values in zip(chunks, here, strict=True):
            equal(crew.compute(chunk), values)
    assert len(asked) == len(chunks) - 1


def test_what_is_compiled_here_is_not_compiled_by_workers_at_the_same_time(monkeypatch):
    """The first chunk of each program runs here, whoever else could, and one thread beside the workers after that."""
    monkeypatch.setattr("evaluator.execution.schedule.processors", lambda: 4)
    whole = plan(scenario(**AXES, workload__arrivals__rate_rps=np.linspace(1.0, 9.0, 6).tolist()))
    asked = of_workers(monkeypatch)
    monkeypatch.setattr(WorkerPool, "compute", lambda pool, chunk: asked.append(chunk[0].config))
    here = []
    monkeypatch.setattr("evaluator.execution.schedule.summaries", lambda plan, chunk, levels: here.append(chunk))
    chunks = list(chunks_of(whole))
    with closing(Crew(whole, chunks, LEVELS)) as crew, crew._here:  # another thread computes here
        for chunk in chunks:
            crew.compute(chunk)
    assert [chunk[0].config for chunk in here] == [0]
    assert asked == [chunk[0].config for chunk in chunks[1:]]


def test_threads_wait_for_the_program_of_another_and_then_ask_workers(monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.processors", lambda: 4)
    whole = plan(scenario(workload__arrivals__rate_rps=np.linspace(1.0, 9.0, 8).tolist()), simulator="iteration")
    of_workers(monkeypatch)
    told, asked = [], Event()

    def here(whole, chunk, levels):
        told.append("begun here")
        if len(told) == 1:
            time.sleep(0.3)  # enough for the other threads to come, which ask nobody until this one is done
        else:
            assert asked.wait(timeout=60)  # the workers get chunks while this thread computes
        told.append("done here")

    monkeypatch.setattr("evaluator.execution.schedule.summaries", here)
    monkeypatch.setattr(WorkerPool, "compute", lambda pool, chunk: told.append("asked") or asked.set())
    chunks = list(chunks_of(whole))
    assert len(list(computed(whole, chunks, LEVELS, set()))) == len(chunks) == 4
    assert told[:2] == ["begun here", "done here"] and "asked" in told


def test_programs_are_compiled_side_by_side(monkeypatch):
    monkeypatch.setattr("evaluator.execution.schedule.processors", lambda: 2)
    whole = plan(scenario(deployment__batching__long_prefill_token_threshold=[0, 64]), simulator="iteration")
    of_workers(monkeypatch)
    both = Barrier(2)
    monkeypatch.setattr("evaluator.execution.schedule.summaries", lambda plan, chunk, levels: both.wait(timeout=60))
    chunks = list(chunks_of(whole))
    assert len(list(computed(whole, chunks, LEVELS, set()))) == len(chunks) == 2


def test_an_interrupted_sweep_on_workers_of_the_compiled_engine_goes_on(monkeypatch, tmp_path):
    small, out = scenario(workload__arrivals__rate_rps=np.linspace(1.0, 9.0, 9).tolist()), tmp_path / "x.nc"
    here = sweep(small)
    of_workers(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        sweep(small, out=out, progress=Interrupting(), simulator="iteration")
    again = Interrupting(after=99)
    same(sweep(small, out=out, progress=again, simulator="iteration"), here)
    assert again.kept >= 1


def test_what_only_this_process_knows_is_computed_here(monkeypatch):
    whole = plan(scenario(workload__arrivals__rate_rps=RATES))
    asked = of_workers(monkeypatch)
    monkeypatch.setattr("evaluator.execution.schedule.ROUTERS", SimpleNamespace(own=True))
    statistics_of(whole, whole.configurations, LEVELS)
    assert not asked


def test_workers_know_what_jax_was_told_by_the_program(monkeypatch, tmp_path):
    configure()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(compilation_cache()))
        ours = _environment()
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        assert _environment() == ours | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert ours["JAX_PLATFORMS"] == "cpu" and "JAX_COMPILATION_CACHE_DIR" not in ours


def test_a_stage_of_ones_own_is_computed_here(monkeypatch):
    @dataclass(frozen=True)
    class Waits:
        """A class that no other process could import."""

        seconds: float = key(quantity("s", above=0), 0.1, "Its time.")

    kinds = Registry("stage", KINDS.values())
    for module in ("stages", "scenario.pipeline", "execution.schedule"):
        monkeypatch.setattr(f"evaluator.{module}.KINDS", kinds)
    register(StageKind("waits", Waits, lambda waits, visit: Work((Delay(waits.seconds),))))
    pipeline = "pipeline=[{stage: waits}, {stage: prefill}, {stage: decode}]"
    whole = plan(scenario(pipeline, workload__arrivals__rate_rps=RATES), simulator="iteration")
    asked = of_workers(monkeypatch)
    assert statistics_of(whole, whole.configurations, LEVELS)["engine"].tolist() == ["iteration"] * 3
    assert not asked


def test_there_is_a_chunk_for_each_processor(monkeypatch):
    configure()
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 8)
    whole = plan(scenario())
    variants = whole.at_rates(list(whole.configurations) * 19, list(np.linspace(1.0, 10.0, 19)))
    assert [len(chunk) for chunk in chunks_of(whole, variants)] == [5, 5, 5, 4]  # an even number of them
    assert [len(chunk) for chunk in chunks_of(whole, variants, 2)] == [5, 5, 5, 4]
    assert [len(chunk) for chunk in chunks_of(whole, variants[:5], 2)] == [3, 2]
    assert [len(chunk) for chunk in chunks_of(whole, variants[:1], 2)] == [1]
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 3)
    assert [len(chunk) for chunk in chunks_of(whole, variants[:13])] == [3, 2, 2, 2, 2, 2]
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 2)
    assert [len(chunk) for chunk in chunks_of(whole, variants[:6])] == [2, 1, 2, 1]


def test_chunks_with_programs_of_their_own_are_begun_first(monkeypatch):
    """Threads that all took the first group's chunks would wait for one program, and then for the next."""
    monkeypatch.setattr("evaluator.execution.schedule.CONFIGS_PER_CHUNK", 1)
    monkeypatch.setattr("evaluator.execution.schedule.processors", lambda: 1)
    begun = []
    monkeypatch.setattr(
        "evaluator.execution.schedule.summaries", lambda whole, chunk, levels: begun.append(chunk[0].config)
    )
    general = {"deployment__batching__long_prefill_token_threshold": [0, 64]}
    whole = plan(scenario(**general, workload__arrivals__rate_rps=RATES))
    chunks = list(chunks_of(whole))
    assert [chunk[0].config for chunk in chunks] == [0, 1, 2, 3, 4, 5]
    assert {index for index, _ in computed(whole, chunks, LEVELS, set())} == set(range(6))
    # The general program takes longest to compile; the others follow in their order.
    assert begun == [3, 0, 1, 2, 4, 5]
    begun.clear()
    # An interrupted run goes on with what is left.
    assert {index for index, _ in computed(whole, chunks, LEVELS, {0, 3})} == {1, 2, 4, 5}
    assert begun == [4, 1, 2, 5]


def test_chunks_of_large_runs_are_larger_and_have_the_same_results(monkeypatch):
    configure()
    whole = plan(scenario("workload.requests=200", workload__arrivals__rate_rps=np.linspace(1.0, 9.0, 12).tolist()))
    monkeypatch.setattr("evaluator.execution.schedule.REQUESTS_PER_CHUNK", 600)
    assert [len(chunk) for chunk in chunks_of(whole)] == [3] * 4
    found = statistics_of(whole, whole.configurations, LEVELS)
    monkeypatch.setattr("evaluator.execution.schedule.MANY_CHUNKS", 2)
    assert [len(chunk) for chunk in chunks_of(whole)] == [6] * 2
    again = statistics_of(whole, whole.configurations, LEVELS)
    for name, values in found.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
