"""What is under way between two sides comes in its order, against a sorted list."""

from __future__ import annotations

import heapq

import jax
import jax.numpy as jnp
import numpy as np

from evaluator.device import configure
from evaluator.stations.engine.common.calendar import Calendar
from evaluator.stations.engine.joint import events
from evaluator.stations.engine.joint.events import ASK, AT_ONCE, BEGIN, END, GRANT

SLOTS = 64


@jax.jit
def entered(calendar, time_s, kind, job, order, on):
    found = [
        events.entered(calendar, time_s, each, job, on & (kind == each), order) for each in (ASK, BEGIN, END, GRANT)
    ]
    return jax.lax.switch(kind, [lambda one=one: one for one in found])


popped = jax.jit(events.popped)


def test_events_come_by_time_then_kind_then_order_then_job():
    configure()
    rng = np.random.default_rng(0)
    calendar, known = Calendar.empty(SLOTS), []
    for _ in range(600):
        if known and (len(known) > 40 or rng.random() < 0.45):
            calendar, event = popped(calendar)
            time_s, kind, _, job = heapq.heappop(known)
            assert (float(event.time_s), int(event.kind), int(event.job)) == (time_s, kind, job)
            continue
        kind, job, on = int(rng.integers(4)), int(rng.integers(SLOTS)), rng.random() < 0.8
        time_s = AT_ONCE if kind == ASK else float(rng.integers(3))
        order = int(rng.integers(1 << 34)) if kind == GRANT else 0
        calendar = entered(calendar, jnp.float64(time_s), kind, jnp.int32(job), order, on)
        if on:
            heapq.heappush(known, (time_s, kind, order, job))
        assert int(calendar.size) == len(known)


def test_an_empty_calendar_has_nothing_to_come():
    configure()
    assert float(events.first(Calendar.empty(SLOTS)).time_s) == np.inf
