"""One request to a server of OpenAI's completions or chat completions, and what its client sees of the answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from math import nan
from typing import Any

import aiohttp

OK = "ok"
_SAID = ("content", "reasoning_content", "reasoning", "tool_calls")  # of a chat's delta: what the model has said
_SHOWN = 300  # characters of what a server says of an error


class Failed(Exception):
    """Why a request has no whole answer: its kind, as it is counted, and what there is to read of it."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(told)
        self.kind = kind


@dataclass
class Exchange:
    """A request and its answer. Times are those of ``time.perf_counter``, which is monotonic; NaN: it did not happen.

    ``due_s`` is when it should have been sent. ``tokens`` are those of the answer, where the server tells them.
    """

    request: int
    model: int
    due_s: float
    prompt_tokens: int
    sent_s: float = nan
    first_s: float = nan
    last_s: float = nan
    output_tokens: int = 0
    cached_tokens: float = nan
    chunks: int = 0
    status: str = "cut off"  # until there is an answer: the run may end before
    error: str = ""
    tokens: list[int] = field(default_factory=list)


async def ask(
    session: aiohttp.ClientSession, url: str, body: bytes, exchange: Exchange, request_s: float, wait_s: float
) -> None:
    """Send a request and fill in its ``exchange``, whatever comes of it.

    ``request_s`` is how long it may take altogether, ``wait_s`` how long the server may be silent.
    """
    limit = asyncio.timeout(request_s)
    try:
        async with limit:
            exchange.sent_s = time.perf_counter()
            async with session.post(url, data=body, allow_redirects=False) as response:
                await _checked(response)
                async for at_s, event in events(response):
                    _heed(event, at_s, exchange)
        if exchange.chunks == 0:
            raise Failed("broken answer", "the answer was empty")
        exchange.status = OK
    except Failed as failed:
        exchange.status, exchange.error = failed.kind, str(failed)
    except TimeoutError as error:  # before ClientError: aiohttp's time-outs are both
        if limit.expired():
            exchange.status, exchange.error = "time limit", f"not answered within {request_s:g} s"
        elif isinstance(error, aiohttp.ConnectionTimeoutError):
            exchange.status, exchange.error = "no connection", f"none within {wait_s:g} s"
        else:
            exchange.status, exchange.error = "stalled", f"silent for {wait_s:g} s"
    except aiohttp.ClientConnectorError as error:
        exchange.status, exchange.error = "no connection", short(error)
    except (aiohttp.ClientError, OSError) as error:
        exchange.status, exchange.error = "connection lost", short(error)
    except ValueError as error:  # JSON that is none
        exchange.status, exchange.error = "broken answer", short(error)


async def _checked(response: aiohttp.ClientResponse) -> None:
    # The prompts, and perhaps a key, would go to a host that nobody named.
    if 300 <= response.status < 400:
        where = response.headers.get("Location", "nowhere")
        raise Failed("redirect", f"to {where[:_SHOWN]}, which was not named and is not followed")
    # As much as is shown and some more for white space: a gateway's page of HTML may have megabytes.
    if response.status != 200:
        page = await response.content.read(4 * _SHOWN)
        raise Failed(f"HTTP {response.status}", " ".join(page.decode(errors="replace").split())[:_SHOWN])
    # A server that ignores `stream` gives the answer as a whole: it would have no TTFT of its own.
    if response.content_type == "application/json":
        raise Failed("broken answer", "the answer was not streamed")


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """(when its bytes came, event) of a streamed answer. Failed where it ends without its last word."""
    # A part is what the socket had: it may end within a line, or hold several.
    buffer, ended = b"", False
    async for part in response.content.iter_any():
        at_s = time.perf_counter()
        buffer += part
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            # Server-sent events have other fields, comments and blank lines between; `data:` alone is used by OpenAI's
            # API.
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":  # read on to the end of the response, or the connection could not be used again
                ended = True
                continue
            event = json.loads(data)
            if not isinstance(event, dict):
                raise Failed("broken answer", f"an event that is no object: {str(event)[:_SHOWN]}")
            yield at_s, event
    if not ended:
        raise Failed("broken answer", "the stream ended before its last word ([DONE])")


def _heed(event: dict[str, Any], at_s: float, exchange: Exchange) -> None:
    if event.get("error"):  # vLLM and SGLang tell of failures in mid-stream so, under the status 200
        error = event["error"]
        raise Failed("error in the stream", str(error.get("message") if isinstance(error, dict) else error)[:_SHOWN])
    for choice in event.get("choices") or ():
        tokens = choice.get("token_ids") or []
        delta = choice.get("delta")  # of a chat
        empty = not tokens and not (choice.get("text") if delta is None else any(map(delta.get, _SAID)))
        # An empty last piece with the reason why the answer ends is no token, nor is the first one of a chat, which
        # says who speaks: gateways send it before the model has begun.
        if empty and ((exchange.chunks and choice.get("finish_reason")) or "role" in (delta or ())):
            continue
        exchange.tokens += tokens
        exchange.chunks += 1
        if exchange.chunks == 1:
            exchange.first_s = at_s
        exchange.last_s = at_s
        # Until the server counts them itself: a piece is a token at least.
        exchange.output_tokens = max(len(exchange.tokens), exchange.chunks)
    usage = event.get("usage")
    if isinstance(usage, dict):
        exchange.output_tokens = int(usage.get("completion_tokens") or exchange.output_tokens)
        exchange.prompt_tokens = int(usage.get("prompt_tokens") or exchange.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and details.get("cached_tokens") is not None:
            exchange.cached_tokens = float(details["cached_tokens"])


def short(error: BaseException, most: int = _SHOWN) -> str:
    """What an error says, on one line of at most so many characters; its kind where it says nothing."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]
