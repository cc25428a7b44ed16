"""Stages against queueing theory, through the scenario: waits of M/M/c and M/D/c, and Burke's theorem."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import poisson

from evaluator.run import simulate, sweep

REQUESTS, WARMUP = 20_000, 2_000


def waits(stage: dict[str, Any], rate_rps: float, servers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean wait at a stage with so many servers, each at ``rate_rps``, and its standard error."""
    found = sweep(
        {
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": rate_rps},
                "lengths": {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1},
                "requests": REQUESTS,
                "warmup_requests": WARMUP,
                "cooldown_requests": 0,
                "find_warmup": False,
                "seeds": list(range(8)),
            },
            "deployment": {"model": "qwen3-0.6b", "hardware": "h100-sxm"},
            "pipeline": [{"stage": "tool", **stage}, "prefill", "decode"],
            "sweep": {
                "designs": {
                    "zip": [{"pipeline.tool.servers": c, "workload.arrivals.rate_rps": rate_rps * c} for c in servers]
                }
            },
        }
    )
    assert (found["status"] == "ok").all()
    tool = found.sel(stage="tool")
    return tool["stage_wait_s_mean"].values, tool["stage_wait_s_mean_stderr"].values


def erlang_wait(rate: float, servers: int) -> float:
    """Mean wait of M/M/c with services of mean 1: Erlang's C / (c - rate)."""
    terms = [rate**n / math.factorial(n) for n in range(servers)]
    queued = rate**servers / math.factorial(servers) / (1.0 - rate / servers)
    return queued / (sum(terms) + queued) / (servers - rate)


def crommelin_wait(rate: float, servers: int) -> float:
    """Mean wait of M/D/c with services of 1: Crommelin (1932), as in Gross and Harris, section 5.1.

    The sum over i of P(N_i >= ic) - c / rate P(N_i > ic), where N_i is Poisson with mean i x rate.
    """
    i = np.arange(1, 2000)
    mean = i * rate
    return float((poisson.sf(i * servers - 1, mean) - servers / rate * poisson.sf(i * servers, mean)).sum())


def test_formulas_agree_with_pollaczek_khinchine():
    assert erlang_wait(0.8, 1) == pytest.approx(0.8 / 0.2)
    assert crommelin_wait(0.8, 1) == pytest.approx(0.8 / (2 * 0.2))


@pytest.mark.parametrize(("distribution", "wait"), [("exponential", erlang_wait), ("fixed", crommelin_wait)])
def test_waits_of_several_servers(distribution, wait):
    servers = [1, 2, 5]
    mean, error = waits({"seconds": 1.0, "distribution": distribution}, 0.8, servers)
    expected = np.array([wait(0.8 * c, c) for c in servers])
    assert (error < 0.06 * expected).all()
    np.testing.assert_array_less(np.abs(mean - expected), 4.0 * error)


def test_burke():
    """What leaves M/M/1 is Poisson, so that a second server behind it waits as if alone; a request's sojourns at both
    are independent (Reich 1957)."""
    tool = {"stage": "tool", "seconds": 1.0, "distribution": "exponential", "servers": 1}
    table = simulate(
        {
            "workload": {
                "arrivals": {"process": "poisson", "rate_rps": 0.7},
                "lengths": {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1},
                "requests": REQUESTS,
                "seeds": list(range(16)),
            },
            "deployment": {"model": "qwen3-0.6b", "hardware": "h100-sxm"},
            "pipeline": [tool, {**tool, "seconds": 0.9}, "prefill", "decode"],
        }
    ).requests
    table = table[table["measured"]]
    by_seed = table.groupby("seed")[["tool_wait_s", "tool_2_wait_s"]].mean()
    for name, service in (("tool", 1.0), ("tool_2", 0.9)):
        load = 0.7 * service
        values = by_seed[f"{name}_wait_s"]
        assert abs(values.mean() - service * load / (1.0 - load)) < 4.0 * values.std(ddof=1) / math.sqrt(16)
    sojourns = [table[f"{name}_wait_s"] + table[f"{name}_service_s"] for name in ("tool", "tool_2")]
    assert abs(np.corrcoef(*sojourns)[0, 1]) < 0.05
