"""What one kernel or collective asks of a device, linear in the batch statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from evaluator.cost.collectives import Spread

OpClass = Literal[
    "gemm", "grouped_gemm", "attention_prefill", "attention_decode", "elementwise", "expert_elementwise", "all_reduce",
    "all_to_all", "p2p", "sort", "mla_prefill", "mla_decode", "gemm_block", "grouped_gemm_tuned", "grouped_gemm_w4",
    "grouped_gemm_block",
    "expert_elementwise_4bit", "expert_elementwise_w4", "expert_elementwise_mx4",
]  # fmt: skip
Scaling = Literal[
    "tokens", "sequences", "experts", "prefill", "prefill_window", "decode", "decode_window",
    "linear_tokens", "linear_sequences", "gathered", "adapters",
]  # fmt: skip
"""The statistics of a batch that an operator's work grows with; see ``Operator``."""


class Placed(NamedTuple):
    """Routed ``experts`` of a layer and their ``redundant`` copies, divided over ``parts`` devices, or groups of such
    that shard them."""

    experts: int
    parts: int
    redundant: int


class Held(NamedTuple):
    """Routed experts as the kernel of one device sees them: how many, and the ``width`` of its part of each; and of how
    many data-parallel ``ranks`` it computes the tokens."""

    experts: int
    width: int
    ranks: int


@dataclass(frozen=True)
class Operator:
    """One kind of kernel (or collective) over all layers of a rank, on one device.

    In one iteration it does ``flops`` x X, moves ``weight_bytes`` x Y + ``activation_bytes`` x Z to and from memory,
    sends messages of ``message_bytes`` x Z in all, and is started ``launches`` times. Its ``scaling`` says which
    statistics of the batch X, Y and Z are:

    * tokens, linear_tokens: X = Z = tokens computed, Y = 1; sequences, linear_sequences: X = Z = sequences, Y = 1;
    * experts: X = Z = tokens, Y = fraction of the experts touched; gathered: X = Z = tokens. With data-parallel
      attention (``Parallel.data``) these are not the tokens of the rank but the mean of all ranks;
    * adapters: X = Z = tokens, Y = adapters that the sequences of the batch name;
    * prefill, prefill_window: X = attention area, Z = context read; decode, decode_window: X = Z = tokens attended to.

    The linear scalings and the gathered one have one side at most (FLOPs, bytes or messages), so that their time is a
    plain product.
    ``dtype`` is the one it computes in; ``collective`` and ``ranks`` say which devices talk. The last fields are the
    shape of one kernel, which efficiencies that depend on the size ask for: ``inputs`` x ``outputs`` of a matrix, query
    and KV ``heads`` of an attention kernel and its ``token_bytes`` (queries, output, new keys and values, per token
    computed), the ``query_elements`` of ordinary attention, which engines may copy, in how many ``layers`` it is, how
    many ``matrices`` of routed experts it reads where it touches all of them, and whether attention is ``masked``
    (causal), as that of encoders is not.
    ``popularity`` of the adapters, and how many of them are ``resident``: the most that a batch names
    (``catalog.model.Adapters``). ``walked``: the share of a context that attention reads on this device.
    ``sent_tokens``: how many of Z's tokens this device sends around experts itself. ``placed``: where the routed
    experts are. ``held``: those of this device. ``spread``: who gets a token in an
    all-to-all.
    """

    name: str
    op_class: OpClass
    scaling: Scaling
    dtype: str = "bf16"
    flops: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0
    message_bytes: float = 0.0
    launches: float = 1.0
    collective: str | None = None
    ranks: range | None = None
    log_expert_missed: float = 0.0
    inputs: int = 0
    outputs: int = 0
    heads: int = 0
    kv_heads: int = 0
    token_bytes: float = 0.0
    query_elements: float = 0.0
    layers: float = 1.0
    walked: float = 1.0
    matrices: float = 0.0
    sent_tokens: float = 0.0
    masked: bool = True
    placed: Placed | None = None
    held: Held | None = None
    spread: Spread | None = None
    popularity: tuple[tuple[float, float], ...] = ()
    resident: float = 0.0

    def times(self, count: float) -> Operator:
        """This operator in ``count`` identical layers: exact, because the roofline is homogeneous of degree one."""
        return replace(
            self,
            flops=self.flops * count,
            weight_bytes=self.weight_bytes * count,
            activation_bytes=self.activation_bytes * count,
            message_bytes=self.message_bytes * count,
            launches=self.launches * count,
            token_bytes=self.token_bytes * count,
            query_elements=self.query_elements * count,
            layers=self.layers * count,
            matrices=self.matrices * count,
            sent_tokens=self.sent_tokens * count,
        )


def merge(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """One operator for all that differ by a factor only (their times add up exactly), in order of first appearance."""
    merged: list[Operator] = []
    # By all that a time depends on beside the amount of work: indices into ``merged``. Layers of a model with several
    # widths have equal keys and other proportions, and stay apart.
    same_key: dict[tuple, list[int]] = {}
    for operator in operators:
        key = (operator.name, operator.op_class, operator.scaling, operator.dtype, operator.collective, operator.ranks,
               operator.log_expert_missed, operator.inputs, operator.outputs, operator.heads,
               operator.kv_heads, operator.walked, operator.masked, operator.placed, operator.held)  # fmt: skip
        for index in same_key.setdefault(key, []):
            if _proportional(merged[index], operator):
                merged[index] = _add(merged[index], operator)
                break
        else:
            same_key[key].append(len(merged))
            merged.append(operator)
    return tuple(merged)


def _proportional(first: Operator, second: Operator) -> bool:
    # A single side needs no proportion: its seconds are the product of work and rate, whatever is added.
    if first.scaling.startswith("linear"):
        return True
    sides = (
        (first.flops, second.flops),
        (first.weight_bytes, second.weight_bytes),
        (first.activation_bytes, second.activation_bytes),
        (first.token_bytes, second.token_bytes),
        (first.matrices, second.matrices),
    )
    # Ratios as products crosswise, so that a side of 0 divides by nothing.
    return all(abs(a * d - b * c) <= 1e-12 * abs(a * d) for a, b in sides for c, d in sides)


def _add(first: Operator, second: Operator) -> Operator:
    return replace(
        first,
        flops=first.flops + second.flops,
        weight_bytes=first.weight_bytes + second.weight_bytes,
        activation_bytes=first.activation_bytes + second.activation_bytes,
        message_bytes=first.message_bytes + second.message_bytes,
        launches=first.launches + second.launches,
        token_bytes=first.token_bytes + second.token_bytes,
        query_elements=first.query_elements + second.query_elements,
        layers=first.layers + second.layers,
        matrices=first.matrices + second.matrices,
        sent_tokens=first.sent_tokens + second.sent_tokens,
    )
