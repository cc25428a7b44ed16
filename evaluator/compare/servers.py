"""Experiment and calibration -> a replica of the engine, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evaluator.catalog import load_calibration, load_hardware, load_model
from evaluator.catalog.calibration import Calibration
from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.catalog.model import Model
from evaluator.catalog.store import names, suggestion
from evaluator.errors import InputError
from evaluator.experiments.experiment import Experiment
from evaluator.experiments.names import hardware_name, model_name
from evaluator.experiments.precisions import precision
from evaluator.plan.simulators import RING_BYTES, ring_bytes, ring_of
from evaluator.policies import CHUNKED, MIXED
from evaluator.replica import ReplicaBuild, RunnableReplica, build, replica_spec
from evaluator.scenario import Batching, Deployment, KvCache

ANY_GPU = "vllm.serving"
"""The set fitted to the serving runs of all GPUs; with a GPU's name in front, of that one."""


@dataclass(frozen=True, eq=False)
class Server:
    """The server of an experiment: how it is deployed, and the design of its replica, which can run.

    Of data-parallel ranks the replica is one among others, as everywhere.
    """

    experiment: Experiment
    deployment: Deployment
    design: ReplicaBuild

    @property
    def replica(self) -> RunnableReplica:
        """The one replica, or data-parallel rank of several."""
        return self.design.ready


def server(experiment: Experiment, calibration: str | Calibration = "auto") -> Server:
    """The server that ran the experiment. Raises InputError with the reason where there can be none."""
    if experiment.problem:
        raise InputError(experiment.problem)
    model, hardware = load_model(model_name(experiment.model)), hardware_name(experiment.gpu)
    _check_length(experiment, model)
    if isinstance(calibration, str):
        calibration = calibration_for(calibration, hardware)
    # Refused here, because the plan's own check (``joint_pools.too_many_together``) is of scenarios.
    if ring_bytes(experiment.data_parallel, ring_of(experiment.workload.output_tokens)) > RING_BYTES:
        raise InputError(
            f"data_parallel_size {experiment.data_parallel} with outputs of {experiment.workload.output_tokens} tokens "
            "takes more memory than a run of all ranks on one clock may have"
        )
    deployed = deployment(experiment, model, hardware, calibration)
    # The log's number of KV blocks, so that memory is as it was and no question of an estimate.
    spec = replace(replica_spec(deployed, 0), model=model, calibration=calibration, kv_blocks=experiment.kv_blocks)
    built = build(spec)
    if built.problem is not None:
        raise InputError(built.reason)
    return Server(experiment, deployed, built)


def calibration_for(wanted: str, hardware: str) -> Calibration:
    """The set ``wanted`` for this hardware. Raises InputError where it is of other hardware or unknown.

    ``auto`` is what the catalog holds best for it, and serving runs of any GPU before the data sheet. In a name GPU
    stands for the hardware (``GPU-vllm``), and where only other hardware has a set of that name the data sheet does.
    """
    set_names = names("calibrations")
    if wanted == "auto":
        # The set of all GPUs is a fit to servers, which a data sheet is not: its host's times hold for a device
        # that nobody measured, too.
        best = load_calibration("auto", hardware)
        return load_calibration(ANY_GPU, hardware) if best.name == "datasheet" and ANY_GPU in set_names else best
    name = wanted.replace("GPU", hardware)
    # "GPU" in a name stands for each experiment's device, some of which may have no such set.
    exists = "GPU" not in wanted or name in set_names
    if not exists and not any(wanted.replace("GPU", device) in set_names for device in names("hardware")):
        raise InputError(f"no hardware has a calibration set {wanted}{suggestion(name, set_names)}")
    return load_calibration(name if exists else "datasheet", hardware)


def deployment(experiment: Experiment, model: Model, hardware: str, calibration: Calibration) -> Deployment:
    """The server in the words of a scenario: vLLM takes KV on demand and cuts prompts into chunks, as of its release.

    Without chunks a prompt with its output so far may exceed an iteration after a preemption: then KV is reserved.
    Experts are dealt out over the devices of all data-parallel ranks. A request goes to the rank that has the fewest
    (``DPLBAsyncMPClient``, which counts one that waits four times, as seen every 100 ms).
    """
    ranks, chunks = experiment.tensor_parallel, experiment.chunked_prefill
    rules = serving_engine(DEFAULT_ENGINE).rules.of(experiment.engine_version)
    return Deployment(
        model.name,
        hardware,
        precision=precision(experiment.model, model.name, experiment.weight_precision, experiment.kv_precision),
        calibration=calibration.name,
        tensor_parallel=ranks,
        pipeline_parallel=experiment.pipeline_parallel,
        # vLLM's ``enable_expert_parallel`` takes all devices of the model: ``FusedMoEParallelConfig.make`` has
        # ep = tp x dp.
        expert_parallel=ranks * experiment.data_parallel if experiment.expert_parallel else 1,
        data_parallel=experiment.data_parallel,
        batching=Batching(CHUNKED.name if chunks else MIXED.name, *_limits(experiment, model, hardware)),
        engine_version=experiment.engine_version,
        eager=experiment.eager,
        kv=KvCache(
            "on_demand" if chunks else "reserve",
            experiment.memory_fraction,
            experiment.block_tokens,
            full_prompt=rules["kv.full_prompt"].simulated,
        ),
        router="least_outstanding",
    )


def _limits(experiment: Experiment, model: Model, hardware: str) -> tuple[int, int]:
    """max_num_seqs and max_num_batched_tokens of an experiment; where it states none, those of vLLM on the device.

    vLLM without chunked prefill raises its default budget to the longest request, which it computes whole.
    """
    devices = experiment.tensor_parallel * experiment.pipeline_parallel
    usual = serving_engine(DEFAULT_ENGINE).defaults(load_hardware(hardware), devices, 1, experiment.engine_version)
    budget_stated, longest = experiment.max_num_batched_tokens, experiment.max_model_tokens or model.max_positions
    budget = (
        max(usual.max_num_batched_tokens, 0 if experiment.chunked_prefill else longest)
        if budget_stated is None
        else budget_stated
    )
    return experiment.max_num_seqs or usual.within(budget_stated, 1).max_num_seqs, budget


def _check_length(experiment: Experiment, model: Model) -> None:
    """vLLM turns a request away whose prompt and output exceed max_model_len."""
    workload = experiment.workload
    longest = workload.system_tokens + workload.question_tokens + workload.output_tokens
    limit = experiment.max_model_tokens or model.max_positions
    if longest > limit:
        name = "max_model_len_tokens" if experiment.max_model_tokens else f"the positions of {model.name}"
        raise InputError(f"requests of {longest:,} tokens exceed {name}, {limit:,}")
