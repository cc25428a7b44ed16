"""Operators before the first layer, after the last one, and between pipeline ranks."""

from __future__ import annotations

from evaluator.catalog.model import Model
from evaluator.cost.dtypes import stream_bytes
from evaluator.cost.gemm import all_reduce, gemm, traffic
from evaluator.cost.kernel import Operator
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.prefill_context import gather_states
from evaluator.cost.projections import Projection

SAMPLING_BYTES = 14
"""Bytes per logit to sample: 16-bit scores widened to fp32 (2 + 4), then a softmax in place (4 + 4)."""
SORTING_BYTES = 220
"""Bytes per logit to find the nucleus as PyTorch does it: a sort of (score, place), 12 bytes, by four digits of the
score and one of the sequence, each read and written (120); filling and gathering it, softmax, running sum, mask and
scattering back (about 100). Source: ATen/native/cuda/Sort.cu (sort of all segments at once, below 128 sequences) and
``apply_top_k_top_p`` of vLLM; an estimate, and the class ``sort`` has an efficiency of its own."""
PENALTY_BYTES, PENALTY_KERNELS = 90, 14.0
"""Bytes per logit, and kernels, to penalise what a sequence has said. Of its prompt and of its output, tokens are
counted into 8 bytes per entry of the vocabulary (filled, compared, made a mask: 17 each); the repetition penalty reads
both masks and changes the score (10); frequency and presence are a product and a difference each (46). Source:
``get_token_bin_counts_and_mask`` and ``apply_penalties`` of vLLM (``model_executor/layers/utils.py``); an estimate.
What the host does for it, list by list, is ``Calibration.penalty_sequence_s``."""
COUNTED_BYTES = 12
"""The same by counts that are kept on the device, in one kernel: a score read and written in fp32, and a count of 32
bits. Source: ``_penalties_kernel`` of vLLM 0.28 (``v1/worker/gpu/sample/penalties.py``)."""


def vocabulary_shard(model: Model, tensor: int) -> int:
    """Vocabulary entries of one rank, padded so that all are equal."""
    return -(-model.vocabulary // tensor)


def head_projection(model: Model, tensor: int) -> Projection:
    """The output head, sharded by vocabulary."""
    return Projection("head", "head", model.hidden, vocabulary_shard(model, tensor))


def first_operators(model: Model, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Embedding lookup; sharded by vocabulary, so its rows are summed over the ranks (arXiv:1909.08053)."""
    stream = stream_bytes(precision.activations)
    return [
        # A row is read and a row is written for every token.
        traffic("embedding", 2 * model.hidden * stream, 1.0),
        *all_reduce("embedding.all_reduce", model, precision, parallel),
    ]


def last_operators(model: Model, precision: Precision, parallel: Parallel) -> list[Operator]:
    """Final norm, output head, gathering of the logits and sampling: one row per sequence.

    A model that gives a vector has none of the latter: it averages the states of all tokens, or takes one of them (the
    cost is that of the average). The projection of some re-rankers, hidden x hidden for a sequence, is not counted.
    """
    stream = stream_bytes(precision.activations)
    norm = traffic("final_norm", 4 * model.hidden * stream, 1.0)
    gathered = gather_states(model, precision, parallel)
    if not model.gives_tokens:
        return [norm, traffic("pooling", model.hidden * stream, 1.0)]
    operators = [
        norm,
        *gathered,
        gemm(head_projection(model, parallel.tensor), model, precision, scaling="sequences"),
    ]
    if parallel.tensor > 1:
        operators.append(
            # Every rank needs all scores to sample, as each draws the token by itself.
            Operator("head.all_gather", "all_reduce", "linear_sequences", message_bytes=model.vocabulary * stream,
                     collective="all_gather", ranks=range(parallel.tensor))
        )  # fmt: skip
    operators.append(traffic("sampling", model.vocabulary * SAMPLING_BYTES, 3.0, "linear_sequences"))
    if model.nucleus_sampling:
        sorting = float(model.vocabulary * SORTING_BYTES)
        operators.append(Operator("sampling.nucleus", "sort", "linear_sequences", activation_bytes=sorting))
    if model.penalties:
        moved, kernels = (COUNTED_BYTES, 1.0) if model.counts_said else (PENALTY_BYTES, PENALTY_KERNELS)
        operators.append(traffic("sampling.penalties", model.vocabulary * moved, kernels, "linear_sequences"))
    return operators


def pipeline_link(model: Model, precision: Precision, parallel: Parallel, sender: int) -> list[Operator]:
    """Hidden state and residual to the next rank: each rank sends its slice, the receivers gather them.

    Source: vLLM ``GroupCoordinator.send_tensor_dict`` with ``all_gather_group``.
    """
    message = 2 * model.hidden * stream_bytes(precision.activations)
    tensor = parallel.tensor
    apart = parallel.expert_devices  # devices of one pipeline rank, those of all data-parallel ranks together
    # Rank s + 1 lies ``apart`` devices behind rank s; the range below has these two ends and nothing between.
    first = sender * apart
    messages = [
        Operator("pipeline.send", "p2p", "linear_tokens", message_bytes=message / tensor, collective="p2p",
                 ranks=range(first, first + apart + 1, apart))
    ]  # fmt: skip
    if tensor > 1:
        messages.append(
            Operator("pipeline.all_gather", "all_reduce", "linear_tokens", message_bytes=message,
                     collective="all_gather", ranks=range(tensor))
        )  # fmt: skip
    return messages
