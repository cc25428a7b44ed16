"""LoRA adapters of a model: their operators, the memory of those that a device holds, and how many a batch names.

Beside a matrix of inputs x outputs an adapter of rank r has one of inputs x r and one of r x outputs
(arXiv:2106.09685). Engines run both for all adapters of a batch in a kernel each (Punica, arXiv:2310.18547, whose
kernels vLLM has): a token costs 2 r (inputs + outputs) FLOPs, and the matrices of each adapter that the batch names
are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.model import ATTENTION, FEED_FORWARD, DenseFeedForward, LayerKind, Model, SoftmaxAttention
from evaluator.cost.dtypes import stream_bytes
from evaluator.cost.iteration import AdapterGroups
from evaluator.cost.kernel import Operator
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import Projection, feed_forward_projections, mixer_projections

SLICES = {
    "attention.qkv": 3,
    "attention.out": 1,
    "feed_forward.gate_up": 2,
    "feed_forward.up": 1,
    "feed_forward.down": 1,
}
"""The matrices that an adapter knows apart in each product, every one of which has its own of inputs x r (vLLM
``MergedQKVParallelLinearWithLoRA``, ``MergedColumnParallelLinearWithLoRA``)."""


def adapters_problem(model: Model, calibration: Calibration) -> str | None:
    """Why the adapters of a model, which has some, cannot be priced; None where they can."""
    assert model.adapters is not None
    if calibration.form != "roofline" or calibration.eager is not None:
        return (
            f"lora with calibration {calibration.name}, whose iterations were measured without adapters; use "
            "calibration auto"
        )
    for kind in model.layers:
        unknown = [projection.name for projection in _adapted(model, kind, Parallel()) if projection.name not in SLICES]
        if unknown:
            remedy = "lora.modules: attention, or " if _only_feed_forward(model) else ""
            return (
                f"lora on {model.name}: adapters of {', '.join(unknown)} are not known, only those of ordinary "
                f"attention and dense feed-forwards; use {remedy}another model"
            )
    return None


def adapter_bytes(model: Model, kind: LayerKind, precision: Precision, parallel: Parallel) -> float:
    """Bytes of one adapter in one layer on one device, in 16 bits.

    vLLM shards the half that stands at the sharded side of a matrix, and copies the other to all devices
    (``fully_sharded_loras`` off): of a column-parallel product the first is whole, of a row-parallel one the second.
    """
    if model.adapters is None:
        return 0.0
    return _elements(model, kind, parallel) * stream_bytes(precision.activations)


def adapter_operators(model: Model, kind: LayerKind, precision: Precision, parallel: Parallel) -> list[Operator]:
    """The products of a layer with the adapters that its batch names; none where no request names an adapter.

    One operator for all products of the layer: FLOPs and bytes of the matrices are as many in each, and so are memory
    and FLOPs of a token nearly (32 FLOPs per byte of rank 16), far below what a device has.
    """
    adapters = model.adapters
    if adapters is None or not adapters.popularity:
        return []
    projections, stream = list(_adapted(model, kind, parallel)), stream_bytes(precision.activations)
    if not projections:
        return []
    # The first product writes its result in fp32, the second reads it and adds to what the model's own has written.
    between = sum(8.0 * adapters.rank * SLICES[projection.name] for projection in projections)
    sides = sum(projection.inputs + 2 * projection.outputs for projection in projections)
    elements = _elements(model, kind, parallel)
    return [
        Operator(
            "adapters",
            # No set has measured kernels of adapters: their efficiencies are those of dense products in 16 bits.
            "gemm",
            "adapters",
            dtype="fp16" if precision.activations == "fp16" else "bf16",
            flops=2.0 * elements,
            weight_bytes=elements * stream,
            activation_bytes=sides * stream + between,
            launches=2.0 * len(projections),
            popularity=adapters.popularity,
            resident=adapters.resident,
        )
    ]


def naming(cost: Any, adapters: float) -> Any:
    """The cost of batches that name so many adapters, instead of as many as are expected."""
    if hasattr(cost, "adapter_groups"):
        # So many adapters of which each is named for certain, whatever the number of sequences.
        return cost._replace(adapter_groups=AdapterGroups((adapters,), (-1e9,), (adapters,)))
    inner = next(name for name in ("device", "target") if hasattr(cost, name))
    return cost._replace(**{inner: naming(getattr(cost, inner), adapters)})


def _elements(model: Model, kind: LayerKind, parallel: Parallel) -> float:
    assert model.adapters is not None
    return float(
        model.adapters.rank
        * sum(
            SLICES[projection.name] * projection.inputs + projection.outputs
            for projection in _adapted(model, kind, parallel)
        )
    )


def _adapted(model: Model, kind: LayerKind, parallel: Parallel) -> Iterator[Projection]:
    """The matrices of a layer that have adapters."""
    assert model.adapters is not None
    modules = model.adapters.modules
    if modules != FEED_FORWARD:
        yield from mixer_projections(kind.mixer, model.hidden, parallel)
    if modules != ATTENTION:
        yield from feed_forward_projections(kind.feed_forward, model.hidden, parallel)


def _only_feed_forward(model: Model) -> bool:
    """Adapters of attention alone would be known."""
    return all(isinstance(kind.mixer, SoftmaxAttention) and kind.mixer.q_rank is None for kind in model.layers) and any(
        not isinstance(kind.feed_forward, DenseFeedForward) for kind in model.layers
    )
