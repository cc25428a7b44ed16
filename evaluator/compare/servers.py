"""Experiment and calibration -> a replica of the engine, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.iterations import Iterations
from evaluator.catalog.model import Model, MoeFeedForward
from evaluator.catalog.store import names, suggestion
from evaluator.cost.fitted import fit_of, fitted_problem, iteration_cost
from evaluator.cost.iteration import IterationCost
from evaluator.cost.memory import KvLayout, memory_plan, memory_problem
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.errors import InputError
from evaluator.experiments.experiment import Experiment
from evaluator.experiments.names import hardware_name, model_name
from evaluator.experiments.precisions import precision

ANY_GPU = "vllm.serving"
"""The set fitted to the serving runs of all GPUs; with a GPU's name in front, of that one."""


@dataclass(frozen=True, eq=False)
class Server:
    """One replica under a calibration set; ``kv_capacity`` in units of its layout (blocks of full attention)."""

    experiment: Experiment
    hardware: str
    calibration: Calibration
    pipeline_ranks: tuple[IterationCost, ...]  # of the pipeline
    kv: KvLayout
    kv_capacity: int
    warm_up_s: float = 0.0  # before which nothing runs
    fit: Iterations | None = None


def calibration_for(wanted: str, hardware: str) -> Calibration:
    """The set ``wanted`` for this hardware. Raises InputError where it is of other hardware or unknown.

    ``auto`` is what the catalog holds best for it, and serving runs of any GPU before the data sheet. In a name GPU
    stands for the hardware (``GPU-vllm``), and where only other hardware has a set of that name the data sheet does.
    """
    there = names("calibrations")
    if wanted == "auto":
        best = load_calibration("auto", hardware)
        return load_calibration(ANY_GPU, hardware) if best.name == "datasheet" and ANY_GPU in there else best
    name = wanted.replace("GPU", hardware)
    known = "GPU" not in wanted or name in there
    if not known and not any(wanted.replace("GPU", each) in there for each in names("hardware")):
        raise InputError(f"no hardware has a calibration set {wanted}{suggestion(name, there)}")
    return load_calibration(name if known else "datasheet", hardware)


def kernel_sets() -> list[str]:
    """GPUs of which there is a set fitted to kernels."""
    return [name.removesuffix("-vllm") for name in names("calibrations") if name.endswith("-vllm")]


def server(experiment: Experiment, calibration: str | Calibration = "auto") -> Server:
    """The replica that ran the experiment. Raises InputError with the reason where there can be none."""
    if experiment.problem:
        raise InputError(experiment.problem)
    model, hardware = load_model(model_name(experiment.model)), load_hardware(hardware_name(experiment.gpu))
    _check_length(experiment, model)
    if isinstance(calibration, str):
        calibration = calibration_for(calibration, hardware.name)
    if experiment.data_parallel > 1:
        raise InputError(f"data_parallel_size {experiment.data_parallel} is not supported: one replica is simulated")
    ranks, depth = experiment.tensor_parallel, experiment.pipeline_parallel
    parallel = Parallel(tensor=ranks, pipeline=depth, expert=ranks if experiment.expert_parallel else 1)
    problem = parallel_problem(model, hardware, parallel)
    if problem is not None:
        raise InputError(problem)
    stored = precision(experiment.model, model.name, experiment.weight_precision, experiment.kv_precision)
    problem = fitted_problem(calibration, model, hardware, stored, parallel)
    if problem is not None:
        raise InputError(problem)
    memory = memory_plan(
        model, hardware, stored, parallel,
        memory_fraction=experiment.memory_fraction, block_tokens=experiment.block_tokens,
        max_num_batched_tokens=experiment.max_num_batched_tokens, max_num_seqs=experiment.max_num_seqs,
    )  # fmt: skip
    if experiment.kv_blocks is None:
        problem = memory_problem(model, hardware, stored, parallel, memory)
        if problem is not None:
            raise InputError(problem)
    capacity = memory.kv.capacity_units if experiment.kv_blocks is None else experiment.kv_blocks
    pipeline_ranks = tuple(
        iteration_cost(model, hardware, calibration, stored, parallel, pipeline_rank if depth > 1 else None)
        for pipeline_rank in range(depth)
    )
    fit = fit_of(calibration, model, stored, parallel)
    experts = any(isinstance(kind.feed_forward, MoeFeedForward) for kind in model.layers)
    warm_up_s = calibration.warm_up_s if experts else 0.0
    return Server(experiment, hardware.name, calibration, pipeline_ranks, memory.kv, capacity, warm_up_s, fit)


def _check_length(experiment: Experiment, model: Model) -> None:
    """vLLM turns a request away whose prompt and output exceed max_model_len."""
    workload = experiment.workload
    longest = workload.system_tokens + workload.question_tokens + workload.output_tokens
    limit = experiment.max_model_tokens or model.max_positions
    if longest > limit:
        name = "max_model_len_tokens" if experiment.max_model_tokens else f"the positions of {model.name}"
        raise InputError(f"requests of {longest:,} tokens exceed {name}, {limit:,}")
