"""The table of requests: one row for each, written as CSV or Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError
from evaluator.metrics.latency import latencies
from evaluator.metrics.outcomes import OK, Outcomes
from evaluator.results.files import replacing

if TYPE_CHECKING:
    import pandas as pd


def requests_table(
    outcomes: Outcomes,
    configs: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    models: Sequence[str] = (),
) -> pd.DataFrame:
    """One row per request, warm-up included (``measured`` tells), of every configuration that ran.

    ``configs`` and ``seeds`` name the entries of the first two axes; their positions by default. ``models`` are those
    that requests ask for, the same in all configurations; without them there is no such column, nor is there one
    ``class`` without classes, ``refused`` where nobody can be, or ``lost`` and ``tries`` where no replica fails.
    Where requests have several branches, ``output_tokens`` are those of all and ``path_tokens`` those of the branch
    that ends last. Of
    sessions of several turns the table says which one a request is of, and which turn it is, from 0 on. Of a
    pipeline there are the wait and the service time at every stage, NaN where a request passes it by.
    """
    import pandas as pd

    config_count, seed_count, request_count = shape = outcomes.times.arrival_s.shape
    columns: dict[str, np.ndarray] = {
        "config": np.asarray(range(config_count) if configs is None else configs)[:, None, None],
        "seed": np.asarray(range(seed_count) if seeds is None else seeds)[None, :, None],
        "request": np.arange(request_count),
    }
    if models:
        columns["model"] = np.asarray(models)[0 if outcomes.model is None else outcomes.model]
    if outcomes.request_class is not None:
        columns["class"] = np.asarray(outcomes.class_names)[outcomes.request_class]
    times, tokens = outcomes.times, outcomes.tokens
    columns |= {
        name: getattr(times, name) for name in ("replica", "arrival_s", "scheduled_s", "first_token_s", "last_token_s")
    }
    columns |= {name: column for name in ("refused", "lost", "tries") if (column := getattr(times, name)) is not None}
    columns |= latencies(outcomes)
    columns |= {
        "prompt_tokens": tokens.prompt_tokens,
        "output_tokens": tokens.output_tokens,
        # Nothing was cached: a column all the same, since tables of several runs are put together.
        "cached_tokens": np.zeros(1, dtype=np.int64) if tokens.cached_tokens is None else tokens.cached_tokens,
    }
    if tokens.decode_hit_tokens is not None:
        columns["decode_cached_tokens"] = tokens.decode_hit_tokens
    if tokens.path_tokens is not None:
        columns["path_tokens"] = tokens.path_tokens
    if outcomes.sessions is not None:
        columns |= {"session": outcomes.sessions.session, "turn": outcomes.sessions.turn}
    for stage in outcomes.stages:
        columns[f"{stage.name}_wait_s"], columns[f"{stage.name}_service_s"] = stage.wait_s, stage.service_s
    # Requests of the warm-up are in the table, so that a run can be looked at from its start; this tells them apart.
    columns["measured"] = outcomes.measured
    ran = outcomes.status == OK
    # The columns are views of one shape, so that one by configuration alone is not copied for every request.
    return pd.DataFrame({name: np.broadcast_to(values, shape)[ran].ravel() for name, values in columns.items()})


def write_requests(table: pd.DataFrame, path: str | Path) -> Path:
    """Write a per-request table as .csv or .parquet, by the suffix."""
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: unknown kind of table {path.suffix!r}; use .csv or .parquet")
    with replacing(path) as part:
        if path.suffix == ".csv":
            table.to_csv(part, index=False)
        else:
            table.to_parquet(part, index=False, engine="pyarrow")
    return path
