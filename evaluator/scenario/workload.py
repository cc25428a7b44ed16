"""``workload``: what is asked of the servers, and the rules that join several of its keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from evaluator.errors import InputError
from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    Table,
    count,
    flag,
    key,
    many,
    read_section,
    schema_of,
    section,
    section_of,
    section_schema,
)
from evaluator.records import with_fields
from evaluator.scenario.adapters import NamedAdapters, adapters_reader
from evaluator.scenario.arrivals import Arrivals, arrivals_reader
from evaluator.scenario.classes import RequestClass, check_classes, classes_reader
from evaluator.scenario.lengths import Lengths, ModelShare, lengths_reader, models_reader, pipelines_reader
from evaluator.scenario.reasoning import Reasoning, reasoning_reader
from evaluator.scenario.sessions import Sessions, sessions_reader
from evaluator.scenario.token_sampling import TokenSampling, sampling_reader
from evaluator.scenario.trace import LENGTHS, TIMES, Trace, read_trace, trace_requests

DEFAULT_REQUESTS = 1000
MOST_REQUESTS = 10_000_000
"""Per seed: all requests of a configuration lie in memory at once, and those of 10 million take about 1 GB."""
MOST_AUTO = 50_000


class Auto(int):
    """So many requests at first, and more, up to ``most``, for configurations that they leave undecided."""

    most: int

    def __new__(cls, first: int, most: int) -> Auto:
        number = super().__new__(cls, first)
        number.most = most
        return number

    def __repr__(self) -> str:
        return f"Auto({int(self)}, most={self.most})"

    def __reduce__(self) -> tuple[type[Auto], tuple[int, int]]:
        # ``int`` pickles by its value alone: a worker process would get a run of fixed length.
        return Auto, (int(self), self.most)


class _Number(Reader):
    """A reader of integers that reads something else, too."""

    whole = True  # as designs are sampled, from whose schema (an anyOf) it cannot be seen


def _requests() -> Reader:
    """Reads a number of requests, ``auto`` or ``{auto: {most: 50000}}``."""
    remedy = "a long run's statistics come as well from several seeds (workload.seeds), each in memory of its own"
    number = count(most=MOST_REQUESTS, remedy=remedy)
    auto: Table = {"most": Key(number, MOST_AUTO, "Most requests of a seed.")}
    outer: Table = {"auto": Key(section_of(auto, dict), says="As many as it takes to decide the objectives.")}

    def read(value: Any, place: Place) -> int:
        if value == "auto":
            return Auto(DEFAULT_REQUESTS, MOST_AUTO)
        if isinstance(value, Mapping):
            most = read_section(value, outer, place)["auto"]["most"]
            return Auto(min(DEFAULT_REQUESTS, most), most)
        return number(value, place)

    schema: Schema = {"anyOf": [schema_of(number), {"const": "auto"}, section_schema(outer)]}
    return _Number(read, schema)


@dataclass(frozen=True)
class Workload:
    """Traffic: ``requests`` per seed, of which the first and the last are cut from the statistics.

    They are ``warmup_requests``, with ``find_warmup`` also those after them that a run takes to settle, and
    ``cooldown_requests``, behind which nobody comes, so that they are served while the design empties.

    ``models``: which models the requests ask for, by name; none where a trace says it, or where there is but one.
    ``pipelines``: which of several pipelines of stages they take, likewise (``Stage.only``). ``classes``: what is asked
    of which requests, likewise.

    What a file leaves out is None as it is read, where it follows from other keys (``finish``).
    """

    arrivals: Arrivals = key(arrivals_reader, says="When requests are sent.")
    lengths: Lengths = key(lengths_reader, says="How long prompts and outputs are.", absent=None)
    requests: int = key(
        _requests(),
        says="Requests per seed; 1,000, or the whole trace, where absent. auto, or {auto: {most: 50000}}: as many as "
        "it takes to decide the objectives.",
        absent=None,
    )
    warmup_requests: int = key(
        count(least=0),
        says="First requests cut from the statistics, not from the run; where absent a tenth, or two sessions of each "
        "user.",
        absent=None,
    )
    _: KW_ONLY
    cooldown_requests: int = key(
        count(least=0),
        0,
        "Last requests cut from the statistics; where absent as many as warmup_requests, but at most a tenth (of users "
        "with several turns a session each), and none of a trace or of requests all at once.",
        absent=None,
    )
    # MSER-5 (White, 1997) cuts what leaves the mean of the rest, over batches of five, with the least standard error.
    # It comes after the fixed warm-up, since it depends on the run and not on the scenario.
    find_warmup: bool = key(flag, True, "Whether what a run takes to settle after that is cut, too (MSER-5).")
    seeds: tuple[int, ...] = key(
        many(count(least=0, most=2**63 - 1)), (0,), "Repetitions of every design with other random numbers."
    )
    cached_tokens: int = key(
        count(least=0), 0, "Leading prompt tokens whose KV is there already, where a trace does not say."
    )
    sessions: Sessions = key(sessions_reader, Sessions(), "What requests have in common: prompts, and their senders.")
    reasoning: Reasoning = key(reasoning_reader, Reasoning(), "Longer outputs, on one path or several branches.")
    sampling: TokenSampling = key(
        sampling_reader, TokenSampling(), "How tokens are chosen; as the model's generation_config.json where absent."
    )
    models: Mapping[str, ModelShare] = key(
        models_reader,
        {},
        "Which models the requests ask for: {MODEL: SHARE} or {MODEL: {share: SHARE, lengths: {...}}}.",
    )
    pipelines: Mapping[str, ModelShare] = key(
        pipelines_reader,
        {},
        "Which ways through the pipeline the requests take: {NAME: SHARE} or {NAME: {share: SHARE, lengths: "
        "{...}}}; stages say with only whom they serve.",
    )
    classes: Mapping[str, RequestClass] = key(
        classes_reader,
        {},
        "Classes of requests with objectives and priorities of their own: {NAME: SHARE} or {NAME: {share: SHARE, slo: "
        "{...}, priority: 0, lengths: {...}}}.",
    )

    adapters: NamedAdapters | None = key(
        adapters_reader, None, "LoRA adapters that the requests name, one each; absent: they ask for the model itself."
    )

    @property
    def ends(self) -> tuple[int, int]:
        """How many requests are cut at the start, whatever is found in a run, and at the end."""
        return self.warmup_requests, self.cooldown_requests

    @property
    def trace(self) -> Trace | None:
        """The trace that says how long the requests are, and what else it knows of them; None where there is none."""
        if self.lengths.source != "trace" or self.lengths.file is None:
            return None
        return read_trace(self.lengths.file, LENGTHS)

    @property
    def model_names(self) -> tuple[str, ...]:
        """The models that requests ask for, by their numbers; none where no request names one."""
        # Shares of the scenario come first; a trace that names models beside them is refused by ``finish``.
        trace = None if self.models else self.trace
        return tuple(self.models) if trace is None else trace.models

    @property
    def pipeline_names(self) -> tuple[str, ...]:
        """The pipelines that requests take, by their numbers; none where all take the same."""
        trace = None if self.pipelines else self.trace
        return tuple(self.pipelines) if trace is None else trace.pipelines

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of requests, by their numbers; none where there are none."""
        # A trace's column comes first: what the scenario says of classes is then of those.
        trace = self.trace
        return trace.classes if trace is not None and trace.classes else tuple(self.classes)

    @property
    def draws_turns(self) -> bool:
        """Whether requests follow one another by a user: turns of sessions, users who think, or tasks of a trace."""
        thinks = self.arrivals.process == "closed_loop" and self.sessions.mean_think_s > 0
        return self.sessions.continued or thinks or self.traced_tasks

    @property
    def traced_tasks(self) -> bool:
        """Whether a trace says which answers a request waits for."""
        if self.arrivals.process != "trace" or self.arrivals.file != self.lengths.file:
            return False
        trace = self.trace
        return trace is not None and trace.wait_for is not None

    @property
    def agents(self) -> bool:
        """Whether a request may wait for the answers to several others, as calls of agents do."""
        return self.sessions.agents is not None or self.traced_tasks

    @property
    def feedback(self) -> bool:
        """Whether the answer to one request says when a certain other one is sent."""
        return self.draws_turns and self.sessions.think_from == "answer"

    @property
    def known_content(self) -> bool:
        """Whether it is known of the blocks of prompts what is in them, beyond system prompts."""
        # Turns of sessions say themselves what a prompt has in common with the ones before, so that no trace is
        # asked.
        trace = None if self.sessions.continued else self.trace
        return self.sessions.continued or (
            trace is not None and (trace.hash_ids is not None or trace.session is not None)
        )

    @property
    def known_sessions(self) -> bool:
        """Whether requests say which session they are of."""
        trace = self.trace
        return self.sessions.continued or (trace is not None and trace.session is not None)


FOLLOWING = ("lengths", "requests", "warmup_requests", "cooldown_requests")
"""The keys that ``finish`` fills in from others."""


def finish(read: Workload, place: Place) -> Workload:
    """The workload with what follows from other keys in the place of None.

    Lengths default to those of the arrivals' trace, requests to the whole trace or else 1,000, and the warm-up to a
    tenth of the requests, in a closed loop to two sessions of each user if that is more, but to no more than half. As
    many, but at most a tenth, are cut at the end, except of traces and of requests that come all at once, which are
    whole; of users with several turns one session each, but at most half of what is left.
    Errors: InputError where a trace is too short, where the warm-up leaves nothing to measure, and where a trace and
    the shares of models, pipelines or classes both say which requests are whose.
    """
    arrivals, models = read.arrivals, read.models
    shares: list[ModelShare | RequestClass] = [*models.values(), *read.pipelines.values(), *read.classes.values()]
    # Lengths first: a trace of them bounds the requests, these bound the warm-up, and both the cool-down.
    lengths = _lengths(read.lengths, arrivals, models or read.pipelines or read.classes, place)
    in_trace = trace_requests(_traces(arrivals, [lengths, *(share.lengths for share in shares if share.lengths)]))
    requests = _requests_or_default(read, in_trace, place)
    _check_mean_gap(arrivals, requests, place.key("arrivals"))
    warmup = _warmup_or_default(read, requests, place)
    cooldown = _cooldown_or_default(read, requests, warmup, place)
    workload = read
    if None in (read.lengths, read.requests, read.warmup_requests, read.cooldown_requests):  # not in points of a sweep
        following = (lengths, requests, warmup, cooldown)
        workload = with_fields(read, **dict(zip(FOLLOWING, following, strict=True)))
    trace = workload.trace
    for name in ("models", "pipelines"):
        if trace is not None and getattr(workload, name) and getattr(trace, name):
            raise place.key(name).error(
                f"{lengths.file} has a column {name.removesuffix('s')}, which says it already; leave out the one or "
                "the other"
            )
    if workload.classes:
        check_classes(workload.classes, () if trace is None else trace.classes, trace, place.key("classes"))
    return workload


def _requests_or_default(read: Workload, in_trace: int | None, place: Place) -> int:
    requests: int | None = read.requests
    if requests is None:
        return DEFAULT_REQUESTS if in_trace is None else in_trace
    if in_trace is not None and requests > in_trace:
        raise place.key("requests").error(
            f"{requests} are more than the {in_trace} of the trace; leave it out to take all"
        )
    return requests


def _warmup_or_default(read: Workload, requests: int, place: Place) -> int:
    warmup: int | None = read.warmup_requests
    if warmup is None:
        # Of a closed loop: all users begin at once, those who have conversations with empty contexts.
        users = read.arrivals.users or 0
        burst = math.ceil(2 * users * read.sessions.mean_turns) if users < requests else 0
        # Twice the users: the first request of each comes at once with all others, and its second when the batches of
        # the first leave, so that only the third is spread as in the long run. Never more than half, lest nothing is
        # measured.
        return min(max(requests // 10, burst), requests // 2)
    if warmup >= requests:
        raise place.key("warmup_requests").error(f"must be less than requests = {requests}, got {warmup}")
    return warmup


def _cooldown_or_default(read: Workload, requests: int, warmup: int, place: Place) -> int:
    cooldown: int | None = read.cooldown_requests
    if cooldown is None:
        users, turns = read.arrivals.users or 0, read.sessions.mean_turns
        # Behind the last arrival an open loop drains, and its last requests meet an emptier design than the others.
        # Traces are wanted whole, of requests all at once the draining is the question, and where users are as many as
        # requests nobody ever comes behind another.
        drains = read.arrivals.process not in ("trace", "all_at_once") and users < requests
        most = requests // 10
        if users and turns > 1:
            # Whoever finds no further conversation leaves, while the others finish theirs: about one for each user.
            most = min(math.ceil(users * turns), (requests - warmup) // 2)
        return min(warmup, most, requests - warmup - 1) if drains else 0
    if cooldown >= requests - warmup:
        raise place.key("cooldown_requests").error(
            f"must leave some of {requests} requests, of which {warmup} are cut at the start, got {cooldown}"
        )
    return cooldown


def _check_mean_gap(arrivals: Arrivals, requests: int, place: Place) -> None:
    """Refuses gaps that vary so much that the mean of them, whose standard error is cv / sqrt(requests), is luck.

    Nearly all such gaps are next to nothing and a single one is the rest, so that what comes has no rate, whatever is
    asked for.
    """
    most = requests.most if isinstance(requests, Auto) else requests
    if arrivals.cv is not None and arrivals.cv**2 > most:
        raise place.key("cv").error(
            f"{most:,} gaps with a coefficient of variation of {arrivals.cv:g} have no mean rate to speak of; "
            f"it must be at most {most**0.5:.3g}, the root of the requests"
        )


def _lengths(given: Lengths | None, arrivals: Arrivals, models: Mapping[str, Any], place: Place) -> Lengths:
    """The lengths of requests for models (or of pipelines, or classes) that have none of their own."""
    if given is not None:
        return given
    if arrivals.process == "trace":
        return Lengths("trace", file=arrivals.file)
    of_models = [share.lengths for share in models.values()]
    if not of_models or of_models[0] is None or None in of_models:
        raise place.key("lengths").error("is required (a trace of arrivals may do without: it has lengths too)")
    return of_models[0]  # of no request: each model has its own


def _traces(arrivals: Arrivals, several: list[Lengths]) -> dict[str, tuple[str, ...]]:
    """The traces that are needed, with the columns that each must have."""
    needed: dict[str, tuple[str, ...]] = {}
    if arrivals.process == "trace" and arrivals.file is not None:
        needed[arrivals.file] = TIMES
    for lengths in several:
        if lengths.source == "trace" and lengths.file is not None:
            needed[lengths.file] = needed.get(lengths.file, ()) + LENGTHS
    return needed


workload_reader = section(Workload, finish)


def check_workload(workload: Workload, place: Place) -> None:
    """Refuses keys of a workload that mean nothing together. Errors: InputError."""
    _check_cached(workload, place)
    _check_sessions(workload, place)


def _check_cached(workload: Workload, place: Place) -> None:
    """Refuses a cached prefix as long as a prompt of fixed length. Prompts that vary keep one token to compute.

    Beside system prompts none can be: they are what is cached, if the deployment says so.
    """
    if workload.sessions.system_tokens and _has_cached(workload):
        raise place.key("sessions").error(
            "system_tokens and cached_tokens exclude each other: a system prompt is cached where the deployment has "
            "kv.prefix_caching; leave out the one or the other"
        )
    shares: list[ModelShare | RequestClass] = [*workload.models.values(), *workload.pipelines.values()]
    shares += workload.classes.values()
    several = [workload.lengths, *(share.lengths for share in shares if share.lengths is not None)]
    fixed = [lengths.parameters["prompt_tokens"] for lengths in several if "prompt_tokens" in lengths.parameters]
    prompt = min(fixed, default=None)
    if prompt is not None and workload.cached_tokens >= prompt:
        raise place.key("cached_tokens").error(
            f"must be less than the prompt of {prompt} tokens (at least one is computed), got {workload.cached_tokens}"
        )


def _has_cached(workload: Workload) -> bool:
    trace = workload.trace
    if trace is not None and trace.cached_tokens is not None:
        return bool(trace.cached_tokens.any())
    return workload.cached_tokens > 0


def _check_sessions(workload: Workload, place: Place) -> None:
    """Refuses turns where a trace or cached tokens say what turns would, and ``hash_ids`` that misfit.

    Errors: InputError naming the key, or the file and its row.
    """
    sessions, here = workload.sessions, place.key("sessions")
    if sessions.continued:
        _check_turns(workload, here.key("turns"))
    if workload.draws_turns and workload.arrivals.process == "closed_loop" and sessions.think_from == "arrival":
        raise here.key("think_from").error(
            "users of a closed loop wait for their answers before they think; use think_from: answer, or arrivals with "
            "a rate"
        )
    arrivals = workload.arrivals
    if arrivals.process == "trace" and arrivals.file and read_trace(arrivals.file, TIMES).wait_for is not None:
        # Else requests would come with those whose answers they wait for.
        if not workload.traced_tasks:
            raise place.key("lengths").error(
                f"{arrivals.file} says whose answers requests wait for (wait_for): use its lengths, too"
            )
        if sessions.think_from == "arrival":
            raise here.key("think_from").error(
                "requests of a trace with wait_for wait for answers; use think_from: answer"
            )
    trace = workload.trace
    if trace is None or trace.hash_ids is None:
        return
    if sessions.system_tokens:
        raise here.key("system_tokens").error(
            f"{workload.lengths.file} has a column hash_ids, which says what prompts share; leave out the one or the "
            "other"
        )
    _check_hashes(str(workload.lengths.file), trace, sessions.hash_block_tokens)


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
    # All that was said before is in a prompt, whichever class said it: lengths of a class would be those of its own
    # texts alone, which are not drawn apart.
    if any(entry.lengths is not None for entry in workload.classes.values()):
        raise place.error(
            "several turns with lengths of classes are not there: all turns are drawn from workload.lengths; leave out "
            "the lengths of workload.classes"
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


def _check_hashes(file: str, trace: Trace, block_tokens: int) -> None:
    assert trace.hash_ids is not None and trace.prompt_tokens is not None
    counts, prompt_tokens = np.diff(trace.hash_ids.offsets), trace.prompt_tokens
    # Rounded up: Mooncake's traces hash the last block of a prompt whether it is full or not. Another count means
    # another block size, and hits would be computed of the wrong tokens without a word.
    bad = counts != -(-prompt_tokens // block_tokens)
    if bad.any():
        row = int(np.argmax(bad))
        place = row if trace.places is None else int(trace.places[row])
        wanted = -(-int(prompt_tokens[row]) // block_tokens)
        raise InputError(
            f"{file}: row {place + 1}, hash_ids: {int(counts[row])} blocks for a prompt of {int(prompt_tokens[row])} "
            f"tokens, which are {wanted} of {block_tokens} tokens (workload.sessions.hash_block_tokens)"
        )
