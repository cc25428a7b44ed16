"""Decode context parallelism: the KV of a sequence is split along its tokens over devices of a tensor-parallel group.

With more tensor-parallel ranks than KV heads, or with MLA's one latent, several ranks would keep the same KV. Instead
each of ``Parallel.context`` consecutive ranks keeps every so-many-th token (vLLM ``decode_context_parallel_size``,
after Helix, arXiv:2507.07120). Attention over the cache then takes the queries of all their heads to each of them, and
joins the partial outputs by the logarithms of their sums of exponentials (vLLM ``cp_lse_ag_out_rs``).
"""

from __future__ import annotations

from dataclasses import replace

from evaluator.catalog.model import LatentAttention, Mixer, Model, SoftmaxAttention
from evaluator.cost.dtypes import stream_bytes
from evaluator.cost.kernel import Operator, Scaling
from evaluator.cost.layer_state import read_bytes
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision

_LSE_BYTES = 4.0
"""Bytes of the logarithm of a head's sum of exponentials, in fp32."""


def split_along_context(
    core: list[Operator], mixer: SoftmaxAttention | LatentAttention, precision: Precision, parallel: Parallel
) -> list[Operator]:
    """The attention of one layer on one of ``parallel.context`` ranks that share its KV, with their collectives.

    Each has a part of the context and the query heads of all: as many FLOPs, and a part of the bytes. A processor that
    reads a whole context by itself reads that part of it, so that the wait for the longest one is as much shorter.
    Figures of a call (joins, time per head) are left as those of one rank's heads. Prompts of ordinary attention do
    the same, also with their own tokens. Those of MLA gather their history instead, of which the bytes that are read
    are counted and the messages are not.
    """
    parts, heads = parallel.context, mixer.heads // parallel.tensor
    stream, stored = stream_bytes(precision.activations), read_bytes(mixer, precision.kv, parallel.tensor)
    latent = isinstance(mixer, LatentAttention)
    if isinstance(mixer, LatentAttention):
        # Decodes are multi-query on the latent: their queries and outputs are as wide.
        query, value = mixer.kv_lora_rank + mixer.rope_head_dim, mixer.kv_lora_rank
    else:
        query, value = mixer.head_dim, mixer.value_size
    gathered = (parts - 1) * heads * (query + value) * stream

    def split(operator: Operator) -> Operator:
        # A new token's keys and values are stored on one of the ranks.
        token_bytes = operator.token_bytes - stored * (1.0 - 1.0 / parts)
        if latent and operator.scaling == "prefill":
            return replace(operator, token_bytes=token_bytes)
        return replace(
            operator,
            activation_bytes=operator.activation_bytes / parts,
            token_bytes=token_bytes + gathered,
            walked=operator.walked / parts,
        )

    attention = [split(operator) if operator.scaling in ("prefill", "decode") else operator for operator in core]
    # Prompts of MLA need no queries of other ranks: what is sent grows with the sequences.
    scaling: Scaling = "linear_sequences" if latent else "linear_tokens"
    messages = {"queries": heads * query * stream, "lse": heads * parts * _LSE_BYTES, "outputs": heads * value * stream}
    collectives = [
        # A message is that of all ranks together. Scattering sums of the outputs sends as much as gathering them.
        Operator(f"attention.context_{name}", "all_reduce", scaling, message_bytes=parts * message,
                 collective="all_gather", ranks=range(parts))
        for name, message in messages.items()
    ]  # fmt: skip
    return [*attention, *collectives]


KEEPING_A_PART = "layers with sliding windows, sparse attention (an index that chooses tokens) or another layer's KV"
"""In words, the mixers of ``keeps_a_part``."""


def keeps_a_part(mixer: SoftmaxAttention | LatentAttention) -> bool:
    """Whether attention reads something else than the KV of all tokens that its own layer keeps."""
    return mixer.window is not None or mixer.index_top_k is not None or mixer.shared_kv


def context_problem(model: Model, parallel: Parallel) -> str | None:
    """Why the KV of this model cannot be split so; None where it can, or is not.

    The rules are vLLM's (``ParallelConfig``, ``ModelConfig.verify_with_parallel_config``, and the KV managers of
    windows and states, which assert that it is not). Neither number is below 1 (``split_problem``).
    """
    problem = _problem(model, parallel.context, parallel.tensor)
    if problem is None:
        return None
    *others, most = (str(n) for n in range(1, parallel.tensor + 1) if _problem(model, n, parallel.tensor) is None)
    return f"{problem}; use {', '.join(others)}{' or ' if others else ''}{most}"


def _problem(model: Model, parts: int, tensor: int) -> str | None:
    if parts == 1:
        return None
    if tensor % parts:
        return f"decode_context_parallel {parts} does not divide tensor_parallel {tensor}"
    problems = (_mixer_problem(kind.mixer, parts, tensor) for kind in model.layers)
    problem = next((problem for problem in problems if problem is not None), None)
    return None if problem is None else f"decode_context_parallel {parts} on {model.name}: {problem}"


def _mixer_problem(mixer: Mixer | None, parts: int, tensor: int) -> str | None:
    if mixer is None:
        return None
    if not isinstance(mixer, SoftmaxAttention | LatentAttention):
        return "states are not split along tokens"
    if keeps_a_part(mixer):
        return f"{KEEPING_A_PART} are not split along tokens"
    if isinstance(mixer, LatentAttention):
        return None
    if mixer.bidirectional:
        return "an encoder keeps no KV"
    if tensor <= mixer.kv_heads:
        return (
            f"tensor_parallel {tensor} gives each device whole KV heads of the {mixer.kv_heads}, and none is there "
            "twice without more tensor_parallel"
        )
    if parts > tensor // mixer.kv_heads:
        return (
            f"each of the {mixer.kv_heads} KV heads is on {tensor // mixer.kv_heads} devices, and no more can share it"
        )
    if mixer.heads // mixer.kv_heads % parts:
        return f"it does not divide the {mixer.heads // mixer.kv_heads} query heads of a KV head"
    return None
