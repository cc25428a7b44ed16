"""Random configurations and requests of SGLang's scheduler; its logs are those of ``cases``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.oracle.cases import TICK_S, Ask, contents_of


@dataclass(frozen=True)
class SglangCase:
    """A configuration of SGLang's scheduler, in its words but for those that vLLM's cases share."""

    feature: str
    seed: int
    max_num_seqs: int  # --max-running-requests
    chunk: int | None  # --chunked-prefill-size
    max_prefill_tokens: int
    blocks: int  # pages of KV
    block_tokens: int  # --page-size
    mixed_chunk: bool = False
    conservativeness: float = 1.0  # --schedule-conservativeness
    ignore_eos: bool = False
    prefix_caching: bool = False  # not --disable-radix-cache
    policy: str = "fcfs"
    overlap: bool = False  # not --disable-overlap-schedule
    requests: tuple[Ask, ...] = ()

    def token_at(self, request: int, place: int) -> int:
        """Known content where the case says it, else like no other's."""
        content, block = self.requests[request].content, place // self.block_tokens
        return 100 + content[block] if block < len(content) else 1000 + (request << 16) + place


FEATURES: dict[str, dict[str, Any]] = {
    "prompts first": {"ample": True},
    "whole prompts": {"ample": True, "whole": True},
    "mixed chunks": {"ample": True, "mixed": True},
    "ignore_eos": {"ignore_eos": True},
    "new token ratio": {},
    "new token ratio, mixed chunks": {"mixed": True},
    "early ends": {"early": True},
    "radix cache": {"prefix_caching": True, "ample": True},
    "radix cache, short of KV": {"prefix_caching": True},
    "radix cache, retraction": {"prefix_caching": True, "hopeful": True},
    "radix cache, longest prefix first": {"prefix_caching": True, "lpm": True},
    "retraction": {"hopeful": True},
    "retraction, mixed chunks": {"hopeful": True, "early": True, "mixed": True},
}
FEATURES |= {f"overlap, {feature}": {**has, "overlap": True} for feature, has in FEATURES.items()}
"""What each family of random cases always has."""


def random_case(feature: str, seed: int, requests: int = 40) -> SglangCase:
    """A case of a feature, from an idle engine to one in permanent want of KV."""
    has = FEATURES[feature]
    rng = np.random.default_rng([seed, *feature.encode()])
    page = int(rng.choice([1, 1, 4, 16]))
    longest = int(rng.choice([20, 100, 600]))
    prompts = rng.integers(1, longest + 1, requests)
    outputs = rng.integers(1, int(rng.choice([3, 20, 150])) + 1, requests)
    limits = outputs + (rng.integers(0, 60, requests) if has.get("early") else 0)
    seats = int(rng.integers(1, 25))
    if has.get("hopeful"):  # short prompts, long answers, many seats: KV runs out in the decodes
        prompts, outputs = rng.integers(1, 21, requests), rng.integers(20, 150, requests)
        limits = outputs + (rng.integers(0, 60, requests) if has.get("early") else 0)
        seats = int(rng.integers(6, 25))
    chunk = None if has.get("whole") else max(int(rng.choice([8, 32, 64, 256, 2048])), page) // page * page
    most = int(rng.choice([16, 100, 16384])) if chunk is None or rng.random() < 0.3 else 16384
    held = -(-(prompts + limits) // page) + 2
    ample = int(np.sort(held)[-seats:].sum()) + 2 * seats
    room = [1.3, 3.0] if has.get("hopeful") else [1.3, 3.0, 8.0]
    blocks = ample if has.get("ample") else int(held.max() * rng.uniform(1.0, rng.choice(room))) + 1
    mean_s = (1 + prompts.mean() * TICK_S + outputs.mean() * 1.2) / min(seats, 6)
    gaps = rng.exponential(mean_s * 10 ** rng.uniform(-1.0, 0.5), requests)
    arrivals = np.cumsum(gaps) / TICK_S if rng.random() > 0.1 else np.zeros(requests)
    case = SglangCase(
        feature, seed, seats, chunk, most, blocks, page,
        mixed_chunk=bool(has.get("mixed")),
        conservativeness=float(rng.choice([0.02, 0.1, 0.3] if has.get("hopeful") else [1.0, 1.0, 0.3, 1.3])),
        ignore_eos=bool(has.get("ignore_eos", has.get("ample") and rng.random() < 0.5)),
        prefix_caching=bool(has.get("prefix_caching")),
        policy="lpm" if has.get("lpm") else "fcfs",
        overlap=bool(has.get("overlap")),
    )  # fmt: skip
    contents = contents_of(rng, prompts, outputs, page) if case.prefix_caching else [()] * requests
    asks = (
        Ask(int(arrival), int(prompt), int(output), content, max_tokens=int(limit))
        for arrival, prompt, output, content, limit in zip(arrivals, prompts, outputs, contents, limits, strict=True)
    )
    return replace(case, requests=tuple(asks))
