"""The prototype's own workload in a process of its own, without our XLA flags, timed as the engine is: FILE THREADS."""

from __future__ import annotations

import json
import runpy
import sys

import numpy as np

from tests.benchmarks.timing import best_of, in_threads
from tests.benchmarks.workload import LANES, REQUESTS

LANES_PER_CALL = 128  # its best
TRIPS = 10 * REQUESTS


def main() -> None:
    prototype = runpy.run_path(sys.argv[1])
    import jax
    import jax.numpy as jnp

    cost, *arrays = prototype["example"](LANES, REQUESTS)
    cuts = [slice(start, start + LANES_PER_CALL) for start in range(0, LANES, LANES_PER_CALL)]
    jobs = [jax.tree.map(lambda x, cut=cut: jnp.asarray(np.asarray(x)[cut]), (cost, *arrays)) for cut in cuts]

    def run(job: tuple) -> None:
        jax.block_until_ready(prototype["simulate"](*job, num_requests=REQUESTS, max_trips=TRIPS))

    print(json.dumps(vars(best_of(lambda: in_threads(run, jobs, int(sys.argv[2]))))))


if __name__ == "__main__":
    main()
