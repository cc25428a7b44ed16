"""What was observed as a table of requests, in the columns of ``simulate --requests``, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.observe.client import OK, Exchange

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("ttft_s", "tpot_s", "e2e_s")


def observed_table(
    exchanges: Sequence[Exchange],
    start_s: float,
    *,
    config: int,
    seed: int,
    models: Sequence[str],
    measured: range,
) -> pd.DataFrame:
    """A row for each request that was sent, by its number. Times are seconds after the start.

    The columns are those of a simulated table, empty where a client cannot know (``scheduled_s``, ``replica`` -1); an
    arrival is when the request was sent. Behind them: when it was due, how late it was sent, in how many pieces the
    answer came, and what became of it (``status`` is ok or the kind of failure, ``error`` what there is to read).
    """
    import pandas as pd

    # They are appended as they end; a reader compares them with the simulated table row by row.
    ordered = sorted(exchanges, key=lambda exchange: exchange.request)

    def column(name: str) -> np.ndarray:
        return np.array([getattr(exchange, name) for exchange in ordered], dtype=np.float64)

    ok = np.array([exchange.status == OK for exchange in ordered], dtype=bool)
    sent, due, output = column("sent_s"), column("due_s"), column("output_tokens")
    # Of an answer that broke off its last piece was not its end.
    first, last = column("first_s"), np.where(ok, column("last_s"), np.nan)
    request = column("request").astype(np.int64)
    columns: dict[str, Any] = {"config": config, "seed": seed, "request": request}
    if models:
        columns["model"] = [models[exchange.model] for exchange in ordered]
    # An answer of one token has no time per further token.
    later = np.where(output > 1, output - 1, np.nan)
    columns |= {
        "replica": -1,
        "arrival_s": sent - start_s,
        "scheduled_s": np.nan,
        "first_token_s": first - start_s,
        "last_token_s": last - start_s,
        "queue_wait_s": np.nan,
        "ttft_s": first - sent,
        "tpot_s": (last - first) / later,
        "e2e_s": last - sent,
        "prompt_tokens": column("prompt_tokens").astype(np.int64),
        "output_tokens": output.astype(np.int64),
        # NaN, of a server that does not tell, becomes missing; a column of floats would be written as 16.0.
        "cached_tokens": pd.array(column("cached_tokens"), dtype="Int64"),
        "measured": (request >= measured.start) & (request < measured.stop),
        "due_s": due - start_s,
        "late_s": sent - due,
        "chunks": column("chunks").astype(np.int64),
        "status": [exchange.status for exchange in ordered],
        "error": [exchange.error for exchange in ordered],
    }
    return pd.DataFrame(columns, index=range(len(ordered)))


def statuses(table: pd.DataFrame) -> dict[str, int]:
    """How many requests ended how, the most frequent first."""
    return {str(name): int(count) for name, count in table["status"].value_counts().items()}


def latencies(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Mean and percentiles of each latency of measured requests that were answered, and of the lateness of all."""
    # Lateness is the client's: it is of all that were sent, answered or not, measured or not.
    answered = table[(table["status"] == OK) & table["measured"]]
    rows = []
    for name, values in (*((name, answered[name]) for name in METRICS), ("late_s", table["late_s"])):
        values_s = values.dropna().to_numpy(dtype=np.float64)
        if len(values_s):
            quantiles = dict(zip(("p50", "p90", "p99"), np.quantile(values_s, (0.5, 0.9, 0.99)).tolist(), strict=True))
            rows.append({"metric": name, "requests": len(values_s), "mean": float(values_s.mean()), **quantiles,
                         "max": float(values_s.max())})  # fmt: skip
    return rows
