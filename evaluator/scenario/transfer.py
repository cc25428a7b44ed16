"""``deployment.transfer``: how KV comes from the prefill side to the decode side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog import load_link
from evaluator.cost.precision import DTYPES
from evaluator.keys import (
    Place,
    Reader,
    Schema,
    choice,
    count,
    flag,
    in_catalog,
    key,
    quantity,
    read_section,
    required,
    schema_of,
    section,
    section_schema,
    shown,
    table_of,
)


@dataclass(frozen=True)
class LinkFigures:
    """A link that is not in the catalog."""

    bandwidth: float = key(quantity("byte/s", above=0), says="Bytes per second between a prefill and a decode replica.")
    latency: float = key(quantity("s", least=0), 0.0, "Seconds until bytes that were sent arrive.")


_named = in_catalog("links", load_link)


def _link(value: Any, place: Place) -> Any:
    if isinstance(value, Mapping):
        return LinkFigures(**read_section(value, table_of(LinkFigures), place))
    if not isinstance(value, str):
        raise place.error(f"expected the name of a link or {{bandwidth: 50GB/s, latency: 5us}}, got {shown(value)}")
    return _named(value, place)


def _link_schema() -> Schema:
    table = table_of(LinkFigures)
    return {"anyOf": [*schema_of(_named)["anyOf"], section_schema(table, required(table))]}


link_reader = Reader(_link, _link_schema)


@dataclass(frozen=True)
class Transfer:
    """How KV comes from the prefill side to the decode side; without both sides it means nothing.

    ``granularity`` layer: every layer is sent as soon as it is computed. ``shared`` per_replica: every prefill replica
    has a link of its own. ``groups``: the replicas of both sides are split into so many, and a request stays within its
    group. ``backpressure``: a prefill replica keeps the KV of a request until it is sent, which begins when the decode
    replica has reserved room for it.
    """

    link: str | LinkFigures = key(
        link_reader, "rdma-400g", "A link of the catalog, or {bandwidth: 50GB/s, latency: 5us}."
    )
    # layer: as connectors that save KV layer by layer (vLLM `KVConnectorBase_V1.save_kv_layer`).
    granularity: str = key(
        choice("cache", "layer"),
        "cache",
        "cache: sent once the prompt is computed. layer: sent layer by layer while it is computed.",
    )
    dtype: str = key(choice("auto", *DTYPES), "auto", "Sent so; auto: as the narrower KV cache of the two.")
    shared: str = key(
        choice("per_replica", "none"),
        "per_replica",
        "per_replica: a prefill replica sends one request after the other. none: all at once, none waits.",
    )
    figures: str = key(
        choice("per_replica", "per_device"),
        "per_replica",
        "per_replica: the link is of all devices of a replica. per_device: every device has one, and the side with "
        "fewer devices bounds a transfer.",
    )
    groups: int = key(
        count(),
        1,
        "1: any decode replica serves what any prefill replica computed. More: within fixed groups of replicas.",
    )
    backpressure: bool = key(
        flag,
        False,
        "Whether a prefill replica keeps a request's KV until it is sent, which waits for room on the decode side.",
    )


transfer_reader = section(Transfer)
