"""Predictions of isolated kernels and collectives, by the same functions that make an iteration's time.

Every row of a table becomes an operator, so that ``unit_times`` folds all of them at once; ``product_time`` and
``attention_time`` then take each at its own size. What a fused MoE call does beyond its products (permute, activate,
sum) is in the cost model elementwise work, and is added at the rates of ``routing_class``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from evaluator.catalog.calibration import TUNED
from evaluator.catalog.model import LatentAttention
from evaluator.catalog.tuned import tuned_experts
from evaluator.cost.batch import attention_area
from evaluator.cost.coefficients import (
    UNTUNED,
    Coefficients,
    efficiency_class,
    experts_class,
    product_class,
    routing_class,
    size_weights,
)
from evaluator.cost.collectives import collective_terms
from evaluator.cost.dtypes import BYTES, COMPUTE_DTYPES, compute_dtype, experts_dtype
from evaluator.cost.fold import rows_of
from evaluator.cost.gemm import input_bytes
from evaluator.cost.iteration import (
    AttentionRows,
    OperatorRows,
    attention_time,
    experts_touched,
    product_time,
    tiles,
)
from evaluator.cost.kernel import OpClass, Operator
from evaluator.cost.mixed_attention import BesideRows, beside_time, waiting
from evaluator.cost.mixers import latent_kernels
from evaluator.cost.precision import Precision
from evaluator.cost.rates import GROUP_SIZES, GROUPED, HANDOVER_BYTES, OP_CLASSES, Rates
from evaluator.cost.roofline import roofline
from evaluator.cost.unit_times import UnitTimes, unit_times

Predict = Callable[[Rates], Any]
_ATTENTION_LAUNCH = OP_CLASSES.index("attention_decode")
_LATENT_LAUNCH = OP_CLASSES.index("mla_decode")
_ELEMENTWISE = OP_CLASSES.index("elementwise")
STREAM = 2.0  # bytes of an activation


def row_coefficients(
    op_class: np.ndarray | str, dtype: np.ndarray | str, count: int, levels: int, **given: Any
) -> Coefficients:
    """Coefficients with one operator per row; what is not given is 0 (``layers``, ``walked`` and ``launches``: 1).

    ``op_class`` has figures of its own, ``dtype`` is that of the computation.
    """
    zeros, ones = np.zeros(count), np.ones(count)
    kinds = [OP_CLASSES.index(kind) for kind in np.broadcast_to(op_class, count)]
    dtypes = np.broadcast_to(dtype, count)
    columns: dict[str, Any] = dict.fromkeys(Coefficients._fields, zeros)
    columns |= {
        "launches": ones,
        "layers": ones,
        "walked": ones,
        "edges": ones,
        "log_expert_missed": 0.0,
        "scaling": {},
    }
    columns |= {"steps": np.zeros((count, levels)), "share": np.zeros((count, levels))}
    columns["size"] = np.zeros((count, len(GROUPED) * len(GROUP_SIZES)))
    columns["op_class"] = np.array(kinds, dtype=int)
    columns["dtype"] = np.array([COMPUTE_DTYPES.index(name_of_dtype) for name_of_dtype in dtypes], dtype=int)
    return Coefficients(**(columns | given))


def classes(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The operator class of each row, with that of its dtypes, and the dtype that it computes in, (row,) both.

    ``dtype`` is that of a product's weights, and of its input too where the rows have no ``activations``.
    """
    by_weight = {"gemm": product_class, "grouped_gemm": experts_class}
    names = ["op_class", "dtype", "activations"]
    kinds = rows.assign(activations=rows["activations"] if "activations" in rows else rows["dtype"])[names]
    of_kind = {}
    for op_class, weight, activations in kinds.drop_duplicates().itertuples(index=False, name=None):
        kind = by_weight[op_class](weight, activations) if op_class in by_weight else op_class
        dtype = (experts_dtype if op_class == "grouped_gemm" else compute_dtype)(weight, activations)
        of_kind[op_class, weight, activations] = efficiency_class(kind, dtype), dtype
    by_row = [of_kind[key] for key in kinds.itertuples(index=False, name=None)]
    labels = np.array([label for label, _ in by_row], dtype=object)
    labels[_tuned(rows, labels)] = TUNED
    return labels, np.array([dtype for _, dtype in by_row], dtype=object)


def _tuned(rows: pd.DataFrame, labels: np.ndarray) -> np.ndarray:
    """Rows of experts of a shape for which their engine has tuned kernels on their hardware, (row,) of bool."""
    untuned = labels == UNTUNED
    if not untuned.any() or not {"engine", "hardware"} <= set(rows):
        return np.zeros(len(rows), dtype=bool)
    shapes = zip(rows["experts"] / rows["expert_parallel"], rows["intermediate"], strict=True)
    lists = {pair: tuned_experts(*pair) for pair in set(zip(rows["engine"], rows["hardware"], strict=True))}
    calls = zip(rows["engine"], rows["hardware"], shapes, strict=True)
    return untuned & np.array([shape in lists[engine, hardware] for engine, hardware, shape in calls], dtype=bool)


def routing_classes(rows: pd.DataFrame) -> list[OpClass]:
    """The class of what each MoE call does around its products, (row,)."""
    activations = rows["activations"] if "activations" in rows else rows["dtype"]
    return [routing_class(*dtypes) for dtypes in zip(rows["dtype"], activations, strict=True)]


def _input_bytes(dtypes: np.ndarray) -> np.ndarray:
    """Bytes of one element of the input of products that compute in these dtypes, (row,)."""
    return np.array([input_bytes(dtype, STREAM) for dtype in dtypes])


def gemm(rows: pd.DataFrame, levels: int) -> Predict:
    """Matrix products of m x k with k x n."""
    m, n, k = (rows[name].to_numpy() for name in "mnk")
    width = rows["dtype"].map(BYTES).to_numpy()
    labels, dtypes = classes(rows)
    # The input is read in the dtype that is computed in, the output is written in that of the layers' stream.
    operators = row_coefficients(
        labels, dtypes, len(rows), levels, flops=2 * n * k, weight_bytes=n * k * width,
        activation_bytes=k * _input_bytes(dtypes) + n * STREAM, inputs=k, outputs=n,
    )  # fmt: skip
    along = tiles(m)

    def predict(rate: Rates) -> Any:
        times = unit_times(operators, rate)
        return product_time(rows_of(times, OperatorRows), m, 1.0, m, along) + times.fixed_s + times.quantise_s * m

    return predict


def elementwise_s(rate: Rates, moved: Any, launches: float, kind: Any = _ELEMENTWISE) -> Any:
    """Elementwise kernels that move so many bytes; ``kind`` is the index of their class."""
    return moved / (rate.memory_bandwidth * rate.bandwidth_efficiency[kind]) + launches * rate.launch_s[kind]


def elementwise(rows: pd.DataFrame, levels: int) -> Predict:
    """Kernels that only move bytes."""
    moved = rows["bytes"].to_numpy()
    return lambda rate: elementwise_s(rate, moved, 1.0)


def of_unknown_skew(rows: pd.DataFrame) -> np.ndarray:
    """MoE calls whose routing is skewed, of which the table does not tell how many experts they touch, (row,)."""
    skewed = (rows["routing"] == "skewed").to_numpy()
    return skewed & rows["experts_touched"].isna().to_numpy() if "experts_touched" in rows else skewed


def grouped_gemm(rows: pd.DataFrame, levels: int) -> Predict:
    """A fused MoE call: two grouped products, and between and after them activation, routing and sum.

    Balanced routing touches min(1, tokens k / E) of the experts; skewed routing as ``experts_touched`` has it, with the
    popularity's variance as a parameter of the measurement. Where the table has the numbers of this device
    (``experts_touched``; ``visits``, pairs of a token and an expert), those.
    """
    names = ("tokens", "hidden", "intermediate", "top_k", "experts", "expert_parallel")
    tokens, hidden, inner, top, experts, ranks = (rows[name].to_numpy() for name in names)
    halves = 1.0 + (rows["gated"].fillna(1.0).to_numpy() if "gated" in rows else 1.0)
    width = rows["dtype"].map(BYTES).to_numpy()
    labels, dtypes = classes(rows)
    held, read = experts / ranks, _input_bytes(dtypes)
    visits, touched_there = top / ranks, np.full(len(rows), np.nan)
    if "visits" in rows:
        visits = (rows["visits"] / tokens).fillna(pd.Series(visits, rows.index)).to_numpy()
    if "experts_touched" in rows:
        touched_there = rows["experts_touched"].to_numpy() / held

    def product(inputs: np.ndarray, outputs: np.ndarray) -> Coefficients:
        return row_coefficients(
            labels, dtypes, len(rows), levels, flops=2 * visits * inputs * outputs,
            weight_bytes=held * inputs * outputs * width, matrices=held, crowd=held, inputs=inputs, outputs=outputs,
            activation_bytes=visits * (inputs * read + outputs * STREAM),
        )  # fmt: skip

    up, down = product(hidden, halves * inner), product(inner, hidden)
    skewed = of_unknown_skew(rows)
    even = np.where(np.isnan(touched_there), np.minimum(1.0, tokens * top / experts), touched_there)
    # 1 - 1e-12: a token that visits all experts would have the log of 0.
    missed = np.log1p(-np.minimum(top / experts, 1 - 1e-12))
    # The sum runs over all experts of a token, those of other ranks included (as zeros).
    moved = STREAM * tokens * (visits * (halves + 1) * inner + (top + 1) * hidden)

    around = np.array([OP_CLASSES.index(name) for name in routing_classes(rows)])

    def predict(rate: Rates) -> Any:
        # Both branches are computed; the mask says of which rows the table tells the experts itself.
        touched = jnp.where(skewed, experts_touched(missed, tokens, rate.expert_skew), even)
        total = elementwise_s(rate, moved, 3.0, around)
        for operators in (up, down):
            times = unit_times(operators, rate)
            total = total + product_time(rows_of(times, OperatorRows), tokens, touched, tokens) + times.fixed_s
        return total

    return predict


def _token_bytes(heads: np.ndarray, kv_heads: np.ndarray, dim: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Queries and output, new keys and values read and stored."""
    return dim * (STREAM * 2 * (heads + kv_heads) + 2 * kv_heads * width)


def prefill_pieces(rows: pd.DataFrame, levels: int) -> Predict:
    """Prefill attention without its launch: whole prompts or chunks on a history."""
    names = ("batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim", "window")
    batch, new, past, heads, kv_heads, dim, window = (rows[name].to_numpy() for name in names)
    width = rows["kv_dtype"].map(BYTES).to_numpy()
    # No window is one that no context reaches, so that one formula serves both.
    window = np.where(window > 0, window, 1e12)
    edges = np.where(new + past > window, 2.0, 1.0)
    area = attention_area(new + past, past, window)
    tokens, context = batch * new, batch * np.minimum(new + past, new + window - 1)
    operators = row_coefficients(
        "attention_prefill", "bf16", len(rows), levels, flops=4 * heads * dim,
        activation_bytes=2 * kv_heads * dim * width, heads=heads, kv_heads=kv_heads, edges=edges,
        # The launch of an attention call is that of ``attention_decode``, which has the figure, and is added below.
        launches=np.zeros(len(rows)), token_bytes=_token_bytes(heads, kv_heads, dim, width), query_elements=heads * dim,
    )  # fmt: skip

    def predict(rate: Rates) -> Any:
        times = unit_times(operators, rate)
        # The area above is of one prompt; a call has ``batch`` of them.
        chunks = (batch * area, context, tokens, batch)
        return attention_time(rows_of(times, AttentionRows), *chunks) + times.store_s * tokens

    return predict


def prefill(rows: pd.DataFrame, levels: int) -> Predict:
    """Prefill attention calls."""
    pieces = prefill_pieces(rows, levels)
    return lambda rate: pieces(rate) + rate.launch_s[_ATTENTION_LAUNCH]


def _decode_operators(rows: pd.DataFrame, levels: int) -> Coefficients:
    heads, kv_heads, dim = (rows[name].to_numpy() for name in ("heads", "kv_heads", "head_dim"))
    width = rows["kv_dtype"].map(BYTES).to_numpy()
    return row_coefficients(
        "attention_decode", "bf16", len(rows), levels, flops=4 * heads * dim,
        activation_bytes=2 * kv_heads * dim * width, heads=heads, kv_heads=kv_heads, launches=np.zeros(len(rows)),
        token_bytes=_token_bytes(heads, kv_heads, dim, width),
        edges=np.where(rows["window"].to_numpy() > 0, 2.0, 1.0),
    )  # fmt: skip


def _alone(times: UnitTimes, batch: np.ndarray, past: np.ndarray, window: np.ndarray) -> Any:
    """Decode attention without its launch and without prompts beside it."""
    context = batch * np.where(window > 0, np.minimum(past, window), past)
    mean = context / np.maximum(batch, 1.0)
    time = roofline(times.flop_s, times.activation_s, times.knee) * context
    # filling is 0 for sets that do not state it, and would divide 0 by 0 at the start of a fit.
    late_s = times.late_s * waiting(batch, jnp.maximum(times.filling, 1e-9))
    full = jnp.maximum(time + (times.spread_s + late_s) * mean, times.unsplit_s * mean)
    time = jnp.where(window == 0, full, time)
    return time + times.sequence_s * batch + times.join_s * np.minimum(batch, 1.0)


def _decode_times(rows: pd.DataFrame, levels: int) -> Callable[[Rates], UnitTimes]:
    """Times of decode attention, where the longest context of every row is as long as the table says."""
    operators = _decode_operators(rows, levels)
    unequal = rows["unequal"].fillna(0.0).to_numpy() if "unequal" in rows else 0.0

    def times_of(rate: Rates) -> UnitTimes:
        times = unit_times(operators, rate)
        return times._replace(longest_s=times.walk_s * (1.0 + unequal), late_s=times.walk_s * unequal)

    return times_of


def decode(rows: pd.DataFrame, levels: int) -> Predict:
    """Decode attention calls."""
    times_of, shape = _decode_times(rows, levels), [rows[name].to_numpy() for name in _DECODES]

    def predict(rate: Rates) -> Any:
        return _alone(times_of(rate), *shape) + rate.launch_s[_ATTENTION_LAUNCH]

    return predict


_DECODES = ("batch", "past_tokens", "window")


def mixed(rows: pd.DataFrame, levels: int) -> Predict:
    """Chunks and decodes in one call; calls of chunks alone and of decodes alone, too."""
    chunks, times_of = prefill_pieces(rows, levels), _decode_times(rows, levels)
    prompts, new, past = (rows[name].to_numpy() for name in ("batch", "new_tokens", "past_tokens"))
    decodes, seen, window = (rows[name].to_numpy() for name in ("decodes", "decode_context", "window"))
    area, full = prompts * attention_area(new + past, past), window == 0
    batch = (decodes, decodes * seen, area, prompts * (new + past), prompts * new, prompts)

    def predict(rate: Rates) -> Any:
        times = times_of(rate)
        # Windowed decodes take as long as alone, as in the cost model (``BesideRows``).
        more = jnp.where(full, beside_time(rows_of(times, BesideRows), *batch), 0.0)
        return chunks(rate) + _alone(times, decodes, seen, window) + more + rate.launch_s[_ATTENTION_LAUNCH]

    return predict


def _latent_kernels(rows: pd.DataFrame, decode: bool, levels: int) -> Coefficients:
    """The kernels of MLA as the cost model has them, one per row."""
    names = ["kv_dtype", "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim"]
    operators: dict[tuple, Operator] = {}
    for key in rows[names].drop_duplicates().itertuples(index=False, name=None):
        heads, rank, nope, rope, value = (int(size) for size in key[1:])
        # Single layers of the sizes that the row has, from the same function that prices a model.
        operators[key] = latent_kernels(LatentAttention(heads, rank, nope, rope, value), Precision(kv=key[0]))[decode]
    of_rows = [operators[key] for key in rows[names].itertuples(index=False, name=None)]
    figures = {
        name: np.array([getattr(operator, name) for operator in of_rows], dtype=float)
        for name in ("flops", "activation_bytes", "heads", "kv_heads", "token_bytes", "launches")
    }
    return row_coefficients(of_rows[0].op_class, "bf16", len(rows), levels, **figures)


def mla_prefill(rows: pd.DataFrame, levels: int) -> Predict:
    """Prefill attention of MLA, on heads that are expanded already."""
    batch, new, past = (rows[name].to_numpy() for name in ("batch", "new_tokens", "past_tokens"))
    # No window: one that is longer than any context.
    operators, area = _latent_kernels(rows, False, levels), attention_area(new + past, past, 1e12)

    def predict(rate: Rates) -> Any:
        times = unit_times(operators, rate)
        time = attention_time(rows_of(times, AttentionRows), batch * area, batch * (new + past), batch * new, batch)
        return time + times.store_s * batch * new + rate.launch_s[_LATENT_LAUNCH]

    return predict


def mla_decode(rows: pd.DataFrame, levels: int) -> Predict:
    """Decode attention of MLA, on the latents."""
    batch, past = rows["batch"].to_numpy(), rows["past_tokens"].to_numpy()
    operators = _latent_kernels(rows, True, levels)

    def predict(rate: Rates) -> Any:
        times = unit_times(operators, rate)
        time = roofline(times.flop_s, times.activation_s, times.knee) * batch * past + times.spread_s * past
        return time + times.sequence_s * batch + times.join_s + rate.launch_s[_LATENT_LAUNCH]

    return predict


def _collective(rows: pd.DataFrame, reach: tuple[int | None, ...], collective: str, op_class: str) -> Predict:
    message = rows["message_bytes"].to_numpy()
    sizes = rows["devices"].to_numpy().astype(int)
    terms = [collective_terms(collective, range(size), reach) for size in sizes]
    weights = [size_weights(collective, size) for size in sizes]
    operators = row_coefficients(
        op_class, "bf16", len(rows), len(reach), message_bytes=message, size=np.array(weights),
        steps=np.array([steps for steps, _ in terms]), share=np.array([share for _, share in terms]),
    )  # fmt: skip

    def predict(rate: Rates) -> Any:
        times = unit_times(operators, rate)
        # message / (message + half): half of the ramp at ``half``; 1e-9 for groups without figures, whose half is 0.
        ramp = times.ramp_s * message / (message + operators.size @ rate.group_half_bytes + 1e-9)
        return times.message_s + times.fixed_s + ramp + times.handover_s * (message >= HANDOVER_BYTES)

    return predict


def predictor(op_class: str, rows: pd.DataFrame, reach: tuple[int | None, ...]) -> Predict:
    """Seconds of every row as a function of the rates, in JAX."""
    # An all-gather has an operator class in common with all-reduces, and figures of its own by group.
    collectives = {"all_reduce": "all_reduce", "all_gather": "all_reduce", "all_to_all": "all_to_all"}
    if op_class in collectives:
        return _collective(rows, reach, op_class, collectives[op_class])
    kernels = {"gemm": gemm, "grouped_gemm": grouped_gemm, "attention_prefill": prefill, "attention_decode": decode,
               "attention_mixed": mixed, "elementwise": elementwise, "mla_prefill": mla_prefill,
               "mla_decode": mla_decode}  # fmt: skip
    return kernels[op_class](rows, len(reach))
