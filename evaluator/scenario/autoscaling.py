"""``deployment.autoscaling``: when replicas of a pool start and stop."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from evaluator.catalog import load_link
from evaluator.keys import Place, Reader, choice, count, in_catalog, key, number, quantity, schema_of, section

OUTSTANDING, TTFT, TPOT = "outstanding", "ttft", "tpot"
PROMPT_TOKENS, PROMPT_RATE, OUTPUT_RATE = "prompt_tokens", "prompt_rate", "output_rate"
METRICS = (OUTSTANDING, "waiting", "kv", TTFT, PROMPT_TOKENS, PROMPT_RATE, OUTPUT_RATE, TPOT)
LATENCIES = (TTFT, TPOT)
"""Metrics of requests: they have a mean over a fleet, and no sum over its replicas."""
MEAN, TREND = "mean", "trend"


@dataclass(frozen=True)
class Autoscaling:
    """An autoscaler of the kind of Kubernetes' and KEDA's. The most replicas are those of the pool.

    It looks every ``every_s`` at ``metric``, summed over the replicas that serve and averaged over ``window_s``, and
    wants as many replicas as make it ``target`` on each; of a latency so many times as many as serve as it is above its
    target. With ``lower`` it starts one where the metric on a replica is above its target, and stops one where it is
    below that. What starts serves ``start_up_s`` later, and after the weights have come over the link ``weights_over``;
    what stops takes no requests, answers those that it has, and is paid for until then.
    """

    target: float | None = key(
        number(above=0),
        None,
        "What the metric is to be on a replica: requests, tokens, tokens per second, or a share of its KV; of ttft and "
        "tpot seconds, on all of them.",
    )
    metric: str = key(
        choice(*METRICS),
        OUTSTANDING,
        "outstanding: requests that a replica has and that are not answered. waiting: those of them that are not yet "
        "admitted. kv: the share of its KV cache in use. prompt_tokens: tokens of prompts that a replica has yet to "
        "compute. prompt_rate: prompt tokens that came per second since the look before. output_rate: output tokens, "
        "per second, of the requests that came since then. ttft: the mean time to the "
        "first token, of the requests that had it since the look before those of the window. tpot: the mean time per "
        "output token of the requests that were done since then.",
    )
    within_s: float | None = key(
        quantity("s", above=0),
        None,
        "In the place of target what a replica bears by the cost model: of a prefill pool by prompt_rate with this "
        "mean time to first token, of a decode pool by output_rate or outstanding with a token of each this often.",
    )
    lower: float | None = key(
        number(above=0),
        None,
        "Two thresholds: one replica more where the metric on a replica is above target, one fewer where it is below "
        "this, at each look.",
    )
    predictor: str = key(
        choice(MEAN, TREND),
        MEAN,
        "What is foreseen of the metric by the looks of the window: their mean, or where their line of least squares "
        "is when a replica that is started now has served for every_s.",
    )
    min_replicas: int = key(count(), 1, "Fewest replicas, with which a run begins; replicas of the pool are the most.")
    every_s: float = key(quantity("s", above=0), 15.0, "Time between two looks at the metric.")
    window_s: float = key(
        quantity("s", least=0), 60.0, "Over how long the metric is averaged; 0: as it is at the look."
    )
    cooldown_s: float = key(
        quantity("s", least=0), 300.0, "Replicas stop only when none of the looks of so long has wanted them."
    )
    tolerance: float = key(
        number(least=0, most=1), 0.1, "How far the metric may be off its target, relative to it, and nothing changes."
    )
    start_up_s: float = key(
        quantity("s", least=0), 0.0, "Time until a replica serves: machine, image, compiling and warming up."
    )
    weights_over: str | None = key(
        in_catalog("links", load_link),
        None,
        "A link of the catalog over which a replica that starts loads its weights, which takes its time beside "
        "start_up_s; none where absent.",
    )

    @property
    def looks(self) -> int:
        """The most looks that it remembers at a time."""
        # Those at both ends of the time, and one more: times are sums that round. The quotient of a cooldown that never
        # ends may be infinite, which is no integer.
        return int(min(max(self.window_s, self.cooldown_s) / self.every_s, sys.maxsize)) + 3

    @property
    def longest(self) -> str:
        """The key for which it remembers that many."""
        return "window_s" if self.window_s > self.cooldown_s else "cooldown_s"

    def __str__(self) -> str:
        """As a row of a table has it: what is wanted of what, and the fewest replicas."""
        target = f"within {self.within_s:g} s" if self.target is None else f"{self.target:g}"
        return f"{self.metric} {target} from {self.min_replicas}"


def _check(scaling: Autoscaling, place: Place) -> None:
    target, within_s, lower = scaling.target, scaling.within_s, scaling.lower
    if target is None and within_s is None:
        raise place.key("target").error("is required, or within_s for what the cost model says")
    if target is not None and within_s is not None:
        raise place.key("within_s").error("is in the place of target; leave one of them out")
    if scaling.metric == "kv" and target is not None and target > 1:
        raise place.key("target").error(
            f"is a share of the KV cache with metric kv, and {target:g} is more than all of it; use 0.8, say"
        )
    if lower is not None and (target is None or lower >= target):
        above = "within_s" if target is None else f"a target of {target:g}"
        raise place.key("lower").error(f"is a threshold below target, and {lower:g} stands beside {above}")
    if scaling.predictor == TREND and scaling.metric in LATENCIES:
        raise place.key("predictor").error(f"trend is of loads, and {scaling.metric} is none; use mean")
    if scaling.predictor == TREND and scaling.window_s <= scaling.every_s:
        raise place.key("predictor").error(
            f"trend needs two looks in the window, which is {scaling.window_s:g} s with a look every "
            f"{scaling.every_s:g} s; raise window_s"
        )


_section = section(Autoscaling, _check)
# No section whose keys are merged: a pool that says nothing has what stands beside the pools, or none, as a whole.
autoscaling_reader = Reader(_section.read, lambda: schema_of(_section))
