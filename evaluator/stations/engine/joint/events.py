"""What comes due behind a prefill side: events in a calendar, by their time and then by what happens first at one time.

Each event is of a job of the decode side. At one point in time

1. ``ASK``: its decode replica is chosen, and asked for room where KV is sent only into room that is reserved. That
   precedes all else, whatever the time that is entered;
2. ``BEGIN``: its transfer may begin. Transfers of one time begin in the order in which they could have begun, which
   layer by layer is before that time;
3. ``END``: its KV is there, and it comes to the decode replica;
4. ``GRANT``: there is room for it, after all batches of that time were sent.

Of one kind and time the job with the lowest number goes first; of grants, those of the first replica in their order.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Array, Flag, Float, Int
from evaluator.stations.engine.common.calendar import Calendar

# The numbers are an order: what happens first at one time has the lowest (``reference.stations.transfers``).
ASK, BEGIN, END, GRANT = range(4)
AT_ONCE = -1.0
"""In place of a time: before all others."""
_KIND, _ORDER = 60, 26
"""Where kind and order begin in a code, of which the job is the lowest 26 bits: 67 million jobs of a lane, whose times
alone would take 3 GB. The order has 34 bits, so that grants (``kv_reservation``) of 2 ** 18 replicas have a place."""


class Event(NamedTuple):
    """The first one of a calendar; of an empty one its time is infinite."""

    time_s: Float
    kind: Int
    job: Int


def first(calendar: Calendar) -> Event:
    """What comes next."""
    # An empty calendar's code may be anything, e.g. of a kind that the loop treats apart (ASK, GRANT): it is told as
    # END.
    time_s, code = calendar.first()
    holds = calendar.size > 0
    kind, job = (code >> _KIND).astype(jnp.int32), (code & ((1 << _ORDER) - 1)).astype(jnp.int32)
    return Event(time_s, jnp.where(holds, kind, END), job)


def entered(calendar: Calendar, time_s: Float, kind: Int | int, job: Int, on: Flag, order: Int | int = 0) -> Calendar:
    """With one more event, if ``on``; ``order``, below 2 ** 34, comes before the number of the job."""
    # One number, so that the heap compares kind, order and job at once; the time alone is compared before it.
    code: Array = (jnp.int64(kind) << _KIND) | (jnp.asarray(order, jnp.int64) << _ORDER) | jnp.asarray(job, jnp.int64)
    return calendar.enter(time_s, code, on)


def popped(calendar: Calendar) -> tuple[Calendar, Event]:
    """Without what comes next, and that; there must be something."""
    event = first(calendar)
    # The condition always holds. It makes all that is written depend on what was read (``common.rings``).
    valid = (event.time_s >= AT_ONCE) & (event.job >= 0) & (event.kind >= 0)
    return calendar.without_first(valid), event
