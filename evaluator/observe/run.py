"""A scenario's traffic, one configuration of it, sent to a live server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import numpy as np

from evaluator.deploy.design import SentTraffic, begins_empty, unsent, vocabulary_of
from evaluator.deploy.load import load_head, load_requests
from evaluator.deploy.send_load import Load
from evaluator.errors import InputError
from evaluator.metrics import OK
from evaluator.observe.client import Exchange
from evaluator.observe.metrics import ServerMetrics
from evaluator.observe.schedule import LoadLimits, Sender
from evaluator.observe.server import LiveServer, PromptForm, base_of, find_server
from evaluator.observe.table import observed_table
from evaluator.plan import plan
from evaluator.plan.simulators import TOKEN
from evaluator.progress import ProgressReport
from evaluator.results.selection import select as select_configuration
from evaluator.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

_OTHER_FILES = 128
_KEEP_S = 2.0  # an idle connection: uvicorn, under vLLM and SGLang, closes it after 5 s, and a request on it would fail


@dataclass(frozen=True)
class Observed:
    """``requests`` has a row for each that was sent, ``metrics`` the server's own figures (empty: it has none).

    ``seconds`` is how long the run took, ``ended_by`` why it ended before all was sent and answered ("": it did not).
    ``notes``: what of the scenario the server could not be asked for.
    """

    requests: pd.DataFrame
    metrics: pd.DataFrame
    seconds: float
    planned: int
    held: int
    ended_by: str
    server: LiveServer
    notes: tuple[str, ...] = field(default=())


def traffic_of(scenario: Scenario, select: Mapping[str, str]) -> tuple[int, SentTraffic, tuple[str, ...]]:
    """(the number of a configuration, what is sent of it, names of its models). InputError where it cannot run."""
    everything = plan(scenario, np.array([], dtype=np.int64), TOKEN)
    config = everything.grid.config(select_configuration(everything.grid.axes, select))
    configuration = everything.of(np.array([config])).configurations[0]
    if configuration.status != OK:
        raise InputError(f"{scenario.path or scenario.name}: {configuration.status}")
    workload = configuration.workload
    traffic = SentTraffic(
        workload, everything.sampler, configuration.pipeline, vocabulary_of(configuration), begins_empty(configuration)
    )
    names = workload.model_names or (configuration.answering[0].design.model.name,)
    return config, traffic, tuple(names)


def observe(
    scenario: Scenario,
    url: str,
    *,
    select: Mapping[str, str] | None = None,
    served: Sequence[str] = (),
    form: PromptForm | None = None,
    key_env: str | None = None,
    limits: LoadLimits | None = None,
    metrics_every_s: float = 1.0,
    progress: ProgressReport | None = None,
    stopped_by: Callable[[Callable[[str], None]], AbstractContextManager[None]] = lambda stop: nullcontext(),
) -> Observed:
    """Send the requests of one configuration to the server at ``url``, and tell what came of each.

    ``served`` are the names under which the server has the workload's models; ``form`` says how prompts are sent
    (default: token ids to completions); ``key_env`` names the variable of the environment with the key that the server
    wants. ``stopped_by`` is given a function that ends the run, and holds while it runs.
    Errors: InputError where the scenario cannot be sent, or no such server answers.
    """
    base, limits = base_of(url), limits or LoadLimits()
    _make_room(limits.in_flight)
    config, traffic, models = traffic_of(scenario, select or {})
    requests = list(load_requests(traffic))
    load = Load(load_head(traffic, list(models)), requests)
    # Asked before the load is sent: a request beyond the server's limit would fail within it, and the load would be
    # another one.
    longest = int(max(sum(demand) for demand in _sizes(requests)))
    key = None if key_env is None else _key(key_env)
    exchanges: list[Exchange] = []
    if progress is not None:
        progress.expect(len(requests))

    async def whole() -> tuple[LiveServer, Sender, ServerMetrics]:
        async with _session(limits, key) as session:
            server = await find_server(
                session, base, models, served, traffic.vocabulary, longest, form or PromptForm(), limits.wait_s
            )
            metrics = ServerMetrics(session, base)
            async with metrics.sampled(metrics_every_s):
                sender = Sender(load, server, session, limits, exchanges, progress)
                loop = asyncio.get_running_loop()
                # A signal comes on the main thread between any two lines; `call_soon_threadsafe` also wakes a loop that
                # waits.
                with stopped_by(lambda why: (loop.call_soon_threadsafe(sender.stop, why), None)[1]):
                    await sender.run()
            return server, sender, metrics

    server, sender, metrics = asyncio.run(whole())
    several = models if traffic.workload.model_names else ()
    return _observed(load, exchanges, sender, server, metrics, config, several, unsent(traffic.workload))


def _key(name: str) -> str:
    key = os.environ.get(name)
    if not key:
        raise InputError(f"--key-env {name}: the environment has no such variable")
    return key


def _make_room(connections: int) -> None:
    """Raise the limit of open files to the connections and some more; InputError where the system allows fewer.

    A shell's limit is often 1,024, and what it refuses would look like a server that refuses connections.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"--max-in-flight {connections}: only {hard:,} files may be open at a time (ulimit -Hn); use at most "
            f"{max(1, hard - _OTHER_FILES):,}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _session(limits: LoadLimits, key: str | None) -> aiohttp.ClientSession:
    """A client that goes where it is told and nowhere else: no proxies of the environment, no cookies.

    That redirects are not followed is said with each request.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return aiohttp.ClientSession(
        # `limit=0`: aiohttp holds 100 connections by default, and what waits for one would look like a slow server.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S, ttl_dns_cache=None),
        # No limit of the session: the one of a request stands in `ask`, which tells which of its limits was over.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.wait_s, sock_read=limits.wait_s),
        headers=headers,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _sizes(requests: list[dict]) -> list[tuple[int, int]]:
    """(prompt, output) tokens of each request; of a turn with all that was said before."""
    sizes: list[tuple[int, int]] = []
    for request in requests:
        before = sum(sizes[request["after"]]) if "after" in request else 0
        sizes.append((before + sum(tokens for _, tokens in request["prompt"]), request["output_tokens"]))
    return sizes


def _observed(
    load: Load,
    exchanges: list[Exchange],
    sender: Sender,
    server: LiveServer,
    metrics: ServerMetrics,
    config: int,
    models: Sequence[str],
    left_out: Sequence[str],
) -> Observed:
    import pandas as pd

    head = load.head
    # As the simulation cuts them: requests of a warm-up are sent and written, and count in no latency.
    measured = range(head["warmup_requests"], len(load.requests) - head["cooldown_requests"])
    table = observed_table(exchanges, sender.start_s, config=config, seed=head["seed"], models=models,
                           measured=measured)  # fmt: skip
    samples = pd.DataFrame(metrics.rows, columns=["at_s", "metric", "labels", "value"])
    samples["at_s"] -= sender.start_s
    notes = [*left_out, *server.notes]
    if metrics.problem:
        notes.append(f"its own metrics are not had: {server.base}/metrics: {metrics.problem}")
    if load.invented and load.asked_after:
        notes.append(f"{load.invented} answers were not known token by token when the next turn was sent")
    return Observed(
        table, samples, sender.end_s - sender.start_s, len(load.requests), sender.held, sender.ended_by, server,
        tuple(notes),
    )  # fmt: skip
