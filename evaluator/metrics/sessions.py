"""How long sessions of several requests take, from the first request that is sent to the last answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evaluator.metrics.statistics import Summary, summary
from evaluator.metrics.window import Window


@dataclass(frozen=True, eq=False)
class SessionTable:
    """Which requests are the turns of which sessions, (config, seed, request).

    Sessions are numbered in the order in which they begin; -1: the request is of none.
    """

    session: np.ndarray
    turn: np.ndarray  # 0: it opens its session
    last: np.ndarray  # boolean: it ends its session

    @staticmethod
    def empty(shape: tuple[int, ...]) -> SessionTable:
        """No sessions, to be filled."""
        return SessionTable(np.full(shape, -1), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool))

    @property
    def opens(self) -> np.ndarray:
        """Whether a request opens a session."""
        return (self.session >= 0) & (self.turn == 0)

    def rows(self, rows: np.ndarray) -> SessionTable:
        """Of some configurations."""
        return SessionTable(self.session[rows], self.turn[rows], self.last[rows])


def session_summary(
    table: SessionTable,
    arrival_s: np.ndarray,
    last_token_s: np.ndarray,
    window: Window,
    levels: np.ndarray,
    refused: np.ndarray | None = None,
) -> Summary:
    """Statistics of the sessions that a measured request opens; NaN where there is none that is there as a whole.

    Of a run that ends while sessions are under way, long ones are cut more often than short ones. So sessions are
    counted in the order in which they begin, up to the first that is not there as a whole: whether one of them counts
    says nothing of how long it is. A session with a ``refused`` turn has no answer to that one, and does not count.
    Of the parts that errors are the spread of there are none.
    """
    measured = window.counted(arrival_s.shape)
    took_s = np.full((*arrival_s.shape[:-1], int(table.session.max(initial=0)) + 1), np.nan)
    for run in np.ndindex(arrival_s.shape[:-1]):
        session, opens = table.session[run], table.opens[run]
        first, last = opens & measured[run], table.last[run]
        begins_s, ends_s = np.full(took_s.shape[-1], np.nan), np.full(took_s.shape[-1], -np.inf)
        begins_s[session[first]] = arrival_s[run][first]
        # Of a task of a trace several answers may be the last: no call waits for any of them.
        np.maximum.at(ends_s, session[last], last_token_s[run][last])
        cut = np.isfinite(begins_s) & np.isinf(ends_s)
        until = int(cut.argmax()) if cut.any() else len(cut)
        took_s[run][:until] = (ends_s - begins_s)[:until]
        if refused is not None:
            took_s[run][np.unique(session[refused[run] & (session >= 0)])] = np.nan
    # Batches are cut from as many sessions as a configuration has, whichever others are in its chunk.
    counts = table.session.max(axis=(1, 2), initial=0) + 1
    found = [np.full((len(counts), *shape), np.nan) for shape in ((), (), levels.shape, levels.shape)]
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        alike = summary(took_s[rows, :, :count], levels)
        of_alike = (alike.mean, alike.mean_stderr, alike.quantiles, alike.quantiles_stderr)
        for column, values in zip(found, of_alike, strict=True):
            column[rows] = values
    mean, mean_stderr, quantiles, quantiles_stderr = found
    no_parts = np.empty((len(counts), 0))
    return Summary(mean, mean_stderr, quantiles, quantiles_stderr, no_parts, no_parts[..., None])
