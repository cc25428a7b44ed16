"""``deployment.host`` and ``deployment.api_server_times``: the CPU of the host, and what API servers take of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.catalog.api_servers import ApiServerTimes
from evaluator.catalog.hardware import load_hardware
from evaluator.keys import (
    Key,
    Place,
    Reader,
    Schema,
    in_catalog,
    key,
    number,
    quantity,
    read_section,
    required,
    schema_of,
    section_of,
    section_schema,
    shown,
    table_of,
)


@dataclass(frozen=True)
class HostSpeed:
    """A host that is not in the catalog."""

    speed: float = key(
        number(above=0, most=100),
        says="How many times as fast one of its threads is as one of the host on which the calibration set was "
        "measured: all times of the host are divided by it.",
    )

    def __str__(self) -> str:
        """As a row of a table has it."""
        return f"speed {self.speed:g}"


_named = in_catalog("hardware", load_hardware)


def _host(value: Any, place: Place) -> str | HostSpeed:
    if isinstance(value, Mapping):
        return HostSpeed(**read_section(value, table_of(HostSpeed), place))
    if not isinstance(value, str):
        raise place.error(f"expected the name of a CPU or {{speed: 1.3}}, got {shown(value)}")
    _named(value, place)
    if load_hardware(value).host_speed is None:
        raise place.error(
            f"the file of {value} does not say its host_speed, the speed of one of its threads relative to the hosts "
            "of calibration sets; say {speed: 1.3} here instead"
        )
    return value


def _host_schema() -> Schema:
    table = table_of(HostSpeed)
    return {"anyOf": [*schema_of(_named)["anyOf"], section_schema(table, required(table))]}


host_reader = Reader(_host, _host_schema)


def host_speed(host: str | HostSpeed | None) -> float:
    """Its speed relative to the host of the calibration set; None: the same host."""
    if isinstance(host, str):
        return load_hardware(host).host_speed or 1.0
    return 1.0 if host is None else host.speed


_times = section_of(
    {
        "per_token_s": Key(
            quantity("s", least=0),
            0.0,
            "Of an API server for each token: to make text of it, to serialise and send it.",
        ),
        "per_request_s": Key(
            quantity("s", least=0), 0.0, "Of an API server for each request beside its tokens: to read and tokenise it."
        ),
    },
    ApiServerTimes,
)
# Read as a whole, so that one of several pools may say nothing of it.
api_server_times_reader = Reader(_times.read, lambda: schema_of(_times))
