"""``evaluator catalog``: what there is to choose from, and the import of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.cli.options import KvOption, WeightsOption, check_output
from evaluator.cli.output import Command, tell
from evaluator.errors import InputError

if TYPE_CHECKING:
    from evaluator.catalog.model import LayerKind, Model

catalog = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What there is to choose from; import a model.",
)
KINDS = ("models", "hardware", "links", "storage", "lengths", "engines", "calibrations", "scenarios")


@catalog.command("models", cls=Command)
def list_models() -> None:
    """Language models: size, parameters per token, layers, KV bytes per token."""
    from evaluator.catalog import load_model, names

    _tell_records("models", _MODEL_COLUMNS, [_model_record(load_model(name)) for name in names("models")])


@catalog.command("hardware", cls=Command)
def list_hardware() -> None:
    """Accelerators and CPUs: peak, memory, links, power."""
    from evaluator.catalog import load_hardware, names

    columns: Columns = {
        "name": str,
        "kind": str,
        "bf16 TFLOP/s": _four_digits,
        "memory GB": _four_digits,
        "GB/s": _four_digits,
        "power W": _four_digits,
        "links GB/s": str,
    }
    records = []
    for entry in (load_hardware(name) for name in names("hardware")):
        # Old devices have no bf16; their fp16 has the same width.
        peak = entry.peak_flops.get("bf16", entry.peak_flops.get("fp16"))
        links = ", ".join(f"{link.name} {_four_digits(link.bandwidth / 1e9)}" for link in entry.links)
        # `peak and`: a device without a peak in 16 bits has an empty cell, not 0.
        numbers = (peak and peak / 1e12, entry.memory_bytes / 1e9, entry.memory_bandwidth / 1e9, entry.power_w)
        records.append(dict(zip(columns, (entry.name, entry.kind, *map(_rounded, numbers), links), strict=True)))
    _tell_records("hardware", columns, records)


@catalog.command("links", cls=Command)
def list_links() -> None:
    """Links over which a prefill side sends KV to a decode side: bandwidth and latency."""
    from evaluator.catalog import load_link, names

    records = [
        {"name": link.name, "GB/s": _rounded(link.bandwidth / 1e9), "latency us": _rounded(1e6 * link.latency_s)}
        for link in map(load_link, names("links"))
    ]
    _tell_records("links", {"name": str, "GB/s": _four_digits, "latency us": _four_digits}, records)


@catalog.command("storage", cls=Command)
def list_storage() -> None:
    """Memories and stores that keep KV: bandwidth, lookup latency, capacity, replicas that share one."""
    from evaluator.catalog import load_storage, names

    columns: Columns = {
        "name": str,
        "GB/s": _four_digits,
        "latency us": _four_digits,
        "GB": _four_digits,
        "shared by": lambda replicas: replicas if isinstance(replicas, str) else f"{replicas:.0f}",
    }
    records = []
    for storage in map(load_storage, names("storage")):
        figures = (storage.bandwidth / 1e9, 1e6 * storage.latency_s, storage.capacity_bytes / 1e9)
        # A store for all replicas says so by a word, which is no number of them.
        shared = storage.shared_by if isinstance(storage.shared_by, str) else float(storage.shared_by)
        records.append(dict(zip(columns, (storage.name, *map(_rounded, figures), shared), strict=True)))
    _tell_records("storage", columns, records)


@catalog.command("lengths", cls=Command)
def list_lengths() -> None:
    """Distributions of prompt and output lengths."""
    _print_names("lengths")


@catalog.command("engines", cls=Command)
def list_engines() -> None:
    """What each serving engine does where nothing is said, and since which release; `show vllm` has the sources."""
    from evaluator.catalog.engine_rules import dotted, in_words, load_engine_rules
    from evaluator.catalog.engines import ENGINES

    tables = list(map(load_engine_rules, ENGINES))
    header = ("engine", "since", "key", "does", "simulated")
    rows, records = [], []
    for engine, rule in ((table.name, rule) for table in tables for rule in table.rules):
        where = (engine, dotted(rule.since), rule.key)
        records.append(dict(zip(header, (*where, rule.value, rule.simulated), strict=True)))
        simulated = "" if rule.simulated == rule.value else in_words(rule.simulated)[0]
        # A value with several sentences is one record, but as many lines of the table.
        first, *more = in_words(rule.value)
        rows.append((*where, first, simulated))
        rows += [("", "", "", line, "") for line in more]
    tell(format_table(header, rows, left=(0, 1, 2, 3, 4)), rules=records)
    for table in tables:
        # Two dates, since newer releases than the newest row were read and changed nothing.
        typer.echo(f"{table.label}: known from {dotted(table.oldest)} to {dotted(table.read_until)}, ", nl=False)
        typer.echo(f"{dotted(table.newest)} where no engine_version is said")


@catalog.command("calibrations", cls=Command)
def list_calibrations() -> None:
    """Sets of operator efficiencies."""
    _print_names("calibrations")


@catalog.command("scenarios", cls=Command)
def list_scenarios() -> None:
    """Runnable scenarios, by name."""
    _print_names("scenarios")


@catalog.command("support", cls=Command)
def show_support(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Of the catalog, or a path to a YAML or config.json.")],
    hardware: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This device alone; may be repeated. All where absent.")
    ] = None,
    weights: WeightsOption = "checkpoint",
    kv: KvOption = "bf16",
) -> None:
    """What is known of a model on every device and engine: measured, transferred, a data sheet, or refused and why.

    Of the fewest devices (1, 2, 4, 8) that hold it; errors are those expected of mean latencies in a server.
    """
    from evaluator.catalog import load_hardware, load_model
    from evaluator.cli.estimate import check_dtypes
    from evaluator.cost.precision import Precision
    from evaluator.estimation.support import support

    check_dtypes({"--weights": weights, "--kv": kv})
    precision = Precision(weights, "bf16", kv)
    supported = support(load_model(model), [load_hardware(name) for name in hardware or ()], precision)
    header = ("hardware", "engine", "known by", "devices", "TTFT ± %", "TPOT ± %", "E2E ± %", "rests on, or why not")
    rows = []
    for row in supported:
        # NaN: nobody compared such a case with a server.
        errors = ("-" if error != error else f"{100 * error:.0f}" for error in row.errors)
        widened = f"; {', '.join(row.widened)}" if row.widened else ""
        rows.append((row.hardware, row.engine, row.known_by, str(row.devices or "-"), *errors,
                     row.reason or f"{row.basis}{widened}"))  # fmt: skip
    tell(lambda: format_table(header, rows, left=(0, 1, 2, 7)), support=supported)


@catalog.command("show", cls=Command)
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="Of any kind.")]) -> None:
    """Print an entry's file, sources included."""
    from evaluator.catalog import names
    from evaluator.catalog.devices import entry_called
    from evaluator.catalog.published import entry_named
    from evaluator.catalog.store import find, suggestion

    everything = {kind: names(kind) for kind in KINDS}
    # As scenarios have them, too: ``Qwen/Qwen3-32B``, ``H200``.
    called = {name, entry_called(name)} if "/" not in name else {entry_named(name)}
    # All of them: the kinds have names of their own, so that one name may stand in several.
    paths = [find(kind, entry) for kind, entries in everything.items() for entry in called if entry in entries]
    if not paths:
        known_names = sorted({entry for kind in KINDS for entry in everything[kind]})
        raise InputError(f"the catalog has no entry {name!r}{suggestion(name, known_names)}")
    for path in paths:
        content = path.read_text(encoding="utf-8").rstrip()
        tell(f"# {path}\n{content}", **{path.parent.name: {"path": path, "content": content}})


@catalog.command("schema", cls=Command)
def print_schema(
    of: Annotated[
        str, typer.Option("--of", metavar="scenario|output", help="Of scenario files, or of what --json prints.")
    ] = "scenario",
) -> None:
    """Print the JSON Schema of a scenario file, for an editor to complete and check keys, or of --json."""
    import json

    from evaluator.cli.output import SCHEMA
    from evaluator.scenario.schema import scenario_schema

    if of not in ("scenario", "output"):
        raise InputError(f"--of {of}: has no schema; allowed: scenario, output")
    schema = scenario_schema() if of == "scenario" else json.loads(SCHEMA.read_text(encoding="utf-8"))
    tell(json.dumps(schema, indent=2, ensure_ascii=False), schema=schema)


@catalog.command("import", cls=Command)
def import_model(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.json|SERVE.sh|DEPLOYMENT.yaml",
            help="A Hugging Face config.json, its folder, or a model in the Hub's local cache; or a shell script, or "
            "YAML of Dynamo, llm-d, Kubernetes or Docker Compose, that starts servers of vLLM or SGLang.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name; else that of --out's file, else the config's own.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="FAMILY", help="Read the layers of an unknown model_type as those of this one (llama)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Write here instead of to stdout.")] = None,
) -> None:
    """Turn a model's config.json, or what starts servers, into a YAML; stderr says what it makes of it.

    Of what starts servers that is the deployment of a scenario. Put a model into models/llm of the current directory,
    or of a folder of EVALUATOR_PATH, to use it by name.
    """
    from evaluator.catalog import model_to_yaml
    from evaluator.huggingface import import_config

    check_output(out, "--out", (".yaml", ".yml"))
    # Told by the suffix: a config.json could not be told from them by content without reading it as both.
    if config.suffix in (".sh", ".bash", ".txt", ".yaml", ".yml"):
        _import_script(config, out)
        return
    # A model is found by its file's name, which must be its own.
    model = import_config(config, name or (out.stem if out else None), like)
    # To stderr, so that ``import CONFIG > FILE.yaml`` writes the YAML alone.
    text = model_to_yaml(model)
    typer.echo(_table_of(_MODEL_COLUMNS, [_model_record(model)]), err=True)
    for note in model.notes:
        typer.echo(f"  {note}", err=True)
    tell(None if out is not None else text.rstrip(), model=text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}", err=True)


def _import_script(path: Path, out: Path | None) -> None:
    """The deployment that a script or manifest starts; stderr lists what means nothing to a simulation, or at all."""
    from evaluator.arguments import arguments_of, read_servers
    from evaluator.yaml import dumps_yaml, read_text

    started = read_servers(read_text(path), str(path))
    versions = " or ".join(f"{engine} {arguments_of(engine).version}" for engine in started.engines)
    if started.ignored:
        typer.echo(f"  without a meaning for a simulation: {', '.join(started.ignored)}", err=True)
    if started.approximated:
        typer.echo(f"  not simulated as they say: {', '.join(started.approximated)}", err=True)
    if started.unknown:
        typer.echo(f"  unknown to {versions}, and left out: {', '.join(started.unknown)}", err=True)
    if "hardware" not in started.tree and not any(
        "hardware" in pool for pool in started.tree.get("pools", {}).values()
    ):
        typer.echo("  deployment.hardware is for you to add: no command line says it", err=True)
    text = dumps_yaml({"deployment": started.tree})
    tell(None if out is not None else text.rstrip(), deployment=started.tree)
    if out is not None:
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}", err=True)


Columns = Mapping[str, Callable[[Any], str]]
"""Of a table: the key of each in a record, which heads it, and how its values are written. Texts stand to the left."""


def _four_digits(value: float) -> str:
    return f"{value:.4g}"


def _rounded(value: float | None) -> float | None:
    """As the table has it: what a document says is then what is read beside it."""
    return None if value is None else float(_four_digits(value))


_MODEL_COLUMNS: Columns = {
    "name": str,
    "parameters": lambda count: f"{_four_digits(count / 1e9)} B",
    "active": lambda count: f"{_four_digits(count / 1e9)} B",
    "layers": lambda count: f"{count:.0f}",
    "KV bytes/token": lambda count: f"{count:,.0f}",
    "max positions": lambda count: f"{count:,.0f}",
    "kinds": str,
}


def _print_names(kind: str) -> None:
    from evaluator.catalog import names

    listed = list(names(kind))
    tell("\n".join(listed), **{kind: listed})


def _tell_records(name: str, columns: Columns, records: Sequence[Mapping[str, Any]]) -> None:
    """Records as they are in a document, and as a table elsewhere."""
    tell(_table_of(columns, records), **{name: records})


def _table_of(columns: Columns, records: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        ["-" if record[key] is None else written(record[key]) for key, written in columns.items()] for record in records
    ]
    return format_table(
        list(columns), rows, [place for place, written in enumerate(columns.values()) if written is str]
    )


def _model_record(model: Model) -> dict[str, Any]:
    from evaluator.catalog.parameters import active_parameters, parameter_count
    from evaluator.cost.memory import kv_bytes_per_token

    kinds = ", ".join(f"{kind.count} x {_kind(kind)}" for kind in model.layers)
    kinds += "" if model.gives_tokens else "; gives a vector"
    kinds += "; assumptions in its notes" if model.assumptions else ""
    return {
        "name": model.name,
        # Rounded in billions, as they are written.
        "parameters": float(_four_digits(parameter_count(model) / 1e9)) * 1e9,
        "active": float(_four_digits(active_parameters(model) / 1e9)) * 1e9,
        "layers": float(sum(kind.count for kind in model.layers)),
        "KV bytes/token": float(f"{kv_bytes_per_token(model, 'bf16'):.0f}"),
        "max positions": float(model.max_positions),
        "kinds": kinds,
    }


def _kind(kind: LayerKind) -> str:
    from evaluator.catalog.model import (
        CompressedAttention,
        LatentAttention,
        LinearAttention,
        MoeFeedForward,
        Recurrence,
        SoftmaxAttention,
    )

    mixer = kind.mixer
    parts = []
    if isinstance(mixer, SoftmaxAttention):
        shape = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
        shape += " of an earlier layer's KV" if mixer.shared_kv else " both ways" if mixer.bidirectional else ""
        parts.append(shape if mixer.window is None else f"{shape} window {mixer.window:,}")
    elif isinstance(mixer, LatentAttention):
        window = "" if mixer.window is None else f" window {mixer.window:,}"
        parts.append("MLA" + (window if mixer.index_top_k is None else f" top {mixer.index_top_k:,}"))
    elif isinstance(mixer, CompressedAttention):
        parts.append(f"MQA window {mixer.window:,}" + (f" and 1/{mixer.ratio}" if mixer.ratio else ""))
    elif isinstance(mixer, LinearAttention):
        parts.append("linear")
    elif isinstance(mixer, Recurrence):
        parts.append(mixer.form.replace("_", " "))
    elif mixer is not None:
        parts.append("SSM")
    feed_forward = kind.feed_forward
    if isinstance(feed_forward, MoeFeedForward):
        shared = "+shared" if feed_forward.shared_intermediate else ""
        parts.append(f"MoE {feed_forward.experts_per_token}/{feed_forward.experts}{shared}")
    elif feed_forward is not None:
        parts.append("dense")
    return "+".join(parts)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Aligned columns of text, a rule below the header; columns of ``left`` are text, the others numbers."""
    cells = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    cells.insert(1, tuple("-" * width for width in widths))
    aligned = (
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    )
    # No blanks at the ends: tables are compared with what docs and tests hold.
    return "\n".join(line.rstrip() for line in aligned)
