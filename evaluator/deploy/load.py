"""The requests that were simulated, as a file that ``bench.py`` sends: when, how long, and what they share.

The first line says what holds for all; every other line is a request. A prompt is a list of [source, tokens]: the same
source is the same text from its beginning, in whatever request it stands, so that a server's prefix cache hits what the
simulated one hit. Of a session a turn says ``after``, the request whose prompt and answer its own prompt begins with.
``think_s`` is from the answer to that one until this one is sent, ``rest_s`` from the last answer of a session until
its user, one of ``users``, opens the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluator.deploy.design import Design, SentTraffic
from evaluator.errors import InputError
from evaluator.traffic.sharing import Sharing

LOAD, BENCH = "load.jsonl", "bench.py"


def load_files(design: Design, models: dict[str, str]) -> dict[str, str]:
    """The load of the first seed, and the script that sends it."""
    traffic = design.traffic
    # Without names in the workload all requests are of the one model that is served.
    names = [models.get(name, name) for name in traffic.workload.model_names] or list(models.values())[:1]
    head = load_head(traffic, names) | {"predicted": design.predicted}
    lines = [json.dumps(head), *(json.dumps(request) for request in load_requests(traffic))]
    return {LOAD: "\n".join(lines) + "\n", BENCH: Path(__file__).with_name("send_load.py").read_text(encoding="utf-8")}


def load_head(traffic: SentTraffic, models: list[str]) -> dict[str, Any]:
    """What holds for all requests; ``models`` are the names under which they are served."""
    workload = traffic.workload
    arrivals = workload.arrivals
    return {
        "models": models,
        "vocabulary": traffic.vocabulary,
        "users": arrivals.users if arrivals.process == "closed_loop" else None,
        "warm": _warm(traffic),  # prompts that are in the cache before the first request comes
        "warmup_requests": workload.warmup_requests,
        "cooldown_requests": workload.cooldown_requests,
        "seed": workload.seeds[0],
    }


def _warm(traffic: SentTraffic) -> list[list[list[Any]]]:
    """What the simulated servers had in their caches from the start: cached prefixes, and system prompts."""
    workload, sessions = traffic.workload, traffic.workload.sessions
    warm: list[list[list[Any]]] = []
    # The longest: shorter ones begin like it (`_prompt`), and hit its blocks.
    cached = int(traffic.jobs.demand.cached_tokens.max(initial=0))
    if cached:
        warm.append([["cached", cached]])
    # Where content is known the simulated cache begins empty and finds system prompts by their hashes; else they count
    # as cached from the first request on.
    if sessions.system_tokens and not (workload.known_content or traffic.empty):
        warm += [[[f"system {number}", sessions.system_tokens]] for number in range(sessions.system_prompts)]
    return warm


def load_requests(traffic: SentTraffic) -> Iterator[dict[str, Any]]:
    """Every request of the first seed."""
    workload = traffic.workload
    seed = workload.seeds[0]
    jobs = traffic.jobs
    turns = traffic.sampler.turns(workload, seed)
    if turns is not None and turns.graph is not None:
        raise InputError(
            "workload.sessions: calls of agents that wait for several answers cannot be sent to a server yet; leave "
            "out agents, or use a trace without wait_for"
        )
    demand, sharing = jobs.demand, jobs.sharing
    prompt, output = demand.prompt_tokens.tolist(), demand.output_tokens.tolist()
    cached, model = demand.cached_tokens.tolist(), demand.model.tolist()
    for row, sent_s in enumerate(jobs.ready_s.tolist()):
        request: dict[str, Any] = {"id": row, "at_s": round(sent_s, 6), "output_tokens": output[row]}
        if len(workload.model_names) > 1:
            request["model"] = model[row]
        previous = -1 if turns is None else int(turns.previous[row])
        if previous >= 0:
            request["after"] = previous
            # The new text of a turn: its prompt without the prompt and the answer of the turn before, which the
            # sender puts in front.
            request["prompt"] = [[f"turn {row}", prompt[row] - prompt[previous] - output[previous]]]
            if turns is not None and workload.feedback:
                request["think_s"] = round(float(turns.think_s[row]), 6)
        else:
            request["prompt"] = [part for part in _prompt(traffic, sharing, row, prompt[row], cached[row]) if part[1]]
        if turns is not None and turns.rest_s is not None and turns.last[row]:
            request["rest_s"] = round(float(turns.rest_s[row]), 6)
        yield request


def _prompt(traffic: SentTraffic, sharing: Sharing | None, row: int, tokens: int, cached: int) -> list[list[Any]]:
    """The parts of a prompt in order, [source, tokens] each: equal sources are equal text."""
    sessions = traffic.workload.sessions
    if sharing is not None and sharing.hashes is not None:
        block = sharing.hash_block_tokens
        hashes = sharing.hashes[row].tolist()
        # A hash stands for a block together with all before it, so that its text may be one of its own.
        return [[f"block {value}", min(block, tokens - position * block)] for position, value in enumerate(hashes)]
    system = sessions.system_tokens
    if sharing is not None and sharing.session is not None:
        which = 0 if sharing.system is None else int(sharing.system[row])
        return [[f"system {which}", system], [f"session {int(sharing.session[row])}", tokens - system]]
    if system:
        # Of caches that begin with all of them it makes no difference which a request begins with: in turn.
        drawn = traffic.empty and sharing is not None and sharing.system is not None
        which = int(sharing.system[row]) if drawn else row % sessions.system_prompts  # type: ignore[union-attr, index]
        return [[f"system {which}", system], [f"request {row}", tokens - system]]
    # One source for all: prefixes of different lengths of the same text, of which the longest is in the cache from
    # the start.
    return [["cached", cached], [f"request {row}", tokens - cached]]
