"""Operators of matrix products and of the collectives that join their shards."""

from __future__ import annotations

from evaluator.catalog.model import Model
from evaluator.cost.coefficients import product_class
from evaluator.cost.dtypes import BYTES, compute_dtype, stream_bytes, weight_dtypes, wider
from evaluator.cost.kernel import Operator, Scaling
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.projections import Projection


def gemm(
    projection: Projection, model: Model, precision: Precision, scaling: Scaling = "tokens", absorbed: bool = False
) -> Operator:
    """A product of ``m`` rows with a matrix of k x n: 2 m k n FLOPs, the matrix and m (k + n) activations of traffic.

    The input is read in the dtype of the computation where that is narrower than the residual stream. A product that
    MLA has ``absorbed`` is one of two halves per head, in 16 bits at least: engines dequantise it when they load it
    (vLLM ``MLACommonImpl.process_weights_after_loading``, TensorRT-LLM's ``k_b_proj_trans`` and ``v_b_proj``).
    """
    weight = weight_dtypes(model, precision)[projection.part]
    weight = wider("bf16", weight) if absorbed else weight
    dtype = compute_dtype(weight, precision.activations)
    stream = stream_bytes(precision.activations)
    return Operator(
        projection.name,
        product_class(weight, precision.activations),
        scaling,
        dtype=dtype,
        flops=2.0 * projection.inputs * projection.outputs,
        weight_bytes=projection.inputs * projection.outputs * BYTES[weight],
        activation_bytes=projection.inputs * input_bytes(dtype, stream) + projection.outputs * stream,
        launches=2.0 if absorbed else 1.0,
        inputs=projection.inputs,
        outputs=projection.outputs,
    )


def input_bytes(dtype: str, stream: float) -> float:
    """Bytes of one element as a product that computes in ``dtype`` reads it (mxfp8: as the stream has it)."""
    # fp4 is packed by twos; mxfp8 is no dtype of tensors here, and its activations are quantised inside the kernel.
    return min(stream, 0.5 if dtype == "fp4" else BYTES.get(dtype, stream))


def all_reduce(name: str, model: Model, precision: Precision, parallel: Parallel) -> tuple[Operator, ...]:
    """The sum of the ranks' partial hidden states; none on a single rank."""
    if parallel.tensor == 1:
        return ()
    return (
        Operator(
            name,
            "all_reduce",
            "linear_tokens",
            message_bytes=model.hidden * stream_bytes(precision.activations),
            collective="all_reduce",
            ranks=range(parallel.tensor),
        ),
    )


def traffic(name: str, bytes_per_token: float, launches: float, scaling: Scaling = "linear_tokens") -> Operator:
    """Elementwise kernels: memory traffic only."""
    return Operator(name, "elementwise", scaling, activation_bytes=bytes_per_token, launches=launches)
