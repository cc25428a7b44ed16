"""The pages of the site that are made of the code and of the tables in the repository, whenever the site is built."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from docs.site import support
from evaluator.accuracy.cases import CASES
from evaluator.cli.app import app
from evaluator.keys import REQUIRED, Section, Table, Variant, hardware_name, model_name, schema_of
from evaluator.metrics.variables import VARIABLES
from evaluator.scenario.load import TOP
from evaluator.scenario.schema import scenario_schema
from evaluator.yaml import loads_yaml

ROOT = Path(__file__).resolve().parents[2]
ERRORS = ROOT / "calibration" / "errors"
PUBLIC = {
    "evaluator": "What most scripts need.",
    "evaluator.results": "Files of results, and what is in them.",
    "evaluator.catalog": "Models, devices, links, lengths and calibration sets.",
    "evaluator.parts": "What parts of your own are made of ([examples](../docs/parts.md)).",
}
"""The modules whose ``__all__`` is the public API. All else may change between releases."""
ACCESSOR = "evaluator.report.accessor.ResultAccessor"
"""What ``dataset.evaluator`` is."""
_PLAIN = {"integer": "a whole number", "number": "a number", "boolean": "`true`, `false`", "string": "a text"}
_KINDS = r"\[\]|: \w+|\.NAME"  # what headings have beside the path of a key
_MOST_WORDS = 12  # of a choice; the names of the catalog are listed by `evaluator catalog`


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown; cells may hold anything but line breaks."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    written = [f"| {' | '.join(map(_cell, line))} |" for line in lines]
    return "\n".join([written[0], "|" + "---|" * len(lines[0]), *written[1:], ""])


def _cell(text: str) -> str:
    # Python-Markdown takes a bar in quotes of code for part of the code, and would show what escapes it.
    parts = text.replace("\n", " ").split("`")
    return "`".join(part if place % 2 else part.replace("|", "\\|") for place, part in enumerate(parts))


# --- commands


def commands() -> str:
    """Every command of the command line with its arguments and options, as ``--help`` has them."""
    head = (
        "# Commands\n\nAs `evaluator COMMAND --help` has them. Every command takes `--json` too "
        "([for programs](../docs/json.md)).\n"
    )
    return "\n".join([head, *_commands(typer.main.get_command(app), "evaluator")])


def _commands(command: Any, path: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")
    if hasattr(command, "commands"):
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {path}\n\n{inspect.cleandoc(command.help or '')}\n\n```sh\n{path} {usage}\n```\n"
    records = [
        parameter.get_help_record(context) for parameter in command.get_params(context) if parameter.name != "help"
    ]
    yield table(["option", ""], ((f"`{record[0]}`", _escaped(record[1])) for record in records if record))


def _escaped(text: str) -> str:
    """A text in which no sign means something to Markdown but quotes of code."""
    return (
        text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[").replace("_", "\\_")
        if "`" not in text
        else text
    )


# --- keys of a scenario


def keys() -> str:
    """Every key of a scenario, section by section: what it takes, its default and its sentence."""
    schema = scenario_schema()
    defaults = dict(_defaults("", TOP))
    parts = [
        "# Keys of a scenario\n\nMade of the records that files are read by; `evaluator catalog schema` prints it "
        "for editors. A quantity is a number in SI units or a text with its unit (`80GB`, `50ms`). A key without a "
        "default takes what follows from others where it is left out, or what [the engine does by "
        "itself](../docs/deployments.md#what-an-engine-does-by-itself). Axes of `sweep` are "
        "[on a page of their own](../docs/sweeps.md).\n"
    ]
    seen: dict[str, str] = {}
    for name, section in schema["properties"].items():
        if name not in ("name", "sweep"):
            parts += [f"## {name} {{ #{_anchor(name)} }}\n\n{section.get('description', '')}\n"]
            parts += _section(name, section, defaults, seen, top=True)
    figures = [
        (f"`{path}`", _takes(schema_of(reader), path, seen))
        for key, of in (("model", model_name), ("hardware", hardware_name))
        for path, reader in ((f"deployment.{key}.{below}", reader) for below, reader in of.keys.items())
    ]
    parts += [
        "## Figures of models and devices\n\nBeside `like`, for [a model or a device that need not exist]"
        "(../docs/search.md#what-if); these can be axes of a sweep. `times` is a multiple of what it was.\n",
        table(["key", "takes"], figures),
    ]
    return "\n".join(parts)


def _defaults(path: str, keys: Table) -> Iterator[tuple[str, Any]]:
    for name, entry in keys.items():
        below = f"{path}.{name}" if path else name
        yield below, entry.default
        if isinstance(entry.read, Section):
            yield from _defaults(below, entry.read.table)
        elif isinstance(entry.read, Variant):
            yield from _defaults(below, entry.read.keys)


def _section(
    path: str, schema: Mapping[str, Any], defaults: Mapping[str, Any], seen: dict[str, str], top: bool = False
) -> Iterator[str]:
    """The headings and tables of a section and of those below; one that stood before elsewhere is not repeated."""
    for kind, properties in _forms(schema).items():
        named = f"{path}{kind}"
        if seen.setdefault(json.dumps(properties, sort_keys=True), named) != named:
            continue
        if not (top and not kind):
            yield f"### {named} {{ #{_anchor(named)} }}\n"
        # The table first, whose links say where the sections below will stand.
        yield table(
            ["key", "", "takes", "default"],
            [
                (
                    f"`{key}`",
                    _escaped(value.get("description", "")),
                    _takes(value, f"{named}.{key}", seen),
                    _default(defaults.get(re.sub(_KINDS, "", f"{named}.{key}"))),
                )
                for key, value in properties.items()
            ],
        )
        for key, value in properties.items():
            yield from _section(f"{named}.{key}", value, defaults, seen)


def _forms(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The keys of the sections that a value may be, by what tells these apart: ``: poisson``, ``[]``, ``.NAME``."""
    forms: dict[str, dict[str, Any]] = {}
    for kind, properties in _objects(schema):
        forms.setdefault(kind, {}).update(properties)
    return forms


def _objects(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for form in ("anyOf", "oneOf"):
        for choice in schema.get(form, ()):
            yield from _objects(choice)
    if schema.get("properties"):
        kinds = [str(value["const"]) for value in schema["properties"].values() if "const" in value]
        yield f": {kinds[0]}" if kinds else "", schema["properties"]
    below = [("[]", schema.get("items"))]
    below += [
        (".NAME", values)
        for values in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values())
    ]
    for sign, values in below:
        if isinstance(values, Mapping):
            yield from ((f"{sign}{kind}", properties) for kind, properties in _objects(values))


def _takes(schema: Mapping[str, Any], path: str, seen: dict[str, str]) -> str:
    words = []
    for kind, properties in _forms(schema).items():
        named = seen.setdefault(json.dumps(properties, sort_keys=True), f"{path}{kind}")
        label = "a section" if not kind else "a list of sections" if kind == "[]" else "sections by name"
        _, _, variant = kind.partition(": ")
        words.append(f"[{f'`{variant}`' if variant else label}](#{_anchor(named)})")
    words += _words(schema)
    if "a quantity" in words:  # which is a number, or a text of one with its unit
        words = [word for word in words if word not in ("a number", "a text")]
    return ", or ".join(dict.fromkeys(words))


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    """What a value may be beside a section."""
    kind = schema.get("type")
    if schema.get("anyOf") or schema.get("oneOf"):
        for choice in schema.get("anyOf") or schema["oneOf"]:
            yield from _words(choice)
    elif "const" in schema:
        yield f"`{schema['const']}`"
    elif "enum" in schema:
        known = [f"`{word}`" for word in schema["enum"]]
        yield "a name of the catalog" if len(known) > _MOST_WORDS else ", ".join(known)
    elif kind == "array":
        entries = list(dict.fromkeys(_words(schema.get("items", {}))))
        if entries or not _forms(schema):
            yield "a list" + (" of: " + ", or ".join(entries) if entries else "")
    elif kind == "object":
        for values in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()):
            entries = list(dict.fromkeys(_words(values))) if isinstance(values, Mapping) else []
            if entries:
                yield f"names, with {', or '.join(entries)} each"
    elif kind == "string" and "[-+]?" in schema.get("pattern", ""):
        yield "a quantity"
    elif kind in _PLAIN:
        yield _PLAIN[kind]


def _default(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | int | float) else ""


def _anchor(path: str) -> str:
    return path.replace(".", "-").replace(": ", "-").replace("[]", "-list").replace("_", "-").lower()


# --- variables, support, errors


def variables() -> str:
    """Every variable of a result."""
    head = f"""# Variables of a result

Rows run along `config`, percentiles along `quantile`, stages along `stage`.
[What to know before reading them](../results/README.md) stands by itself. Beside those below there are

* `NAME_stderr`, the Monte-Carlo standard error: over the seeds, or with one seed from within the run;
* `NAME_model_error`, how far the model is expected to be off: {_escaped(VARIABLES["ttft_s_model_error"].description)};
* `NAME_by_seed` (with `by_seed`), the same of each seed, along `seed`;
* `NAME_elasticity`, `NAME_elasticity_stderr` and `NAME_elasticity_step_error` (with `--sensitivity`), d ln NAME / d ln
  input, along `input`.
"""
    rows = (
        (f"`{name}`", variable.units, variable.long_name, _escaped(variable.description))
        for name, variable in VARIABLES.items()
        if not any(sign in name for sign in ("_stderr", "_by_seed", "_elasticity"))
        and not name.endswith("_model_error")
    )
    return head + "\n" + table(["variable", "unit", "is", "formula"], rows)


def errors() -> str:
    """The expected errors by what a prediction rests on, and the errors of all measurements by slice."""
    expected = loads_yaml((ERRORS / "serving.yaml").read_text(encoding="utf-8"), "serving.yaml")["cases"]
    metrics = ("ttft_mean", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p99")
    rows = (
        [case.told, expected[name].get("runs", ""), *(_band(expected[name].get(metric)) for metric in metrics)]
        for name, case in CASES.items()
        if name in expected
    )
    parts = [
        "# Errors, slice by slice\n\nOf the tables in `calibration/errors`, which `make errors` and `make accuracy` "
        "write from measurements; [what they mean](../docs/accuracy.md).\n\n## Expected errors\n\n68 % of the measured "
        "values lie within prediction x (1 ± error).\n",
        table(["what the prediction rests on", "runs", *metrics], rows),
    ]
    for path in sorted((ERRORS / "slices").glob("*.csv")):
        campaigns: dict[str, list[dict[str, str]]] = {}
        for row in _rows(path):
            campaigns.setdefault(row["campaign"], []).append(row)
        for campaign, of in campaigns.items():
            cells = (
                (
                    row["slice"],
                    row["metric"],
                    row["rows"],
                    row["median_pct"],
                    f"{row['p16_pct']} to {row['p84_pct']}",
                    row["mean_absolute_pct"],
                )
                for row in of
            )
            head = ["slice", "metric", "values", "median %", "16th to 84th percentile %", "mean absolute %"]
            parts += [f"## {campaign[:1].upper()}{campaign[1:]}\n", table(head, cells)]
    inside = (
        [
            CASES[row["case"]].told,
            row["load"],
            row["metric"],
            row["campaign"],
            row["rows"],
            row["inside_pct"],
            row["stated_pct"],
        ]
        for row in _rows(ERRORS / "coverage.csv")
    )
    head = ["what the prediction rests on", "at a time", "metric", "campaign", "values", "inside %", "stated %"]
    parts += ["## Inside the expected errors\n\nOf each value by the rows of the other models.\n", table(head, inside)]
    return "\n".join(parts)


def _rows(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def _band(band: Mapping[str, float] | None) -> str:
    return "" if band is None else f"±\N{NO-BREAK SPACE}{100 * band['error']:.1f}\N{NO-BREAK SPACE}%"


# --- Python


def python() -> str:
    """The public API, which mkdocstrings fills in."""
    parts = ["# Python\n\nTypes of a scenario's keys are in `evaluator.typed`.\n"]
    for module, says in PUBLIC.items():
        parts.append(f"## {module}\n\n{says}\n")
        parts += [f"::: {module}.{name}\n" for name in _names(module)]
        if module == "evaluator":
            parts.append(f"### dataset.evaluator\n\n::: {ACCESSOR}\n")
    return "\n".join(parts)


def _names(module: str) -> list[str]:
    return [name for name in importlib.import_module(module).__all__ if not name.startswith("__")]


def undocumented() -> list[str]:
    """Public names, and public methods of public classes, that have no docstring of their own."""
    silent = []
    for path in [f"{module}.{name}" for module in PUBLIC for name in _names(module)] + [ACCESSOR]:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        if inspect.isclass(value):
            members = [(f"{path}.{key}", member) for key, member in vars(value).items() if not key.startswith("_")]
            # A function in the place of a dataclass's field is the field's default, which the class's docstring tells.
            fields = getattr(value, "__dataclass_fields__", {})
            silent += [
                place for place, member in members if place.rpartition(".")[2] not in fields and _is_silent(member)
            ]
        if inspect.isclass(value) or inspect.isfunction(value):
            silent += [path] if _is_silent(value) else []
    return silent


def _is_silent(value: Any) -> bool:
    if not (inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, property | cached_property)):
        return False
    # A method that stands for one of a base has its docstring; a class has to say what it is itself.
    text = (value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)) or ""
    return not text or text.startswith(
        f"{getattr(value, '__name__', '')}("
    )  # what dataclasses write where there is none


GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/keys.md": keys,
    "reference/variables.md": variables,
    "reference/python.md": python,
    "reference/support.md": support.page,
    "reference/errors.md": errors,
}
"""What makes each of them, by its path on the site."""
