"""vLLM's schedulers of a prefill and a decode side, with a connector whose transfers take the time that a case says.

The connector answers as NIXL's does (``NixlConnectorScheduler``): the prefill side keeps the blocks of a prompt until
the decode side has them, which asks for all tokens of a prompt that it has not and loads them beside its iterations.
What a transfer is done with is told between iterations, at once where a side idles.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from tests.oracle.cases import Case, Log, Step, apart
from tests.oracle.vllm_engine import Engine, iteration_ticks


class _Connector:
    """The scheduler's half of a connector; what is asked for beside this is answered with nothing."""

    def __init__(self, decodes: bool) -> None:
        self.decodes = decodes
        self.loads: list[tuple[int, int]] = []  # requests that have got blocks for a prompt to come, tokens of it
        self.found: dict[int, int] = {}  # by request: tokens that its own cache had then, until it is admitted
        self._asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        # Only once: who is preempted later computes its prompt itself.
        if not self.decodes or request.request_id in self._asked:
            return 0, False
        return request.num_prompt_tokens - computed, True

    def update_state_after_alloc(self, request: Request, blocks: Any, external: int) -> None:
        self._asked.add(request.request_id)
        if external:
            self.loads.append((int(request.request_id), external))
            self.found[int(request.request_id)] = request.num_prompt_tokens - external

    def request_finished(self, request: Request, blocks: Any) -> tuple[bool, None]:
        return not self.decodes, None

    def has_pending_push_work(self) -> bool:
        return False


class _Side:
    def __init__(self, case: Case, blocks: int, decodes: bool) -> None:
        self.engine, self.connector, self.decodes = Engine(case, blocks), _Connector(decodes), decodes
        self.engine.scheduler.connector = self.connector
        self.under_way: tuple[Any, dict[str, int], int] | None = None
        self.steps: list[Step] = []

    def finish(self, now: int) -> list[int]:
        """The iteration under way ends: the requests that are done with it."""
        assert self.under_way is not None
        output, given, _ = self.under_way
        self.under_way = None
        before = {name for name in given if not self.engine.requests[name].is_finished()}
        self.engine.update(output, given, now)
        return sorted(int(name) for name in before if self.engine.requests[name].is_finished())

    def transferred(self, request: int) -> None:
        """The prompt of a request has been sent, or has come."""
        names = {str(request)}
        told = KVConnectorOutput(finished_recving=names) if self.decodes else KVConnectorOutput(finished_sending=names)
        self.engine.scheduler._update_from_kv_xfer_finished(told)

    def begin(self, now: int) -> None:
        """The next iteration, if there is anything to do."""
        while True:
            preempted = len(self.engine.preempted)
            output = self.engine.scheduler.schedule()
            given = self.engine.samples(output)
            if output.total_num_scheduled_tokens:
                end = now + iteration_ticks(output)
                self.under_way = output, given, end
                step = self.engine.step(output, now, end)
                # What is found is what its own cache has, not what has been sent to it.
                found = tuple((index, self.connector.found.pop(index, tokens)) for index, tokens in step.cached)
                self.steps.append(Step(now, end, step.tokens, step.preempted, found, step.free_blocks))
                return
            self.engine.update(output, given, now)
            if len(self.engine.preempted) == preempted:
                return  # where some were preempted, another look may admit them


def serve(case: Case) -> Log:
    """All iterations of both sides. Errors: RuntimeError where requests never finish."""
    prefill, decode = _Side(case, case.prefill_blocks, False), _Side(case, case.blocks, True)
    sides = (prefill, decode)
    arriving = sorted(range(len(case.requests)), key=lambda index: case.requests[index].arrival_ticks)
    computed: list[int] = []
    under_way: list[tuple[int, int]] = []  # (end, request)
    pending_ends: list[tuple[bool, int]] = []  # transfers that a side under way has not been told of
    link_free = 0
    while True:
        times = [side.under_way[2] for side in sides if side.under_way] + [end for end, _ in under_way]
        times += [case.requests[arriving[0]].arrival_ticks] if arriving else []
        if not times:
            break
        now = min(times)
        ended = [side for side in sides if side.under_way and side.under_way[2] <= now]
        computed = prefill.finish(now) if prefill in ended else []
        if decode in ended:
            decode.finish(now)
        # Of those that end together the first to begin: blocks that come free together are forgotten in this order.
        for transfer in sorted((each for each in under_way if each[0] <= now), key=lambda each: each[0]):
            under_way.remove(transfer)
            pending_ends += [(False, transfer[1]), (True, transfer[1])]
        for decodes, request in list(pending_ends):
            if sides[decodes].under_way is None:
                sides[decodes].transferred(request)
                pending_ends.remove((decodes, request))
        while arriving and case.requests[arriving[0]].arrival_ticks <= now:
            prefill.engine.submit(arriving.pop(0), output_tokens=1)
        for request in computed:
            decode.engine.submit(request)
        for side in sides:
            if side.under_way is None:
                side.begin(now)
        for request, tokens in decode.connector.loads:
            start = max(now, link_free) if case.one_by_one else now
            link_free = start + tokens * case.transfer_ticks
            under_way.append((link_free, request))
        decode.connector.loads = []
    if min(decode.engine.last) < 0:
        raise RuntimeError(f"{case.feature} {case.seed}: requests never finish")
    return apart([prefill.steps, decode.steps], tuple(decode.engine.first), tuple(decode.engine.last))
