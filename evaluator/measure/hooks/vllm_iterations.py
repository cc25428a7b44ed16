"""Records the iterations of a vLLM server as rows that ``evaluator calibrate`` takes. Needs nothing but vLLM.

    PYTHONPATH=FOLDER_OF_THIS_FILE RECORD_ITERATIONS=iterations.csv RECORD_MODEL=my-model \
        vllm serve ... --no-async-scheduling --scheduler-cls vllm_iterations.RecordingScheduler

A row is the time from one call of the scheduler to the next while the server has work: the model, sampling, and the
host's share of the loop. With asynchronous scheduling a call comes before the batch before it has ended, and the times
would be of no one batch: such a server is refused. Written for vLLM's V1 engine, tried with 0.28.0.
"""

from __future__ import annotations

import os
import time
from typing import Any

import vllm
from vllm.v1.core.sched.scheduler import Scheduler

COLUMNS = ("op_class", "model", "tensor_parallel", "prompts", "prompt_tokens", "past_tokens", "decodes", "context",
           "time_s", "start_s", "engine", "engine_version")  # fmt: skip


class RecordingScheduler(Scheduler):
    """vLLM's own scheduler, which notes what it schedules and when it is asked again."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        config = self.vllm_config
        if config.scheduler_config.async_scheduling:
            raise ValueError("iterations are recorded without asynchronous scheduling; add --no-async-scheduling")
        served = config.model_config.served_model_name
        model = os.environ.get("RECORD_MODEL") or (served[0] if isinstance(served, list) else served)
        self._head = ("iteration", model, config.parallel_config.tensor_parallel_size)
        # Without the local part of a build (`+cu129`): the release is what a calibration knows.
        self._tail = ("vllm", vllm.__version__.partition("+")[0])
        # Line by line: vLLM ends this process by a signal, so that what was not written yet would be lost.
        self._file = open(os.environ.get("RECORD_ITERATIONS", "iterations.csv"), "w", buffering=1)  # noqa: SIM115
        print(*COLUMNS, sep=",", file=self._file)
        self._batch: tuple[float, ...] | None = None
        self._start_s = 0.0

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """What vLLM schedules; the batch before has ended when this is called."""
        now_s = time.perf_counter()
        self._write(now_s)
        output = super().schedule(*arguments, **named)
        self._batch, self._start_s = batch_of(output), now_s
        return output

    def update_from_output(self, *arguments: Any, **named: Any) -> Any:
        """What vLLM makes of a batch's tokens."""
        outputs = super().update_from_output(*arguments, **named)
        # With nobody left the next call waits for a request, which is no part of this iteration.
        if not (self.running or self.waiting):
            self._write(time.perf_counter())
        return outputs

    def shutdown(self) -> None:
        """Closes the file, where the server ends in order."""
        super().shutdown()
        self._file.close()

    def _write(self, now_s: float) -> None:
        if self._batch is not None:
            numbers = [f"{value:.6g}" for value in self._batch]
            times = [f"{now_s - self._start_s:.6f}", f"{self._start_s:.6f}"]
            print(*self._head, *numbers, *times, *self._tail, sep=",", file=self._file)
            # So that a batch is written once, whichever of the two calls ends it.
            self._batch = None


def batch_of(output: Any) -> tuple[float, ...] | None:
    """(prompts, tokens of each, tokens before each, decodes, tokens that each attends to), means; None: an empty batch.

    ``output`` is vLLM's ``SchedulerOutput``, whose computed tokens are those before this batch.
    """
    tokens = output.num_scheduled_tokens
    if not tokens:
        return None
    prompts = [(tokens[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    contexts = []
    cached = output.scheduled_cached_reqs
    for request, computed, answered in zip(
        cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True
    ):
        # A preempted request computes its prompt and what it had answered anew: that is a prompt.
        if answered == 0 or tokens[request] > 1:
            prompts.append((tokens[request], computed))
        else:
            # The token that it computes is in its context, too.
            contexts.append(computed + 1)
    count = len(prompts)
    new, before = (sum(values) / count for values in zip(*prompts, strict=True)) if prompts else (0.0, 0.0)
    return count, new, before, len(contexts), sum(contexts) / len(contexts) if contexts else 0.0
