"""The rules of ``workload`` that join several of its keys: defaults that follow from others, and what excludes what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.scenario.fields import Place
from evaluator.scenario.scenario import Arrivals, Auto, Lengths, ModelShare, Workload
from evaluator.scenario.trace import LENGTHS, TIMES, Trace, read_trace, trace_requests
from evaluator.scenario.workload_keys import DEFAULT_REQUESTS

FOLLOWING = ("lengths", "requests", "warmup_requests", "cooldown_requests")
"""The keys that ``finish`` fills in from others."""


def finish(values: Mapping[str, Any], place: Place) -> Workload:
    """The Workload from the values of its keys, None where absent.

    Lengths default to those of the arrivals' trace, requests to the whole trace or else 1,000, and the warm-up to a
    tenth of the requests, in a closed loop to twice its users if that is more, but to no more than half. As many, but
    at most a tenth, are cut at the end, except of traces and of requests that come all at once, which are whole.
    Errors: InputError where a trace is too short, where the warm-up leaves nothing to measure, and where a trace and
    ``models`` both say which model a request asks for.
    """
    arrivals: Arrivals = values["arrivals"]
    models: Mapping[str, ModelShare] = values["models"]
    shares = [*models.values(), *values["pipelines"].values()]
    lengths = _lengths(values["lengths"], arrivals, models or values["pipelines"], place)
    there = trace_requests(_traces(arrivals, [lengths, *(one.lengths for one in shares if one.lengths)]))
    requests: int | None = values["requests"]
    if requests is None:
        requests = DEFAULT_REQUESTS if there is None else there
    elif there is not None and requests > there:
        raise place.key("requests").error(
            f"{requests} are more than the {there} of the trace; leave it out to take all"
        )
    _check_mean_gap(arrivals, requests, place.key("arrivals"))
    warmup: int | None = values["warmup_requests"]
    users = arrivals.users or 0
    if warmup is None:
        burst = 2 * users if users < requests else 0  # of a closed loop: all users begin at once
        warmup = min(max(requests // 10, burst), requests // 2)
    elif warmup >= requests:
        raise place.key("warmup_requests").error(f"must be less than requests = {requests}, got {warmup}")
    cooldown: int | None = values["cooldown_requests"]
    if cooldown is None:
        drains = arrivals.process not in ("trace", "all_at_once") and users < requests
        cooldown = min(warmup, requests // 10, requests - warmup - 1) if drains else 0
    elif cooldown >= requests - warmup:
        raise place.key("cooldown_requests").error(
            f"must leave some of {requests} requests, of which {warmup} are cut at the start, got {cooldown}"
        )
    others = ("seeds", "cached_tokens", "sessions", "models", "pipelines", "find_warmup", "reasoning")
    rest = {key: values[key] for key in others}
    found = Workload(arrivals, lengths, requests, warmup, cooldown_requests=cooldown, **rest)
    if models and trace_models(found):
        raise place.key("models").error(
            f"{lengths.file} has a column model, which says it already; leave out the one or the other"
        )
    trace = trace_of_lengths(found)
    if found.pipelines and trace is not None and trace.pipelines:
        raise place.key("pipelines").error(
            f"{lengths.file} has a column pipeline, which says it already; leave out the one or the other"
        )
    return found


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


def _lengths(given: Lengths | None, arrivals: Arrivals, models: Mapping[str, ModelShare], place: Place) -> Lengths:
    """The lengths of requests for models (or of pipelines) that have none of their own."""
    if given is not None:
        return given
    if arrivals.process == "trace":
        return Lengths("trace", file=arrivals.file)
    own = [one.lengths for one in models.values()]
    if not own or own[0] is None or None in own:
        raise place.key("lengths").error("is required (a trace of arrivals may do without: it has lengths too)")
    return own[0]  # of no request: each model has its own


def trace_models(workload: Workload) -> tuple[str, ...]:
    """The models that a trace says its requests ask for; none where the lengths are from no trace or it does not."""
    trace = trace_of_lengths(workload)
    return () if trace is None else trace.models


def trace_of_lengths(workload: Workload) -> Trace | None:
    """The trace that says how long the requests are, and what else it knows of them; None where there is none."""
    if workload.lengths.source != "trace" or workload.lengths.file is None:
        return None
    return read_trace(workload.lengths.file, LENGTHS)


def pipeline_names(workload: Workload) -> tuple[str, ...]:
    """The pipelines that requests take, by their numbers; none where all take the same."""
    trace = trace_of_lengths(workload)
    return tuple(workload.pipelines) or (() if trace is None else trace.pipelines)


def model_names(workload: Workload) -> tuple[str, ...]:
    """The models that requests ask for, by their numbers; none where no request names one."""
    return tuple(workload.models) or trace_models(workload)


def check_cached(workload: Workload, place: Place) -> None:
    """Refuses a cached prefix as long as a prompt of fixed length. Prompts that vary keep one token to compute.

    Beside system prompts none can be: they are what is cached, if the deployment says so.
    """
    if workload.sessions.system_tokens and _cached(workload):
        raise place.key("sessions").error(
            "system_tokens and cached_tokens exclude each other: a system prompt is cached where the deployment has "
            "kv.prefix_caching; leave out the one or the other"
        )
    shares = [*workload.models.values(), *workload.pipelines.values()]
    several = [workload.lengths, *(one.lengths for one in shares if one.lengths is not None)]
    fixed = [lengths.parameters["prompt_tokens"] for lengths in several if "prompt_tokens" in lengths.parameters]
    prompt = min(fixed, default=None)
    if prompt is not None and workload.cached_tokens >= prompt:
        raise place.key("cached_tokens").error(
            f"must be less than the prompt of {prompt} tokens (at least one is computed), got {workload.cached_tokens}"
        )


def _cached(workload: Workload) -> bool:
    if workload.lengths.source == "trace" and workload.lengths.file is not None:
        cached = read_trace(workload.lengths.file, LENGTHS).cached_tokens
        if cached is not None:
            return bool(cached.any())
    return workload.cached_tokens > 0


def _traces(arrivals: Arrivals, several: Sequence[Lengths]) -> dict[str, tuple[str, ...]]:
    needed: dict[str, tuple[str, ...]] = {}
    if arrivals.process == "trace" and arrivals.file is not None:
        needed[arrivals.file] = TIMES
    for lengths in several:
        if lengths.source == "trace" and lengths.file is not None:
            needed[lengths.file] = needed.get(lengths.file, ()) + LENGTHS
    return needed
