"""Requests per second with prefix caches by content, beside the reference on some of the same lanes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evaluator.device import configure
from evaluator.plan import plan
from evaluator.simulation import simulate_configurations
from evaluator.simulation.outcomes import Outcomes
from tests.benchmarks.registry import Row, benchmark
from tests.benchmarks.timing import best_of
from tests.scenario.build import scenario

LANES, REQUESTS = 32, 2000
LENGTHS = (
    "workload.lengths={source: lognormal, prompt_mean: 300, prompt_cv: 1, prompt_max: 4000, output_mean: 100, "
    "output_cv: 0.8, output_max: 1000}"
)
TALKS = (
    "workload.sessions={turns: {mean: 6, max: 20}, think_s: {mean: 30}, system_prompts: 8, system_tokens: 1500, "
    "think_from: answer}"
)
TASKS = (
    "workload.sessions={turns: {mean: 3, max: 20}, think_s: {mean: 3}, system_prompts: 8, system_tokens: 1500, "
    "agents: {fan_out: 4, share: 0.5}}"
)
APART = TALKS.replace("answer", "arrival")
KV = "deployment.kv={admission: on_demand, prefix_caching: true}"
AHEAD = ("deployment.batching.planning=asynchronous",)
RUNS: dict[str, tuple[str, int, str, tuple[str, ...]]] = {
    "one replica": (APART, 1, "round_robin", ()),
    "one replica, users think about answers": (TALKS, 1, "round_robin", ()),
    "four replicas, session": (APART, 4, "session", ()),
    "four replicas, prefix_aware, users think about answers": (TALKS, 4, "prefix_aware", ()),
    "the same, planned ahead": (TALKS, 4, "prefix_aware", AHEAD),
    "the same, by what the router has sent": (TALKS, 4, "prefix_approximate", ()),
    "the same, by scores": (TALKS, 4, "{prefix_aware: {scores: {}}}", ()),
    "the same, by the caches ten seconds ago": (TALKS, 4, "{prefix_aware: {events_delay_s: 10s}}", ()),
    "... and what was sent since": (TALKS, 4, "{prefix_aware: {events_delay_s: 10s, predicted_ttl_s: 10s}}", ()),
    "four replicas, prefix_aware, agents that start others": (TASKS, 4, "prefix_aware", ()),
}


@benchmark("prefixes")
def prefixes(quick: bool) -> Iterator[Row]:
    """Requests/s of sessions of six turns, and of agents, on an L40S, 32 rates x 2,000 requests; and how close the
    engine is."""
    configure()
    for label, asked in RUNS.items():
        served: dict[str, Outcomes] = {}

        def run(simulator: str, every: int, asked: tuple[str, int, str, tuple[str, ...]] = asked) -> None:
            served[simulator] = _serve(simulator, every, *asked)  # noqa: B023

        took = best_of(lambda: run("iteration", 1), repeats=1 if quick else 2)
        every = LANES // (1 if quick else 2)
        reference = best_of(lambda every=every: run("token", every), repeats=1)
        rate, of_reference = LANES * REQUESTS / took.cpu_s, LANES // every * REQUESTS / reference.cpu_s
        note = f"per core; the reference {of_reference:,.0f}, {rate / of_reference:,.0f} x"
        yield Row(label, rate, "requests/s", note)
        fast, exact = (served[simulator].times.last_token_s for simulator in ("iteration", "token"))
        yield Row("largest relative difference of completion times", float(np.abs(fast[::every] / exact - 1).max()), "")


def _serve(simulator: str, every: int, sessions: str, replicas: int, router: str, more: tuple[str, ...]) -> Outcomes:
    rates = (np.linspace(0.5, 3.5, LANES) * replicas).tolist()
    asked = (
        LENGTHS, sessions, KV, "deployment.hardware=l40s", f"workload.requests={REQUESTS}",
        f"deployment.replicas={replicas}", f"deployment.router={router}",
        *more,
    )  # fmt: skip
    whole = plan(scenario(*asked, workload__arrivals__rate_rps=rates), simulator=simulator)
    return simulate_configurations(whole, whole.configurations[::every])
