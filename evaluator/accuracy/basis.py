"""What the prediction of a configuration rests on: the cases of measured servers like it, and what none of them had."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evaluator.accuracy.cases import (
    CASES,
    LOADS,
    OTHER_ENGINES,
    OTHER_RELEASES,
    SPREAD_EXPERTS,
    STATE_LAYERS,
    STATISTICS,
    Errors,
    load_group,
)
from evaluator.catalog.attention_kernels import AUTO
from evaluator.catalog.choice import is_like_measured
from evaluator.catalog.engines import DEFAULT_ENGINE, ENGINES, serving_engine
from evaluator.catalog.hardware import Hardware, Link
from evaluator.catalog.model import (
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    Model,
    MoeFeedForward,
    Recurrence,
    SoftmaxAttention,
    StateSpace,
)
from evaluator.catalog.own_server import OWN_SERVER, OwnServer, ServedLoad
from evaluator.cost.dtypes import weight_dtypes
from evaluator.cost.parallel import GATHER, Parallel, of_rank
from evaluator.cost.precision import Precision
from evaluator.units import counted

if TYPE_CHECKING:
    from evaluator.replica import ReplicaBuild

METRICS: Mapping[str, str] = {"ttft_s": "ttft", "itl_s": "itl", "e2e_s": "e2e"}
"""Latencies with an error of their own -> the metric that was measured; that of ``tpot_s`` is that of ``itl_s``."""
BY_STATISTIC = ("mean", "p90", "p99")
"""The statistics of which errors are stated, as ``Outcomes.model_error`` has them."""
_OF_ONE_DEVICE = ("runs", "other_models", "other_devices", "kernels_and_host", "kernels")
"""Cases of a set of one device, which says less of a device that is only like it."""
_WITHOUT_SERVERS = ("other_devices", "kernels_and_host")
"""Cases of devices whose kernels were measured and whose servers were not."""
_PRODUCTS = {"fp16": "gemm", "bf16": "gemm", "fp8": "gemm_8bit", "fp8_block": "gemm_block"}
"""Classes of products by the dtype of the weights, of those whose errors are not the largest anyway."""
_LONG = "held_out, above 1 ms"
"""The errors of a fit that tell of its long products (``evaluator.calibrate.errors``)."""
_LINK = "nvlink"
"""What joined the devices of which servers were measured."""
_WEIGHTS, _KV = {"fp16", "bf16", "fp8", "fp8_block"}, {"fp16", "bf16"}
"""dtypes of weights (fp8: Llama-4-Scout) and of KV of which servers were measured."""
_16_BITS = {"fp16", "bf16"}
SPREAD, STATES = "expert parallelism", "layers with a state"
MEASURED_ELSEWHERE = {
    SPREAD: SPREAD_EXPERTS,
    STATES: STATE_LAYERS,
    **{engine.label: OTHER_ENGINES for name, engine in ENGINES.items() if name != DEFAULT_ENGINE},
    "fp8 KV": OTHER_ENGINES,
    "nvfp4 weights": OTHER_ENGINES,
}
"""What no server had that a set was fitted to, but those of other campaigns -> the case of these. Of SGLang no server
was measured at all: its kernels and its host are composed as TensorRT-LLM's are, whose errors stand for both."""
_IN_16_BITS = {SPREAD, STATES}
"""Features that the campaigns measured with weights in 16 bits only."""

_UNSEEN = (
    ({LatentAttention}, "latent attention"),
    ({CompressedAttention}, "attention on compressed contexts"),
    ({LinearAttention, StateSpace}, STATES),
    ({Recurrence}, "recurrences of other kinds"),
)
"""Kinds of layers that no measured model had."""


@dataclass(frozen=True)
class Basis:
    """``cases`` are names of CASES, or of OTHERS; ``unmeasured`` says what of it no measured server had. ``own``: the
    server of the user's that the set was fitted to, where it was one of this design. ``products``: by how much the set
    misses measured products of long prompts, where no server of the device was measured either."""

    cases: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()
    own: OwnServer | None = None
    products: float = 0.0

    def joined(self, other: Basis) -> Basis:
        """The basis of a configuration that rests on both."""
        return Basis(
            _once(self.cases + other.cases), _once(self.unmeasured + other.unmeasured), self.own or other.own,
            max(self.products, other.products),
        )  # fmt: skip

    @property
    def measured(self) -> OwnServer | None:
        """The user's server, where nothing of the configuration is another: then its errors are those of this one."""
        return self.own if self.cases == (OWN_SERVER,) and not self.unmeasured else None

    def text(self, errors: Errors, concurrency: float | None = None) -> str:
        """The basis in words, the weakest case first of several, with the runs and devices that tell of each, and
        which of them had too few servers with so many requests at a time on a replica (None: not asked)."""
        if self.measured is not None:
            loads = [run.concurrency for run in self.measured.runs]
            between = f"{min(loads):.3g} to {max(loads):.3g} requests at a time"
            return f"{OTHERS[OWN_SERVER]}; error of loads left out of {counted(len(loads), 'run')} at {between}"
        order = list(CASES)
        # What has no case comes first, then the weakest case: a reader sees at once what the prediction lacks.
        cases = sorted(self.cases, key=lambda case: -order.index(case) if case in order else -len(order))
        if self.unmeasured:
            # The cases' own errors do not hold here: their figures would promise what nobody measured.
            resting_on = ", and ".join(CASES[case].told if case in CASES else OTHERS[case] for case in cases)
            return f"{resting_on}; no measured server had {', '.join(self.unmeasured)}: the largest measured error"
        cases_in_words = ", and ".join(_told(case, errors) + _beyond_loads(case, errors, concurrency) for case in cases)
        # Said where it decides: of most sets long products are missed by less than TTFT is.
        decides = self.products > errors.of(self.cases, "ttft_mean", concurrency=concurrency)
        return (
            f"{cases_in_words}; its products above 1 ms are missed by {self.products:.0%}"
            if decides
            else cases_in_words
        )

    def bands(self, errors: Errors, load: ServedLoad | None = None, statistic: str = "mean") -> tuple[float, ...]:
        """The expected relative error of a ``statistic`` (of BY_STATISTIC) of each of METRICS; NaN without a table of
        errors, and of tails that no table has (ITL's).

        ``load``: what a replica has to do; None: what it had in the measured runs.
        """
        if self.measured is not None:
            cases, growth = (self.measured.otherwise,), 1.0 if load is None else self.measured.growth(load)
            measured_errors = {name: growth * error for name, error in self.measured.errors}
            # What the user's runs did not measure is no surer than without them, nor than what they did: a fit that
            # misses the one has moved figures that the other follows from. They measured means.
            least = max(measured_errors.values(), default=0.0)
            return tuple(
                measured_errors[name]
                if name in measured_errors and statistic == "mean"
                else float(np.fmax(errors.of(cases, f"{name}_{statistic}"), measured_errors.get(name, least)))
                if f"{name}_{statistic}" in STATISTICS
                else np.nan
                for name in METRICS.values()
            )
        at_once = None if load is None else load.concurrency
        names = [f"{name}_{statistic}" for name in METRICS.values()]
        bands = [
            errors.of(self.cases, name, bool(self.unmeasured), at_once) if name in STATISTICS else np.nan
            for name in names
        ]
        # Prompts are products for the most part: a TTFT is no surer than these.
        return max(bands[0], self.products) if bands[0] > 0.0 else bands[0], *bands[1:]


OTHERS: Mapping[str, str] = {
    "eager": "a published operator set",
    OWN_SERVER: "fitted to your server",
}
"""What a prediction may rest on of which no case was measured."""


def has_host(text: str) -> bool:
    """Whether all cases that the text of a Basis names know the host's times of servers."""
    # Told texts may begin like one another ("a data sheet", "a data sheet, serving runs of other devices"): a case is
    # meant only where its text ends, or the next one is joined to it.
    return not any(re.search(f"{re.escape(case.told)}(;|, and |$)", text) for case in CASES.values() if not case.host)


def design_basis(built: ReplicaBuild) -> Basis:
    """What the prediction of one replica rests on."""
    own = built.calibration.own_server
    if own is not None and dict(own.design) == served_design(built):
        return Basis((OWN_SERVER,), own=own)  # whatever it has that no other measured server had, this one has
    return _otherwise(built)


def _otherwise(built: ReplicaBuild) -> Basis:
    """The basis of a replica without measurements of its user's own server."""
    calibration, model, own = built.calibration, built.model, built.calibration.own_server
    case = calibration.rests_on if own is None else own.otherwise
    layouts = calibration.serving_runs.get(built.hardware.name, {}).get(model.name, ())
    # Weights in the checkpoint's dtypes, said or by default, run on the same kernels.
    as_stored = _weights(model, built.spec.precision) == _weights(model, Precision())
    if case == "runs" and not (layouts and as_stored):  # in another dtype other kernels run: it is as another model
        case = "other_models"
    elif case == "runs" and built.spec.parallel.tensor not in layouts:  # other shards of the same, other collectives
        case = "other_layouts"
    # A device that the sweep describes is measured by nobody: its kernels are as transferred, whatever set it takes.
    cases = (case, "transferred") if built.hardware.hypothetical and case in _OF_ONE_DEVICE else (case,)
    unmeasured, products = unmeasured_features(built), _long_products(built) if case in _WITHOUT_SERVERS else 0.0
    # Experts in 8 bits spread over devices are off by as much as what nobody measured is.
    measured = set(MEASURED_ELSEWHERE) - (set() if is_16_bits(built) else _IN_16_BITS)
    if measured.issuperset(unmeasured):
        return Basis(_once((*cases, *(MEASURED_ELSEWHERE[name] for name in unmeasured))), products=products)
    return Basis(cases, unmeasured, products=products)


def is_16_bits(built: ReplicaBuild) -> bool:
    """Whether the weights that most of an iteration reads are of 16 bits."""
    return not _weights(built.model, built.spec.precision) - _16_BITS


def _long_products(built: ReplicaBuild) -> float:
    """By how much products above 1 ms, of the dtypes of the weights, are off in the median; 0: not known."""
    errors = [0.0]
    for dtype in _weights(built.model, built.spec.precision):
        try:
            long = built.calibration.fit["errors"][_PRODUCTS[dtype]][_LONG]
            # A fit's errors are relative to what was measured, and these here to what is predicted: by as much as
            # measurements are above a prediction that is too fast.
            errors.append(max(float(long["median"]), -long["bias"] / (1.0 + long["bias"])))
        # There may be no such rows, and a set of a user's own says in its section ``fit`` what it likes.
        except (KeyError, TypeError):
            continue
    return max(errors)


def of_release(basis: Basis, built: ReplicaBuild, version: str | None) -> Basis:
    """The basis of a replica whose engine is of this release (None: the newest). InputError for one that nobody knows.

    Servers of another release than that of the set's runs were off by more.
    """
    own = basis.own
    fitted = built.calibration.serving_release if own is None else own.release
    # Of what no server had the largest error is stated already, and another engine has none of these releases.
    if fitted is None or basis.unmeasured or built.spec.engine != DEFAULT_ENGINE:
        return basis
    engine = serving_engine(built.spec.engine)
    if engine.release(version)[:2] == engine.release(fitted)[:2]:  # as 0.15.1 is of 0.15
        return basis
    return (basis if own is None else _otherwise(built)).joined(Basis((OTHER_RELEASES,)))


def served_design(built: ReplicaBuild) -> dict[str, str]:
    """What must be the same of two replicas for the measured errors of one to be those of the other."""
    spec, parallel = built.spec, built.spec.parallel
    figures = {
        "model": built.model.name,
        "hardware": built.hardware.name,
        "engine": spec.engine,
        "weights": " ".join(sorted(_weights(built.model, spec.precision))),
        "kv": spec.precision.kv,
        "tensor_parallel": parallel.tensor,
        "pipeline_parallel": parallel.pipeline,
        "data_parallel": parallel.data,
        "expert_parallel": parallel.expert,
        "drafts": "none" if spec.drafting is None else "some",
    }
    # Said only where it is so: sets that were fitted before the key was there name none.
    if spec.eager:
        figures["eager"] = True
    if spec.host_speed != 1.0:
        figures["host"] = f"speed {spec.host_speed:g}"
    if parallel.context > 1:
        figures["decode_context_parallel"] = parallel.context
    if parallel.prefill > 1:
        figures["prefill_context_parallel"] = parallel.prefill
    if parallel.exchange != GATHER:
        figures["expert_exchange"] = parallel.exchange
    if parallel.overlap is not None:
        figures["two_batch_overlap"] = True
    if spec.attention_backend != AUTO:
        figures["attention_backend"] = spec.attention_backend
    if spec.apart is not None:
        sides = f"{spec.apart.ranks} to {spec.apart.devices}"
        figures["feed_forward_apart"] = f"{sides}, {spec.apart.micro_batches} micro-batches"
    if spec.adapters is not None:
        figures["lora"] = f"{spec.adapters.resident} of rank {spec.adapters.rank}, {spec.adapters.modules} modules"
    return {name: str(value) for name, value in figures.items()}


def unmeasured_features(built: ReplicaBuild) -> tuple[str, ...]:
    """What of a replica no server had that a set was fitted to."""
    spec, hardware = built.spec, built.hardware
    unmeasured = [] if is_like_measured(hardware) else [_kind_of(hardware)]
    if spec.engine != DEFAULT_ENGINE:
        unmeasured.append(serving_engine(spec.engine).label)
    if spec.drafting is not None:
        unmeasured.append("speculative decoding")
    if spec.eager:
        unmeasured.append("decodes without CUDA graphs")
    if spec.host_speed != 1.0:
        unmeasured.append("a host of another speed")
    if spec.attention_backend != AUTO:
        unmeasured.append(f"attention_backend {spec.attention_backend}")
    if spec.adapters is not None:
        unmeasured.append("LoRA adapters")
    if spec.apart is not None:
        unmeasured.append("feed-forwards apart")
    unmeasured += _of_layout(of_rank(built.model, spec.parallel), hardware.links)
    unmeasured += [f"{dtype} weights" for dtype in sorted(_weights(built.model, spec.precision) - _WEIGHTS)]
    if spec.precision.kv not in _KV:
        unmeasured.append(f"{spec.precision.kv} KV")
    # By type, as no measured model had such a layer in any size.
    mixers = {type(kind.mixer) for kind in built.model.layers}
    unmeasured += [name for types, name in _UNSEEN if mixers & types]
    if any(_is_sparse(kind.mixer) for kind in built.model.layers):
        unmeasured.append("sparse attention")
    return (*unmeasured, *(() if built.model.gives_tokens else ("models that give no tokens",)))


def _kind_of(hardware: Hardware) -> str:
    """How messages call the devices of a maker of which no server was measured: ``AMD GPUs``."""
    made = hardware.maker or "unknown makers'"
    return f"{made} {hardware.kind.upper()}s"


def _is_sparse(mixer: Mixer | None) -> bool:
    """Whether an indexer chooses what is attended to."""
    return isinstance(mixer, SoftmaxAttention | LatentAttention) and mixer.index_top_k is not None


def _of_layout(parallel: Parallel, links: Sequence[Link]) -> list[str]:
    """What of how devices share a model no measured server had."""
    features = [SPREAD] if parallel.expert > 1 else []
    features += ["data-parallel attention"] if parallel.data > 1 else []
    features += ["two batches that overlap"] if parallel.overlap is not None else []
    features += ["KV split along tokens"] if parallel.context > 1 else []
    features += ["prompts split along tokens"] if parallel.prefill > 1 else []
    features += ["pipeline ranks"] if parallel.pipeline > 1 else []
    if parallel.devices > 1 and links:
        nearest = links[0]
        # One GPU needs no link, and all tensor parallelism that was measured went over NVLink.
        if parallel.tensor > 1 and nearest.name != _LINK:
            features.append(f"tensor parallelism over {nearest.name}")
        if nearest.devices is not None and parallel.devices > nearest.devices:
            features.append("several nodes")
    return features


def _weights(model: Model, asked: Precision) -> set[str]:
    """The dtypes of the weights that most of an iteration reads."""
    attention = set() if asked.attention is None else {weight_dtypes(model, asked)["attention"]}
    if asked.weights != "checkpoint":
        return {asked.weights} | attention
    stored = model.checkpoint
    experts = any(isinstance(kind.feed_forward, MoeFeedForward) for kind in model.layers)
    # Most of an iteration's bytes are these; embeddings and the head stay in a wider dtype in most checkpoints.
    return (attention or {stored.attention}) | {stored.experts if experts else stored.feed_forward}


def _told(case: str, errors: Errors) -> str:
    """``kernels of this device alone; error of 28 runs on 3 devices``."""
    if case not in CASES:
        return OTHERS[case]
    # Of a case whose band is at least that of another one the runs that are told are those of whichever has more.
    floor = CASES[case].at_least
    telling = floor if floor and errors.runs.get(floor, 0) > errors.runs.get(case, 0) else case
    runs, devices = errors.runs.get(telling), errors.devices.get(telling, 0)
    if runs is None:
        return CASES[case].told
    return f"{CASES[case].told}; error of {counted(runs, 'run')} on {counted(devices, 'device')}"


def _beyond_loads(case: str, errors: Errors, concurrency: float | None) -> str:
    """What is said behind a case of whose servers too few had such a load."""
    group = 0 if concurrency is None else load_group(concurrency)
    # Where no load of its runs is known, as in a table of a user's own that was derived before there were groups,
    # there is nothing to say.
    if not group or not errors.is_beyond(case, "itl_mean", group):
        return ""
    return f"; few of these servers had more than {LOADS[group - 1]:g} requests at a time"


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
