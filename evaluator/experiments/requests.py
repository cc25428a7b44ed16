"""The requests of a measured run (CSV), one row each: when it came, how long it was, how long it took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evaluator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

ARRIVALS = ("queued_s", "client_arrival_s", "arrival_s", "trace_arrival_s")
"""Columns of arrival times, the best first: latencies are measured from when the engine's queue got the request."""
CACHED = ("prefix_shared_tokens", "cached_tokens")
METRICS = ("ttft", "tpot", "e2e")
_UNITS = {"ms": 1e-3, "s": 1.0}  # the last that is there is read


def read_requests(path: str | Path) -> pd.DataFrame:
    """Requests in order of arrival: arrival_s, prompt_tokens, output_tokens, cached_tokens and measured times.

    Those whose ``status`` is not ok are left out, where the file has the column; ``attrs["failed"]`` counts them.

    Errors: InputError naming the file for missing columns and for values that are no times or token counts.
    """
    import pandas as pd

    table, arrival, measured, failed = _answered(path)
    requests = pd.DataFrame({"arrival_s": _checked(path, table, arrival, -np.inf)})
    # Clocks begin anywhere (a Unix time, a server's start); a simulation begins at 0.
    requests["arrival_s"] -= requests["arrival_s"].min()
    for name in ("prompt_tokens", "output_tokens"):
        requests[name] = _checked(path, table, name, 1).astype(int)
    cached = next((name for name in CACHED if name in table), None)
    # An empty cell is a request of which the server reported no hit.
    reused = 0 if cached is None else _checked(path, table.fillna({cached: 0}), cached, 0).astype(int)
    # One prompt token at least is computed (vLLM bounds a hit by `num_tokens - 1`), whatever the table says.
    requests["cached_tokens"] = np.minimum(reused, requests["prompt_tokens"] - 1)
    for name in ("class", "priority"):
        if name in table:
            requests[name] = table[name]
    requests["request"] = table["request_index"] if "request_index" in table else np.arange(len(table))
    for metric, unit in measured.items():
        times = pd.to_numeric(table[f"{metric}_{unit}"], errors="coerce") * _UNITS[unit]
        # NaN for what was not measured, as the TPOT of one token: a single bad time costs no request.
        requests[f"{metric}_s"] = times.where(np.isfinite(times) & (times >= 0))
    requests.attrs["failed"] = failed
    return requests.sort_values("arrival_s", kind="stable", ignore_index=True)


def _answered(path: str | Path) -> tuple[pd.DataFrame, str, dict[str, str], int]:
    """The rows of the requests that were answered, the column of arrivals, metrics with their units, and the number of
    requests that failed."""
    import pandas as pd

    if not Path(path).is_file():
        raise InputError(f"there is no file {path}")
    with Path(path).open("rb") as file:
        # A mistake that is easily made: the JSON of a benchmark where its table of requests is asked for. pandas
        # would report a parser error on some line.
        if file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            raise InputError(
                f"{path}: is JSON, as load generators write it; requests are a CSV with a row for each of them and "
                f"the columns prompt_tokens, output_tokens, one of {', '.join(ARRIVALS)}, and ttft_s, tpot_s, e2e_s "
                "(or _ms)"
            )
    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not readable as CSV ({str(error).splitlines()[0]})") from None
    arrival = next((name for name in ARRIVALS if name in table), None)
    measured = {metric: unit for metric in METRICS for unit in _UNITS if f"{metric}_{unit}" in table}
    missing = [name for name in ("prompt_tokens", "output_tokens") if name not in table]
    if arrival is None or missing or not measured or table.empty:
        columns = ", ".join(str(name)[:40] for name in table.columns[:20])
        raise InputError(
            f"{path}: expected requests with prompt_tokens, output_tokens, one of {', '.join(ARRIVALS)}, and measured "
            f"times ttft_s, tpot_s, e2e_s (or _ms); there are {len(table)} with {columns}"
        )
    failed = table["status"] != "ok" if "status" in table else np.zeros(len(table), dtype=bool)
    if failed.all():
        raise InputError(f"{path}: none of {len(table):,} requests was answered (column status)")
    return table[~failed].reset_index(drop=True), arrival, measured, int(failed.sum())


def _checked(path: str | Path, table: pd.DataFrame, name: str, least: float) -> pd.Series:
    """A column of numbers of at least ``least``; InputError with the first row where it is none."""
    import pandas as pd

    values = pd.to_numeric(table[name], errors="coerce")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
    if len(bad):
        needed = "a number" if least == -np.inf else f"at least {least:g}"
        raise InputError(f"{path}: row {bad[0] + 1}, {name} must be {needed}, got {table[name].iloc[bad[0]]}")
    return values
