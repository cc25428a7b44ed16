"""``feed_forward_apart``: devices of their own for the feed-forwards of a replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.links import load_link
from evaluator.cost.feed_forward_apart import Apart
from evaluator.keys import Place, Reader, count, key, schema_of, section
from evaluator.scenario.transfer import LinkFigures, link_reader


@dataclass(frozen=True)
class FeedForwardApart:
    """How a replica is divided into devices for attention and for feed-forwards (``cost.feed_forward_apart``)."""

    devices: int = key(
        count(most=4096), says="Devices for feed-forwards; each holds as many of a layer's experts as any other."
    )
    attention_ranks: int = key(
        count(most=4096),
        1,
        "Groups of tensor_parallel devices that compute attention, each for its share of the sequences, whose KV it "
        "keeps.",
    )
    micro_batches: int = key(
        count(most=64),
        3,
        "Parts of a batch that are under way at a time: while one is at the feed-forwards, others are at attention.",
    )
    link: str | LinkFigures = key(
        link_reader, "rdma-400g", "Of each device to those of the other side: a name of the catalog, or its figures."
    )

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"{self.attention_ranks} ranks to {self.devices} devices, {self.micro_batches} micro-batches"

    @property
    def apart(self) -> Apart:
        """The record that costs are made of."""
        link = load_link(self.link) if isinstance(self.link, str) else self.link
        latency_s = link.latency if isinstance(link, LinkFigures) else link.latency_s
        return Apart(self.devices, self.attention_ranks, self.micro_batches, link.bandwidth, latency_s)


_section = section(FeedForwardApart)
# Read as a whole, so that a sweep may have designs without it (null) beside those with it.
feed_forward_apart_reader = Reader(_section.read, lambda: schema_of(_section))


def read_apart(given: FeedForwardApart | Mapping[str, Any] | None, place: Place) -> Apart | None:
    """The layout, of the mapping that a scenario has at ``deployment.feed_forward_apart``. Errors: InputError."""
    if given is None:
        return None
    apart: FeedForwardApart = given if isinstance(given, FeedForwardApart) else feed_forward_apart_reader(given, place)
    return apart.apart
