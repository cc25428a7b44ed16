"""What SGLang's scheduler imports and does not need: packages and parts of its own become empty modules.

Import this before ``sglang``. A name of an empty module is a class that may be called, subclassed or used as a
decorator and does nothing; the scheduler, its batches, its prefix cache and its allocators are SGLang's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

_OWN = tuple(
    f"sglang.{name}"
    for name in (
        "kernels", "srt.configs", "srt.constrained", "srt.entrypoints", "srt.function_call", "srt.layers", "srt.lora",
        "srt.model_loader", "srt.models", "srt.multimodal", "srt.parser", "srt.sampling.custom_logit_processor",
        "srt.utils.hf_transformers_patches",
    )
)  # fmt: skip
"""Models, kernels and servers: nothing of them decides who takes part in a batch."""

_INSTALLED = {*importlib.metadata.packages_distributions(), *sys.stdlib_module_names, "sglang"}


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __setitem__(cls, item: Any, value: Any) -> None:
        pass

    def __contains__(cls, item: Any) -> bool:
        return False

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class Nothing(metaclass=_Kind):
    """Anything that is asked of an empty module."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __call__(self, *given: Any, **options: Any) -> Any:
        return given[0] if len(given) == 1 and not options and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __getitem__(self, item: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0"
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what is missing, where SGLang imports it; other packages are told that it is not there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        needless = any(name == own or name.startswith(f"{own}.") for own in _OWN)
        if not needless and (name.partition(".")[0] in _INSTALLED or not _imported_by("sglang")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _imported_by(package: str) -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(package)


def _uncompiled(function: Any = None, **_: Any) -> Any:
    return function or _uncompiled


sys.meta_path.insert(0, _Finder())
torch.compile = _uncompiled
msgspec.msgpack.Decoder = Nothing  # of messages between processes
