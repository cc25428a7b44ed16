"""A description of the device from what was measured on it, for devices that the catalog does not know."""

from __future__ import annotations

import pandas as pd

from evaluator.cost.dtypes import BYTES
from evaluator.errors import InputError
from evaluator.measure.device import Device

OUT_OF_CACHE = 4.0
"""Sums that move so many times the cache's size show the memory's bandwidth."""


def description(rows: pd.DataFrame, device: Device, name: str) -> str:
    """The YAML of ``models/hardware`` for this device: the highest FLOP/s and byte/s of any row, and of which.

    InputError where the rows do not tell.
    """
    # Twice m n k FLOPs per product, over the time of the fastest.
    products = rows[rows["op_class"] == "gemm"].groupby("dtype")
    peaks = {str(dtype): _fastest(part, 2 * part["m"] * part["n"] * part["k"]) for dtype, part in products}
    bandwidth = _fastest(*_memory_bound(rows, device))
    if not peaks or bandwidth is None:
        raise InputError("too little was measured to describe the device; give it more --seconds, and --resume")
    link = _link(rows)
    lines = [
        "# Written by `evaluator measure`: ceilings measured on this device with JAX, no figures of a data sheet.",
        f"name: {name}",
        f"note: {_quoted(device.name)}",
        f"kind: {device.platform}",
        "peak_flops:",
        *(f"  {dtype}: {peak[0]:.4g}" for dtype, peak in peaks.items() if peak),
        f"memory_bytes: {device.memory_bytes:.6g}",
        f"memory_bandwidth: {bandwidth[0]:.4g}",
        *_link_lines(link),
        # Figures that were not measured are null, and refused where they are asked for: no guess ends in a result.
        "power_w: null  # not measured; energy is not computed without it",
        "idle_power_w: null",
        "usd_per_hour: null",
        "sources:",
        *(f"  peak_flops.{dtype}: {_quoted(_source(peak, device))}" for dtype, peak in peaks.items() if peak),
        f"  memory_bytes: {_quoted('what JAX may use of the memory')}",
        f"  memory_bandwidth: {_quoted(_source(bandwidth, device))}",
    ]
    if link is not None:
        lines += ["  links.measured.bandwidth: 'assumption: bus bandwidth of the fastest all-reduce'",
                  "  links.measured.latency_s: 'assumption: half of the shortest all-reduce'"]  # fmt: skip
    return "\n".join(lines) + "\n"


Fastest = tuple[float, pd.Series]
"""The highest rate, and the row that it was reached in."""


def _memory_bound(rows: pd.DataFrame, device: Device) -> tuple[pd.DataFrame, pd.Series]:
    """Rows whose operands come from memory, and the bytes that surely do: weights and KV, and all of large sums."""
    # Bytes that cannot have come from the cache: operands take turns there, activations may stay.
    width = rows["dtype"].map(BYTES)
    read = pd.Series(0.0, rows.index)
    of = rows["op_class"]
    read[of == "gemm"] = (rows["n"] * rows["k"] * width)[of == "gemm"]
    read[of == "attention_decode"] = (
        2 * rows["batch"] * rows["past_tokens"] * rows["kv_heads"] * rows["head_dim"] * width
    )[of == "attention_decode"]
    large = (of == "elementwise") & (rows["bytes"] >= OUT_OF_CACHE * device.cache_bytes)
    read[large] = rows["bytes"][large]
    return rows[read > 0], read[read > 0]


def _fastest(rows: pd.DataFrame, work: pd.Series) -> Fastest | None:
    if rows.empty:
        return None
    rate = work / rows["time_s"]
    return float(rate.max()), rows.loc[rate.idxmax()]


def _link(rows: pd.DataFrame) -> tuple[float, float, int] | None:
    """Bus bandwidth (nccl-tests, PERFORMANCE.md), seconds of a message, and devices; None without collectives."""
    reduces = rows[rows["op_class"] == "all_reduce"]
    if reduces.empty:
        return None
    bus = 2 * (reduces["devices"] - 1) / reduces["devices"] * reduces["message_bytes"] / reduces["time_s"]
    # An all-reduce is a scatter and a gather: half of the shortest is a message.
    return float(bus.max()), float(reduces["time_s"].min()) / 2, int(reduces["devices"].max())


def _link_lines(link: tuple[float, float, int] | None) -> list[str]:
    if link is None:
        return ["links: null  # none was measured: one device, no tensor parallelism"]
    bandwidth, latency, devices = link
    return [
        "links:",
        f"  - {{name: measured, bandwidth: {bandwidth:.4g}, latency_s: {latency:.4g}, devices: {devices}}}",
    ]


def _source(fastest: Fastest, device: Device) -> str:
    _, row = fastest
    shape = {
        "gemm": ("m", "n", "k"), "attention_decode": ("batch", "past_tokens", "heads", "kv_heads", "head_dim"),
    }.get(str(row["op_class"]), ("bytes",))  # fmt: skip
    of = " ".join(f"{name}={row[name]:g}" for name in shape)
    made = f"JAX {device.jax_version}, {row['measured_at']}"
    return f"measured: the fastest {row['op_class']} ({of}, {row['dtype']}), {made}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
