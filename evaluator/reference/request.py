"""A request as the reference follows it through a replica."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Request:
    """What the client sends, and what has happened to it so far. Times are absolute seconds."""

    index: int
    arrival_s: float
    compute_tokens: int  # prompt tokens to compute: all but the cached prefix; 0 where the prompt's KV is resident
    prompt_tokens: int
    output_tokens: int
    kv_units: int  # KV that it occupies when finished
    computed: int = 0
    generated: int = 0
    scheduled_s: float = math.inf
    token_s: list[float] = field(default_factory=list)  # when each output token was there

    @property
    def prefilled(self) -> bool:
        return self.computed == self.compute_tokens

    @property
    def finished(self) -> bool:
        return self.generated == self.output_tokens

    @property
    def position(self) -> int:
        """Prompt tokens whose KV is there: the cached prefix and what was computed."""
        return self.prompt_tokens - self.compute_tokens + self.computed
