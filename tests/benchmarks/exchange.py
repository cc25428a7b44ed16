"""Kernels of libraries that exchange tokens among experts: fits and errors of models/exchanges.

``python -m tests.benchmarks.exchange aic_deepep.parquet aic_nvlink_all_to_all.parquet`` fits launch, share of the link,
ramp and time per token of every kernel and device by least squares of log ratios (soft L1), and prints them with the
median and 90th percentile of the absolute errors of shapes left out one by one. What nodes send one another is fitted
to DeepEP's own figures (``PUBLISHED``), beside the figures of an H800's node.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from evaluator.calibrate.sources.columns import hardware
from evaluator.calibrate.sources.routing import power_law_visits
from evaluator.catalog import load_hardware
from evaluator.cost.collectives import Spread, collective_terms
from evaluator.cost.imbalance import slowest_share
from evaluator.cost.kernel import Placed
from evaluator.cost.parallel import DEEPEP, DEEPEP_LOW_LATENCY, NVLINK

SIDES = {"dispatch": 1.0, "combine": 2.0}
"""Bytes of an element: DeepEP's tables have fp8 one way and 16 bits the other."""
SMS = 20
"""Processors that DeepEP's normal kernels copy with: its default, which vLLM and SGLang keep."""
PUBLISHED = {
    DEEPEP: pd.DataFrame(
        {"ranks": [8, 16, 32, 64], "dispatch": [153.0, 43.0, 58.0, 51.0], "combine": [158.0, 43.0, 57.0, 50.0]}
    ),
    DEEPEP_LOW_LATENCY: pd.DataFrame(
        {"ranks": [8, 16, 32, 64, 128, 256], "dispatch": [77.0, 118.0, 155.0, 173.0, 192.0, 194.0],
         "combine": [114.0, 195.0, 273.0, 314.0, 369.0, 360.0]}
    ),
}  # fmt: skip
"""docs/legacy.md of github.com/deepseek-ai/DeepEP @ 0297fc80 (MIT): H800, 400 Gb/s each, hidden size 7,168, 8 experts a
token. GB/s of what comes to a node's devices or nodes (4,096 tokens), and us (128 tokens, low latency)."""
HIDDEN, TOP_K, GROUPS = 7168, 8, 4


def terms(exchange: str, ranks: int, top_k: int, reach: tuple[int | None, ...]) -> tuple[float, tuple[float, ...]]:
    """Copies of a token that a rank sends, its own included, and their shares by level."""
    if exchange == DEEPEP_LOW_LATENCY:
        return float(top_k), collective_terms("all_to_all", range(ranks), reach).share
    spread = Spread(top_k, ranks)
    return spread.groups(ranks), collective_terms("all_to_all", range(ranks), reach, (), spread).share


def fitted(rows: pd.DataFrame, link: float, ramp: bool, per_token: bool) -> tuple[np.ndarray, np.ndarray]:
    """(launch_s, share of the link, ramp_s, half_bytes, token_s) and the absolute errors of shapes left out one by one.

    ``rows``: time_s, bytes of the message, the share of it that is sent, tokens and shape; figures that are not looked
    for are 0.
    """
    times, messages, sent, tokens = (rows[name].to_numpy(float) for name in ("time_s", "bytes", "sent", "tokens"))

    def predicted(theta: np.ndarray) -> np.ndarray:
        launch, share, more, half, each = np.exp(theta)
        plain = launch + messages * sent / (link * share)
        return plain + ramp * more * messages / (messages + half) + per_token * tokens * each

    def fit(chosen: np.ndarray, begin: Sequence[float]) -> np.ndarray:
        def residuals(theta: np.ndarray) -> np.ndarray:
            return np.log(predicted(theta) / times)[chosen]

        bounds = np.log([1e-7, 1e-3, 1e-9, 1e4, 1e-12]), np.log([1e-3, 1.0, 1e-3, 1e9, 1e-6])
        return least_squares(residuals, begin, bounds=bounds, loss="soft_l1", f_scale=0.1).x

    theta = fit(np.ones(len(rows), dtype=bool), np.log([2e-5, 0.5, 2e-5, 1e7, 1e-8]))
    errors = np.zeros(len(rows))
    # Of a single shape every fourth size instead.
    parts = rows["shape"] if rows["shape"].nunique() > 1 else pd.Series(np.arange(len(rows)) % 4, rows.index)
    for part in parts.unique():
        aside = (parts == part).to_numpy()
        errors[aside] = np.abs(predicted(fit(~aside, theta)) / times - 1.0)[aside]
    return np.exp(theta) * [1, 1, ramp, ramp, per_token], errors


def deepep(frame: pd.DataFrame) -> dict[tuple[str, str, str], np.ndarray]:
    """Prints the figures of DeepEP's kernels; returns them by kernels, device and side."""
    figures = {}
    for exchange, mode in ((DEEPEP, "normal"), (DEEPEP_LOW_LATENCY, "low_latency")):
        for gpu, rows in frame[frame["mode"] == mode].groupby("gpu"):
            part = rows if mode == "low_latency" else rows[rows["dispatch_sms"] == SMS]
            device = load_hardware(str(hardware(pd.Series([gpu])).iloc[0]))
            ranks = int(part["num_gpus"].iloc[0])
            of = [terms(exchange, ranks, int(top), (ranks,)) for top in part["top_k"]]
            shape = part[["hidden_size", "top_k", "num_experts"]].astype(str).agg("/".join, axis=1)
            normal = mode == "normal"
            for side, size in SIDES.items():
                table = pd.DataFrame(
                    {
                        "time_s": part[f"{side}_us"] * 1e-6,
                        "bytes": part["num_tokens"] * part["hidden_size"] * size * [copies for copies, _ in of],
                        "sent": [share[0] for _, share in of],
                        "tokens": part["num_tokens"],
                        "shape": shape,
                    }
                )
                link = device.links[0]
                found = fitted(table, link.bandwidth, normal and ranks == 8, normal)
                told(exchange, device.name, side, ranks, *found, link.latency_s)
                figures[exchange, device.name, side] = found[0]
    return figures


def nvlink(frame: pd.DataFrame) -> None:
    """Prints the figures of TensorRT-LLM's one-sided kernels, whose calls were routed evenly: to as many ranks as a
    token has experts, or to all."""
    part = frame[(frame["kernel"] == "NVLinkOneSided") & ~frame["is_suspect"]]
    link = load_hardware("gb200").links[0]
    for ranks in ("2", "4", "8 and more"):
        of_size = part[part["moe_ep_size"] >= 8] if ranks.startswith("8") else part[part["moe_ep_size"] == int(ranks)]
        for side, size in (("dispatch", 0.5625), ("combine", 2.0)):  # nvfp4 with its scales, and 16 bits
            rows = of_size[of_size["phase"] == side]
            spread = rows["moe_ep_size"].to_numpy(float)
            copies = np.minimum(spread, rows["top_k"])
            table = pd.DataFrame(
                {
                    "time_s": rows["latency_us"].astype(float) * 1e-6,
                    "bytes": rows["num_tokens"] * rows["hidden_size"] * copies * size,
                    "sent": (spread - 1) / spread,
                    "tokens": rows["num_tokens"],
                    "shape": rows["moe_ep_size"].astype(str),
                }
            )
            told(NVLINK, "gb200", side, ranks, *fitted(table, link.bandwidth, False, False), link.latency_s)


def across_nodes(figures: dict[tuple[str, str, str], np.ndarray]) -> None:
    """Prints what share of the link between nodes DeepEP's kernels reach: both links carry their parts at once, and the
    slower one is what a call takes beside what it takes per call and token, which are the H100's."""
    device = load_hardware("h800")
    near, far = device.links[:2]
    for exchange, rows in PUBLISHED.items():
        for side, size in SIDES.items():
            ranks = rows["ranks"].to_numpy()
            launch_s, *_, token_s = figures[exchange, "h100-sxm", side]
            tokens = 4096 if exchange == DEEPEP else 128
            copies, nodes = zip(*(_copies(exchange, int(count)) for count in ranks), strict=True)
            times = rows[side].to_numpy() * 1e-6
            if exchange == DEEPEP:
                # GB/s of all that the devices of a node, or the nodes, are sent.
                sent = np.where(ranks == 8, copies, nodes)
                times = tokens * HIDDEN * size * sent / (rows[side].to_numpy() * 1e9)
            inside = tokens * HIDDEN * size * np.array(copies) * (7 / 8 if exchange == DEEPEP else 7 / ranks)
            outside = tokens * HIDDEN * size * np.array(nodes) * (1.0 - 8 / ranks)
            beside_s = launch_s + tokens * token_s
            node_s = (times[0] - beside_s) / inside[0]

            def error(share: float, at: np.ndarray) -> np.ndarray:
                slower = np.maximum(inside * node_s, outside / (far.bandwidth * share))  # noqa: B023
                return np.log((beside_s + far.latency_s + slower) / times)[at]  # noqa: B023

            def fit(at: np.ndarray) -> float:
                return float(least_squares(lambda theta: error(float(theta[0]), at), [0.8], bounds=(0.05, 1.0)).x[0])

            later = np.arange(1, len(ranks))
            missed = [float(np.expm1(error(fit(later[later != at]), np.array([at]))[0])) for at in later]
            parts = ", ".join(f"{count}: {one:+.0%}" for count, one in zip(ranks[1:], missed, strict=True))
            of_link = 1.0 / (node_s * near.bandwidth)
            print(
                f"{exchange:20s} h800      {side:8s} 8: bandwidth_efficiency {of_link:.4f}, "
                f"across nodes {fit(later):.4f}; left out {parts}"
            )


def balance(frame: pd.DataFrame) -> None:
    """Prints what 32 redundant experts save of the fullest rank's time, DeepSeek-V3 in nvfp4 at 1,024 tokens a rank on
    a GB200 (TensorRT-LLM), and of its visits, by ``slowest_share`` at the variance of the same popularity."""
    rows = frame[(frame["gpu"] == "gb200") & (frame["engine"] == "trtllm") & (frame["hidden_size"] == HIDDEN)]
    rows = rows[(rows["num_experts"] == 256) & (rows["dp_num_tokens"] == 1024)]
    for (ranks, law), part in rows.groupby(["moe_ep_size", "routing_distribution"]):
        balanced = rows[(rows["moe_ep_size"] == ranks) & (rows["routing_distribution"] == f"{law}_eplb")]
        balanced = balanced[balanced["num_slots"] == 288]
        if not len(balanced):
            continue
        visits = power_law_visits(int(ranks) * 1024, 256, TOP_K, float(str(law).removeprefix("power_law_")))
        skew = float(np.var(visits / np.mean(visits)))
        times = part["latency_us"].mean() / balanced["latency_us"].mean()
        share = slowest_share(Placed(256, int(ranks), 0), skew) / slowest_share(Placed(256, int(ranks), 32), skew)
        print(f"{law} EP {ranks}: time x {times:.2f}, visits by the model x {float(share):.2f}")


def _copies(exchange: str, ranks: int) -> tuple[float, float]:
    """Copies of a token to devices and to nodes; in low latency one per expert, whose share by level follows."""
    if exchange == DEEPEP_LOW_LATENCY:
        return float(TOP_K), float(TOP_K)
    spread = Spread(TOP_K, ranks)
    return spread.groups(ranks), min(spread.groups(ranks / 8), GROUPS)


def told(
    exchange: str, device: str, side: str, ranks: object, figures: np.ndarray, errors: np.ndarray, latency_s: float
) -> None:
    """A line: figures and errors; the latency of the link is not of the launch."""
    launch, share, ramp, half, token = figures
    print(
        f"{exchange:20s} {device:9s} {side:8s} {ranks}: launch_s {launch - latency_s:.3e} "
        f"bandwidth_efficiency {share:.4f} ramp_s {ramp:.3e} half_bytes {half:.3e} token_s {token:.3e}; "
        f"left out {np.median(errors):.1%} ({np.quantile(errors, 0.9):.0%})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per kernel and device."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exchange", description=__doc__)
    parser.add_argument("deepep", type=Path)
    parser.add_argument("nvlink", type=Path)
    parser.add_argument("wide", type=Path, nargs="?", help="aic_wideep_moe.parquet")
    given = parser.parse_args(arguments)
    figures = deepep(pd.read_parquet(given.deepep))
    nvlink(pd.read_parquet(given.nvlink))
    across_nodes(figures)
    if given.wide is not None:
        balance(pd.read_parquet(given.wide))


if __name__ == "__main__":
    main()
