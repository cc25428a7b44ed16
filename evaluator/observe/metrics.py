"""What a server tells of itself at ``/metrics``, in the text form of Prometheus, while it is observed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from evaluator.observe.client import short

_MOST_BYTES = 8 * 2**20
_WAIT_S = 10.0


class ServerMetrics:
    """Samples in the order in which they were taken: every series at the start and the end, gauges in between."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session, self._url = session, f"{base}/metrics"
        self.rows: list[dict[str, Any]] = []
        self.problem = ""  # why there are none

    @asynccontextmanager
    async def sampled(self, every_s: float) -> AsyncIterator[None]:
        """All series before and after what is done in here, unless that fails, and gauges every so many seconds (0:
        never); nothing of a server that tells nothing."""
        there = await self._take(everything=True)
        sampling = asyncio.create_task(self._sample(every_s)) if there and every_s else None
        try:
            yield
        finally:
            if sampling is not None:
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)
        if there:
            await self._take(everything=True)

    async def _take(self, everything: bool) -> bool:
        """Add what the server tells now; False where it tells nothing that can be read."""
        from prometheus_client.parser import text_string_to_metric_families

        at_s = time.perf_counter()
        try:
            async with asyncio.timeout(_WAIT_S), self._session.get(self._url, allow_redirects=False) as response:
                if response.status != 200:
                    self.problem = f"HTTP {response.status}"
                    return False
                parts = b""
                async for part in response.content.iter_any():
                    parts += part
                    # What an address serves under that path may be anything, and without an end.
                    if len(parts) > _MOST_BYTES:
                        raise ValueError(f"more than {_MOST_BYTES / 2**20:g} MiB")
                text = parts.decode(errors="replace")
            families = list(text_string_to_metric_families(text))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.problem = short(error, 200)
            return False
        except Exception as error:  # the parser raises whatever a text makes it stumble over
            self.problem = f"not in the text form of Prometheus ({str(error)[:100]})"
            return False
        # Counters tell by the difference of two samples: the first and the last are enough.
        for family in families:
            if everything or family.type == "gauge":
                self.rows += [
                    {"at_s": at_s, "metric": s.name, "labels": json.dumps(s.labels, sort_keys=True), "value": s.value}
                    for s in family.samples
                ]
        return True

    async def _sample(self, every_s: float) -> None:
        while True:  # until it is cancelled
            await asyncio.sleep(every_s)
            await self._take(everything=False)
