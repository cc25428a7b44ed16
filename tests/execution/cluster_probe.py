"""A sweep on a Dask cluster whose workers are killed while they work; run by test_cluster.py as a program of its own.

Dask's workers import the program that started them, so that it must be a file; and its warnings are not ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main(out: str, kills: int) -> None:
    from distributed import Client, LocalCluster

    from evaluator.execution import cluster, schedule
    from evaluator.run import sweep
    from tests.scenario.build import GRID, scenario

    schedule.CONFIGS_PER_CHUNK = 1
    cluster.AHEAD, cluster.LEAST_AHEAD = 1, 2  # most chunks are asked for while others are computed

    class Killing:
        """SIGKILL to a worker after every second chunk, until there were enough."""

        def __init__(self, cluster: LocalCluster) -> None:
            self.cluster = cluster
            self.rows, self.killed = [], 0

        def advance(self, units: int = 1) -> None:
            self.rows.append(units)
            if len(self.rows) % 2 == 0 and self.killed < kills:
                victims = [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]
                if victims:  # else the one before is not there again
                    os.kill(victims[0], signal.SIGKILL)
                    self.killed += 1

        def keep(self, units: int) -> None:
            raise AssertionError("nothing was kept")

        def expect(self, units: int) -> None:
            pass

        def note(self, text: str) -> None:
            pass

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(**options, silence_logs="CRITICAL") as here, Client(here) as client:
        progress = Killing(here)
        sweep(
            scenario("workload.seeds=[0, 1]", **GRID), out=out, progress=progress, simulator="iteration", cluster=client
        )
        print(json.dumps({"rows": sum(progress.rows), "killed": progress.killed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
