"""Spec -> design: the builder of every replica, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.attention_kernels import AUTO, DecodeKernel, decode_devices, decode_kernel
from evaluator.catalog.calibration import MEASURED_MAKER, OPTIONAL_CLASSES, TUNED, Calibration
from evaluator.catalog.choice import load_calibration
from evaluator.catalog.delta_rule import DeltaRule, delta_rule_kernel
from evaluator.catalog.eager import EAGER
from evaluator.catalog.engine_rules import dotted
from evaluator.catalog.engines import ENGINES, serving_engine
from evaluator.catalog.exchange_kernels import ExchangeFigures, exchange_devices, exchange_figures, with_exchange
from evaluator.catalog.hardware import Hardware, load_hardware
from evaluator.catalog.model import (
    Adapters,
    AskedOfSampler,
    LinearAttention,
    Model,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.read_model import load_model
from evaluator.catalog.relatives import nearest_figures
from evaluator.catalog.tuned import ExpertProducts, crowded_bandwidth, filled_experts
from evaluator.catalog.what_if import WhatIf, changed_model, device
from evaluator.cost.adapters import adapters_problem
from evaluator.cost.blocks import division_problem
from evaluator.cost.dtypes import weight_dtypes
from evaluator.cost.feed_forward_apart import Apart, apart_problem, attention_alone, feed_forward_bytes
from evaluator.cost.fitted import fit_of, fitted_problem
from evaluator.cost.kv_groups import grouping_problem
from evaluator.cost.memory import MemoryPlan, memory_plan, memory_problem
from evaluator.cost.parallel import ALL_TO_ALL, DEEPEP, DEEPEP_LOW_LATENCY, GATHER, NVLINK, Parallel, lockstep_problem
from evaluator.errors import InputError
from evaluator.records import Same
from evaluator.replica.changes import Change, changed_apart, changed_calibration, changed_hardware
from evaluator.replica.costing import costing
from evaluator.replica.drafts import Drafter, drafter, drafting_problem, times_problem
from evaluator.replica.replica_build import INFEASIBLE, UNSUPPORTED, Problem, ReplicaBuild, RunnableReplica
from evaluator.replica.spec import ReplicaSpec
from evaluator.speculation import decode_tokens

EXPERTS_8BIT = "grouped_gemm_8bit"
"""The class of the products of experts in fp8, with block scales or without."""


def build(spec: ReplicaSpec) -> ReplicaBuild:
    """The design of a spec. InputError only where the catalog has no such names; any other problem is a status."""
    model, hardware, calibration = _catalog(spec)
    # A problem is kept beside what is known so far: tables and pages show the model and device of designs that
    # cannot run.
    built = ReplicaBuild(spec, model, hardware, calibration)
    problem = next(filter(None, _problems(spec, model, hardware, calibration)), None)
    if problem is not None:
        return replace(built, problem=problem)
    by = drafter(spec, model, _model)
    memory = _memory(spec, model, hardware, by)
    if spec.apart is not None:
        # A rank has so many blocks, and requests are shared out to the ranks.
        kv = replace(memory.kv, capacity_units=memory.kv.capacity_units * spec.apart.ranks)
        memory = memory if spec.kv_blocks is not None else replace(memory, kv=kv)
        too_large = _sides_problem(spec, model, hardware, memory, spec.apart)
    else:
        drafting_bytes = _drafting_bytes(spec, model, hardware)
        too_large = memory_problem(model, hardware, spec.precision, spec.parallel, memory, drafting_bytes)
    if too_large is not None:
        return replace(built, memory=memory, problem=Problem(INFEASIBLE, too_large))
    return replace(built, memory=memory, replica=_replica(built, memory, by))


def _problems(
    spec: ReplicaSpec, model: Model, hardware: Hardware, calibration: Calibration
) -> Iterator[Problem | None]:
    """Why a design cannot run, but for its memory, check by check; the first is its status, since each check supposes
    that those before it passed.

    In the order of the reasons: what the program does not know, then what the engine refuses, then what no cost was
    made for.
    """
    precision, parallel = spec.precision, spec.parallel
    # First, since the checks of other keys below see a model without feed-forwards, of which they would say that it has
    # no experts.
    if spec.apart is not None:
        yield _apart_problem(spec, model, calibration, spec.apart)
    yield _problem(UNSUPPORTED, fitted_problem(calibration, model, hardware, precision, parallel))
    if spec.host_speed != 1.0 and calibration.form not in ("roofline", EAGER):
        reason = f"deployment.host with calibration {calibration.name}, whose iterations have their host in them"
        yield Problem(UNSUPPORTED, f"{reason}; leave out host, or use calibration auto")
    yield _problem(UNSUPPORTED, lockstep_problem(model, parallel))
    engine = serving_engine(spec.engine)
    if not engine.runs_on(hardware):
        others = ", ".join(name for name, engine_record in ENGINES.items() if engine_record.runs_on(hardware))
        reason = f"{engine.label} runs on GPUs of {engine.maker} alone, not on {hardware.title}; use engine: {others}"
        yield Problem(INFEASIBLE, reason)
    # Where feed-forwards are apart, the others divide attention alone.
    divided = model if spec.apart is None else attention_alone(model)
    yield _problem(INFEASIBLE, division_problem(divided, hardware, precision, parallel, engine.whole_blocks))
    # After the division: a device with figures of an exchange does not help a design that exchanges nothing.
    yield _exchange_problem(parallel, model, hardware, calibration)
    yield _problem(UNSUPPORTED, _attention_problem(spec, model, hardware))
    undrafted = times_problem(spec, calibration) or drafting_problem(spec, model, hardware, _model)
    if undrafted is not None:
        yield Problem(INFEASIBLE if undrafted[1] else UNSUPPORTED, undrafted[0])
    if spec.drafting is not None and parallel.context > 1:
        yield Problem(
            UNSUPPORTED, "decode_context_parallel with deployment.speculative; leave out the one or the other"
        )
    if parallel.prefill > 1:
        yield _prompts_problem(spec, model, calibration)
    if parallel.overlap is not None:
        yield _overlap_problem(spec, calibration)
    if model.adapters is not None:
        yield _problem(UNSUPPORTED, adapters_problem(model, calibration))
    if spec.grouped:
        yield _problem(UNSUPPORTED, grouping_problem(model, precision, parallel))


def _problem(kind: str, reason: str | None) -> Problem | None:
    return None if reason is None else Problem(kind, reason)


def _apart_problem(spec: ReplicaSpec, model: Model, calibration: Calibration, apart: Apart) -> Problem | None:
    """What feed-forwards on devices of their own do not go with; None where they do."""
    divided = apart_problem(model, spec.parallel, apart)
    if divided is not None:
        return Problem(INFEASIBLE if divided[1] else UNSUPPORTED, divided[0])
    others = _drafts_and_adapters(spec) | {
        "kv.layer_groups; leave out layer_groups": spec.grouped > 0,
        "deployment.eager; leave out eager": spec.eager,
        f"calibration {calibration.name}, which knows whole iterations; use calibration auto or datasheet": (
            calibration.form != "roofline" or calibration.eager is not None or calibration.dispatch_s > 0
        ),
    }
    return _unsupported_beside("feed_forward_apart", others)


def _prompts_problem(spec: ReplicaSpec, model: Model, calibration: Calibration) -> Problem | None:
    """What prompts that are split over ranks do not go with; None where they do."""
    engine, parts = serving_engine(spec.engine), f"prefill_context_parallel {spec.parallel.prefill}"
    rules = engine.splits_prompts
    if rules is None:
        return Problem(UNSUPPORTED, f"{parts} with engine {engine.label}, of which nobody read how; use engine vllm")
    release = engine.last_read(spec.engine_version)
    if release < rules.since:
        first = dotted(rules.since)
        reason = f"{parts} before {engine.label} {first}; use engine_version '{first}', or prefill_context_parallel 1"
        return Problem(INFEASIBLE, reason)
    if rules.latent and any(isinstance(kind.mixer, SoftmaxAttention) for kind in model.layers):
        reason = f"{parts} on {model.name}: {engine.label} splits prompts of MLA alone; use engine sglang, or 1"
        return Problem(INFEASIBLE, reason)
    if spec.parallel.pipeline > 1 and release < rules.pipelined:
        first = dotted(rules.pipelined)
        reason = f"{parts} in a pipeline before {engine.label} {first}; use tensor_parallel, or a later engine_version"
        return Problem(INFEASIBLE, reason)
    # The engines refuse the first two, or have them for few drafts; the last has no cost that was made for it.
    others = _drafts_and_adapters(spec) | {
        "CUDA graphs switched off; leave out eager": spec.eager,
        f"calibration {calibration.name}, whose host runs ahead; use calibration auto": calibration.dispatch_s > 0
        or calibration.eager is not None,
    }
    return _unsupported_beside(parts, others)


def _overlap_problem(spec: ReplicaSpec, calibration: Calibration) -> Problem | None:
    """What two halves that overlap do not go with; None where they do."""
    exchange = spec.parallel.exchange
    # ``VllmConfig``: microbatches go with DeepEP's kernels and with nixl_ep, which stands for ``all_to_all``, alone.
    if spec.engine == "vllm" and exchange == NVLINK:
        reason = f"two_batch_overlap with expert_exchange {exchange}, which vLLM refuses; use {DEEPEP}"
        return Problem(INFEASIBLE, f"{reason} or {DEEPEP_LOW_LATENCY}")
    others = {
        f"engine {spec.engine}, of which nobody read how; use engine vllm or sglang": spec.engine
        not in ("vllm", "sglang"),
        "pipeline_parallel; use tensor_parallel": spec.parallel.pipeline > 1,
        "deployment.eager; leave out eager": spec.eager,
        f"calibration {calibration.name}, which knows whole iterations; use calibration auto or datasheet": (
            calibration.form != "roofline" or calibration.eager is not None or calibration.dispatch_s > 0
        ),
    }
    return _unsupported_beside("two_batch_overlap", _drafts_and_adapters(spec) | others)


def _drafts_and_adapters(spec: ReplicaSpec) -> dict[str, bool]:
    return {
        "deployment.speculative; leave out speculative": spec.drafting is not None,
        "deployment.lora; leave out lora": spec.adapters is not None,
    }


def _unsupported_beside(subject: str, others: Mapping[str, bool]) -> Problem | None:
    """The first of what a key does not go with, and what to do, that applies; None: none does."""
    what = next((what for what, applies in others.items() if applies), None)
    return None if what is None else Problem(UNSUPPORTED, f"{subject} with {what}")


def _sides_problem(spec: ReplicaSpec, model: Model, hardware: Hardware, memory: MemoryPlan, apart: Apart) -> str | None:
    """Why attention or feed-forwards do not fit on their devices; None where both do."""
    usable = f"the {memory.usable_bytes / 1e9:.1f} GB usable of {hardware.title}"
    active = f"{memory.activation_bytes / 1e9:.1f} GB of activations"
    if memory.kv.capacity_units == 0:
        held = f"{memory.weight_bytes / 1e9:.1f} GB of weights of attention and {active}"
        return f"does not fit: {held} leave no room for KV in {usable}; use more tensor_parallel"
    held_bytes = feed_forward_bytes(model, spec.precision, apart)
    if held_bytes + memory.activation_bytes <= memory.usable_bytes:
        return None
    held = f"{held_bytes / 1e9:.1f} GB of weights of feed-forwards and {active}"
    return f"does not fit: {held} exceed {usable}; use more feed_forward_apart.devices"


def drafter_of(built: ReplicaBuild) -> Drafter | None:
    """What drafts on the replicas of a design; None where nothing does."""
    return drafter(built.spec, built.model, _model)


def kept_model(built: ReplicaBuild) -> Model:
    """The model with the layers of what drafts for it: all that keep something of a sequence."""
    by = drafter_of(built)
    return built.model if by is None else replace(built.model, layers=(*built.model.layers, *by.layers))


def _catalog(spec: ReplicaSpec) -> tuple[Model, Hardware, Calibration]:
    """What the names stand for, changed. A set of other hardware is a problem of the design, no unknown name."""
    described = _model(spec.model)
    hardware = _hardware(spec.hardware)
    calibration = spec.calibration
    # ``foreign``: a set of other hardware is accepted here; ``fitted_problem`` says what is wrong with it.
    if isinstance(calibration, str):
        calibration = load_calibration(calibration, hardware, foreign=True, engine=spec.engine)
    # A set may be of no engine of ours (measured kernels alone): that is not one of another engine.
    of_other_engine = calibration.engine in ENGINES and calibration.engine != spec.engine
    crowded = None if of_other_engine else _crowded(spec, hardware, calibration)
    beyond = hardware.hypothetical or of_other_engine
    filled = _filled(spec, described, hardware, calibration)
    # `Same`: caches by identity, since a model hashes by all of its layers.
    model = _asking(
        Same(described), spec.asked, spec.adapters, _counts_said(spec, described), filled.rows if filled else 0.0
    )
    delta_rule = None if of_other_engine else _delta_rule(spec, model, hardware, calibration)
    # Figures of whole iterations have what is sent in them.
    exchange = exchange_figures(spec.parallel.exchange, hardware) if calibration.form == "roofline" else None
    decodes = decode_kernel(spec.attention_backend, spec.precision.kv, hardware)
    libraries = Libraries(delta_rule, exchange, decodes if calibration.form == "roofline" else None, filled)
    host = HostOfSpec(spec.eager, spec.host_speed, spec.api_server_times)
    calibration = _as_used(Same(calibration), beyond, host, spec.unequal, crowded, libraries, spec.change)
    if spec.change is not None:
        hardware = changed_hardware(hardware, spec.change)
    return model, hardware, calibration


class Filled(NamedTuple):
    """Rows with which kernels fill up every expert, and what their products reach (``catalog.tuned.FilledExperts``)."""

    rows: float
    products: ExpertProducts

    def put_into(self, calibration: Calibration) -> Calibration:
        """The set with these products; the start of a call, in which are the kernels around them, is the set's own."""
        reached = self.products._asdict() | {"prologue": 0.0, "fill_rows": 0.0, "filled_rows": self.rows}
        experts = replace(calibration.of(EXPERTS_8BIT), **reached)
        return replace(calibration, efficiencies={**calibration.efficiencies, EXPERTS_8BIT: experts})


class HostOfSpec(NamedTuple):
    """What a spec says of its host beside what the set knows."""

    eager: bool  # the engine has no CUDA graphs
    speed: float  # relative to the host of the set
    api_servers: ApiServerTimes | None  # None: as the set has them

    def put_into(self, calibration: Calibration) -> Calibration:
        """The set on this host; the very object where nothing changes."""
        if self.eager:
            # Batches are padded to the next graph only where there are graphs.
            calibration = replace(calibration, graphs=False, graph_tokens=0.0)
        if self.api_servers is not None:
            calibration = replace(calibration, api_server_times=self.api_servers)
        if self.speed != 1.0:
            calibration = changed_calibration(calibration, Change("host_overhead", 1.0 / self.speed))
        return calibration


class Libraries(NamedTuple):
    """Kernels that no set has figures of, or other ones than it has; None: there are none, or a set's own run."""

    delta_rule: DeltaRule | None  # of models with such layers
    exchange: ExchangeFigures | None  # of tokens that go to experts
    decodes: DecodeKernel | None  # of attention
    filled: Filled | None  # of experts with block scales


@lru_cache(maxsize=1024)
def _as_used(
    calibration: Same[Calibration],
    beyond: bool,
    host: HostOfSpec,
    unequal: float | None,
    crowded: float | None,
    libraries: Libraries,
    change: Change | None,
) -> Calibration:
    """A set, maybe ``beyond`` what it was fitted to (on a device that nobody measured, for another engine), with an
    input changed; the same object for all that ask so. ``host``: what a spec says of its host. ``unequal``: of the
    contexts of its decodes. ``crowded``: what default tiles of experts leave of the bandwidth (``_crowded``).
    ``libraries``: kernels that no set has figures of."""
    efficiency_of = calibration.of
    # A data sheet says no more of a device that was measured than of another: only what was fitted can be
    # extrapolated.
    if beyond and efficiency_of.provenance == "calibrated":
        efficiency_of = replace(efficiency_of, provenance="extrapolated")
    efficiency_of = host.put_into(efficiency_of)
    decodes = efficiency_of.efficiencies.get("attention_decode")
    # Without the time of a walk along one context it is all the same how long the longest is: the very object stays,
    # by which costings are shared.
    if unequal is not None and decodes is not None and decodes.beside_walk_s > 0.0:
        classes = {**efficiency_of.efficiencies, "attention_decode": replace(decodes, unequal=unequal)}
        efficiency_of = replace(efficiency_of, efficiencies=classes)
    if libraries.delta_rule is not None:
        efficiency_of = replace(efficiency_of, delta_rule=libraries.delta_rule)
    if crowded is not None:
        efficiency_of = _with_crowded(efficiency_of, crowded)
    if libraries.filled is not None:
        efficiency_of = libraries.filled.put_into(efficiency_of)
    if libraries.exchange is not None:
        efficiency_of = with_exchange(efficiency_of, libraries.exchange)
    if libraries.decodes is not None:
        efficiency_of = libraries.decodes.put_into(efficiency_of)
    return efficiency_of if change is None else changed_calibration(efficiency_of, change)


def _with_crowded(calibration: Calibration, crowded: float) -> Calibration:
    """The set with experts in 16 bits whose default tiles leave so much of the bandwidth."""
    # What stands in for tuned experts, and for those in 8 and 4 bits, whose kernels are others, keeps its figures.
    experts = {name: calibration.of(name) for name, of in OPTIONAL_CLASSES.items() if of == "grouped_gemm"}
    experts["grouped_gemm"] = replace(calibration.of("grouped_gemm"), crowded_bandwidth=crowded)
    return replace(calibration, efficiencies={**calibration.efficiencies, **experts})


def _exchange_problem(parallel: Parallel, model: Model, hardware: Hardware, calibration: Calibration) -> Problem | None:
    """Why kernels do not exchange tokens among the experts of these devices, or have no figures on them; None where
    they have, and where nothing is exchanged or figures of whole iterations have it in them."""
    exchange = parallel.exchange
    if exchange in (GATHER, ALL_TO_ALL) or not model.has_experts:
        return None
    # A rank writes into the memory of the others, which it reaches within an NVLink domain alone.
    domain = hardware.links[0].devices if hardware.links else None
    if exchange == NVLINK and domain is not None and parallel.expert_devices > domain:
        reason = (
            f"expert_exchange {NVLINK} among {parallel.expert_devices} devices, of which {domain} {hardware.title} are "
            f"in one {hardware.links[0].name} domain: these kernels send nothing beyond it; use {DEEPEP}"
        )
        return Problem(INFEASIBLE, reason)
    if calibration.form != "roofline" or "dispatch" in calibration.efficiencies:
        return None
    measured = ", ".join(exchange_devices(exchange))
    reason = (
        f"expert_exchange {exchange} on {hardware.title}, of whose architecture is none of the devices on which these "
        f"kernels were measured ({measured}); use {ALL_TO_ALL}"
    )
    return Problem(UNSUPPORTED, reason)


def _attention_problem(spec: ReplicaSpec, model: Model, hardware: Hardware) -> str | None:
    """Why kernels of decode attention that a spec asks for are not known of a model on a device; None where they
    are."""
    backend = spec.attention_backend
    if backend == AUTO:
        return None
    # MLA and compressed contexts are attended to by kernels of their own.
    if not any(isinstance(kind.mixer, SoftmaxAttention) for kind in model.layers):
        return (
            f"attention_backend {backend} on {model.name}, none of whose layers keeps keys and values of heads, which "
            f"is what it was measured on; use {AUTO}"
        )
    if decode_kernel(backend, spec.precision.kv, hardware) is not None:
        return None
    return (
        f"attention_backend {backend} on {hardware.title} with KV in {spec.precision.kv}: it was measured with KV in "
        f"16 bits and in fp8, on {', '.join(decode_devices(backend))} alone; use {AUTO}"
    )


def _crowded(spec: ReplicaSpec, hardware: Hardware, calibration: Calibration) -> float | None:
    """What the default tiles of the spec's release leave of the bandwidth; None where the set has the tiles of all,
    and on devices of other makers than those that the tiles were measured on: most run other kernels (TPU, Ascend)."""
    if hardware.maker != MEASURED_MAKER:
        return None
    stated = calibration.form == "roofline" and calibration.engine == spec.engine
    if spec.engine_version is None or not stated or TUNED in calibration.efficiencies:
        return None
    release = serving_engine(spec.engine).release(spec.engine_version)
    return crowded_bandwidth(spec.engine, calibration.hardware, release)


def _filled(spec: ReplicaSpec, model: Model, hardware: Hardware, calibration: Calibration) -> Filled | None:
    """How the kernels of the spec's engine and release fill up a model's experts, by figures of this device or of the
    nearest one of its architecture; None where they do not, and where nobody measured them."""
    if spec.engine_version is None or calibration.form != "roofline" or calibration.engine != spec.engine:
        return None
    if not model.has_experts or weight_dtypes(model, spec.precision)["experts"] != "fp8_block":
        return None
    release = serving_engine(spec.engine).release(spec.engine_version)
    kernel = filled_experts(spec.engine, release, spec.parallel.expert_shards)
    products = None if kernel is None else nearest_figures(hardware, kernel.devices)
    return None if kernel is None or products is None else Filled(kernel.rows, products)


def _delta_rule(spec: ReplicaSpec, model: Model, hardware: Hardware, calibration: Calibration) -> DeltaRule | None:
    """What the kernel of the spec's engine and release takes of prompts, on this device or the nearest one of its
    architecture; None for models without such layers, and where nobody measured it."""
    if not any(isinstance(kind.mixer, LinearAttention) for kind in model.layers):
        return None
    # Sets of the engine's kernels alone: a data sheet, or whole iterations, know nothing of kernels.
    if hardware.maker != MEASURED_MAKER or calibration.form != "roofline" or calibration.engine != spec.engine:
        return None
    release = serving_engine(spec.engine).release(spec.engine_version)
    kernel = delta_rule_kernel(spec.engine, hardware.architecture, release)
    return None if kernel is None else nearest_figures(hardware, kernel.devices)


def _counts_said(spec: ReplicaSpec, model: Model) -> bool:
    """Whether the spec's engine and release penalise what was said by counts on the device."""
    engine = serving_engine(spec.engine)
    if engine.lists is None:
        return True
    states = any(isinstance(kind.mixer, LinearAttention | StateSpace | Recurrence) for kind in model.layers)
    first = engine.lists.others if model.has_experts or states else engine.lists.dense
    return engine.last_read(spec.engine_version) >= first


@lru_cache(maxsize=1024)
def _asking(model: Same[Model], asked: AskedOfSampler, adapters: Adapters | None, counts: bool, filled: float) -> Model:
    """The model with these adapters, whose requests ask this of the sampler; the same object for all that ask so.
    ``counts``: how the engine penalises what was said, where they ask for it (``Model.counts_said``). ``filled``: rows
    with which its kernels fill up experts (``Model.filled_rows``)."""
    of = model.of
    nucleus = of.nucleus_sampling if asked.nucleus is None else asked.nucleus
    penalties = of.penalties if asked.penalties is None else asked.penalties
    counts = penalties and counts
    # The very object where nothing changes: costings are shared by the identity of their model.
    deployed = replace(
        of, nucleus_sampling=nucleus, penalties=penalties, adapters=adapters, counts_said=counts, filled_rows=filled
    )
    return of if deployed == of else deployed


def _model(of: Model | WhatIf | str) -> Model:
    if isinstance(of, WhatIf):
        return changed_model(of)
    model = load_model(of) if isinstance(of, str) else of
    if not isinstance(model, Model):
        raise InputError(f"model: expected a name of the catalog, or what its readers return, got {of!r}")
    return model


def _hardware(of: Hardware | WhatIf | str) -> Hardware:
    if isinstance(of, WhatIf):
        return device(of)
    hardware = load_hardware(of) if isinstance(of, str) else of
    if not isinstance(hardware, Hardware):
        raise InputError(f"hardware: expected a name of the catalog, or what its readers return, got {of!r}")
    return hardware


def _memory(spec: ReplicaSpec, model: Model, hardware: Hardware, by: Drafter | None) -> MemoryPlan:
    """What takes a device's memory; the KV cache has the blocks that are stated, else what is left.

    With drafts there are scores of two tokens of a sequence: vLLM finds the peak of its activations by a run in which
    each has one draft, however many there will be (``GPUModelRunner._dummy_sampler_run``).
    """
    engine = serving_engine(spec.engine)
    sampled = spec.max_num_seqs * (1 if spec.drafting is None else 2)
    plan = memory_plan(
        model if spec.apart is None else attention_alone(model), hardware, spec.precision, spec.parallel,
        memory_fraction=spec.memory_fraction, memory_of=engine.memory_of,
        block_tokens=spec.block_tokens,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        # SGLang and TensorRT-LLM size their KV without a run of the sampler (``ServingEngine.profiles_sampling``).
        max_num_seqs=sampled if engine.profiles_sampling else 0,
        beside=(0.0, ()) if by is None else (by.weight_bytes, by.layers),
        states=decode_tokens(spec.drafting),
        grouped=spec.grouped,
    )  # fmt: skip
    # A capacity that is known, from a log for instance, is not argued with: only the layout is computed.
    if spec.kv_blocks is None:
        return plan
    return replace(plan, kv=replace(plan.kv, capacity_units=spec.kv_blocks))


def _drafting_bytes(spec: ReplicaSpec, model: Model, hardware: Hardware) -> Callable[[Parallel], float] | None:
    """Bytes of weights per device of what drafts, under a split of the model; inf where it cannot be split so."""
    if spec.drafting is None:
        return None

    def under(parallel: Parallel) -> float:
        split = replace(spec, parallel=parallel)
        # Asked while a remedy is looked for: a split that the model can have, what drafts for it may not.
        if drafting_problem(split, model, hardware, _model) is not None:
            return float("inf")
        by = drafter(split, model, _model)
        return 0.0 if by is None else by.weight_bytes

    return under


def _replica(built: ReplicaBuild, memory: MemoryPlan, by: Drafter | None) -> RunnableReplica:
    model, hardware, calibration = built.model, built.hardware, built.calibration
    precision, parallel = built.spec.precision, built.spec.parallel
    apart = changed_apart(built.spec.apart, built.change)
    # ``memory`` is of a device that computes attention where others compute feed-forwards.
    elsewhere = 0 if apart is None else apart.devices
    elsewhere_bytes = 0.0 if apart is None else elsewhere * feed_forward_bytes(model, precision, apart)
    return RunnableReplica(
        costing=costing(model, calibration, precision, parallel, hardware, by, apart),
        hardware=hardware,
        kv=memory.kv,
        weight_bytes=memory.weight_bytes,
        replica_weight_bytes=(built.devices - elsewhere) * memory.weight_bytes + elsewhere_bytes,
        fit=fit_of(calibration, model, precision, parallel),
        # Kernels of experts are compiled when the first request comes (Triton); dense models have none.
        warm_up_s=calibration.warm_up_s if model.has_experts else 0.0,
    )
