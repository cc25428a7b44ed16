"""Few shapes for the programs that tests compile: what one has no need of, it may have.

Scenarios of tests differ in the length of their answers, in the number of their requests and in the operators whose
times are rows of the cost. Each such difference would be a program of its own, which takes seconds to compile. So
programs get the sizes of the next larger shape, as the smaller designs of a sweep do.
"""

from __future__ import annotations

from dataclasses import replace

from evaluator.plan import StationGroup

RINGS, RINGS_TOGETHER, SLOTS, BRANCHES = (4096,), (1024, 4096), (2048, 8192, 32_768), (8,)
"""Steps of a ring, of one replica or of several that run together, which clear a ring each; requests of a lane and
branches of a request. Beyond these a size stays as it is."""
LANES = 32
"""Lanes of a call, as sweeps have them: a comparison has one for each of its seeds, and would have other programs."""
CACHE_CELLS = 32_768
"""Blocks of a prefix cache, and names of their contents: as many as the largest of these tests needs."""
CACHES, QUEUES = 4, 32
"""Caches of a program for several replicas, and queues of stages."""
TOKENS, EXPERTS, RAMPS = (12,), (5,), (2,)
"""Rows of operators whose time grows with the tokens, of routed experts, and of collectives that grow with their
messages."""


def in_few_shapes(group: StationGroup) -> StationGroup:
    """The same structure with room for more, so that programs of different designs are one."""
    key, rows = group.key, group.rows
    if key.pools > 1:  # their structures are as many as their tests
        return group
    # Replicas that run together may be in lockstep, where the program for that has all that theirs needs.
    by_themselves = (
        key.cached, key.session_turns, key.scales, key.asynchronous, key.drafts, key.swapping, key.token_ratio,
        key.kv_manager, key.priorities, key.sheds, key.stages, key.pipeline_ranks > 1,
    )  # fmt: skip
    lockstep = key.lockstep or (key.replicas > 1 and not any(by_themselves))
    # Windows and experts come together or not at all, which leaves two programs of four; with branches, drafts or
    # lockstep, which few tests have, they always do.
    both = key.windowed or rows.expert_rows > 0 or key.branches > 1 or key.drafts > 0 or lockstep
    if rows.token_rows:  # a roofline: fitted costs have no rows
        one = {name: max(getattr(rows, name), 1) for name in ("sequence_rows", "prefill_rows", "beside_rows")}
        one |= {"token_rows": _next(rows.token_rows, TOKENS), "ramp_rows": _next(rows.ramp_rows, RAMPS)}
        rows = rows._replace(**one)
        if both:
            rows = rows._replace(
                expert_rows=_next(rows.expert_rows, EXPERTS),
                expert_ramp_rows=_next(rows.expert_ramp_rows, RAMPS),
                prefill_window_rows=max(rows.prefill_window_rows, 1),
            )
    # Who thinks between requests has a calendar of answers, and needs no frontend.
    frontend = key.frontend or (key.replicas > 1 and not key.session_turns)
    # What routers may see of KV within a leap takes a fifth of a program, with prefix caches more.
    kv_seen = key.kv_seen or (key.replicas > 1 and not key.cached)
    branches = _next(key.branches, BRANCHES) if key.branches > 1 else 1
    wider = {"windowed": both, "lockstep": lockstep, "branches": branches, "frontend": frontend, "kv_seen": kv_seen}
    # Moves that some designs need have next to no code of their own in a program that has the others. Pipelines that
    # need no more than to admit first have a program without the others.
    general, moves = key.preemptive or key.on_demand, ("preempts", "by_work", "admits_decodes")
    needed = key.pipeline_ranks == 1 or any(getattr(key, move) for move in moves)
    wider |= {"admits_first": general, **dict.fromkeys(moves, general and needed)}
    if key.scales:
        wider |= {"priorities": True, "sheds": True}  # without classes all have one priority, and no queue is too long
    return replace(
        group,
        key=replace(key, **wider),
        ring=_next(group.ring, RINGS if key.replicas == 1 else RINGS_TOGETHER),
        rows=rows,
        # KV by blocks beside a prefix cache is tested by random cases (``Kind.blocks``).
        block_tokens=0 if key.cached else group.block_tokens,
        lane_requests=_next(group.lane_requests, SLOTS),
    )


def _next(size: int, sizes: tuple[int, ...]) -> int:
    return next((larger for larger in sizes if size <= larger), size)
