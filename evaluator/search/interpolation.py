"""Which rate a search tries next: where the latencies of the trials so far meet their bounds.

Near saturation a latency goes as 1 / (1 - load), and the time of a decode iteration does so too, since its batch grows
with the rate times that very time. So the inverse of a latency falls about linearly in the rate, and its line through
two trials tells the goodput within a point or two of the lattice, where halving the gap would take four more trials.
It saves trials and decides nothing: that is left to ``Bisection``.
"""

from __future__ import annotations

import numpy as np

GUESSES = 6
"""Trials of a design that go by a guess. After these the gap is halved: latencies that follow no line would be
approached from one side, point by point."""
FIRST_SLOPE = 2.5
"""d ln latency / d ln rate that the second trial takes for granted."""
MOST_FIRST, MOST_FARTHER = 0.32, 1.28
"""The longest step of a second trial, and of one above all rates that hold, in the logarithm of the rate."""


def guess(log_rates: np.ndarray, ratios: np.ndarray, held: float, failed: float, floor: float, start: float) -> float:
    """The logarithm of the rate at which a design just meets its objectives; NaN where its trials do not tell.

    ``log_rates`` (trial,) of its trials ascend, ``ratios`` (trial, objective) are latencies as parts of their bounds,
    NaN of objectives that it has not. ``held`` and ``failed`` are the rates between which is searched; ``floor`` is the
    lowest that is tried, ``start`` that of the closed form.
    """
    trials = log_rates.size
    ratios = ratios[:, ~np.isnan(ratios).any(axis=0)]
    if not 0 < trials <= GUESSES or not ratios.size:
        return np.nan
    if trials == 1 and held == floor:  # it began there as others serve nothing, and differs from them
        return start
    inverse = 1.0 / np.maximum(ratios, 1e-9)
    if trials == 1:
        with np.errstate(divide="ignore"):  # of an endless latency: the longest step
            step = np.log(inverse.min()) / FIRST_SLOPE
        return float(log_rates[0] + np.clip(step, -MOST_FIRST, MOST_FIRST))
    lower = int(np.searchsorted(log_rates, held, side="right")) - 1
    # The trials on both sides of the goodput; where all hold the two highest, where all fail the two lowest.
    lower = min(max(lower, 0), trials - 2)
    rates = np.exp(log_rates)
    if lower + 1 < trials and log_rates[lower] <= held and log_rates[lower + 1] >= failed:
        found = [_crossing(rates, column, lower) for column in inverse.T]
        rate = min((rate for rate in found if rate is not None), default=np.nan)
    else:
        rate = min(_beyond(rates[lower : lower + 2], column[lower : lower + 2]) for column in inverse.T)
    # A line that meets the bounds at no rate at all: the floor is tried, which settles it.
    log_rate = floor if rate <= 0.0 else float(np.log(rate))
    return min(log_rate, held + MOST_FARTHER) if log_rates[-1] <= held else log_rate


def _beyond(rates: np.ndarray, inverse: np.ndarray) -> float:
    """Where the line through two trials on one side of the goodput meets 1; infinite where it never does at a higher
    rate, 0 where it never does at a lower one."""
    slope = (inverse[1] - inverse[0]) / (rates[1] - rates[0])
    if slope < 0.0:
        return float(rates[0] + (1.0 - inverse[0]) / slope)
    return np.inf if inverse[0] >= 1.0 else 0.0


def _crossing(rates: np.ndarray, inverse: np.ndarray, lower: int) -> float | None:
    """Where an inverse latency falls through 1 between two trials; None where it does not. By inverse quadratic
    interpolation with the next trial beside them, as ``brentq``, where all three fall."""
    if not inverse[lower] >= 1.0 > inverse[lower + 1]:
        return None
    (low, high), (above, below) = rates[lower : lower + 2], inverse[lower : lower + 2]
    straight = low + (high - low) * (above - 1.0) / (above - below)
    beside = [trial for trial in (lower - 1, lower + 2) if 0 <= trial < rates.size]
    if not beside:
        return float(straight)
    third = min(beside, key=lambda trial: abs(rates[trial] - straight))
    places = sorted((lower, lower + 1, third))
    x, y = rates[places], inverse[places]
    if not (np.diff(y) < 0.0).all():
        return float(straight)
    # Lagrange's polynomial of the rate over the inverse latency, at 1.
    weights = [np.prod([(1.0 - y[j]) / (y[i] - y[j]) for j in range(3) if j != i]) for i in range(3)]
    curved = float(np.dot(x, weights))
    return curved if low < curved < high else float(straight)


def leaders_of(steps: np.ndarray, first: int) -> np.ndarray:
    """The design whose goodput each search begins at, (design,); -1 for those that begin at the closed form's rate.

    ``steps`` (design, axis) are places in the sweep. As designs that differ in the last axes serve about as much as one
    another, those that differ in the first ones lead: as few axes as tell ``first`` designs apart, so that there are
    enough at a time to keep processors busy; all lead where there are fewer. The middle one of each group leads the
    middle ones of its steps along the next axis, and these theirs.
    """
    leaders = np.full(len(steps), -1)

    def follow(members: np.ndarray, lead: int, axis: int) -> None:
        for step in np.unique(steps[members, axis]) if axis < steps.shape[1] else ():
            part = members[steps[members, axis] == step]
            lead_of_part = lead if lead in part else int(part[part.size // 2])
            leaders[lead_of_part] = lead if lead_of_part != lead else leaders[lead]
            follow(part, lead_of_part, axis + 1)

    axes = next((count for count in range(steps.shape[1]) if len(np.unique(steps[:, :count], axis=0)) >= first), None)
    if axes is not None:
        places = np.unique(steps[:, :axes], axis=0, return_inverse=True)[1].ravel()
        for place in range(places.max() + 1):
            members = np.flatnonzero(places == place)
            follow(members, int(members[members.size // 2]), axes)
    return leaders
