"""The page of what is known of some models on every device and engine of the catalog."""

from __future__ import annotations

from evaluator.catalog import load_model
from evaluator.catalog.engines import ENGINES
from evaluator.estimation.support import REFUSED, Support, support

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")
HEAD = """# What is known of a model on a device

`evaluator catalog support MODEL [--hardware NAME]` says it of any model, with what each row rests on (`--json` for
programs). A row is the fewest devices (1, 2, 4, 8, sharing tensors) that hold the model in its checkpoint's dtypes with
KV for a request, under the engine's own limits. The three figures are the errors, in %, that are expected of the mean
TTFT, TPOT and end-to-end time of a server: 68 % of measured runs that were predicted with as little knowledge were
within them.

| | |
|---|---|
| measured | kernels of this device on this engine, with the host of serving runs of it or of others |
| extrapolated | kernels of this device, measured on another engine or without its servers |
| transferred | the kernels of the nearest device of its architecture, else the median of other devices' |
| data sheet | peaks and bandwidth with usual efficiencies |
| other words | why there is no prediction |
"""


def page() -> str:
    """The whole text."""
    return "\n".join([HEAD, *(_of_model(name) for name in MODELS)])


def _of_model(name: str) -> str:
    cells: dict[str, dict[str, str]] = {}
    for row in support(load_model(name)):
        cells.setdefault(row.hardware, {})[row.engine] = _cell(row)
    labels = [engine.label for engine in ENGINES.values()]
    lines = [f"## {name}", "", f"| device | {' | '.join(labels)} |", "|---|" + "---|" * len(labels)]
    lines += [f"| {device} | {' | '.join(of[engine] for engine in ENGINES)} |" for device, of in cells.items()]
    return "\n".join([*lines, ""])


def _cell(row: Support) -> str:
    if row.known_by == REFUSED:
        return row.reason.partition(":")[0].partition(",")[0]
    errors = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}".join(
        "-" if error != error else f"{100 * error:.0f}" for error in row.errors
    )
    widened = f" ({', '.join(row.widened)})" if row.widened else ""
    return f"{row.known_by}, {row.devices} x: {errors}{widened}"
