"""The link against plain loops: over requests that wait for one another, and over layers that are sent as they come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluator.cost.transfer import SequenceBytes
from evaluator.plan.link import LinkPlan
from evaluator.reference import Request
from evaluator.reference.network import run
from evaluator.reference.stations.fifo import Fifo
from evaluator.stations.link import link
from evaluator.traffic.jobs import Origin
from tests.simulation.build import jobs, shuffled

LATENCY_S = 0.25


def plan(shared=True, layers=1, bandwidth=10.0, by_layer=False) -> LinkPlan:
    """A link over which the 10 prompt tokens of a job take 1 s."""
    return LinkPlan("link", bandwidth, LATENCY_S, SequenceBytes(((1.0, np.inf),), 0.0, layers), shared, by_layer, 3)


def sent(ready_s, replica, served_s=0.0, seed=0):
    """Jobs that leave a prefill pool at these times, in no order."""
    one = jobs(ready_s)
    origin = Origin(np.asarray(replica, np.int32), np.broadcast_to(served_s, len(one)).astype(float))
    mixed = shuffled(one, seed)
    return replace(mixed, origin=Origin(*(values[mixed.id] for values in origin)))


def left(which: LinkPlan, one):
    """When they leave, by id."""
    times, use = link("link", [which]).serve([[one]])
    return times.last_token_s[0, 0], use


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_sends_one_request_after_the_other(seed):
    rng = np.random.default_rng(seed)
    ready_s, replica = np.round(np.cumsum(rng.exponential(0.4, 200)), 1), rng.integers(0, 3, 200)  # many at one time
    found, use = left(plan(), sent(ready_s, replica, seed=seed))
    for own in range(3):
        here = np.flatnonzero(replica == own)
        station = Fifo(1, [1.0] * len(here))
        run([station], [Request(index, ready_s[at], 4, 4, 3, 2) for index, at in enumerate(here)])
        wanted = [station.visits[index].left_s + LATENCY_S for index in range(len(here))]
        np.testing.assert_allclose(found[here], wanted, rtol=1e-12)
    assert use.totals.busy_s == 200 and use.replicas == 3 and not use.devices.any()


def test_a_link_that_is_not_shared_is_a_delay():
    ready_s = np.zeros(20)
    np.testing.assert_array_equal(left(plan(shared=False), sent(ready_s, ready_s))[0], 1.0 + LATENCY_S)


def test_configurations_may_have_no_link():
    one = sent([3.0, 1.0], [0, 0])
    times, _ = link("link", [None, plan()]).serve([[one], [one]])
    np.testing.assert_array_equal(times.last_token_s[0, 0, one.id], one.ready_s)
    assert (times.last_token_s[1, 0, one.id] == one.ready_s + 1 + LATENCY_S).all()


# --- layer by layer


def layer_by_layer(durations_s, layers: int, service_s: float) -> float:
    """When all is sent after chunks of a prompt that take so long: every layer of every chunk in turn, once it is
    computed and the link is free."""
    clock = free = 0.0
    for duration_s in durations_s:
        for _ in range(layers):
            clock += duration_s / layers
            free = max(free, clock) + service_s / layers / len(durations_s)
    return free + LATENCY_S


@pytest.mark.parametrize("prefill_s", [0.0, 0.01, 0.5, 0.999, 1.0, 1.3, 40.0])
@pytest.mark.parametrize("layers", [1, 2, 80])
@pytest.mark.parametrize("shared", [True, False])
def test_a_prompt_of_one_iteration_is_sent_layer_by_layer(prefill_s, layers, shared):
    which = plan(shared, layers, by_layer=True)
    found, _ = left(which, sent([prefill_s], [0], prefill_s))
    assert found[0] == pytest.approx(layer_by_layer([prefill_s], layers, 1.0), rel=1e-12)


@pytest.mark.parametrize("prefill_s", [0.01, 0.5, 1.0, 1.3, 40.0])
@pytest.mark.parametrize("chunks", [2, 5])
def test_even_chunks_are_late_by_a_part_of_a_layer(prefill_s, chunks):
    layers = 32
    found, _ = left(plan(True, layers, by_layer=True), sent([prefill_s], [0], prefill_s))
    late_s = found[0] - layer_by_layer([prefill_s / chunks] * chunks, layers, 1.0)
    assert -1e-12 <= late_s <= (1 - 1 / chunks) / layers * max(prefill_s, 1.0) + 1e-12


def test_chunks_that_take_ever_longer_are_off_by_their_unevenness():
    """The last chunk of a long prompt comes later than evenly: at most by its share that is too long."""
    durations = np.array([0.2, 0.25, 0.3, 0.35])  # attention grows
    (found,), _ = left(plan(True, 32, by_layer=True), sent([durations.sum()], [0], durations.sum()))
    assert abs(found - layer_by_layer(durations, 32, 1.0)) < 0.1 * durations.sum()


def test_layers_of_one_request_after_those_of_another():
    """Two prompts of one iteration of 2 s: the link is busy from the first layer on, with one after the other."""
    found, _ = left(plan(layers=4, by_layer=True), sent([2.0, 2.0], [0, 0], 2.0))
    np.testing.assert_allclose(found, [2.25 + LATENCY_S, 3.25 + LATENCY_S])
