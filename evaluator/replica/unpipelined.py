"""One batch on its way through all pipeline ranks: the closed form's view of a replica."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.iterations import Iterations
from evaluator.cost.fitted import fit_of
from evaluator.cost.iteration import IterationCost
from evaluator.cost.kernel import Operator
from evaluator.cost.speculative import verifying
from evaluator.cost.utilisation import IdealTime
from evaluator.replica.build import drafter_of
from evaluator.replica.costing import Costing
from evaluator.replica.drafts import Drafter
from evaluator.replica.replica_build import ReplicaBuild


@dataclass(frozen=True)
class UnpipelinedCost:
    """An iteration of all layers, from the first rank to the last.

    ``calibration`` has the host's times of all ranks: a batch passes the host of each, a worker process of its own, as
    in the simulators. ``compute`` and ``memory`` are the work of a model that decodes a token at the peaks
    (``IdealTimes``).
    ``operators`` are those of the model; where drafts are verified (``drafts``, else None) with what that takes. There
    are none where the times of single operators make no iteration: devices that split prompts or compute feed-forwards
    alone wait for one another, and do not compute the same; halves of a batch overlap.
    """

    operators: tuple[Operator, ...]
    calibration: Calibration
    cost: IterationCost
    compute: IdealTime
    memory: IdealTime
    executed_compute: IdealTime
    executed_memory: IdealTime
    fit: Iterations | None
    drafts: Drafter | None = None


def passage(built: ReplicaBuild) -> UnpipelinedCost:
    """The times of a design with a memory plan; those of devices with more memory where its own do not hold it."""
    if built.memory is None:
        raise AssertionError(f"no times: {built.status}")
    spec, model, hardware = built.spec, built.model, built.hardware
    # A batch passes the hosts of all ranks one after the other. Simulated, each waits for its own only.
    calibration = _with_all_hosts(built.calibration, spec.parallel.pipeline)
    by = drafter_of(built)
    # Made by hand and not shared: its calibration has the hosts of all ranks, as no simulated replica's has.
    whole = Costing(model, calibration, spec.precision, spec.parallel, hardware, by, spec.apart)
    (ideals,), fit = whole.ideals_on([hardware]), fit_of(calibration, model, spec.precision, spec.parallel)
    whole_operators = whole.operators()
    if by is not None:
        # Rows of drafts are more work that the model asks for, and count as such in the breakdown.
        whole_operators = verifying(whole_operators, float(by.drafting.tokens + 1), model.vocabulary)
    if spec.apart is not None or spec.parallel.prefill > 1 or spec.parallel.overlap is not None:
        whole_operators = ()
    return UnpipelinedCost(whole_operators, calibration, whole.cost(hardware), *ideals, fit, by)


def _with_all_hosts(calibration: Calibration, pipeline_ranks: int) -> Calibration:
    return replace(
        calibration,
        step_overhead_s=pipeline_ranks * calibration.step_overhead_s,
        sequence_overhead_s=pipeline_ranks * calibration.sequence_overhead_s,
    )
