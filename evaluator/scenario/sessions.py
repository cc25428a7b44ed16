"""The rules that join ``workload.sessions`` with other keys of the workload and with the columns of a trace."""

from __future__ import annotations

import numpy as np

from evaluator.errors import InputError
from evaluator.scenario.fields import Place
from evaluator.scenario.scenario import Workload
from evaluator.scenario.trace import LENGTHS, Ragged, Trace, read_trace


def check_sessions(workload: Workload, place: Place) -> None:
    """Refuses turns where a trace, a closed loop or cached tokens say what turns would, and ``hash_ids`` that misfit.

    Errors: InputError naming the key, or the file and its row.
    """
    sessions, here = workload.sessions, place.key("sessions")
    if sessions.continued:
        _check_turns(workload, here.key("turns"))
    trace = trace_of(workload)
    if trace is None or trace.hash_ids is None:
        return
    if sessions.system_tokens:
        raise here.key("system_tokens").error(
            f"{workload.lengths.file} has a column hash_ids, which says what prompts share; leave out the one or the "
            "other"
        )
    assert trace.prompt_tokens is not None
    _check_hashes(str(workload.lengths.file), trace.hash_ids, trace.prompt_tokens, sessions.hash_block_tokens)


def _check_turns(workload: Workload, place: Place) -> None:
    if "trace" in (workload.arrivals.process, workload.lengths.source):
        raise place.error(
            "a trace says itself which requests are of one session, in its column session; leave out turns"
        )
    if workload.models:
        raise place.error(
            "several turns with workload.models are not there: all turns are of one model; leave out models"
        )
    if workload.pipelines:
        raise place.error(
            "several turns with workload.pipelines are not there: all turns take one pipeline; leave out pipelines"
        )
    if workload.arrivals.process == "closed_loop":
        raise place.error(
            "users of a closed loop do not think between requests; use arrivals all_at_once, or a process with a rate"
        )
    if workload.reasoning.several:
        raise place.error(
            "several turns with workload.reasoning.branches are not there: it is not said which branch a session goes "
            "on with; leave out the one or the other"
        )
    if workload.cached_tokens:
        raise place.error(
            "excludes cached_tokens: what was said before is cached where the deployment has kv.prefix_caching"
        )


def _check_hashes(file: str, hashes: Ragged, prompt_tokens: np.ndarray, block_tokens: int) -> None:
    counts = np.diff(hashes.offsets)
    bad = counts != -(-prompt_tokens // block_tokens)
    if bad.any():
        row = int(np.argmax(bad))
        wanted = -(-int(prompt_tokens[row]) // block_tokens)
        raise InputError(
            f"{file}: row {row + 1}, hash_ids: {int(counts[row])} blocks for a prompt of {int(prompt_tokens[row])} "
            f"tokens, which are {wanted} of {block_tokens} tokens (workload.sessions.hash_block_tokens)"
        )


def trace_of(workload: Workload) -> Trace | None:
    """The trace that the lengths are from, and with them what its prompts share; None where they are from none."""
    if workload.lengths.source != "trace" or workload.lengths.file is None:
        return None
    return read_trace(workload.lengths.file, LENGTHS)


def known_content(workload: Workload) -> bool:
    """Whether it is known of the blocks of prompts what is in them, beyond system prompts."""
    if workload.sessions.continued:
        return True
    trace = trace_of(workload)
    return trace is not None and (trace.hash_ids is not None or trace.session is not None)


def known_sessions(workload: Workload) -> bool:
    """Whether requests say which session they are of."""
    trace = trace_of(workload)
    return workload.sessions.continued or (trace is not None and trace.session is not None)
