"""The roles of a pool: which part of a request's tokens its replicas compute and give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """``first_token_only``: the pool's work on a request ends with its first token (a prefill side).

    ``prompt_resident``: the prompt's KV and a first token came from elsewhere, so that the pool computes no prompt and
    gives only further tokens (a decode side).
    """

    name: str
    first_token_only: bool = False
    prompt_resident: bool = False


ROLES = {
    role.name: role
    for role in (
        Role("mixed"),
        Role("prefill", first_token_only=True),
        Role("decode", prompt_resident=True),
        Role("stage", first_token_only=True),  # passes of a model for a stage: their token is for nobody
    )
}


def hands_on(roles: Sequence[Role | None], position: int) -> bool:
    """Whether the station at ``position`` leaves the tokens after the first to a later one.

    ``roles`` are those of all stations in tandem, None for a station that gives no tokens. A prefill side at the end,
    without a decode side behind it, keeps its requests as they are: one token each.
    """
    role = roles[position]
    later = roles[position + 1 :]
    return role is not None and role.first_token_only and any(other and other.prompt_resident for other in later)
