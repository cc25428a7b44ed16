"""The time of one engine iteration from the sufficient statistics of its batch.

This is the only place where an operator's time is computed: the vectorised engine, the reference,
``estimate`` and calibration all call ``iteration_time``. It is pure, traced in every number, and works alike on
scalars and NumPy arrays (without importing JAX) and on JAX arrays and tracers of any batch of lanes (``arrays`` names
the axes). On plain Python floats it is plain Python, three times as fast as on NumPy scalars.

The time is a sum over operators, each a roofline of two sides, plus terms that are proportional to one statistic.
``fold`` has turned FLOPs and bytes into seconds before, so that no rate of a device appears here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, Protocol

from evaluator.cost.arrays import Array as Array  # the engine's rooms import it from here
from evaluator.cost.arrays import Batched, PerOperator, array_namespace
from evaluator.cost.mixed_attention import BesideRows, beside_time, waiting
from evaluator.cost.roofline import roofline


class BatchStatistics(NamedTuple):
    """What an iteration's time depends on: nine sums over the sequences in its batch.

    A decoding sequence with ``c`` tokens of KV (before this iteration) attends to ``c + 1`` tokens; a chunk
    of a prompt that computes positions ``lo + 1 .. hi`` has area ``sum(lo + 1 .. hi)`` and context ``hi``.
    The ``window`` fields are the same sums with every attended length cut at the model's window.
    """

    decodes: Batched  # sequences that decode one token each
    decode_context: Batched  # tokens: those that the decodes attend to, summed
    decode_window_context: Batched  # tokens
    prefill_tokens: Batched  # tokens of prompts computed
    prefill_sequences: Batched  # prompts that have a chunk in this iteration
    prefill_area: Batched  # tokens attended to, summed over the prompt tokens computed: pairs of tokens
    prefill_window_area: Batched  # pairs of tokens
    prefill_context: Batched  # tokens whose KV the chunks read, history and cached prefix included
    prefill_window_context: Batched  # tokens


class OperatorRows(NamedTuple):
    """Matrix products, one per row, in seconds; no operator at all is allowed.

    An operator takes roofline(flop * x + padding * y, weight * y + activation * z, knee), where x, y and z are
    statistics of the batch: ``CostParameters`` says at each of its tables of rows which. ``waves``, ``wave_s`` and
    ``tile_pass_s`` make the side of the FLOPs depend on the size (``product_time``); 0 leaves it as it is.
    """

    flop: PerOperator  # s per x
    weight: PerOperator  # s per y: reading the weights
    activation: PerOperator  # s per z: reading inputs and writing outputs
    knee: PerOperator  # 0 to 1, see ``roofline``
    waves: PerOperator  # waves of tiles per TOKEN_TILE tokens
    wave_s: PerOperator  # s of one whole wave, counted in whole waves
    tile_pass_s: PerOperator  # s of one tile with all its rows
    crowd: PerOperator  # x beyond which weights are read more slowly; of experts alone
    crowded: PerOperator  # s per y that this takes on top
    padding: PerOperator  # s per y: the tiles of touched experts that their rows do not fill
    filled: PerOperator  # s beside the FLOPs: of tiles of all experts held, touched or not


class AttentionRows(NamedTuple):
    """Prefill attention, one kind of layer per row, in seconds; see ``attention_time``."""

    flop: PerOperator  # s per pair of tokens (query, token attended to)
    activation: PerOperator  # s per token of context, whose keys and values are read
    knee: PerOperator  # 0 to 1, see ``roofline``
    edge_s: PerOperator  # s per query row, on the side of the FLOPs
    traffic_s: PerOperator  # s per prompt token, on the side of memory: queries, output, new keys and values
    tile: PerOperator  # query rows computed at least, in prompt tokens per prompt
    fill: PerOperator  # prompt tokens below which the device is not full
    cache: PerOperator  # prompt tokens whose own traffic stays in the cache


class RampRows(NamedTuple):
    """What large messages of collectives other than all-reduces take beyond the affine form, one collective per row."""

    ramp: PerOperator  # s, reached by half at ``half``
    half: PerOperator  # tokens, or sequences, above 0
    by_sequence: PerOperator  # 1: a message is proportional to the sequences in the batch; 0: to the tokens computed


class AdapterGroups(NamedTuple):
    """LoRA adapters of equal popularity, one group per row."""

    adapters: PerOperator  # how many
    log_missed: PerOperator  # log of the chance that a sequence does not name a given one of them
    most: PerOperator  # of all groups together, that a batch names: as many as there are places


class DeltaRuleRows(NamedTuple):
    """Prompts in layers with the gated delta rule, one kind of layer per row; see ``delta_rule_time``."""

    start_s: PerOperator  # s per round of heads
    walk_s: PerOperator  # s per token of a prompt, and round
    token_s: PerOperator  # s per prompt token
    share: PerOperator  # heads of one prompt over those that walk at the same time


NO_DELTA_RULE = DeltaRuleRows((), (), (), ())
NO_ADAPTERS = OperatorRows(*((),) * len(OperatorRows._fields)), AdapterGroups((), (), ())


class CostParameters(NamedTuple):
    """The iteration cost of one pipeline rank of one replica, everything already in seconds (``fold`` makes it).

    ``_rows`` are tables with one row per operator that has a roofline of its own, because both of its sides may bind.
    The other fields are the terms that have no knee, added up over all operators: host overhead, launches,
    collectives, elementwise work, and decode attention, both sides of whose roofline are proportional to the context.
    A decode kernel may be slower per token when there are few decodes, but never because the context is long: the
    engine sums a run of iterations in closed form, and needs a time that is affine in the context.
    """

    token_rows: OperatorRows  # dense GEMMs: x = tokens, y = 1, z = tokens
    sequence_rows: OperatorRows  # the output head: x = sequences, y = 1, z = sequences
    expert_rows: OperatorRows  # routed experts: x = tokens, y = fraction of the experts touched, z = tokens
    prefill_rows: AttentionRows  # layers with full attention and MLA
    prefill_window_rows: AttentionRows  # windowed layers, with the windowed area and context
    ramp_rows: RampRows  # collectives other than all-reduces, of one data-parallel rank
    expert_ramp_rows: RampRows  # those between data-parallel ranks, which exchange the tokens of all
    beside_rows: BesideRows  # decode attention of layers with full attention, where prompts are computed, too
    log_expert_missed: Batched  # log(1 - k/E): one token leaves a given expert untouched; 0 without experts
    expert_skew: Batched  # variance of the experts' popularity, see ``experts_touched``; 0: all alike
    touched_spread: Batched  # by which the busiest device touches more of its experts, see ``busiest_touched``
    touched_least: Batched  # fraction of its experts that the busiest device touches at least; both 0 of one device
    graph_tokens: Batched  # tokens: the batch is padded to a multiple of so many, see ``padded``; 0: it is not
    iteration_s: Batched  # s per iteration
    token_s: Batched  # s per token computed
    sequence_s: Batched  # s per sequence in the batch
    context_s: Batched  # s per token attended to by a decode, full attention and MLA
    spread_s: Batched  # s on top, per token of the mean context: parts of a split context that end late
    unsplit_s: Batched  # s at least, per token of the mean context, where a context is not split
    late_s: Batched  # s on top, per token of the mean context, because the longest ends last; see ``waiting``
    late_decodes: Batched  # decodes that just fill the device, above 0
    late_beyond: Batched  # how much of that is left, at least, with more decodes than these
    window_context_s: Batched  # s per token attended to by a decode in windowed layers
    decode_s: Batched  # s per decoding sequence
    join_s: Batched  # s per iteration with decodes
    prefill_token_s: Batched  # s per prompt token
    ramp_s: Batched  # s that all-reduces take beyond the affine form, reached by half at ``ramp_tokens``
    ramp_tokens: Batched  # tokens, above 0
    handover_s: Batched  # s that all-reduces take on top from ``handover_tokens`` on
    handover_tokens: Batched  # tokens
    pieces_s: Batched  # s that an iteration with prompts takes at least, see ``launched``
    between_s: Batched  # s of that on top with more tokens than ``captured_tokens``
    captured_tokens: Batched  # tokens of the largest batch of which graphs are kept
    prepared_s: Batched = 0.0  # s of the device's own that such an iteration takes on top, with more tokens than these
    adapter_rows: OperatorRows = NO_ADAPTERS[0]  # LoRA: x = tokens, y = adapters named, z = tokens
    adapter_groups: AdapterGroups = NO_ADAPTERS[1]
    delta_rule_rows: DeltaRuleRows = NO_DELTA_RULE


class FittedCost(Protocol):
    """What every cost other than the roofline answers: one fitted to measured iterations (``polynomial``, ``table``),
    or a roofline on a device whose host runs ahead (``Dispatched``).

    ``time``: seconds of the batch's iteration. ``growth``: seconds by which each next iteration of the same decodes is
    longer. ``steps``: for how many iterations that holds (see ``decode_growth`` and ``alike_steps``).
    """

    @property
    def log_expert_missed(self) -> Batched: ...
    @property
    def expert_skew(self) -> Batched: ...
    def time(self, batch: BatchStatistics) -> Batched: ...
    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched: ...
    def steps(self, batch: BatchStatistics) -> Batched: ...


IterationCost = CostParameters | FittedCost
"""Which of them it is belongs to the structure of a compiled program; the numbers inside are traced."""


TOKEN_TILE, OUTPUT_TILE = 128, 256
"""Tile of a matrix product: the largest that cuBLAS and CUTLASS use on A100 and later, rows (tokens) x columns."""


def whole_waves(waves: Batched) -> Batched:
    """Waves of tiles as they are executed: whole ones, the last with idle processors.

    Where all tiles fit into half a wave, kernels take tiles of half the size, and so on: below a quarter nothing is
    lost. NVIDIA, "Matrix Multiplication Background User's Guide" (DA-09799-001, tile and wave quantisation).
    """
    xp = array_namespace(waves)
    return xp.where(waves > 0.5, xp.ceil(waves), xp.where(waves > 0.25, 0.5, waves))


class Tiles(NamedTuple):
    """The tiles that a product has along its rows."""

    blocks: Batched  # of TOKEN_TILE rows
    height: Batched  # rows of the tile chosen over those of the largest, 1/8 to 1


def tiles(rows: Batched) -> Tiles:
    """Tiles of a product with so many rows.

    CUTLASS' kernels in 8 bits, as vLLM and SGLang choose them, have tiles for up to 32, 64 and 128 rows and one for
    more (vLLM ``scaled_mm_sm90_fp8_dispatch.cuh``, ``scaled_mm_c2x_sm89_fp8_dispatch.cuh``).
    """
    xp = array_namespace(rows)
    # A sum of steps rather than a lookup: traced values index no Python list, and under vmap a gather costs more.
    height = 0.125 + 0.125 * (rows > 32.0) + 0.25 * (rows > 64.0) + 0.5 * (rows > 128.0)
    return Tiles(xp.ceil(rows / TOKEN_TILE), height)


def product_time(row: OperatorRows, x: Batched, y: Batched, z: Batched, rows: Tiles | None = None) -> Batched:
    """One operator with weights. Its FLOPs take as long as the pass through one of its tiles at least, where a kernel
    does not split it; ``rows`` are its tiles along the rows (None: proportional to x, as experts' products).
    Experts' weights are read more slowly where a kernel takes other tiles for more tokens than experts (``crowded``).
    """
    # Structure decides below, not numbers: a table of rows is of experts or of dense products as a whole.
    weight = row.weight
    flop = row.flop * x + row.padding * y
    if rows is None:
        # Without ``rows`` it is a product of routed experts: their tiles follow the tokens per expert, not the rows.
        weight = weight + row.crowded * (x > row.crowd)
        flop = flop + row.filled
    else:
        xp = array_namespace(flop, rows.height)
        # A tile is walked along its whole inner dimension by one processor, so few tiles take as long as one.
        flop = xp.maximum(flop + row.wave_s * whole_waves(row.waves * rows.blocks), row.tile_pass_s * rows.height)
    return roofline(flop, weight * y + row.activation * z, row.knee)


def attention_time(row: AttentionRows, area: Batched, context: Batched, tokens: Batched, prompts: Batched) -> Batched:
    """Prefill attention of ``prompts`` chunks of ``tokens`` in all.

    Kernels compute query rows in whole tiles, so that a prompt costs half a tile more than its tokens on average, and
    one tile at least. Below ``fill`` rows some processors have no tile: the work then takes as long as that of
    ``fill`` rows (with a smooth change between). What a short chunk reads and writes of its own tokens stays in the
    cache and costs no time on the side of memory (``spilt`` goes from 0 to 1 around ``cache`` tokens); the history was
    written by earlier iterations, and is always read from memory.
    """
    xp = array_namespace(row.flop, area, tokens)
    # The last tile of a prompt is half empty on average; a prompt shorter than a tile still computes one.
    rows = xp.maximum(row.tile * prompts, tokens + 0.5 * row.tile * prompts)
    # sqrt(1 + (fill/rows)^2) is 1 for long chunks and fill/rows for short ones, without the kink of a maximum,
    # which gradient fits would stick to.
    lack = row.fill / xp.maximum(rows, 1.0)
    work = (row.flop * area + row.edge_s * rows) * xp.sqrt(1.0 + lack * lack)
    much, little = tokens * tokens, row.cache * row.cache
    # 1e-30 keeps 0/0 out where neither tokens nor a cache are there.
    spilt = much * much / (much * much + little * little + 1e-30)
    return roofline(work, row.traffic_s * tokens * spilt + row.activation * context, row.knee)


def _products_time(rows: OperatorRows, x: Batched, y: Batched, z: Batched, along: Tiles | None = None) -> Batched:
    time: Batched = 0.0
    for row in map(OperatorRows._make, zip(*rows, strict=True)):
        time = time + product_time(row, x, y, z, along)
    return time


def dense_time(rows: OperatorRows, x: Batched) -> Batched:
    """Products of so many rows that read all of their weights."""
    # One batch after the other has as many sequences as the one before, and what changes is the context: on plain
    # floats these products, and those of experts, are more than half of what an iteration costs to price.
    return (_known_whole_products_time if type(x) is float and _are_plain(rows) else _whole_products_time)(rows, x)


def _whole_products_time(rows: OperatorRows, x: Batched) -> Batched:
    return _products_time(rows, x, 1.0, x, tiles(x))


_known_whole_products_time = lru_cache(maxsize=1 << 14)(_whole_products_time)


def _are_plain(rows: OperatorRows) -> bool:
    return type(rows.flop) is tuple and all(type(value) is float for value in rows.flop)


def _attentions_time(rows: AttentionRows, *chunks: Batched) -> Batched:
    time: Batched = 0.0
    for row in map(AttentionRows._make, zip(*rows, strict=True)):
        time = time + attention_time(row, *chunks)
    return time


def decode_context_s(parameters: CostParameters, decodes: Batched) -> Batched:
    """Seconds per token attended to by ``decodes`` sequences, in layers with full attention and MLA.

    Kernels such as FlashAttention-2 split each context over idle processors. With few decodes the parts end at
    different times (``spread_s``); where a kernel does not split, one processor reads a whole context (``unsplit_s``).
    Both cost seconds per token of the *mean* context, which is 1/decodes of the summed one. So does what the device
    waits for the longest of unequal contexts (``late_s``).
    """
    xp = array_namespace(parameters.context_s, decodes)
    # Of no decodes the context is 0, too, so that any finite factor will do.
    per_decode = 1.0 / xp.maximum(decodes, 1.0)
    late_s = parameters.late_s * waiting(decodes, parameters.late_decodes, parameters.late_beyond)
    split_s = parameters.context_s + (parameters.spread_s + late_s) * per_decode
    return xp.maximum(split_s, parameters.unsplit_s * per_decode)


def experts_touched(log_expert_missed: Batched, tokens: Batched, skew: Batched = 0.0) -> Batched:
    """Expected fraction of routed experts that a batch of ``tokens`` touches.

    Uniform routing: 1 - (1 - k/E)^tokens. With experts of unequal popularity, gamma-distributed with mean 1 and
    variance ``skew``, the expectation over the experts is 1 - (1 - skew tokens log(1 - k/E))^(-1/skew).
    """
    xp = array_namespace(log_expert_missed, tokens, skew)
    # In logarithms, because 1 - (1 - k/E)^tokens loses all digits for few tokens and many experts.
    # gamma's Laplace transform, (1 + skew x)^(-1/skew), in logarithms; the where keeps a division by 0 out of it.
    visits = -tokens * log_expert_missed
    spread = xp.log1p(skew * visits) / xp.where(skew > 0.0, skew, 1.0)
    return -xp.expm1(-xp.where(skew > 0.0, spread, visits))


def adapters_named(groups: AdapterGroups, sequences: Batched) -> Batched:
    """Expected number of distinct adapters that so many sequences name, each independently of the others.

    An adapter with chance p is named by none of n sequences with (1 - p)^n; of popularity that varies, p is that of a
    group of adapters alike. The roofline of the expected number stands for the expected roofline. An engine takes into
    a batch no more adapters than it has places for (``Lora.max_loras``); who names another one waits.
    """
    xp = array_namespace(sequences, *groups.adapters, *groups.log_missed)
    named: Batched = 0.0
    places: Batched = 0.0
    for adapters, log_missed, most in zip(*groups, strict=True):
        named = named - adapters * xp.expm1(sequences * log_missed)
        # The same in all groups but those that pad, which have none.
        places = xp.maximum(places, most)
    return xp.minimum(named, places)


def busiest_touched(touched: Batched, tokens: Batched, spread: Batched, least: Batched) -> Batched:
    """Expected fraction of its experts that the device touches which touches most of them; ``touched``: the mean.

    Each layer ends in an exchange between the devices that hold whole experts, so that it waits for the one that reads
    most weights. Experts are touched or not independently of one another (a chance p each, popularity included), so
    that the number touched of m has a variance of m p (1 - p), and the largest of P such numbers is expected that many
    deviations above the mean as the largest of P normal variables: ``spread`` is this number over the root of m, and
    ``least`` 1 / m, because a token touches an expert somewhere (``imbalance.busiest``).
    """
    xp = array_namespace(touched, tokens, spread, least)
    # 1e-30, because the slope of a root at 0 is infinite, and times a spread of 0 no number.
    more = touched + spread * xp.sqrt(touched * (1.0 - touched) + 1e-30)
    return xp.minimum(xp.maximum(more, least * xp.minimum(tokens, 1.0)), 1.0)


def padded(tokens: Batched, graph_tokens: Batched) -> Batched:
    """Tokens that the kernels see where an engine replays CUDA graphs, kept for 1, 2, 4 and multiples of 8 tokens.

    vLLM (``cudagraph_capture_sizes``) and SGLang pad a batch up to the next one. What pads it is routed to experts,
    too; in dense products, bound by their weights at such sizes, it costs nothing.
    """
    xp = array_namespace(tokens, graph_tokens)
    # The maximum only keeps a division by 0 out of the branch that is not taken.
    whole = graph_tokens * xp.ceil(tokens / xp.maximum(graph_tokens, 1.0))
    return xp.where((graph_tokens > 0.0) & (tokens > 4.0), whole, tokens)


def decode_growth(parameters: IterationCost, batch: BatchStatistics, window_growing: Batched) -> Batched:
    """Seconds by which each next iteration of the same decodes is longer than the one before, without prompts.

    Every decode attends to one token more each time; in windowed layers only ``window_growing`` of them do, whose
    context is still shorter than the window. The growth is the same for the next ``alike_steps`` iterations.
    """
    if isinstance(parameters, CostParameters):
        # Affine in the contexts, so that the growth is the slope times the tokens by which all contexts grow together.
        grows_s = decode_context_s(parameters, batch.decodes) * batch.decodes
        return grows_s + parameters.window_context_s * window_growing
    return parameters.growth(batch, window_growing)


def alike_steps(parameters: IterationCost, batch: BatchStatistics) -> Batched:
    """For how many iterations of the same decodes the time is affine in their number; float, inf where always."""
    return math.inf if isinstance(parameters, CostParameters) else parameters.steps(batch)


def share_touched(parameters: IterationCost, tokens: Batched) -> Batched:
    """Fraction of the routed experts that an iteration of so many tokens touches; 0 for a model without any."""
    # How many rows there are is structure, so that models without experts compile no exponential.
    if isinstance(parameters, CostParameters) and not len(parameters.expert_rows.flop):
        return 0.0
    return experts_touched(parameters.log_expert_missed, tokens, parameters.expert_skew)


def prefill_attention_time(parameters: CostParameters, batch: BatchStatistics) -> Batched:
    """Seconds of an iteration in prefill attention; nothing beside the rest (1e-30 s) without prompts."""
    chunks = batch.prefill_tokens, batch.prefill_sequences
    full_s = _attentions_time(parameters.prefill_rows, batch.prefill_area, batch.prefill_context, *chunks)
    window = batch.prefill_window_area, batch.prefill_window_context
    return full_s + _attentions_time(parameters.prefill_window_rows, *window, *chunks)


def iteration_time(
    parameters: IterationCost,
    batch: BatchStatistics,
    prefill_attention_s: Batched | None = None,
    queries: Batched | None = None,
    sampled: Batched | None = None,
) -> Batched:
    """Seconds of one iteration; the shape is the common shape of the lanes and the batch.

    An empty batch still costs ``iteration_s`` and the weights: callers do not run empty iterations. A caller that knows
    ``prefill_attention_time`` of a roofline already may give it, and its terms are not computed again. ``queries``:
    tokens that each decoding sequence has in the iteration (``speculative``); None: one. ``sampled``: of how many of
    them the head computes scores; None: of all. Of data-parallel ranks all have batches with as many tokens (else see
    ``lockstep``).
    """
    if not isinstance(parameters, CostParameters):
        return parameters.time(batch)
    time = device_time(parameters, batch, prefill_attention_s, queries, sampled)
    # A floor and no addend: the host launches while the device computes.
    least_s = launched(parameters, batch, queries)
    return array_namespace(time, least_s).maximum(time, least_s)


def device_time(
    parameters: CostParameters,
    batch: BatchStatistics,
    prefill_attention_s: Batched | None = None,
    queries: Batched | None = None,
    sampled: Batched | None = None,
) -> Batched:
    """Seconds of an iteration however fast the host launches it; arguments as of ``iteration_time``."""
    time = time_without_experts(parameters, batch, prefill_attention_s, queries, sampled)
    if len(parameters.expert_rows.flop):  # structure: models without experts do not pay for the exponential
        tokens = (batch.decodes if queries is None else queries * batch.decodes) + batch.prefill_tokens
        time = time + experts_time(parameters, tokens, padded(tokens, parameters.graph_tokens))
    return time


def launched(parameters: CostParameters, batch: BatchStatistics, queries: Batched | None = None) -> Batched:
    """Seconds that the host takes to launch an iteration with prompts, which takes no less (``cost.host``).

    Without prompts a whole graph is replayed, which takes the host no longer than the device. So the time of decodes
    stays affine in their contexts.
    """
    prompt = batch.prefill_tokens
    tokens = (batch.decodes if queries is None else queries * batch.decodes) + prompt
    return (prompt > 0.0) * (parameters.pieces_s + (tokens > parameters.captured_tokens) * parameters.between_s)


def prepared(parameters: CostParameters, prompts: Batched, tokens: Batched) -> Batched:
    """Seconds of an iteration with prompts, of so many tokens in all, in which the device waits for the host."""
    xp = array_namespace(parameters.prepared_s, prompts, tokens)
    # A mean batch (``cost.steady``) has fractions of a prompt, and of such an iteration.
    return parameters.prepared_s * (tokens > parameters.captured_tokens) * xp.minimum(prompts, 1.0)


def experts_time(parameters: CostParameters, tokens: Batched, seen: Batched) -> Batched:
    """Seconds of an iteration in routed experts, of ``tokens`` per data-parallel rank; ``seen`` when it is padded."""
    rows, ramps = parameters.expert_rows, parameters.expert_ramp_rows
    routing = parameters.log_expert_missed, parameters.expert_skew, parameters.touched_spread, parameters.touched_least
    if type(tokens) is type(seen) is float and _are_plain(rows):
        return _known_experts_time(rows, ramps, routing, tokens, seen)
    return _experts_time(rows, ramps, routing, tokens, seen)


def _experts_time(
    rows: OperatorRows, ramps: RampRows, routing: tuple[Batched, ...], tokens: Batched, seen: Batched
) -> Batched:
    log_missed, skew, spread, least = routing
    touched = experts_touched(log_missed, seen, skew)
    most = busiest_touched(touched, seen, spread, least)
    return _products_time(rows, tokens, most, tokens) + _ramps_time(ramps, tokens, tokens)


_known_experts_time = lru_cache(maxsize=1 << 14)(_experts_time)


def time_without_experts(
    parameters: CostParameters,
    batch: BatchStatistics,
    prefill_attention_s: Batched | None = None,
    queries: Batched | None = None,
    sampled: Batched | None = None,
) -> Batched:
    """Seconds of an iteration in all but the routed experts; arguments as of ``iteration_time``."""
    xp = array_namespace(parameters.iteration_s, *batch)
    prompt, prompts = batch.prefill_tokens, batch.prefill_sequences
    rows = batch.decodes if queries is None else queries * batch.decodes
    tokens = rows + prompt
    sequences = (rows if sampled is None else sampled * batch.decodes) + prompts
    # On plain floats, of which the reference prices one batch after the other: most have no prompt, whose operators
    # then add nothing (1e-30 s) and would take a quarter of the time.
    only_decodes = type(prompt) is type(prompts) is float and prompt == prompts == 0.0
    if only_decodes:
        prefill_attention_s = 0.0
    time = (
        parameters.iteration_s
        + parameters.token_s * tokens
        + parameters.sequence_s * sequences
        + decode_context_s(parameters, batch.decodes) * batch.decode_context
        + parameters.window_context_s * batch.decode_window_context
        + parameters.decode_s * batch.decodes
        # Once per iteration with decodes; the mean batches of ``cost.steady`` have fractions of a sequence.
        + parameters.join_s * xp.minimum(batch.decodes, 1.0)
        + parameters.prefill_token_s * prompt
        + prepared(parameters, prompts, tokens)
        # 0 for small messages and ``ramp_s`` for large ones, half of it at ``ramp_tokens``; smooth, for fits by
        # gradients.
        + parameters.ramp_s * tokens / (tokens + parameters.ramp_tokens)
        + parameters.handover_s * (tokens >= parameters.handover_tokens)
        + dense_time(parameters.token_rows, tokens)
        + dense_time(parameters.sequence_rows, sequences)
        + (prefill_attention_time(parameters, batch) if prefill_attention_s is None else prefill_attention_s)
    )
    time = time + _ramps_time(parameters.ramp_rows, tokens, sequences)
    if len(parameters.adapter_rows.flop):  # structure, as with experts
        named = adapters_named(parameters.adapter_groups, batch.decodes + prompts)
        time = time + _products_time(parameters.adapter_rows, tokens, named, tokens)
    # Structure as well: only engines whose kernels of the gated delta rule are known have such rows.
    if len(parameters.delta_rule_rows.walk_s) and not only_decodes:
        for layers in zip(*parameters.delta_rule_rows, strict=True):
            time = time + delta_rule_time(DeltaRuleRows(*layers), prompt, prompts)
    # Structure again: only sets that state what decodes take beside prompts have such rows.
    if len(parameters.beside_rows.work) and not only_decodes:
        chunks = batch.prefill_area, batch.prefill_context, prompt, prompts
        for row in zip(*parameters.beside_rows, strict=True):
            time = time + beside_time(BesideRows(*row), batch.decodes, batch.decode_context, *chunks)
    return time


def delta_rule_time(row: DeltaRuleRows, tokens: Batched, prompts: Batched) -> Batched:
    """Seconds of one kind of layers with the gated delta rule for ``tokens`` of ``prompts``.

    The state of a head goes from chunk to chunk, so that a prompt takes its tokens one after the other, however large
    the device is. Heads of all prompts walk side by side, in rounds where they are more than there are processors. How
    the tokens are shared out over prompts the statistics of a batch do not tell: the mean prompt stands for the
    longest. Decodes update their states by another kernel, which reads and writes them once.
    """
    xp = array_namespace(row.walk_s, tokens, prompts)
    rounds = xp.maximum(xp.ceil(prompts * row.share), 1.0)
    # Fewer than one prompt, as in the mean batches of ``cost.steady``, are that share of the iterations with one.
    walked = xp.minimum(prompts, 1.0) * row.start_s + tokens / xp.maximum(prompts, 1.0) * row.walk_s
    return rounds * walked + row.token_s * tokens


def _ramps_time(rows: RampRows, tokens: Batched, sequences: Batched) -> Batched:
    """Seconds that the messages of these collectives take beyond the affine form."""
    time: Batched = 0.0
    for ramp, half, by_sequence in zip(*rows, strict=True):
        # by_sequence is 0 or 1: a number, so that one program serves rows of both kinds.
        units = tokens + by_sequence * (sequences - tokens)
        # 1e-9, since a row that only pads has no ``half``, and a batch may have no unit.
        time = time + ramp * units / (units + half + 1e-9)
    return time
