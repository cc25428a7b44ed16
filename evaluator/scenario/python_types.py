"""The scenario's keys as Python types, for editors and type checkers: made from the schema that files are checked by.

``evaluator.typed`` makes them at run time. ``evaluator/typed.pyi``, which editors and checkers read, is what this
module writes: into every wheel and every installation for development (``hatch_build.py``), and by ``make typed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from textwrap import wrap
from typing import Any

from evaluator.scenario.schema import scenario_schema

_HEAD = '''"""The scenario file as Python types: dictionaries that editors complete and type checkers check.

``evaluator.sweep(Scenario(workload=Workload(...), deployment=Deployment(...)))`` takes what YAML would hold. At run
time all of them are plain dictionaries, and what the loader refuses of a file it refuses of them. Quantities are SI
numbers or texts with a unit (``80GB``, ``50ms``).

Written by ``evaluator.scenario.python_types`` from the keys of the records (``make typed``): change those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict
'''
_WIDTH = 116
_SWEEP = "Mapping[str, Any]"
_MOST_WORDS = 9  # of a choice, beyond which it has a name of its own: those of the catalog
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def python_types() -> str:
    """The text of the module, to be formatted as the rest of the package is."""
    made: dict[str, str] = {}
    schema = scenario_schema()
    sections = {name: part for name, part in schema["properties"].items() if name != "sweep"}
    # The keys of axes are whole paths, of which a class can have no fields.
    whole = {**schema, "properties": {**sections, "sweep": {**schema["properties"]["sweep"], "opaque": True}}}
    _class("Scenario", whole, made)
    return "\n\n".join([_HEAD, *made.values()])


def _annotation(schema: Mapping[str, Any], name: str, made: dict[str, str]) -> str:
    """The type of a value; classes that it needs are added to ``made``, and called after the key, ``name``."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(_unique(_annotation(choice, _variant(choice, name), made) for choice in choices))
    if schema.get("opaque"):
        return _SWEEP
    if "const" in schema:
        return f"Literal[{_quoted(schema['const'])}]"
    if "enum" in schema:
        words = f"Literal[{', '.join(map(_quoted, schema['enum']))}]"
        return words if len(schema["enum"]) <= _MOST_WORDS else _alias(f"{name}Name", words, made)
    kind = schema.get("type")
    if kind == "array":
        return f"Sequence[{_annotation(schema.get('items', {}), name, made)}]"
    if kind == "object":
        return _object(schema, name, made)
    return _PLAIN.get(str(kind), "Any")


def _alias(name: str, words: str, made: dict[str, str]) -> str:
    """The name of a choice of very many words, the same for all keys that have it."""
    # By its words and not by its name: `model` of a draft and of a pool are one list of the catalog.
    for alias, text in made.items():
        if text == f"{alias}: TypeAlias = {words}\n":
            return alias
    made[name] = f"{name}: TypeAlias = {words}\n"
    return name


def _object(schema: Mapping[str, Any], name: str, made: dict[str, str]) -> str:
    more = [schema["additionalProperties"]] if isinstance(schema.get("additionalProperties"), Mapping) else []
    more += list(schema.get("patternProperties", {}).values())  # p90 and the like: names that are no words of Python's
    if more:
        values = _unique(_annotation(below, name.removesuffix("s"), made) for below in more)
        return f"Mapping[str, {' | '.join(values)}]"
    if not schema.get("properties"):
        return "Mapping[str, Any]"
    return _class(name, schema, made)


def _class(name: str, schema: Mapping[str, Any], made: dict[str, str]) -> str:
    lines = [f"class {name}(TypedDict, total=False):", *_doc(schema.get("description", "") or _words(name), "    ")]
    for key, value in schema["properties"].items():
        if iskeyword(key):  # deployment.from, of which a class body can have no field
            continue
        hint = _annotation(_without_null(value), _named(key), made)
        lines += [f"    {key}: {hint}", *_doc(value.get("description", ""), "    ")]
    text = "\n".join(lines) + "\n"
    # Two sections of one name with different keys: the second is called ``...Of``, and again if need be.
    if made.setdefault(name, text) == text:
        return name
    return _class(f"{name}Of", schema, made)


def _without_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A key that is left out says what null would: the hint is easier to read without it."""
    for form in ("anyOf", "oneOf"):
        if form in schema:
            return {**schema, form: [choice for choice in schema[form] if choice.get("type") != "null"]}
    return schema


def _variant(schema: Mapping[str, Any], name: str) -> str:
    """Objects of several kinds are called after what tells them apart."""
    for key, value in schema.get("properties", {}).items():
        # The key that tells kinds apart (`process: poisson`) has one constant in each: PoissonArrivals.
        if "const" in value:
            return f"{_named(str(value['const']))}{name}"
        if key in schema.get("required", ()) and len(schema["properties"]) == 1:
            return f"{_named(key)}{name}"
    return name


def _doc(text: str, indent: str) -> list[str]:
    if not text:
        return []
    one_line = f'{indent}"""{text}"""'
    if len(one_line) <= _WIDTH + 4:
        return [one_line]
    first, *others = wrap(text, _WIDTH - len(indent))
    return [f'{indent}"""{first}', *(f"{indent}{line}" for line in others), f'{indent}"""']


def _unique(hints: Any) -> list[str]:
    parts = [part for hint in hints for part in _split(hint)]
    members = dict.fromkeys(parts)
    if "float" in members:  # which takes integers, too
        members.pop("int", None)
    # None last, as it is written by hand.
    return sorted(members, key=lambda member: member == "None")


def _split(hint: str) -> list[str]:
    """The members of a union; what stands in brackets is one of them."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(hint):
        depth += (letter == "[") - (letter == "]")
        if letter == "|" and depth == 0:
            parts.append(hint[start:index].strip())
            start = index + 1
    return [*parts, hint[start:].strip()]


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _named(key: str) -> str:
    return "".join(part.capitalize() for part in key.replace("-", "_").split("_"))


def _words(name: str) -> str:
    return f"{''.join(f' {letter.lower()}' if letter.isupper() else letter for letter in name).strip().capitalize()}."


if __name__ == "__main__":
    print(python_types(), end="")
