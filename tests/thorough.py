"""How many random cases tests try: a share of them, or with EVALUATOR_THOROUGH=1 (``make test-thorough``) all."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("EVALUATOR_THOROUGH") == "1"


def tried(count: int, share: float = 0.25) -> int:
    """So many of ``count`` random cases. A test that asserts what its cases cover may need a larger ``share``."""
    return count if THOROUGH else max(1, round(count * share))
