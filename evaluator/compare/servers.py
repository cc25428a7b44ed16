"""Experiment and calibration -> a replica of the engine, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.catalog import load_model
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.model import Model
from evaluator.compare.calibrations import calibration_for
from evaluator.cost.parallel import Parallel
from evaluator.errors import InputError
from evaluator.experiments.experiment import Experiment
from evaluator.experiments.names import hardware_name, model_name
from evaluator.experiments.precisions import precision
from evaluator.replica import Design, Replica, ReplicaSpec, build


@dataclass(frozen=True, eq=False)
class Server:
    """The server of an experiment under a calibration set: a design that can run."""

    experiment: Experiment
    design: Design

    @property
    def replica(self) -> Replica:
        """The one replica that serves all requests."""
        return self.design.ready


def server(experiment: Experiment, calibration: str | Calibration = "auto") -> Server:
    """The replica that ran the experiment. Raises InputError with the reason where there can be none."""
    if experiment.problem:
        raise InputError(experiment.problem)
    model, hardware = load_model(model_name(experiment.model)), hardware_name(experiment.gpu)
    _check_length(experiment, model)
    if isinstance(calibration, str):
        calibration = calibration_for(calibration, hardware)
    if experiment.data_parallel > 1:
        raise InputError(f"data_parallel_size {experiment.data_parallel} is not supported: one replica is simulated")
    built = build(_spec(experiment, model, hardware, calibration))
    if built.problem is not None:
        raise InputError(built.reason)
    return Server(experiment, built)


def _spec(experiment: Experiment, model: Model, hardware: str, calibration: Calibration) -> ReplicaSpec:
    ranks = experiment.tensor_parallel
    return ReplicaSpec(
        model,
        hardware,
        calibration,
        precision(experiment.model, model.name, experiment.weight_precision, experiment.kv_precision),
        Parallel(ranks, experiment.pipeline_parallel, ranks if experiment.expert_parallel else 1),
        memory_fraction=experiment.memory_fraction,
        block_tokens=experiment.block_tokens,
        kv_blocks=experiment.kv_blocks,
        max_num_batched_tokens=experiment.max_num_batched_tokens,
        max_num_seqs=experiment.max_num_seqs,
    )


def _check_length(experiment: Experiment, model: Model) -> None:
    """vLLM turns a request away whose prompt and output exceed max_model_len."""
    workload = experiment.workload
    longest = workload.system_tokens + workload.question_tokens + workload.output_tokens
    limit = experiment.max_model_tokens or model.max_positions
    if longest > limit:
        name = "max_model_len_tokens" if experiment.max_model_tokens else f"the positions of {model.name}"
        raise InputError(f"requests of {longest:,} tokens exceed {name}, {limit:,}")
