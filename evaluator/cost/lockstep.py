"""Iterations of data-parallel ranks that run in lockstep: they start together and take as long as the slowest rank.

Each rank computes attention, dense layers and shared experts for its own batch; its devices wait for one another at
every layer of routed experts, which see the tokens of all ranks. As all layers of a kind take a rank equally long, the
rank that is the slowest in one is so in all: an iteration takes the largest time that any rank needs without experts,
and the time of the experts. A rank with nothing to do runs a batch of one dummy token while any other has work.

Sources: vLLM, "Data Parallel Deployment" (docs.vllm.ai/en/latest/serving/data_parallel_deployment: aligned forward
passes, dummy passes), and ``coordinate_batch_across_dp`` (vllm/v1/worker/dp_utils.py): where all ranks replay CUDA
graphs, each is padded to as many tokens as the largest. SGLang and TensorRT-LLM do likewise (``dp_padding_mode``,
"attention DP" with padding). What drafts passes in lockstep, too (``num_tokens_across_dp`` in
vllm/v1/spec_decode/llm_base_proposer.py): its first pass has the tokens of the model, a later one a token of each
sequence.
"""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.dispatched import Dispatched
from evaluator.cost.iteration import (
    BatchStatistics,
    CostParameters,
    IterationCost,
    experts_time,
    experts_touched,
    launched,
    padded,
    time_without_experts,
)
from evaluator.cost.one_of import OneOf
from evaluator.cost.speculative import SpeculativeCost
from evaluator.cost.two_batch_overlap import Overlapped

LARGEST_GRAPH = 512.0
"""Tokens: of larger batches, or of more than twice ``max_num_seqs``, vLLM has no CUDA graph
(``max_cudagraph_capture_size``, ``VllmConfig._set_cudagraph_sizes``), and pads no rank."""


class Counts(NamedTuple):
    """What the ranks of a replica have in their batches; each field of any shape."""

    most: Batched  # of the rank with the largest batch
    mean: Batched  # mean over the ranks
    padded_mean: Batched  # the same, each rank's padded for its own CUDA graph


class Ranks(NamedTuple):
    """Sums over the ranks of a replica, from which the time of their iteration follows. Each field of any shape.

    The rank *ahead* is the one that takes longest without experts, of several the one whose time grows fastest.
    """

    tokens: Counts
    ahead_s: Batched  # s that the rank ahead takes without experts
    growth_s: Batched  # s by which it takes longer in each further iteration of the same decodes
    fastest_s: Batched  # the largest such growth of any rank
    launched_s: Batched = 0.0  # s that the host of any rank takes at least, see ``iteration.launched``
    sequences: Counts | None = None  # where drafts are made; else None
    brought: Batched | None = None  # where batches may be split in two: the least ``tokens_brought`` of any rank


class LockstepSteps(NamedTuple):
    """Iterations of the same batches: the first takes ``first_s``, each next one ``slope_s`` more."""

    first_s: Batched
    slope_s: Batched
    alike: Batched  # for so many of them, as far as the host's time goes; float, inf where always
    touched: Batched  # fraction of the experts that each touches for tokens that are asked for, none of which pads


RankCost = CostParameters | SpeculativeCost | OneOf


def rank_cost(cost: IterationCost) -> RankCost:
    """The part of a cost that is of the device. TypeError for one that was fitted to whole iterations, which the plan
    refuses."""
    if isinstance(cost, OneOf):
        return OneOf(tuple(map(rank_cost, _in_lockstep(cost))), cost.which)
    if isinstance(cost, CostParameters | SpeculativeCost):
        return cost
    if isinstance(cost, Dispatched | Overlapped):
        return cost.device
    # A fit gives whole iterations: which part of them is the experts' is not known.
    raise TypeError(f"{type(cost).__name__} has no time without experts")


def _in_lockstep(cost: OneOf) -> tuple[IterationCost, ...]:
    """The forms, with one that ranks in lockstep can have in place of those that they cannot, which are never chosen
    for them: fits to whole iterations, of other pools on the same clock."""
    able = [isinstance(form, CostParameters | SpeculativeCost | Dispatched | Overlapped) for form in cost.forms]
    return tuple(
        form if is_able else cost.forms[able.index(True)] for form, is_able in zip(cost.forms, able, strict=True)
    )


def time_alone(cost: RankCost, batch: BatchStatistics) -> Batched:
    """Seconds that a rank needs for its batch without experts."""
    if isinstance(cost, OneOf):
        return cost.chosen([time_alone(form, batch) for form in cost.forms])  # type: ignore[arg-type]
    if isinstance(cost, SpeculativeCost):
        return cost.device_s(batch, time_without_experts)
    return time_without_experts(cost, batch)


def launched_alone(cost: RankCost, batch: BatchStatistics) -> Batched:
    """Seconds that the host of a rank takes at least to launch its batch."""
    if isinstance(cost, OneOf):
        return cost.chosen([launched_alone(form, batch) for form in cost.forms])  # type: ignore[arg-type]
    if isinstance(cost, SpeculativeCost):
        return launched(cost.target, batch, cost.queries)
    return launched(cost, batch)


def graph_tokens(cost: RankCost) -> Batched:
    """A batch is padded to a multiple of so many tokens, see ``padded``."""
    if isinstance(cost, OneOf):
        return cost.chosen([graph_tokens(form) for form in cost.forms])  # type: ignore[arg-type]
    return cost.target.graph_tokens if isinstance(cost, SpeculativeCost) else cost.graph_tokens


def splits(cost: IterationCost) -> bool:
    """Whether batches may be split in two halves that overlap (``two_batch_overlap``): structure."""
    return any(map(splits, cost.forms)) if isinstance(cost, OneOf) else isinstance(cost, Overlapped)


def tokens_brought(cost: IterationCost, batch: BatchStatistics) -> Batched:
    """Tokens of a rank's batch as far as they count for a split of it: 0 where they are too few, see ``splits``."""
    if isinstance(cost, OneOf):
        return cost.chosen([tokens_brought(form, batch) for form in cost.forms])
    return cost.brought(batch) if isinstance(cost, Overlapped) else 0.0


def steps_together(cost: IterationCost, ranks: Ranks, max_num_seqs: Batched) -> LockstepSteps:
    """The iterations of ranks until one of them changes its batch or another rank gets ahead."""
    if isinstance(cost, OneOf):
        of_form = [steps_together(form, ranks, max_num_seqs) for form in _in_lockstep(cost)]
        return LockstepSteps(*(cost.chosen(field) for field in zip(*of_form, strict=True)))
    device = rank_cost(cost)
    assert not isinstance(device, OneOf)
    # The four times of ``Ranks`` beside its counts.
    xp = array_namespace(graph_tokens(device), *ranks.tokens, *ranks[1:5])
    # The largest batch that vLLM captures a graph of: no rank is padded beyond (``max_cudagraph_capture_size``).
    largest = xp.minimum(2.0 * max_num_seqs, LARGEST_GRAPH)
    touched = experts_touched(device.log_expert_missed, ranks.tokens.mean, device.expert_skew)
    # The rank ahead waits for no other in any layer, so that what the experts of all take comes after its own time.
    device_s = ranks.ahead_s + _experts_together(device, ranks, largest)
    if isinstance(cost, Overlapped):
        whole_s = device_s + cost.exchange.iteration_s + _experts_s(cost.exchange, ranks.tokens, largest)
        return _steps_of_halves(cost, ranks, largest, whole_s, touched)
    first_s = xp.maximum(device_s, ranks.launched_s)
    # Where any rank has prompts, the next iteration is another one anyway.
    alike = xp.where(ranks.launched_s > 0.0, 1.0, float("inf"))
    if not isinstance(cost, Dispatched):
        return LockstepSteps(first_s, ranks.growth_s, alike, touched)
    # As of ``Dispatched``: while the host is the slower, iterations take ``dispatch_s`` and do not grow.
    spare_s = cost.dispatch_s - first_s
    idle = spare_s > 0.0
    ahead = 1.0 + xp.floor(xp.minimum(spare_s / xp.maximum(ranks.fastest_s, 1e-30), 1e9))
    return LockstepSteps(
        xp.maximum(first_s, cost.dispatch_s),
        xp.where(idle, 0.0, ranks.growth_s),
        xp.minimum(alike, xp.where(idle, ahead, float("inf"))),
        touched,
    )


def _steps_of_halves(
    cost: Overlapped, ranks: Ranks, largest: Batched, whole_s: Batched, touched: Batched
) -> LockstepSteps:
    """Of ranks whose batches are split in two halves where they all have tokens enough; ``whole_s``: where not."""
    assert ranks.brought is not None
    xp = array_namespace(cost.layers, whole_s, largest, ranks.brought, *ranks.tokens, *ranks[1:5])
    most = ranks.tokens.most
    # All ranks are padded to the largest, as with graphs, and none may have so few tokens that its second half is
    # empty.
    seen = xp.where(most <= largest, padded(most, cost.device.graph_tokens), most)
    split = ranks.brought > xp.floor(0.5 * seen)
    halves = cost.halves(ranks.ahead_s, most, seen)
    first_s = xp.where(split, xp.maximum(halves.time_s, 2.0 * ranks.launched_s), xp.maximum(whole_s, ranks.launched_s))
    alike = xp.where(split, halves.steps(ranks.fastest_s), float("inf"))
    return LockstepSteps(
        first_s,
        ranks.growth_s * xp.where(split, halves.growing, 1.0),
        xp.where(ranks.launched_s > 0.0, 1.0, alike),
        touched,
    )


def _experts_together(device: CostParameters | SpeculativeCost, ranks: Ranks, largest: Batched) -> Batched:
    """Seconds in the experts of all ranks, of the model and of every pass of what drafts."""
    if isinstance(device, CostParameters):
        return _experts_s(device, ranks.tokens, largest)
    assert ranks.sequences is not None
    # The first pass has the tokens of the model, each later one a token of every sequence.
    xp = array_namespace(device.passes, *ranks.tokens, *ranks.sequences)
    later = xp.maximum(device.passes - 1.0, 0.0)
    first_s, each_s = (_experts_s(device.draft, counts, largest) for counts in (ranks.tokens, ranks.sequences))
    drafting_s = first_s + later * each_s
    return _experts_s(device.target, ranks.tokens, largest) + xp.where(device.passes > 0.0, drafting_s, 0.0)


def _experts_s(device: CostParameters, counts: Counts, largest: Batched) -> Batched:
    xp = array_namespace(device.graph_tokens, *counts)
    # ``coordinate_batch_across_dp``: ranks replay graphs together or not at all, and then all as large as the largest.
    graphs = (device.graph_tokens > 0.0) & (counts.most <= largest)
    tokens = xp.where(graphs, counts.most, counts.mean)
    seen = xp.where(graphs, padded(counts.most, device.graph_tokens), counts.padded_mean)
    return experts_time(device, tokens, seen)


def overtaken_after(gap_s: Batched, faster_s: Batched) -> Batched:
    """After how many iterations another rank is ahead, which is ``gap_s`` behind and grows ``faster_s`` more in each.

    Until then the time of the iterations is affine in their number; float, at least 1, 1e9 where it never is.
    """
    xp = array_namespace(gap_s, faster_s)
    # Where the other grows no faster, the quotient is masked below and has only to be a number.
    behind = xp.minimum(gap_s / xp.maximum(faster_s, 1e-300), 1e9)
    return xp.where(faster_s > 0.0, 1.0 + xp.floor(behind), 1e9)
