"""The routers: one record each, by the name that scenario files use.

A router that knows before the run where each request goes is a file here with both its forms (``record.Independent``);
one that looks at the replicas names the counter of which it takes the least (``record.COUNTERS``), or goes by their
prefix caches or adapters, or by what they report. Its line in ``ROUTERS`` is all that the checks, both engines and the
scenario reader need; a router of one's own is given to ``register`` instead (docs/parts.md).
"""

import numpy as np
from numpy.typing import NDArray

from evaluator.errors import InputError
from evaluator.registry import Registry
from evaluator.routing.adapter_affinity import ADAPTER_AFFINITY, AdapterAffinity
from evaluator.routing.heavy_light import HEAVY_LIGHT, HeavyLight
from evaluator.routing.least import LEAST_CONTEXT, LEAST_KV, LEAST_OUTSTANDING, LEAST_TOKENS, LEAST_WORK
from evaluator.routing.prefix_approximate import PREFIX_APPROXIMATE, PrefixApproximate
from evaluator.routing.prefix_aware import PREFIX_AWARE, PrefixAware, PrefixRule
from evaluator.routing.random import RANDOM
from evaluator.routing.record import (
    COUNTERS,
    Choice,
    Independent,
    InTurn,
    Router,
    Sent,
    by_turns,
    name_of,
    stream,
)
from evaluator.routing.round_robin import ROUND_ROBIN
from evaluator.routing.session import SESSION
from evaluator.routing.shared_queue import SHARED_QUEUE
from evaluator.routing.vllm_ranks import VLLM_RANKS

__all__ = [
    "ADAPTER_AFFINITY",
    "COUNTERS",
    "HEAVY_LIGHT",
    "PREFIX_APPROXIMATE",
    "PREFIX_AWARE",
    "ROUTERS",
    "SHARED_QUEUE",
    "AdapterAffinity",
    "Choice",
    "HeavyLight",
    "InTurn",
    "Independent",
    "PrefixApproximate",
    "PrefixAware",
    "PrefixRule",
    "Router",
    "Sent",
    "assign",
    "by_turns",
    "name_of",
    "register",
    "router_of",
    "stream",
]

# In the order in which messages and the schema list them: those that know nothing, those that count, those with keys.
ROUTERS: Registry[Router] = Registry(
    "router",
    (
        RANDOM,
        ROUND_ROBIN,
        LEAST_OUTSTANDING,
        LEAST_WORK,
        LEAST_TOKENS,
        LEAST_KV,
        LEAST_CONTEXT,
        HEAVY_LIGHT,
        SHARED_QUEUE,
        SESSION,
        PREFIX_AWARE,
        PREFIX_APPROXIMATE,
        ADAPTER_AFFINITY,
        VLLM_RANKS,
    ),
)
register = ROUTERS.register


def router_of(choice: Choice) -> Router:
    """The record of the router that a deployment names. InputError if there is none of that name."""
    name = name_of(choice)
    if name not in ROUTERS:
        raise InputError(f"no router {name!r}; the routers are {', '.join(ROUTERS)}")
    return ROUTERS[name]


def assign(choice: Choice, sent: Sent) -> NDArray[np.int64]:
    """Which replica serves each request, int64 (request,), by a router that does not look at the replicas.

    Errors: ValueError for a router that does.
    """
    independent = router_of(choice).independent
    if independent is None:
        raise ValueError(f"router {name_of(choice)} looks at the replicas: nothing is known before the run")
    return independent.assign(choice, sent)
