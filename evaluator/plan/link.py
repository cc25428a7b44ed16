"""The link between a prefill and a decode pool: what is sent over it for a request, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog import load_link
from evaluator.cost.dtypes import BYTES
from evaluator.cost.transfer import SequenceBytes, sequence_bytes
from evaluator.plan.station import StationPlan
from evaluator.replica import Change
from evaluator.scenario import Deployment, LinkFigures, Transfer


@dataclass(frozen=True)
class LinkPlan:
    """A link from each replica of a prefill pool, which all devices of the replica send over together.

    The latency delays what is sent and does not occupy the link. With ``shared`` a replica sends the KV of one request
    after the other, in the order in which it may begin; without it the requests do not wait for one another.

    ``by_layer``: a layer is sent as soon as it is computed. The KV is taken to come evenly, one of ``layers`` after the
    other, from the first iteration that computes the prompt to its first token. Then the last layer is sent after that
    token, and of the others as much before as the prefill or the sending itself has time for. This is exact for
    prompts that are computed in one iteration by layers of one duration (DistServe and Splitwise, arXiv:2311.18677,
    section 4.3, send so). Of n even chunks it is late by at most (1 - 1/n) / layers of the longer of both times.
    """

    name: str
    bandwidth: float
    latency_s: float
    size: SequenceBytes
    shared: bool
    by_layer: bool
    replicas: int

    def service_s(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds that the KV of prompts occupies a link, (job,). Cached prefixes are sent too, the first token not."""
        return self.size.of(prompt_tokens) / self.bandwidth

    def head_start_s(self, service_s: NDArray[np.float64], computed_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds before the first token from which on the link can send a request's KV without a pause, (job,).

        With n layers, n - 1 of them may be sent while the prefill runs. If sending is slower than computing, the link
        starts when the first layer is computed, 1 / n into the prefill, and the head start is (1 - 1/n) of the prefill.
        If it is faster, only the last layer is left at the first token: (1 - 1/n) of the sending.
        """
        if not self.by_layer:
            return np.zeros_like(service_s)
        return (1.0 - 1.0 / max(self.size.layers, 1)) * np.minimum(service_s, computed_s)

    def changed(self, change: Change) -> LinkPlan:
        """The link with an input changed; itself where that is none of its own."""
        if change.input == "link_bandwidth":
            return replace(self, bandwidth=self.bandwidth * change.factor)
        if change.input == "link_latency" and self.latency_s > 0:
            return replace(self, latency_s=self.latency_s * change.factor)
        return self


def link_of(stations: Sequence[StationPlan], transfer: Transfer) -> LinkPlan | None:
    """The link behind a prefill pool with a decode pool; None for any other pools."""
    if [station.deployment.role for station in stations] != ["prefill", "decode"]:
        return None
    figures = transfer.link
    if not isinstance(figures, LinkFigures):
        found = load_link(figures)
        figures = LinkFigures(found.bandwidth, found.latency_s)
    prefill = stations[0]
    size = sequence_bytes(prefill.design.model, _sent_as(stations, transfer), prefill.deployment.precision.activations)
    return LinkPlan(
        name="prefill->decode",  # a name that no pool can have
        bandwidth=figures.bandwidth,
        latency_s=figures.latency,
        size=size,
        shared=transfer.shared == "per_replica",
        by_layer=transfer.granularity == "layer",
        replicas=prefill.deployment.replicas,
    )


def link_problem(stations: Sequence[StationPlan], transfer: Transfer) -> str | None:
    """Why the decode pool could do nothing with what the prefill pool sends; None where it can."""
    prefill, decode = stations[0].deployment, stations[-1].deployment
    if prefill.model != decode.model:
        return (
            f"infeasible: pool {stations[0].name} has {prefill.model} and pool {stations[-1].name} {decode.model}, "
            "and the KV of one model means nothing to another; give both the same model"
        )
    cache = _narrower(prefill, decode)
    if transfer.dtype != "auto" and BYTES[transfer.dtype] > BYTES[cache]:
        return (
            f"infeasible: transfer.dtype {transfer.dtype} is wider than the KV cache of {cache}, which has nothing "
            f"more to send; use auto or {cache}"
        )
    return None


def _sent_as(stations: Sequence[StationPlan], transfer: Transfer) -> str:
    if transfer.dtype != "auto":
        return transfer.dtype
    return _narrower(stations[0].deployment, stations[-1].deployment)


def _narrower(prefill: Deployment, decode: Deployment) -> str:
    return min(prefill.precision.kv, decode.precision.kv, key=BYTES.__getitem__)
