"""The physical parameters that serving runs say something about, as changes of a calibration set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from evaluator.catalog.calibration import COMPUTE_CLASSES, OPTIONAL_CLASSES, SORT, Calibration
from evaluator.catalog.efficiency import OperatorEfficiency
from evaluator.catalog.launches import Launches

Change = Callable[[Calibration, float], Calibration]


@dataclass(frozen=True)
class RunParameter:
    """``meaning`` with its unit; ``start`` and ``sigma``: the prior, a log-normal one; ``change`` puts a value in.

    ``figures`` are the keys of ``Calibration.sources`` that it changes.
    """

    name: str
    meaning: str
    start: float
    sigma: float
    change: Change
    figures: tuple[str, ...]


def _scaled(classes: tuple[str, ...], figures: tuple[str, ...]) -> Change:
    """Multiplies those of the figures that classes of operators have; fractions of a peak stay at most 1."""

    def change(base: Calibration, factor: float) -> Calibration:
        sets = dict(base.efficiencies)
        for name in classes:
            if name not in sets:
                continue
            # Of a class only the figures that it has: a sort has no tile of attention.
            scaled = {figure: getattr(sets[name], figure) * factor for figure in figures if hasattr(sets[name], figure)}
            # Bandwidths are fractions of a peak; times may grow without bound.
            bounded = {figure: value if figure.endswith("_s") else min(value, 1.0) for figure, value in scaled.items()}
            sets[name] = replace(sets[name], **bounded)
        return replace(base, efficiencies=sets)

    return change


def _set(field: str) -> Change:
    def change(base: Calibration, value: float) -> Calibration:
        figures: dict[str, Any] = {field: value}
        return replace(base, **figures)

    return change


def _link(base: Calibration, factor: float) -> Calibration:
    return replace(base, link_efficiency=min(1.0, base.link_efficiency * factor))


def _all_reduce(base: Calibration, factor: float) -> Calibration:
    """Start and ramp of an all-reduce, for every number of devices."""
    all_reduce = base.efficiencies["all_reduce"]
    groups = {
        size: replace(group, launch_s=factor * group.launch_s, ramp_s=factor * group.ramp_s)
        for size, group in all_reduce.devices.items()
    }
    slower = replace(all_reduce, launch_s=factor * all_reduce.launch_s, devices=groups)
    return replace(base, efficiencies={**base.efficiencies, "all_reduce": slower})


def _launches(base: Calibration, factor: float) -> Calibration:
    if base.launches is None:
        return base
    # `captured_tokens` is a number of tokens, which does not follow from how fast the host is.
    seconds = {figure.name: factor * getattr(base.launches, figure.name) for figure in fields(base.launches)}
    slower = replace(base.launches, **seconds | {"captured_tokens": base.launches.captured_tokens})
    return replace(base, launches=slower)


def _sort_start(base: Calibration, seconds: float) -> Calibration:
    return replace(base, efficiencies={**base.efficiencies, SORT: replace(base.of(SORT), launch_s=seconds)})


BANDWIDTH = ("bandwidth_efficiency", "activation_efficiency")
LAUNCH = ("launch_s",)
DENSE = ("gemm", "gemm_8bit", "gemm_block", "gemm_4bit")
ROUTED = (
    "grouped_gemm", "grouped_gemm_8bit", "grouped_gemm_block", "grouped_gemm_4bit", "grouped_gemm_w4",
    "grouped_gemm_mx4",
)  # fmt: skip
ATTENTION = ("attention_decode",)
KERNELS = (*COMPUTE_CLASSES, *OPTIONAL_CLASSES)

PARAMETERS: tuple[RunParameter, ...] = (
    RunParameter("weight_bandwidth", "bandwidth that dense weights are read with, x the base set", 1.0, 0.05,
              _scaled(DENSE, BANDWIDTH), ("gemm",)),
    RunParameter("expert_bandwidth", "bandwidth that expert weights are read with, x the base set", 1.0, 0.1,
              _scaled(ROUTED, BANDWIDTH), ("grouped_gemm",)),
    RunParameter("expert_skew", "variance of the experts' popularity", 0.5, 0.7, _set("expert_skew"), ("expert_skew",)),
    RunParameter("kv_bandwidth", "bandwidth that decode attention reads its KV with, x the base set", 1.0, 0.3,
              _scaled(ATTENTION, BANDWIDTH), ("attention_decode",)),
    RunParameter("attention_tile", "time per sequence and KV head of decode attention, x the base set", 1.0, 0.4,
              _scaled(ATTENTION, ("kv_head_sequence_s",)), ("attention_decode",)),
    RunParameter("launch", "time per kernel beside its work, x the base set", 1.0, 0.2,
              _scaled(KERNELS, LAUNCH), COMPUTE_CLASSES),
    RunParameter("all_reduce_launch", "time per all-reduce beside its bytes, x the base set", 1.0, 0.3,
              _all_reduce, ("all_reduce",)),
    RunParameter("link", "bandwidth of the links in all-reduces, x the base set", 1.0, 0.15, _link,
              ("link_efficiency",)),
    RunParameter("step_overhead_s", "host time per iteration that the device waits for", 1e-4, 1.0,
              _set("step_overhead_s"), ("step_overhead_s",)),
    RunParameter("sequence_overhead_s", "host time per sequence and iteration that the device waits for", 1e-6, 1.0,
              _set("sequence_overhead_s"), ("sequence_overhead_s",)),
    RunParameter("sort_start_s", "time per iteration to order the logits for top-p and top-k beside their bytes",
              4e-4, 0.5, _sort_start, (SORT,)),
    RunParameter("sort_bandwidth", "bandwidth that logits are ordered with, x that of elementwise kernels", 1.0, 0.3,
              _scaled((SORT,), BANDWIDTH), (SORT,)),
    RunParameter("frontend_s", "per request outside the engine: HTTP, tokenising, hops between processes, streaming",
              5e-3, 0.7, _set("frontend_s"), ("frontend_s",)),
    RunParameter("lookahead_steps", "iterations planned ahead when a request comes", 1.2, 0.2,
              _set("lookahead_steps"), ("lookahead_steps",)),
    RunParameter("warm_up_s", "that the first request waits while the kernels of experts are compiled", 2.0, 0.7,
              _set("warm_up_s"), ("warm_up_s",)),
)  # fmt: skip
"""The priors are those beside a set fitted to kernels of the GPU; beside a data sheet they are twice as wide."""

_OF_SERVERS = (
    RunParameter("prompt_flops", "FLOPs that products and the attention of prompts reach, x the base set", 1.0, 0.1,
              _scaled((*DENSE, *ROUTED, "attention_prefill"), ("flops_efficiency",)),
              ("gemm", "grouped_gemm", "attention_prefill")),
    RunParameter("prompt_launches", "host time to launch iterations with prompts layer by layer, x the base set", 1.0,
              0.3, _launches, ("launches",)),
)  # fmt: skip
OWN_PARAMETERS: tuple[RunParameter, ...] = (*PARAMETERS, *_OF_SERVERS)
"""Of a user's server also these, which the campaigns above do not tell: their prompts are short, or found in caches. As
wide as kernels of products and attention are missed (calibration/sets.md: 4 to 9 % in the median), and as layouts and
models of one host differ (the same, "Launches": 5 to 30 %)."""

GRAPH_TOKENS = 8.0
LAUNCHES = Launches(
    captured_tokens=512.0,
    attention_s=0.175e-3,
    recurrent_s=0.475e-3,
    state_space_s=1.85e-3,
    sparse_s=0.8e-3,
    dense_s=0.145e-3,
    experts_s=0.63e-3,
    gathered_s=0.11e-3,
    agreed_s=0.5e-3,
    gathered_beyond_s=0.07e-3,
    unjoined_s=0.21e-3,
    prepared_s=9.0e-3,
)
"""As the iterations of a server tell it (calibration/host.md, "Launches"); no run of these campaigns does, because
their iterations with prompts wait for the device."""
PENALTY_SEQUENCE_S = 27.4e-6
_PENALTIES_FROM = (
    "batches held full on H100 by vLLM 0.11.1 (ML.ENERGY's chat, whose requests ask for a repetition penalty), six "
    "dense models with answers of 350 to 650 tokens: 27 us +- 5 %; 26 by Llama's alone, 33 by Qwen's"
)
_LAUNCHES_FROM = (
    "iterations of vLLM 0.20.1 on B300 that wait for the host (ai-dynamo/aiconfigurator, fpm_golden_runs): attention "
    "+- 6 %, recurrent +- 5 %, dense +- 17 %, experts +- 5 %, gathered +- 30 %, agreed +- 30 %; sparse: DeepSeek-V4 "
    "there, +- 20 %; state_space: Nemotron Nano v2 on H100, vLLM 0.11.1 (ML.ENERGY), +- 5 %; unjoined and prepared: "
    "Qwen3.6-35B-A3B on B300, of one layout, and +- 10 % of two"
)


@dataclass(frozen=True)
class ServedFigures:
    """Figures of a class of kernels on one GPU in a server that neither its isolated kernels nor the runs of these
    campaigns tell: by name, those of groups of devices by their size; ``source`` says where each is from."""

    figures: Mapping[str, float]
    groups: Mapping[int, Mapping[str, float]]
    source: str

    def put_into(self, efficiency: OperatorEfficiency) -> OperatorEfficiency:
        """The class with these figures in place of its own."""
        groups = {size: replace(efficiency.devices[size], **changed) for size, changed in self.groups.items()}
        return replace(efficiency, **self.figures, devices={**efficiency.devices, **groups})


SERVED: dict[str, dict[str, ServedFigures]] = {
    "b200-sxm-vllm": {
        "attention_decode": ServedFigures(
            {"beside_walk_s": 4.16e-9, "beside_resident": 148.0, "unequal": 2.1, "late_beyond": 1.0},
            {},
            "beside_walk_s: 64 bytes per cycle from the L2 to a multiprocessor at 1.92 GHz, as decodes of Qwen3-32B on "
            "B300 bear out (vLLM 0.20.1, TP 1 and 4); beside_resident: its multiprocessors; unequal: as in the set "
            "rtx-pro-6000-vllm.serving",
        ),
        "all_reduce": ServedFigures(
            {},
            {2: {"half_bytes": 1.63e8}, 4: {"half_bytes": 5.86e6}},
            "half_bytes of 2 and 4 devices: so that a message costs on top what it does in the set b200-sxm-trtllm, "
            "whose kernel FlashInfer has and vLLM takes here to join all-reduce and norm",
        ),
    }
}
"""By the set of kernels that a fit starts from and by class, so that every fit from that set has them; runs on the GPU
would tell them better."""


def as_vllm(base: Calibration) -> Calibration:
    """What vLLM does whatever the GPU, put into a set of kernels: it pads to graphs, orders logits for top-p, launches
    iterations with prompts layer by layer, and makes tensors of what was said; and what is known of the servers
    of its GPU alone (SERVED)."""
    # The sort starts as an elementwise kernel, and gets its own figures from the runs.
    sort = base.efficiencies.get(SORT, replace(base.of("elementwise"), knee=0.0))
    host: dict[str, Any] = {
        "graph_tokens": GRAPH_TOKENS,
        "launches": LAUNCHES,
        "penalty_sequence_s": PENALTY_SEQUENCE_S,
    }
    sources = {**base.sources, "launches": _LAUNCHES_FROM, "penalty_sequence_s": _PENALTIES_FROM}
    served = {name: figures.put_into(base.of(name)) for name, figures in SERVED.get(base.name, {}).items()}
    return replace(base, efficiencies={**base.efficiencies, SORT: sort, **served}, sources=sources, **host)


def adjusted(
    base: Calibration, values: Mapping[str, float], parameters: Sequence[RunParameter] = PARAMETERS
) -> Calibration:
    """The base set with these parameters put in."""
    for parameter in parameters:
        if parameter.name in values:
            base = parameter.change(base, values[parameter.name])
    return base


def active(
    base: Calibration, tensor_parallel: int, parameters: Sequence[RunParameter] = PARAMETERS
) -> list[RunParameter]:
    """The parameters that change this base set, and of those of links only where ranks talk."""
    # A change of the prior's value that changes nothing in the set is a figure that the set does not have.
    changing = [
        parameter
        for parameter in parameters
        if parameter.change(base, parameter.start) != parameter.change(base, 1.5 * parameter.start)
    ]
    # A single rank sends nothing, so that nothing in its runs depends on links.
    return [
        parameter
        for parameter in changing
        if tensor_parallel > 1 or parameter.name not in ("all_reduce_launch", "link")
    ]
