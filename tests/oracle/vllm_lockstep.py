"""Data-parallel ranks of a model with experts, without processes: vLLM's ``DPEngineCoreProc.run_busy_loop``.

Every rank has a scheduler. A step of the loop is one of all ranks, which wait for one another in the experts; one with
nothing to do runs a dummy batch. Whether anybody has work left they ask one another as vLLM's own
``_has_global_unfinished_reqs`` does. Requests go to the ranks in turns.
"""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

from vllm.v1.engine import core

from tests.oracle.cases import Case, Log, Step
from tests.oracle.vllm_engine import Engine, iteration_ticks


def serve(case: Case) -> Log:
    """All iterations of all ranks, in the order in which they start. Dummy batches are none."""
    ranks = [Engine(case) for _ in range(case.data_parallel)]
    counter = SimpleNamespace(step_counter=0, vllm_config=None, dp_group=None, pending_pause=False)
    steps: list[Step] = []
    now, waiting = 0, sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks)
    running = True
    while running:
        while waiting and case.requests[waiting[0]].arrival_ticks <= now:
            index = waiting.pop(0)
            ranks[index % len(ranks)].submit(index)
        planned = [(rank, rank.scheduler.schedule()) for rank in ranks if rank.scheduler.has_requests()]
        given = [rank.samples(output) for rank, output in planned]
        sent = [(rank, output) for rank, output in planned if output.total_num_scheduled_tokens]
        # A dummy batch of all ranks takes an iteration of no tokens; it is none of the log.
        end = now + max((iteration_ticks(output) for _, output in sent), default=64)
        steps += [rank.step(output, now, end) for rank, output in sent]
        for (rank, output), tokens in zip(planned, given, strict=True):
            rank.update(output, tokens, end)
        now = end
        unfinished = any(rank.scheduler.has_unfinished_requests() for rank in ranks)
        with mock.patch.object(
            core.ParallelConfig, "sync_dp_state", lambda *_, has_unfinished, **__: (has_unfinished, 0)
        ):
            running = core.DPEngineCoreProc._has_global_unfinished_reqs(counter, unfinished)
    assert not waiting, "a request came when nobody had any"
    # Of each request one rank knows the times, the others have -1.
    first = (max(at) for at in zip(*(rank.first for rank in ranks), strict=True))
    last = (max(at) for at in zip(*(rank.last for rank in ranks), strict=True))
    return Log(tuple(steps), tuple(first), tuple(last))
