"""A replica that can run, and what is known of one that perhaps cannot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.iterations import Iterations
from evaluator.catalog.model import Model
from evaluator.cost.iteration import IterationCost
from evaluator.cost.memory import KvLayout, MemoryPlan
from evaluator.cost.parallel import in_lockstep
from evaluator.cost.utilisation import IdealTime, IdealTimes
from evaluator.metrics.outcomes import OK
from evaluator.replica.changes import Change
from evaluator.replica.costing import Costing
from evaluator.replica.spec import ReplicaSpec

UNSUPPORTED, INFEASIBLE = "unsupported", "infeasible"


class Problem(NamedTuple):
    """``kind`` unsupported: its cost is not known; infeasible: no engine could run it. ``reason`` ends in a remedy."""

    kind: str
    reason: str


@dataclass(frozen=True)
class RunnableReplica:
    """A replica that can run: its iteration cost, its KV cache, and its work in seconds at the peaks.

    With data parallelism all of that is of one rank, beside others of which each has a batch with as many tokens.
    ``batched_costs`` finds the costs and the work of many replicas at once.

    Every pipeline rank pays the host's overheads of an iteration once: each has a worker process that prepares the
    inputs and launches the kernels of its own layers (vLLM), and takes up its next batch only after that.
    """

    costing: Costing  # what it has in common with replicas of faster and slower devices
    hardware: Hardware
    kv: KvLayout
    weight_bytes: float  # per device; of one for attention where feed-forwards are apart
    replica_weight_bytes: float  # of all its devices
    fit: Iterations | None = None  # where the cost was fitted to measured iterations, which have a range
    warm_up_s: float = 0.0  # from the first request until kernels of experts are compiled: nothing runs before

    @cached_property
    def pipeline_ranks(self) -> tuple[IterationCost, ...]:
        """The cost of each pipeline rank, with the host's time of its own worker. Found when it is asked for."""
        costing = self.costing  # which remembers what its own device takes, for all replicas
        return costing.typical if self.hardware is costing.hardware else costing.costs(self.hardware)

    @cached_property
    def ideals(self) -> IdealTimes:
        """Seconds of its work at peak FLOP/s and at full bandwidth, summed over the ranks."""
        return self.costing.ideals_on([self.hardware])[0]

    @property
    def compute(self) -> IdealTime:
        """Its work at peak FLOP/s."""
        return self.ideals.compute

    @property
    def memory(self) -> IdealTime:
        """Its work at full bandwidth."""
        return self.ideals.memory

    @property
    def cost(self) -> IterationCost:
        """The iteration cost of the first pipeline rank: of the replica, where there is one."""
        return self.pipeline_ranks[0]


@dataclass(frozen=True, eq=False)
class ReplicaBuild:
    """What a spec comes to. Two are the same only if they are one object: ``design`` keeps them.

    ``hardware`` and ``calibration`` are those of the catalog with the spec's change. ``memory`` is None only where the
    cost is not known or the model cannot be split so; ``replica`` is None also where memory does not suffice.
    """

    spec: ReplicaSpec
    model: Model
    hardware: Hardware
    calibration: Calibration
    problem: Problem | None = None
    memory: MemoryPlan | None = None
    replica: RunnableReplica | None = None

    @property
    def status(self) -> str:
        """``ok``, or why there is no replica and what to do."""
        return OK if self.problem is None else f"{self.problem.kind}: {self.problem.reason}"

    @property
    def reason(self) -> str:
        """Why there is no replica, without its kind; empty where there is one."""
        return "" if self.problem is None else self.problem.reason

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        apart, devices = self.spec.apart, self.spec.parallel.devices
        return devices if apart is None else apart.ranks * devices + apart.devices

    @property
    def rank_devices(self) -> int:
        """Devices of one data-parallel rank, which has a scheduler and a KV cache of its own."""
        return self.spec.parallel.devices // self.spec.parallel.data

    @property
    def lockstep(self) -> int:
        """Data-parallel ranks that start every iteration together; 1: ranks know nothing of one another."""
        return self.spec.parallel.data if in_lockstep(self.model, self.spec.parallel) else 1

    @property
    def change(self) -> Change | None:
        """The input in which it differs from what its names say."""
        return self.spec.change

    @property
    def provenance(self) -> str:
        """The provenance of its calibration set."""
        return self.calibration.provenance

    @property
    def ready(self) -> RunnableReplica:
        """The replica of a design whose status is ok."""
        if self.replica is None:
            # A mistake of ours: who asks for the replica has to look at the status first.
            raise AssertionError(f"no replica: {self.status}")
        return self.replica
