"""Which iteration cost a calibration set gives a replica, and whether a run stayed where that cost was measured.

A set of the form ``roofline`` states efficiencies, which hold for any model on its hardware, one of the form ``eager``
those of unfused modules, for the models that have them (``evaluator.cost.eager``). A set of another form
(``polynomial``, ``table``) states the time of whole iterations of certain models, splits and precisions, as somebody
measured them; it says nothing of other replicas (``fitted_problem``, before a run), and nothing of batches larger than
the measured ones (``verdict``, after a run, when the largest batch is known).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.catalog.hardware import Hardware
from evaluator.catalog.iterations import AXES, TERMS, Iterations, MeasuredPhase
from evaluator.catalog.model import Model
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.dtypes import weight_dtypes
from evaluator.cost.eager import eager_cost, eager_problem, eager_split_problem
from evaluator.cost.fold import fold, fold_devices
from evaluator.cost.host import launch_s, with_layers
from evaluator.cost.iteration import FittedCost, IterationCost
from evaluator.cost.lanes import stack
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, of_rank
from evaluator.cost.polynomial import PolynomialCost
from evaluator.cost.precision import Precision
from evaluator.cost.prefill_context import PromptsSplit
from evaluator.cost.quantities import PEAKS
from evaluator.cost.table import MeasuredGrid, TableCost
from evaluator.cost.two_batch_overlap import overlapped

if TYPE_CHECKING:
    from evaluator.catalog import Calibration

_REMEDIES = {
    "prefill_tokens": "lower max_num_batched_tokens",
    "past_tokens": "use shorter prompts",
    "decodes": "lower max_num_seqs",
    "context": "use shorter requests",
    "decode_context": "lower max_num_seqs or use shorter requests",
}
_SHOWN = {
    "prefill_tokens": "prompt tokens in an iteration",
    "past_tokens": "tokens of KV read by a prompt",
    "decodes": "sequences that decode",
    "context": "tokens of context per decode",
    "decode_context": "tokens of context of all decodes",
}


def iteration_cost(
    model: Model,
    hardware: Hardware,
    calibration: Calibration,
    precision: Precision,
    parallel: Parallel,
    pipeline_rank: int | None = None,
) -> IterationCost:
    """The iteration cost of a replica, or of one of its pipeline ranks; ``fitted_problem`` must have found none."""
    if calibration.eager is not None:
        # No pipeline rank is asked for: ``eager_split_problem`` refuses replicas that have several.
        return eager_cost(model, hardware, parallel.tensor, calibration.eager)
    if parallel.overlap is not None:  # in no pipeline, and of no other form than a roofline (``replica.build``)
        return overlapped(model, hardware, calibration, precision, parallel)
    rank_operators = operators(model, precision, parallel, pipeline_rank)
    fit = fit_of(calibration, model, precision, parallel)
    if fit is None:
        cost = with_layers(fold(rank_operators, hardware, calibration), model, calibration, parallel, pipeline_rank)
        least_s = max(calibration.dispatch_s, launch_s(model, calibration, parallel, pipeline_rank))
        if parallel.prefill > 1:
            return PromptsSplit(cost, np.float64(parallel.prefill), np.float64(parallel.dealt))
        # The floor of a host that runs ahead is a structure of its own: other sets compile without it.
        return Dispatched(cost, np.float64(least_s)) if least_s else cost
    return fitted_cost(
        calibration.form, fit.phases, min((operator.log_expert_missed for operator in rank_operators), default=0.0)
    )


def iteration_costs(
    model: Model,
    devices: Sequence[Hardware],
    calibration: Calibration,
    precision: Precision,
    parallel: Parallel,
    pipeline_rank: int | None = None,
) -> IterationCost:
    """``iteration_cost`` on many devices whose links join as many devices, with a trailing axis ``device``."""
    # A fit has the same few numbers on every device; only folding is worth doing for all devices in one pass, and of
    # one cost: two that overlap are folded by device.
    fitted = calibration.eager is not None or fit_of(calibration, model, precision, parallel) is not None
    if fitted or parallel.overlap is not None:
        split = precision, parallel, pipeline_rank
        return stack([iteration_cost(model, device, calibration, *split) for device in devices])
    cost = fold_devices(operators(model, precision, parallel, pipeline_rank), devices, calibration)
    cost = with_layers(cost, model, calibration, parallel, pipeline_rank)
    least_s = max(calibration.dispatch_s, launch_s(model, calibration, parallel, pipeline_rank))
    if parallel.prefill > 1:
        figures = (np.full(len(devices), float(figure)) for figure in (parallel.prefill, parallel.dealt))
        return PromptsSplit(cost, *figures)
    return Dispatched(cost, np.full(len(devices), least_s)) if least_s else cost


def fitted_cost(form: str, phases: Mapping[str, MeasuredPhase], log_expert_missed: float = 0.0) -> FittedCost:
    """The cost of a polynomial or a table, NumPy.

    Both phases need numbers. One that was never measured gets a time of one second per iteration, so that a run ends
    at all; ``verdict`` refuses every run that has such iterations.
    """
    made = {
        name: _polynomial(phases.get(name), name) if form == "polynomial" else _table(phases.get(name), name)
        for name in AXES
    }
    cost: Any = PolynomialCost if form == "polynomial" else TableCost
    return cost(**made, log_expert_missed=np.float64(log_expert_missed), expert_skew=np.float64(0.0))


def _polynomial(phase: MeasuredPhase | None, name: str) -> np.ndarray:
    return np.array([1.0] + [0.0] * (len(TERMS[name]) - 1)) if phase is None else np.array(phase.coefficients)


def _table(phase: MeasuredPhase | None, name: str) -> MeasuredGrid:
    if phase is None:
        return MeasuredGrid((np.zeros(1),) * len(AXES[name]), np.ones(1))
    return MeasuredGrid(tuple(map(np.array, phase.knots)), np.array(phase.seconds))


def fit_of(calibration: Calibration, model: Model, precision: Precision, parallel: Parallel) -> Iterations | None:
    """The fit that a set has of this model, split and precision; None without one (always so under the roofline)."""
    # A fit is of one data-parallel rank. Ranks of a dense model are replicas of their own, each with that split.
    parallel = of_rank(model, parallel)
    for fit in calibration.iterations:
        split = Parallel(fit.tensor_parallel, 1, fit.expert_parallel)
        dtypes = _dtypes(model, Precision(*fit.precision))
        if (fit.model, split, dtypes) == (model.name, parallel, _dtypes(model, precision)):
            return fit
    return None


def _dtypes(model: Model, precision: Precision) -> tuple[str, ...]:
    """Names that are equal where two precisions take the same time, (weights, activations, KV).

    ``checkpoint`` is replaced by the dtype that the checkpoint stores, if it is one for all parts; fp16 by bf16, which
    runs on the same units at the same rate.
    """
    stored = set(vars(model.checkpoint).values())
    weights = stored.pop() if precision.weights == "checkpoint" and len(stored) == 1 else precision.weights
    names = [weights, precision.activations, precision.kv]
    attention, usual = (weight_dtypes(model, of)["attention"] for of in (precision, replace(precision, attention=None)))
    same_rate = {"fp16": "bf16"}
    # Said only where attention is kept in another dtype than ``precision.weights`` gives it.
    names += [attention] if same_rate.get(attention, attention) != same_rate.get(usual, usual) else []
    return tuple(same_rate.get(name, name) for name in names)


def fitted_problem(
    calibration: Calibration, model: Model, hardware: Hardware, precision: Precision, parallel: Parallel
) -> str | None:
    """Why a set cannot tell the time of this replica, and what to do; None where it can."""
    if calibration.hardware not in ("any", hardware.name):
        return f"calibration {calibration.name} is of {calibration.hardware}, not of {hardware.name}; use auto"
    if not calibration.graphs and calibration.launches is None:
        return (
            f"eager with calibration {calibration.name}, which does not say what it takes a host to launch a layer; "
            "use a set of vLLM servers, such as calibration vllm.serving, or leave out eager"
        )
    if calibration.eager is not None:
        problem = eager_problem(model) or eager_split_problem(model, precision, parallel)
        return problem and f"calibration {calibration.name}: {problem}"
    if calibration.form != "roofline" and hardware.hypothetical:
        return (
            f"calibration {calibration.name} has times of iterations on {hardware.name}, which say nothing of one "
            "with other figures; use calibration auto"
        )
    if calibration.form == "roofline" or fit_of(calibration, model, precision, parallel) is not None:
        return None
    mine = [fit for fit in calibration.iterations if fit.model == model.name]
    fitted_to = dict.fromkeys(
        _split(Parallel(fit.tensor_parallel, 1, fit.expert_parallel), Precision(*fit.precision)) for fit in mine
    ) or dict.fromkeys(fit.model for fit in calibration.iterations)
    wanted = _split(of_rank(model, parallel), precision) if mine else model.name
    whose = f" of {model.name}" if mine else ""
    return (
        f"calibration {calibration.name} was fitted to iterations{whose} of {'; '.join(fitted_to)}, not of {wanted}; "
        "measure such iterations, or use calibration auto"
    )


def _split(parallel: Parallel, precision: Precision) -> str:
    pipeline = f", pipeline_parallel {parallel.pipeline}" if parallel.pipeline > 1 else ""
    experts = f", expert_parallel {parallel.expert}" if parallel.expert > 1 else ""
    experts += f", data_parallel {parallel.data}" if parallel.data > 1 else ""
    experts += f", decode_context_parallel {parallel.context}" if parallel.context > 1 else ""
    experts += f", prefill_context_parallel {parallel.prefill}" if parallel.prefill > 1 else ""
    dtypes = f"{precision.weights}/{precision.activations}/{precision.kv}"
    dtypes += "" if precision.attention is None else f", attention in {precision.attention}"
    return f"tensor_parallel {parallel.tensor}{pipeline}{experts} in {dtypes}"


def verdict(
    calibration: Calibration, fit: Iterations | None, peaks: Sequence[float] | np.ndarray
) -> tuple[str | None, str]:
    """Why a run is refused (None: it is not), and the provenance of its times.

    ``peaks`` (quantity,) are the run's largest quantities in the order of ``PEAKS``. A run that exceeds the measured
    range of ``fit`` is refused, unless the set says ``beyond: extend``: its provenance is then ``extrapolated``.
    Quantities below the range are let pass, because a batch with less work takes no longer than a measured one.
    """
    if fit is None:
        return None, calibration.provenance
    problem = _unmeasured(calibration, fit, peaks)
    if problem is None:
        problem = _beyond(calibration, fit, peaks)
        if problem is not None and calibration.beyond == "extend":
            return None, "extrapolated"
    return problem, calibration.provenance


def _unmeasured(calibration: Calibration, fit: Iterations, peaks: Sequence[float] | np.ndarray) -> str | None:
    """Refuses a run that had iterations of a phase which was never measured: the fit has no number for them at all."""
    prefill = fit.phases.get("prefill")
    run = dict(zip(PEAKS, peaks, strict=True))
    # A fit to iterations of prompts alone has 0 as the largest number of decodes beside them.
    alone = prefill is not None and not prefill.ranges["decodes"][1]
    kinds = {
        "with prompts": prefill is None and run["prefill", "prefill_tokens"] > 0,
        "without prompts": "decode" not in fit.phases and run["decode", "decodes"] > 0,
        "with prompts and decodes together": alone and run["prefill", "decodes"] > 0,
    }
    for kind, missing in kinds.items():
        if missing:
            return (
                f"calibration {calibration.name} has no iteration {kind} for {fit.model}, tensor_parallel "
                f"{fit.tensor_parallel}; measure some, or use a policy or role without them (continuous, static)"
            )
    return None


def _beyond(calibration: Calibration, fit: Iterations, peaks: Sequence[float] | np.ndarray) -> str | None:
    for (phase, quantity), peak in zip(PEAKS, peaks, strict=True):
        # Means over a batch are quotients, which may round to just above the range that they were measured at.
        if phase in fit.phases and peak > fit.phases[phase].ranges[quantity][1] * (1.0 + 1e-9):
            beside = " beside prompts" if (phase, quantity) == ("prefill", "decodes") else ""
            return (
                f"{peak:,.0f} {_SHOWN[quantity]}{beside} exceed the {fit.phases[phase].ranges[quantity][1]:,.0f} that "
                f"calibration {calibration.name} was fitted to; {_REMEDIES[quantity]}, measure more, or set "
                "beyond: extend in it"
            )
    return None
