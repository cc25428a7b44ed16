"""What the prediction of a configuration rests on: the cases that speak for it, and what of it nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluator.accuracy.cases import CASES, Errors
from evaluator.catalog.calibration import MEASURED_MAKER
from evaluator.catalog.engines import DEFAULT_ENGINE, serving_engine
from evaluator.catalog.hardware import Link
from evaluator.catalog.model import LatentAttention, LinearAttention, Model, MoeFeedForward, Recurrence, StateSpace
from evaluator.cost.parallel import Parallel, of_rank

if TYPE_CHECKING:
    from evaluator.replica import Design

METRICS: Mapping[str, str] = {"ttft_s": "ttft", "itl_s": "itl", "e2e_s": "e2e"}
"""Latencies with an error of their own -> the metric that was measured; that of ``tpot_s`` is that of ``itl_s``."""
_OF_ONE_DEVICE = ("runs", "other_models", "other_devices", "kernels_and_host", "kernels")
"""Cases of a set of one device, which says less of a device that is only like it."""
_LINK = "nvlink"
"""What joined the devices of which servers were measured."""
_WEIGHTS, _KV = {"fp16", "bf16", "fp8"}, {"fp16", "bf16"}
"""dtypes of weights (fp8: Llama-4-Scout) and of KV of which servers were measured."""

_UNSEEN = (
    ({LatentAttention}, "latent attention"),
    ({LinearAttention, StateSpace, Recurrence}, "layers with a state"),
)
"""Kinds of layers that no measured model had."""


@dataclass(frozen=True)
class Basis:
    """``cases`` are names of CASES, or of what no case tells of; ``unmeasured`` says what of it nobody measured."""

    cases: tuple[str, ...]
    unmeasured: tuple[str, ...] = ()

    def joined(self, other: Basis) -> Basis:
        """Of a configuration that rests on both."""
        return Basis(_once(self.cases + other.cases), _once(self.unmeasured + other.unmeasured))

    def text(self, errors: Errors) -> str:
        """In words, the weakest case first where there are several, with the number of runs that tell of each."""
        order = list(CASES)
        cases = sorted(self.cases, key=lambda case: -order.index(case) if case in order else -len(order))
        words = ", and ".join(_told(case, errors.runs.get(case)) for case in cases)
        return f"{words}; nothing measured of {', '.join(self.unmeasured)}" if self.unmeasured else words

    def bands(self, errors: Errors) -> tuple[float, ...]:
        """The expected relative error of the mean of each of METRICS; NaN without a table of errors."""
        return tuple(errors.of(self.cases, f"{name}_mean", bool(self.unmeasured)) for name in METRICS.values())


OTHERS: Mapping[str, str] = {
    "eager": "a published operator set",
}
"""What a prediction may rest on of which no case was measured."""


def design_basis(built: Design) -> Basis:
    """Of one replica."""
    calibration, model = built.calibration, built.model
    case = calibration.rests_on
    if case == "runs" and model.name not in calibration.serving_runs.get(built.hardware.name, ()):
        case = "other_models"
    cases = (case, "transferred") if built.hardware.hypothetical and case in _OF_ONE_DEVICE else (case,)
    return Basis(cases, _unmeasured(built))


def _unmeasured(built: Design) -> tuple[str, ...]:
    """What of a replica no measured server had."""
    spec, hardware = built.spec, built.hardware
    found = [] if hardware.maker == MEASURED_MAKER else [f"{hardware.maker or 'such'} devices"]
    if spec.engine != DEFAULT_ENGINE:
        found.append(serving_engine(spec.engine).label)
    found += _of_layout(of_rank(built.model, spec.parallel), hardware.links)
    found += [f"{dtype} weights" for dtype in sorted(_weights(built.model, spec.precision.weights) - _WEIGHTS)]
    if spec.precision.kv not in _KV:
        found.append(f"{spec.precision.kv} KV")
    mixers = {type(kind.mixer) for kind in built.model.layers}
    return (*found, *(name for types, name in _UNSEEN if mixers & types))


def _of_layout(parallel: Parallel, links: Sequence[Link]) -> list[str]:
    """What of how devices share a model no measured server had."""
    found = ["expert parallelism"] if parallel.expert > 1 else []
    found += ["data-parallel attention"] if parallel.data > 1 else []
    found += ["pipeline ranks"] if parallel.pipeline > 1 else []
    if parallel.devices > 1 and links:
        nearest = links[0]
        if parallel.tensor > 1 and nearest.name != _LINK:
            found.append(f"tensor parallelism over {nearest.name}")
        if nearest.devices is not None and parallel.devices > nearest.devices:
            found.append("several nodes")
    return found


def _weights(model: Model, asked: str) -> set[str]:
    """The dtypes of the weights that most of an iteration reads."""
    if asked != "checkpoint":
        return {asked}
    stored = model.checkpoint
    experts = any(isinstance(kind.feed_forward, MoeFeedForward) for kind in model.layers)
    return {stored.attention, stored.experts if experts else stored.feed_forward}


def _told(case: str, runs: int | None) -> str:
    if case not in CASES:
        return OTHERS[case]
    return CASES[case].told if runs is None else f"{CASES[case].told}; error of {runs} runs"


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
