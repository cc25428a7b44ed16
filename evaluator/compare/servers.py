"""Experiment and calibration -> a replica of the engine, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.store import names
from evaluator.compare.experiments import Experiment
from evaluator.compare.names import hardware_name, model_name, precision
from evaluator.cost.fold import fold
from evaluator.cost.iteration import CostParameters
from evaluator.cost.memory import KvLayout, memory_plan, memory_problem
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel, parallel_problem
from evaluator.errors import InputError


@dataclass(frozen=True, eq=False)
class Server:
    """One replica under a calibration set; ``kv_capacity`` in units of its layout (blocks of full attention)."""

    experiment: Experiment
    hardware: str
    calibration: Calibration
    cost: CostParameters
    kv: KvLayout
    kv_capacity: int


def chosen_set(wanted: str, hardware: str) -> str:
    """The set's name; ``auto`` is the first there is of: serving runs of this GPU, its kernels, serving runs of any."""
    if wanted != "auto":
        return wanted
    there = names("calibrations")
    order = (f"{hardware}-vllm.serving", f"{hardware}-vllm", "vllm.serving")
    return next((name for name in order if name in there), "datasheet")


def server(experiment: Experiment, calibration: str | Calibration = "auto") -> Server:
    """The replica that ran the experiment. Raises InputError with the reason where there can be none."""
    model, hardware = load_model(model_name(experiment.model)), load_hardware(hardware_name(experiment.gpu))
    if isinstance(calibration, str):
        calibration = load_calibration(chosen_set(calibration, hardware.name), hardware.name)
    if experiment.data_parallel > 1:
        raise InputError(f"data_parallel_size {experiment.data_parallel} is not supported: one replica is simulated")
    parallel = Parallel(tensor=experiment.tensor_parallel)
    problem = parallel_problem(model, hardware, parallel)
    if problem is not None:
        raise InputError(problem)
    stored = precision(model.name, experiment.weight_precision, experiment.kv_precision)
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
    cost = fold(operators(model, stored, parallel), hardware, calibration)
    return Server(experiment, hardware.name, calibration, cost, memory.kv, capacity)
