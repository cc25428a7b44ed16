"""Strict YAML: the 1.2 core schema on PyYAML, without duplicate keys, with errors that name the file and the line.

PyYAML implements YAML 1.1, where ``3.35e12`` is a string and ``no`` is False; in the 1.2 core schema, which is what
people expect of a configuration file, the first is a number and the second a string (only true and false are booleans).
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from evaluator.errors import InputError

# What a YAML text becomes: plain dict, list, str, int, float, bool and None.
Document = Any

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it

LONGEST_NUMBER = 100
"""Characters of an integer; a longer one is read as infinity."""
DEEPEST = 64
"""Levels of sections and lists."""
TOO_DEEP = f"sections and lists are nested more than {DEEPEST} levels deep"
MOST_VALUES = 2_000_000
"""Values of a text, those that aliases (``*name``) repeat included."""

# YAML 1.2.2, section 10.3.2: tag, what a plain scalar looks like, its possible first characters.
_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        tuple("-+.0123456789"),
    ),
)


class _CoreLoader(_SafeLoader):
    """Resolves and builds the core schema only: no timestamps, sets, merge keys, sexagesimals or Python objects."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}


def _fail(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _scalar(loader: Any, node: yaml.Node) -> str:
    return str(loader.construct_scalar(node))


def _int(text: str) -> int | float:
    if len(text) > LONGEST_NUMBER:  # no key takes it, and messages could not write it
        return math.inf
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(text: str) -> float:
    special = text.lstrip("-+").lower()
    if special in (".inf", ".nan"):  # left to the readers of the keys, whose messages name the key
        return float(text.replace(".", "", 1))
    return float(text)


def _build_int(loader: Any, node: yaml.Node) -> int | float:
    text = _scalar(loader, node)
    try:
        return _int(text)
    except ValueError:
        raise _fail(node, f"{reprlib.repr(text)} is not an integer") from None


def _build_float(loader: Any, node: yaml.Node) -> float:
    text = _scalar(loader, node)
    try:
        return _float(text)
    except ValueError:
        raise _fail(node, f"{reprlib.repr(text)} is not a number") from None


def _build_bool(loader: Any, node: yaml.Node) -> bool:
    text = _scalar(loader, node).lower()
    if text not in ("true", "false"):
        raise _fail(node, f"{text!r} is not true or false")
    return text == "true"


def _build_sequence(loader: Any, node: yaml.Node) -> list[Any]:
    return list(loader.construct_sequence(node, deep=True))


def _build_mapping(loader: Any, node: yaml.Node) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise _fail(node, "this is not a mapping")
    mapping: dict[Any, Any] = {}
    lines: dict[Any, int] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        # Lists and mappings as keys, which YAML allows and no scenario means.
        if not isinstance(key, Hashable):
            raise _fail(key_node, "a key must be a name or a number")
        if key in mapping:
            raise _fail(key_node, f"the key {key!r} is there twice (first on line {lines[key]})")
        lines[key] = key_node.start_mark.line + 1
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _build_unknown(loader: Any, node: yaml.Node) -> None:
    raise _fail(node, f"the tag {node.tag!r} is not supported (plain YAML only)")


class _CoreDumper(yaml.SafeDumper):
    """Quotes the strings that either YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# The loader and the dumper resolve alike, so that what is written is read back the same.
for _name, _pattern, _first in _CORE_SCHEMA:
    _CoreDumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), list(_first))
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), list(_first))
for _name, _build in {
    "null": lambda loader, node: None,
    "bool": _build_bool,
    "int": _build_int,
    "float": _build_float,
    "str": _scalar,
    "seq": _build_sequence,
    "map": _build_mapping,
}.items():
    _CoreLoader.add_constructor(f"tag:yaml.org,2002:{_name}", _build)
# None is the constructor of all tags without one: nothing of Python is built from a file.
_CoreLoader.add_constructor(None, _build_unknown)


def _check_depth(text: str) -> None:
    """Refuses what is nested so deeply that libyaml, which recurses in C, would overflow the stack of the process."""
    # libyaml counts no levels before the release that PyYAML 6.0.4 brings, and then allows more; short texts cannot be
    # deep.
    if len(text) < 5000:  # a level takes a character at least; some thousand levels are harmless
        return
    depth = 0
    for event in yaml.parse(text, Loader=_CoreLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _fail(event, TOO_DEEP)


def _measure(node: yaml.Node, measured: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """Values in and below a node, and levels; aliases count as often as they stand there, since readers follow them.

    Errors: ConstructorError beyond ``MOST_VALUES`` and ``DEEPEST``, and for a node that holds itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1, 0
    if node not in measured:
        # A node that is met again while it is open holds itself.
        measured[node] = 0, DEEPEST + 1  # while it is open: what leads back to it is endless
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(item,) for item in node.value]
        below = [_measure(part, measured) for pair in pairs for part in pair]
        measured[node] = 1 + sum(values for values, _ in below), 1 + max((levels for _, levels in below), default=0)
    values, levels = measured[node]
    if levels > DEEPEST:
        raise _fail(node, TOO_DEEP)
    if values > MOST_VALUES:
        raise _fail(node, f"more than {MOST_VALUES:,} values, those repeated by aliases included")
    return values, levels


def loads_yaml(text: str, name: str = "<text>") -> Document:
    """The value of a YAML text (None where it is empty). ``name`` is the file's name in messages.

    Errors: InputError naming ``name`` and the line for a syntax error, a duplicate key, an unknown tag or a second
    document. NaN and infinity are returned as floats; the readers of keys refuse them by key.
    """
    # Empty, so that ``finally`` has a loader to dispose of if the text is refused before.
    loader = _CoreLoader("")
    try:
        _check_depth(text)
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise InputError(f"{name}: nested too deeply to be read") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        # Newer releases of libyaml stop by themselves, a few brackets ahead of the events that ``_check_depth`` counts.
        if "nesting depth" in problem:
            problem = TOO_DEEP
        raise InputError(f"{name}{line}: {problem}") from None
    except yaml.YAMLError as error:  # characters that YAML forbids carry no mark
        raise InputError(f"{name}: not readable as YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def plain_scalar(text: str) -> Any:
    """What a text means as a plain scalar of the core schema: null, a boolean, a number, else the text itself."""
    readers = {"null": lambda _: None, "bool": lambda text: text.lower() == "true", "int": _int, "float": _float}
    # In the order of the schema: an integer is a float, too.
    for name, pattern, _ in _CORE_SCHEMA:
        if re.fullmatch(pattern, text):
            return readers[name](text)
    return text


def dumps_yaml(value: Document) -> str:
    """The YAML text of a plain value, keys in their order; ``loads_yaml`` gives the same value back."""
    return str(yaml.dump(value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=120))


def load_yaml(path: str | Path) -> Document:
    """The value of a YAML file, UTF-8. Errors: InputError where it cannot be read, and those of ``loads_yaml``."""
    return loads_yaml(read_text(path), name=str(path))


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file without an editor's byte order mark; InputError naming it where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise InputError(f"{path}: cannot be read ({error})") from None
