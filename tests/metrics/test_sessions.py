"""How long sessions take, of those that a run holds as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.metrics.sessions import SessionTable, session_summary
from evaluator.metrics.window import Window

LEVELS = np.array([0.5])


def table(session: list[int], turn: list[int], last: list[int]) -> SessionTable:
    return SessionTable(*(np.array(column)[None, None] for column in (session, turn, np.array(last, dtype=bool))))


def took(
    sessions: SessionTable, arrived_s: list[float], left_s: list[float], measured: list[int] | None = None
) -> tuple[float, float]:
    """(mean, median)."""
    arrival_s, last_s = (np.array(column, dtype=float)[None, None] for column in (arrived_s, left_s))
    mask = np.ones(arrival_s.shape[-1], dtype=bool) if measured is None else np.array(measured, dtype=bool)
    found = session_summary(sessions, arrival_s, last_s, Window.of(mask), LEVELS)
    return found.mean.item(), found.quantiles.item()


def test_from_the_first_turn_to_the_last_answer():
    sessions = table([0, 1, 0, 1, 0], [0, 0, 1, 1, 2], [0, 0, 0, 1, 1])
    assert took(sessions, [0, 1, 5, 6, 10], [2, 3, 7, 9, 14]) == (pytest.approx((14 + 8) / 2), pytest.approx(11))


def test_sessions_that_a_warm_up_request_opens_do_not_count():
    sessions = table([0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 1])
    assert took(sessions, [0, 1, 5, 6], [2, 3, 7, 9], [0, 1, 1, 1])[0] == pytest.approx(8)
    assert np.isnan(took(sessions, [0, 1, 5, 6], [2, 3, 7, 9], [0, 0, 1, 1])[0])


def test_no_session_counts_behind_one_that_the_end_of_the_run_cuts():
    """The second would be longer than the third: to leave it out alone would say that sessions are short."""
    sessions = table([0, 1, 2, 0], [0, 0, 0, 1], [0, 0, 1, 1])
    assert took(sessions, [0, 1, 2, 5], [1, 2, 3, 7])[0] == pytest.approx(7)


def test_sessions_under_way_when_the_run_begins_have_no_first_turn():
    sessions = table([0, 1, 1], [3, 0, 1], [1, 0, 1])
    assert took(sessions, [0, 1, 5], [2, 3, 9])[0] == pytest.approx(8)


def test_requests_of_no_session():
    empty = SessionTable.empty((1, 1, 3))
    assert np.isnan(took(empty, [0, 1, 2], [1, 2, 3])[0]) and not empty.opens.any()


def test_errors_do_not_depend_on_the_configurations_beside():
    """One has 300 sessions of a turn, the other 40 of several, which make batches of two sessions."""
    requests = 300
    numbers = np.arange(requests)
    rows = [(numbers, 0 * numbers, numbers >= 0), (numbers % 40, numbers // 40, numbers >= requests - 40)]
    both = SessionTable(*(np.stack(column)[:, None] for column in zip(*rows, strict=True)))
    arrival_s = np.broadcast_to(numbers.astype(float), (2, 1, requests))
    last_s = arrival_s + np.random.default_rng(0).exponential(5.0, arrival_s.shape)
    window = Window.of(np.ones(requests, dtype=bool))
    together = session_summary(both, arrival_s, last_s, window, LEVELS)
    for row in (0, 1):
        some = slice(row, row + 1)
        alone = session_summary(both.rows(some), arrival_s[some], last_s[some], window, LEVELS)
        assert alone.mean_stderr > 0
        for name in ("mean", "mean_stderr", "quantiles", "quantiles_stderr"):
            np.testing.assert_array_equal(getattr(together, name)[row], getattr(alone, name)[0])
