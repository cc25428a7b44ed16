"""What a stage is made of: steps of few kinds, in each of which a request waits, is served and goes on.

A station of the chain and one of the reference run each kind (``simulation.stages``). ``seconds``, ``tokens`` and
``bytes`` are one number, or (request,) arrays in the order of the requests' ids. ``name`` tells the steps of a stage
apart in results (``retrieve.search``). ``pool`` is the pool of ``deployment.pools`` on which a step runs; None: that of
the stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike, NDArray

from evaluator.catalog.what_if import WhatIf


@dataclass(frozen=True, eq=False)
class Delay:
    """Every request takes its time, and none waits for another.

    ``queue`` as of ``Served``, where only those of -1, who pass the step by, differ from the others.
    """

    seconds: ArrayLike
    name: str = ""
    queue: NDArray | None = None


@dataclass(frozen=True, eq=False)
class Served:
    """First come, first served by ``servers`` alike; None: as many as the pool has replicas, or one without a pool.

    ``queue`` (request,), whole numbers from 0: requests of different numbers wait in different queues, each with so
    many servers of its own (the devices of a storage tier, the links of racks); those of -1 pass the step by.
    """

    seconds: ArrayLike
    servers: int | None = None
    queue: NDArray | None = None
    name: str = ""
    pool: str | None = None


@dataclass(frozen=True, eq=False)
class Batched:
    """Servers that each take up to ``len(seconds)`` waiting requests at a time.

    ``seconds`` (size,): what a batch of 1, 2, ... takes. A free server starts with all that wait, or, with
    ``max_wait_s``, waits for a full batch until that long after the oldest of them came. ``servers`` as of ``Served``.
    """

    seconds: NDArray
    servers: int | None = None
    max_wait_s: float = 0.0
    name: str = ""
    pool: str | None = None


@dataclass(frozen=True, eq=False)
class Pass:
    """A model computes ``tokens`` of each request and gives no token back that the client sees: an embedding, a guard.

    An engine's prefill pool runs it, batched by the pool's own policy, so there must be a pool. Each request is
    ``sequences`` sequences of so many tokens (the documents of a re-ranker), and goes on with the last of them.
    """

    model: str | WhatIf
    tokens: ArrayLike
    sequences: int = 1
    name: str = ""
    pool: str | None = None


@dataclass(frozen=True, eq=False)
class Shipped:
    """Bytes over a link that sends one request after the other; they arrive ``latency_s`` after they were sent.

    ``queue`` as of ``Served``; ``shared`` False: requests do not wait for one another.
    """

    bytes: ArrayLike
    bandwidth: float
    latency_s: float = 0.0
    shared: bool = True
    queue: NDArray | None = None
    name: str = ""


# Five kinds and no callback: each has a closed rule for who waits for whom, which the vectorised chain computes over
# whole arrays and the reference event by event.
Step = Delay | Served | Batched | Pass | Shipped
