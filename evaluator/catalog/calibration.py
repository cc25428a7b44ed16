"""Efficiency sets: which part of a device's peaks each class of operator reaches, and what the host costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evaluator.catalog.api_servers import ApiServerTimes, read_api_server_times
from evaluator.catalog.delta_rule import DeltaRule
from evaluator.catalog.eager import EAGER, EagerFigures, read_eager, read_sources
from evaluator.catalog.efficiency import BEYOND_ROOFLINE, GroupEfficiency, OperatorEfficiency, figures_of
from evaluator.catalog.fields import Fields, load
from evaluator.catalog.iterations import BEYOND, FORMS, Iterations, read_iterations
from evaluator.catalog.launches import Launches, read_launches
from evaluator.catalog.own_server import OWN_SERVER, OwnServer, read_own_server
from evaluator.catalog.tuned import ExpertShape, tuned_experts
from evaluator.errors import InputError

COMPUTE_CLASSES = ("gemm", "grouped_gemm", "attention_prefill", "attention_decode", "elementwise")
COLLECTIVE_CLASSES = ("all_reduce", "all_to_all", "p2p")
OPERATOR_CLASSES = COMPUTE_CLASSES + COLLECTIVE_CLASSES
BLOCK_EXPERTS = "grouped_gemm_block"
"""Experts of fp8 weights with block scales, where an engine has kernels for them that are not those of other fp8."""
OPTIONAL_CLASSES = {
    "gemm_8bit": "gemm", "gemm_block": "gemm_8bit", "grouped_gemm_8bit": "grouped_gemm", "gemm_4bit": "gemm_8bit",
    "grouped_gemm_4bit": "grouped_gemm_8bit", "expert_elementwise": "elementwise", "mla_prefill": "attention_prefill",
    "mla_decode": "attention_decode", "grouped_gemm_tuned": "grouped_gemm", "grouped_gemm_w4": "grouped_gemm",
    "expert_elementwise_4bit": "expert_elementwise", "expert_elementwise_w4": "expert_elementwise",
    "grouped_gemm_mx4": "grouped_gemm_w4", "expert_elementwise_mx4": "expert_elementwise_w4",
    BLOCK_EXPERTS: "grouped_gemm_8bit",
}  # fmt: skip
"""Classes that a set may have, and whose figures they take where it has not: products computed in 8 bits and in 4,
dense ones of fp8 weights with block scales (of 128 x 128, as DeepSeek publishes them), what permutes, activates and
sums what the routed experts make, attention on latents (MLA), whose kernels are others, experts in 16 bits of shapes
for which the engine has tuned kernels (``tuned``), and experts in 4 bits under 16-bit activations: int4 (w4), unpacked,
and mxfp4 (mx4), unpacked or computed in mxfp8."""
TUNED = "grouped_gemm_tuned"
"""The one of them that depends on the engine's lists (``tuned_experts``)."""
OPTIONAL_COLLECTIVES = {"all_gather": "all_reduce", "dispatch": "all_to_all", "combine": "all_to_all"}
"""Collectives that a set may have; where it has not, they take what a set says of the other one, whatever its group.
``dispatch`` and ``combine`` are of kernels that exchange tokens among experts (``exchange_kernels``)."""
SORT = "sort"
"""One more: ordering the logits for top-p and top-k. An engine whose set has none does not order them."""
PROVENANCES = ("datasheet", "transferred", "extrapolated", "calibrated")
"""Where a set's figures are from, the least sure first: data sheets, sets of other devices (their median), a fit that
is used beyond what it was fitted to, a fit."""
TRANSFERRED = "transferred"
"""The name of the median of other devices' sets, and the provenance of what is made of them."""
MEASURED_MAKER = "NVIDIA"
"""The maker of all devices whose kernels and servers were measured."""
HOST = (
    "step_overhead_s",
    "sequence_overhead_s",
    "dispatch_s",
    "frontend_s",
    "lookahead_steps",
    "warm_up_s",
    "graph_tokens",
    "expert_skew",
    "launches",
    "penalty_sequence_s",
    "api_server_times",
)
"""Figures of the engine and its load, of which measurements of kernels know nothing; the class SORT is one more."""
_OPTIONAL_SOURCES = (SORT, "expert_skew", "dispatch_s", "frontend_s", "lookahead_steps", "warm_up_s", "graph_tokens",
                     "launches", "penalty_sequence_s", "api_server_times")  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """One efficiency set. ``hardware`` is a catalog name or ``any``; ``sources`` has one entry per figure or class.

    ``fit`` is what a fitted set says of itself (data, errors, what was not identified); nothing computes with it.
    ``serving_runs`` are the models of the serving runs that it was fitted to, by their hardware, each with the tensor
    parallelism of its runs. ``rests_on`` is the case of ``evaluator.accuracy`` that says how far its predictions are
    off (``_rests_on``).
    A set of another form than ``roofline`` has fits of whole ``iterations`` instead of efficiencies, or those of the
    ``eager`` operator set.
    """

    name: str
    hardware: str
    provenance: str  # of PROVENANCES
    efficiencies: Mapping[str, OperatorEfficiency]
    link_efficiency: float  # of a link's bandwidth in one direction, large messages
    step_overhead_s: float  # host, per engine iteration
    sequence_overhead_s: float  # host, per sequence in the batch and iteration
    sources: Mapping[str, str]
    expert_skew: float = 0.0  # variance of the experts' popularity (mean 1)
    engine: str = "any"
    engine_version: str = "any"
    fit: Mapping[str, Any] = field(default_factory=dict)
    dispatch_s: float = 0.0  # host, per iteration while the device works on the one before: it takes no less
    frontend_s: float = 0.0  # per request, outside the engine: HTTP, tokenising, hops between processes, streaming
    lookahead_steps: float = 0.0  # iterations that a request waits because they are planned ahead when it comes
    warm_up_s: float = 0.0  # that the first request waits for kernels of experts to be compiled; of single runs alone
    graph_tokens: float = 0.0  # batches are padded to multiples of so many tokens, of which graphs are kept (0: none)
    launches: Launches | None = None  # the least that iterations take that are no whole CUDA graph; None: nothing
    delta_rule: DeltaRule | None = None  # as used, too: the kernel of the engine's release for prompts; None: its FLOPs
    graphs: bool = True  # as used, not as read: the engine has CUDA graphs; False: it launches every iteration
    penalty_sequence_s: float = 0.0  # host, per decode and iteration, where what was said is penalised
    api_server_times: ApiServerTimes | None = None  # what an API server takes; None: not known, and nothing waits there
    form: str = "roofline"  # roofline | polynomial | table | eager
    beyond: str = "refuse"  # refuse | extend: configurations that leave the range of the measured iterations
    iterations: tuple[Iterations, ...] = ()
    eager: EagerFigures | None = None
    serving_runs: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    serving_release: str | None = None  # of the engine of these runs, such as 0.15; None: of several, or nobody says
    own_server: OwnServer | None = None  # the server of its user that the set was fitted to
    rests_on: str = "datasheet"

    def of(self, op_class: str) -> OperatorEfficiency:
        """The efficiencies of a class; for an optional one that the set has not, of the class it stands in for."""
        if op_class in self.efficiencies:
            return self.efficiencies[op_class]
        if op_class in OPTIONAL_COLLECTIVES:
            return self.of(OPTIONAL_COLLECTIVES[op_class])
        # An engine that samples without ordering the logits (FlashInfer rejects candidates instead) has no such
        # class: the order takes no time, while every other class has a stand-in.
        return _FREE if op_class == SORT else self.of(OPTIONAL_CLASSES[op_class])

    def tuned_experts(self) -> frozenset[ExpertShape]:
        """Shapes of experts that have the figures of the class TUNED; none where the set has no such class."""
        return tuned_experts(self.engine, self.hardware) if TUNED in self.efficiencies else frozenset()


_FREE = OperatorEfficiency(1.0, math.inf, 0.0, 0.0)


def is_collective(name: str) -> bool:
    """Whether a class is one of messages between devices."""
    return name in COLLECTIVE_CLASSES or name in OPTIONAL_COLLECTIVES


def base_class(name: str) -> str:
    """The class that every set has and that an optional one is a kind of; any other class is its own."""
    # Classes stand in for one another in chains: 4 bits for 8, 8 for 16.
    while name in OPTIONAL_CLASSES:
        name = OPTIONAL_CLASSES[name]
    return "elementwise" if name == SORT else name


def named_set(name: str, hardware: str, foreign: bool = False) -> Calibration:
    """The set ``name`` (a catalog name or a path to a YAML), of ``hardware`` or of any; else InputError.

    ``foreign`` lets a set of other hardware pass.
    """
    calibration = load("calibrations", name, read_calibration)
    if not foreign and calibration.hardware not in ("any", hardware):
        raise InputError(f"calibration '{name}' is of {calibration.hardware}, not of {hardware}")
    return calibration


def read_calibration(document: Any, where: str, expected_name: str | None = None) -> Calibration:
    """A Calibration from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    name = given.named(expected_name)
    form = given.choice("form", ("roofline", *FORMS, EAGER), "roofline")
    calibration = Calibration(
        name=name,
        hardware=given.text("hardware"),
        provenance=given.choice("provenance", PROVENANCES),
        **(_FIGURES[form](given) if form in _FIGURES else _fitted(given, form)),
        engine=given.text("engine", "any"),
        engine_version=given.text("engine_version", "any"),
        fit=given.inner("fit", {}).values,
        dispatch_s=given.quantity("dispatch_s", "s", 0.0, zero=True),
        frontend_s=given.quantity("frontend_s", "s", 0.0, zero=True),
        lookahead_steps=given.number("lookahead_steps", 0.0),
        warm_up_s=given.quantity("warm_up_s", "s", 0.0, zero=True),
        graph_tokens=given.number("graph_tokens", 0.0),
        launches=read_launches(given),
        penalty_sequence_s=given.quantity("penalty_sequence_s", "s", 0.0, zero=True),
        api_server_times=read_api_server_times(given),
        serving_runs=_serving_runs(given.inner("serving_runs", {})),
        serving_release=given.text("serving_release", None),
        own_server=read_own_server(given),
    )
    given.finish()
    # No key of the file: it follows from the figures, so that it is set once they are all read.
    return replace(calibration, rests_on=_rests_on(calibration))


def _serving_runs(given: Fields) -> dict[str, dict[str, tuple[int, ...]]]:
    runs: dict[str, dict[str, tuple[int, ...]]] = {}
    for hardware, models in given.values.items():
        if not isinstance(models, dict):
            raise InputError(
                f"{given.place(str(hardware))}: expected models with the tensor parallelism of their runs, such as "
                f"{{llama-3.1-8b: [1, 2]}}, got {models!r}"
            )
        of_device = given.inner(hardware)
        for model, layouts in models.items():
            if not isinstance(layouts, list) or not layouts or not all(type(ranks) is int for ranks in layouts):
                place = of_device.place(str(model))
                raise InputError(f"{place}: expected tensor parallelism such as [1, 2], got {layouts!r}")
            runs.setdefault(str(hardware), {})[str(model)] = tuple(layouts)
    return runs


def _rests_on(of: Calibration) -> str:
    """What the predictions of a set as it is in its file rest on: a case of ``evaluator.accuracy``."""
    if of.own_server is not None:
        return OWN_SERVER
    # From the surest to the least sure: which errors of ``evaluator.accuracy`` apply is known by what a set was held
    # against.
    if of.form != "roofline":
        # Neither form has efficiencies: what is below speaks of sets that have them.
        return EAGER if of.form == EAGER else "iterations"
    # A set that says of itself that it is extrapolated has products or attention of other devices.
    if of.provenance in (TRANSFERRED, "extrapolated"):
        return TRANSFERRED
    if of.hardware in of.serving_runs:
        return "runs"
    if of.serving_runs:
        # Runs of other devices alone: the host is from a server, the device is not.
        return "sheet_and_runs" if of.provenance == "datasheet" else "other_devices"
    if of.provenance == "datasheet":
        return "datasheet"
    return "kernels_and_host" if of.frontend_s else "kernels"  # kernels do not tell what is outside the engine


def _roofline(given: Fields) -> dict[str, Any]:
    return {
        "efficiencies": _efficiencies(given.inner("efficiencies")),
        "link_efficiency": _fraction(given, "link_efficiency"),
        "step_overhead_s": given.quantity("step_overhead_s", "s", zero=True),
        "sequence_overhead_s": given.quantity("sequence_overhead_s", "s", zero=True),
        "sources": _sources(given),
        "expert_skew": given.number("expert_skew", 0.0),
    }


def _fitted(given: Fields, form: str) -> dict[str, Any]:
    """Iterations were measured with their host and collectives: nothing comes on top."""
    fits = {"iterations": read_iterations(given, form), "beyond": given.choice("beyond", BEYOND, "refuse")}
    # No sources by figure: each fit has its own section, and `fit` says what it was made from.
    return _NO_EFFICIENCIES | fits | {"form": form, "sources": {}}


def _eager(given: Fields) -> dict[str, Any]:
    return _NO_EFFICIENCIES | {"form": EAGER, "eager": read_eager(given), "sources": read_sources(given)}


_NO_EFFICIENCIES = {"efficiencies": {}, "link_efficiency": 1.0, "step_overhead_s": 0.0, "sequence_overhead_s": 0.0}
_FIGURES = {"roofline": _roofline, EAGER: _eager}


def _efficiencies(classes: Fields) -> dict[str, OperatorEfficiency]:
    # Classes that every set must have; a set without a figure of a dense product would make it free.
    efficiencies = {name: _compute(classes.inner(name), figures_of(name)) for name in COMPUTE_CLASSES}
    efficiencies |= {name: _collective(classes.inner(name)) for name in COLLECTIVE_CLASSES}
    for name in (*OPTIONAL_CLASSES, SORT):
        if classes.raw(name, None) is not None:
            # A class may state what the one that it stands in for may: `gemm_8bit` has tiles and waves as `gemm` has.
            efficiencies[name] = _compute(classes.inner(name), figures_of(base_class(name)))
    for name in OPTIONAL_COLLECTIVES:
        if classes.raw(name, None) is not None:
            efficiencies[name] = _collective(classes.inner(name))
    # After the optional classes, so that only a name that no class has is refused.
    classes.finish()
    return efficiencies


def _compute(given: Fields, optional: tuple[str, ...]) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=_fraction(given, "flops_efficiency"),
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=given.number("knee", high=1.0),
        launch_s=given.quantity("launch_s", "s", zero=True),
    )
    # Figures that are absent stay at the defaults of the record, which leave the plain roofline.
    more = {name: _optional(given, name) for name in optional if given.raw(name, None) is not None}
    given.finish()
    return replace(efficiency, **more)  # type: ignore[arg-type]


def _optional(given: Fields, name: str) -> float:
    figure = BEYOND_ROOFLINE[name]
    if figure.unit in ("s", "byte"):
        return given.quantity(name, figure.unit, zero=True)
    return _fraction(given, name) if name == "activation_efficiency" else given.number(name, high=figure.high)


def _collective(given: Fields) -> OperatorEfficiency:
    efficiency = OperatorEfficiency(
        flops_efficiency=1.0,
        bandwidth_efficiency=_fraction(given, "bandwidth_efficiency"),
        knee=0.0,
        launch_s=given.quantity("launch_s", "s", zero=True),
        devices=_groups(given),
    )
    given.finish()
    return efficiency


def _groups(given: Fields) -> dict[int, GroupEfficiency]:
    listed = given.inner("devices", {})
    groups = {}
    for size in listed.values:
        groups[size] = read_group(listed, size)
    return groups


def read_group(listed: Fields, size: Any) -> GroupEfficiency:
    """The figures of a collective among ``size`` devices, a key of ``listed``."""
    inner = listed.inner(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 2:
        raise InputError(f"{listed.where}: {size!r} is no number of devices (2 or more)")
    group = GroupEfficiency(
        launch_s=inner.quantity("launch_s", "s", zero=True),
        # No upper bound: with reduction in the switch (NVLS) an all-reduce moves fewer bytes than a ring, and passes 1.
        bandwidth_efficiency=inner.number("bandwidth_efficiency", low=1e-6),
        ramp_s=inner.quantity("ramp_s", "s", 0.0, zero=True),
        half_bytes=inner.quantity("half_bytes", "byte", 1.0),
        handover_s=inner.quantity("handover_s", "s", 0.0, zero=True),
        token_s=inner.quantity("token_s", "s", 0.0, zero=True),
        far_efficiency=inner.number("far_efficiency", 0.0),
    )
    inner.finish()
    return group


def _fraction(given: Fields, key: str) -> float:
    value = given.number(key, high=1.0)
    if value == 0.0:
        raise InputError(f"{given.place(key)}: must be above 0 (a fraction of the peak)")
    return value


def _sources(given: Fields) -> dict[str, str]:
    # A source for every figure: a number without one cannot be judged, and is refused.
    needed = (*OPERATOR_CLASSES, "link_efficiency", "step_overhead_s", "sequence_overhead_s")
    inner = given.inner("sources")
    sources = {key: inner.text(key) for key in needed}
    sources |= {key: inner.text(key) for key in _OPTIONAL_SOURCES if inner.raw(key, None) is not None}
    inner.finish()
    return sources
