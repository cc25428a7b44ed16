"""The links between a prefill and a decode side: what is sent over them for a request, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog import load_link
from evaluator.cost.dtypes import BYTES
from evaluator.cost.transfer import SequenceBytes, sequence_bytes, sharded
from evaluator.plan.phases import PhasePools, group_of_replicas
from evaluator.plan.station import StationPlan
from evaluator.policies import policy
from evaluator.replica import Change, kept_model
from evaluator.scenario import Deployment, LinkFigures, Transfer
from evaluator.traffic.jobs import Demand


@dataclass(frozen=True)
class LinkPlan:
    """A link from each replica of a prefill side.

    The latency delays what is sent and does not occupy the link. With ``shared`` a replica sends the KV of one request
    after the other, in the order in which it may begin; without it the requests do not wait for one another.

    ``size`` is what the link carries of a sequence from the first prefill pool to the first decode pool; ``others`` is
    the same by the numbers of other pairs of pools on their sides, where it differs. ``senders`` and ``receivers`` are
    the replicas of the pools on either side. How many shards a replica has does not show in it where the figures are
    those of a replica: all its devices send together, each its own shard, and the bytes of a sequence are split among
    more or fewer of them (``cost.transfer.sharded`` for the figures of a device).

    ``by_layer``: a layer is sent as soon as it is computed. The KV is taken to come evenly, one of ``layers`` after the
    other, from the first iteration that computes the prompt to its first token. Then the last layer is sent after that
    token, and of the others as much before as the prefill or the sending itself has time for. This is exact for
    prompts that are computed in one iteration by layers of one duration (DistServe and Splitwise, arXiv:2311.18677,
    section 4.3, send so). Of n even chunks it is late by at most (1 - 1/n) / layers of the longer of both times.

    ``computed_only``: the KV of cached tokens is on the decode side already. ``backpressure``: what is sent waits for
    room on the decode replica (``reference.stations.transfers``). ``groups``: of replicas, within which requests stay.
    """

    name: str
    bandwidth: float
    latency_s: float
    size: SequenceBytes
    shared: bool
    by_layer: bool
    replicas: int
    others: tuple[tuple[tuple[int, int], SequenceBytes], ...] = ()
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    groups: int = 1
    backpressure: bool = False
    computed_only: bool = False

    def tokens(self, demand: Demand) -> NDArray[np.int64]:
        """Prompt tokens whose KV is sent of each job, (job,)."""
        return demand.prompt_tokens - demand.cached_tokens if self.computed_only else demand.prompt_tokens

    def service_s(self, tokens: NDArray[np.int64], way: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Seconds that the KV of so many tokens, see ``tokens``, occupies a link, (job,). The first token is not sent.

        ``way`` (job,) are the pools that they come from and go to, see ``ways``; None: the first of both sides.
        """
        if way is None or not self.others:
            return self.size.of(tokens) / self.bandwidth
        size_bytes = self.size.of(tokens)
        for pair, size in self.others:
            # A number for each pair of pools, so that jobs on the same pair are found by one comparison.
            on_way = way == self.way_of(*pair)
            size_bytes[on_way] = size.of(tokens[on_way])
        return size_bytes / self.bandwidth

    def token_bytes(self, pair: tuple[int, int] | None = None) -> float:
        """Bytes of a token's KV between a pair of ``others``, or the first, in layers that keep every token."""
        size = self.size if pair is None else dict(self.others)[pair]
        return sum(part for part, width in size.windows if width == np.inf)

    def layers(self, way: NDArray[np.int64] | None = None) -> NDArray[np.float64] | float:
        """Layers that are sent of each job, at least 1: (job,), or one number for all."""
        if way is None or not self.others:
            return float(max(self.size.layers, 1))
        layers = np.full(way.shape, float(max(self.size.layers, 1)))
        for pair, size in self.others:
            layers[way == self.way_of(*pair)] = max(size.layers, 1)
        return layers

    def ways(self, sender: NDArray[np.int32], receiver: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """What ``service_s`` and ``layers`` take, of jobs from and to replicas, (job,), that are numbered over a side.

        ``receiver`` None: there is but one decode pool.
        """
        source = _pool_of(self.senders)[sender]
        return self.way_of(source, 0 if receiver is None else _pool_of(self.receivers)[receiver])  # type: ignore[return-value]

    def way_of(self, source: NDArray[np.int64] | int, target: NDArray[np.int64] | int) -> NDArray[np.int64] | int:
        """The number of a pair of pools, each by its place on its side; of single pools or (job,)."""
        return source * max(len(self.receivers), 1) + target

    def group_of(self, sender: NDArray[np.int32]) -> NDArray[np.int64]:
        """The groups of jobs from these replicas, (job,)."""
        return group_of_replicas(self.senders, self.groups)[sender]

    def head_start_s(
        self,
        service_s: NDArray[np.float64],
        computed_s: NDArray[np.float64],
        layers: NDArray[np.float64] | float | None = None,
    ) -> NDArray[np.float64]:
        """Seconds before the first token from which on the link can send a request's KV without a pause, (job,).

        With n layers, n - 1 of them may be sent while the prefill runs. If sending is slower than computing, the link
        starts when the first layer is computed, 1 / n into the prefill, and the head start is (1 - 1/n) of the prefill.
        If it is faster, only the last layer is left at the first token: (1 - 1/n) of the sending.
        """
        if not self.by_layer:
            return np.zeros_like(service_s)
        return (1.0 - 1.0 / (self.layers() if layers is None else layers)) * np.minimum(service_s, computed_s)

    def changed(self, change: Change) -> LinkPlan:
        """The link with an input changed; itself where that is none of its own."""
        # Figures of the link are those of the scenario, and no part of any device: only these two inputs are its own.
        if change.input == "link_bandwidth":
            return replace(self, bandwidth=self.bandwidth * change.factor)
        if change.input == "link_latency" and self.latency_s > 0:
            return replace(self, latency_s=self.latency_s * change.factor)
        return self


def _pool_of(replicas: Sequence[int]) -> NDArray[np.int64]:
    """The pool of each replica of a side, (replica,)."""
    return np.repeat(np.arange(len(replicas)), replicas)


def link_of(stations: Sequence[StationPlan], phases: Sequence[PhasePools], transfer: Transfer) -> LinkPlan | None:
    """The links behind a prefill side with a decode side; None for any other pools."""
    if [phase.role.name for phase in phases] != ["prefill", "decode"]:
        return None
    figures = transfer.link
    if not isinstance(figures, LinkFigures):
        named = load_link(figures)
        figures = LinkFigures(named.bandwidth, named.latency_s)
    prefill, decode = ([stations[number] for number in phase.stations] for phase in phases)
    prefill = [station for station in prefill if station.role.first_token_only]  # mixed pools beside them send nothing
    sizes = {
        (source, target): _size(sender, other, transfer)
        for source, sender in enumerate(prefill)
        for target, other in enumerate(decode)
        if sender.deployment.model == other.deployment.model
    }
    # The first pair of pools with one model. Where none has, a check refuses the pools, and any size will do
    # until then.
    first = sizes.get((0, 0)) or next(iter(sizes.values()), None) or _size(prefill[0], decode[0], transfer)
    senders, receivers = (tuple(station.deployment.ranks for station in phase) for phase in (prefill, decode))
    return LinkPlan(
        name="prefill->decode",  # a name that no pool can have
        bandwidth=figures.bandwidth,
        latency_s=figures.latency,
        size=first,
        shared=transfer.shared == "per_replica",
        by_layer=transfer.granularity == "layer",
        replicas=sum(senders),
        # Mostly none: arrays of sizes by pair are made only where pools differ in model or dtype.
        others=tuple((pair, size) for pair, size in sizes.items() if size != first),
        senders=senders,
        receivers=receivers,
        groups=transfer.groups,
        backpressure=transfer.backpressure,
    )


def _size(prefill: StationPlan, decode: StationPlan, transfer: Transfer) -> SequenceBytes:
    """What the link carries of a sequence from one pool to the other; KV of what drafts, if both sides draft."""
    sender, other = prefill.deployment, decode.deployment
    # The receiver could do nothing with more digits than it keeps; the sender has no more than it keeps.
    sent_as = _narrower(sender, other) if transfer.dtype == "auto" else transfer.dtype
    drafts = sender.speculative is not None and other.speculative is not None
    model, activations = kept_model(prefill.design) if drafts else prefill.design.model, sender.precision.activations
    if transfer.figures == "per_replica":
        return sequence_bytes(model, sent_as, activations)
    return sharded(
        model, sent_as, activations, other.tensor_parallel, other.pipeline_parallel,
        sender.tensor_parallel * sender.pipeline_parallel,
    )  # fmt: skip


def link_problem(stations: Sequence[StationPlan], transfer: Transfer) -> str | None:
    """Why a decode pool could do nothing with what a prefill pool of its model sends; None where it can."""
    if transfer.dtype == "auto":
        return None
    for prefill in (station.deployment for station in stations if station.role.first_token_only):
        for decode in (station.deployment for station in stations if station.role.prompt_resident):
            cache = _narrower(prefill, decode)
            if prefill.model == decode.model and BYTES[transfer.dtype] > BYTES[cache]:
                return (
                    f"infeasible: transfer.dtype {transfer.dtype} is wider than the KV cache of {cache}, which has "
                    f"nothing more to send; use auto or {cache}"
                )
    return None


def backpressure_problem(stations: Sequence[StationPlan], transfer: Transfer) -> str | None:
    """Why a decode pool cannot reserve room for what is sent; None where it can, or need not."""
    for station in stations if transfer.backpressure else ():
        record = policy(station.deployment.batching.policy)
        if station.role.prompt_resident and record.by_future_peak:
            return (
                f"unsupported: pool {station.name}: policy {record.name} with transfer.backpressure: it admits by the "
                "future peak of what runs and reserves nothing before; use policy chunked or continuous"
            )
    return None


def _narrower(prefill: Deployment, decode: Deployment) -> str:
    return min(prefill.precision.kv, decode.precision.kv, key=BYTES.__getitem__)
