"""Which experts the MoE calls of aiconfigurator's tables visit: its collector routes by rule, and no column tells.

* balanced: choice i of token t is expert t + i s, with s = ceil(E / k), modulo E; fewer than s tokens are spread evenly
  over the s places.
* power law: the experts' loads are drawn between 1 and 0.8 of the tokens (between 0.01 and 2 where there are fewer
  visits than experts) with density x^-alpha, scaled to the visits and rounded; what rounding lacks goes to the emptiest
  experts. Their quantiles stand for the draws here.

Rank 0 of the expert-parallel ones is measured. Where an engine routes by groups, as DeepSeek-V3 does (arXiv:2412.19437,
section 2.1.2: the best half of 8 groups, by their two best experts), it overrides the rule: equal scores leave the
first groups and in them the first experts. Such a call of DeepSeek-V3's shape reads half of the experts, all of them on
the first half of the ranks; measured times bear it out (as long on one of two ranks as on one device alone).
Source: ai-dynamo/aiconfigurator, ``collector/helper.py`` (``balanced_logits``, ``power_law_logits_v3``).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

GROUPS = 8
"""Groups of experts of DeepSeek-V3, half of which a token may visit."""


@cache
def balanced_visits(tokens: int, experts: int, top_k: int, grouped: bool) -> np.ndarray:
    """Visits of every expert in a balanced call, (expert,)."""
    stride = math.ceil(experts / top_k)
    if tokens >= stride:
        # Every token visits k experts a stride apart; tokens start one further each, round and round.
        start, times = np.arange(min(tokens, experts)), np.full(min(tokens, experts), tokens // experts)
        times = times + (start < tokens % experts)
    else:
        start, times = np.floor(np.arange(tokens) * stride / tokens).astype(int), np.ones(tokens, dtype=int)
    chosen = (start[:, None] + stride * np.arange(top_k)) % experts
    if grouped:
        chosen = _by_groups(chosen, experts)
    return np.bincount(chosen.ravel(), np.repeat(times, top_k), experts)


def _by_groups(chosen: np.ndarray, experts: int) -> np.ndarray:
    """The choices (token, choice) of a router by groups to which those of ``chosen`` look alike, and better."""
    wanted = np.zeros((len(chosen), experts))
    np.put_along_axis(wanted, chosen, 1.0, axis=1)
    in_groups = wanted.reshape(len(chosen), GROUPS, experts // GROUPS)
    # Two experts per group at most decide its score, as DeepSeek's router adds the best two.
    order = np.argsort(-np.minimum(in_groups.sum(axis=2), 2.0), axis=1, kind="stable")
    open_groups = np.zeros((len(chosen), GROUPS), dtype=bool)
    np.put_along_axis(open_groups, order[:, : GROUPS // 2], True, axis=1)
    # Closed groups score below anything that is open.
    score = np.where(np.repeat(open_groups, experts // GROUPS, axis=1), wanted, -1.0)
    return np.argsort(-score, axis=1, kind="stable")[:, : chosen.shape[1]]


@cache
def power_law_visits(tokens: int, experts: int, top_k: int, alpha: float) -> np.ndarray:
    """Visits of every expert in a call whose loads follow a power law, (expert,), the least first."""
    # With fewer visits than experts the collector draws from a narrower range.
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    middle = (np.arange(experts) + 0.5) / experts
    power = 1.0 - alpha
    loads = ((high**power - low**power) * middle + low**power) ** (1.0 / power)
    visits = np.minimum(np.round(loads * tokens * top_k / loads.sum()), tokens)
    # Rounding leaves too few or too many visits; the emptiest or the fullest expert takes the difference.
    while (lack := tokens * top_k - visits.sum()) != 0:
        visits[np.argmin(visits) if lack > 0 else np.argmax(visits)] += np.sign(lack)
    return np.sort(visits)
