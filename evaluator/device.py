"""What JAX must be told before the first computation: float64 clocks and a compilation cache that outlives the run."""

from __future__ import annotations

import os
import platform
import zlib
from functools import cache
from pathlib import Path


@cache
def configure() -> None:
    """Switch on float64 and the persistent compilation cache. Idempotent; to be called before the first JAX array.

    Every clock is float64: float32 loses 1e-3 of a p99 over 100,000 requests. A cache that the user gave to JAX
    (``JAX_COMPILATION_CACHE_DIR``) is left as it is; where no folder can be written, programs are compiled anew.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    folder = compilation_cache()
    if folder is not None and jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def compilation_cache() -> Path | None:
    """The folder of compiled programs, made if need be; None where it cannot be written or is switched off.

    It lies in ``$EVALUATOR_CACHE`` (empty: no cache), else in ``$XDG_CACHE_HOME/evaluator``, else in
    ``~/.cache/evaluator``, with one folder per kind of machine: compiled programs hold the instructions of a processor,
    and home directories are shared between machines.
    """
    root = _root()
    if root is None:
        return None
    folder = root / "jax" / _machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _root() -> Path | None:
    chosen = os.environ.get("EVALUATOR_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base) / "evaluator" if base else Path.home() / ".cache" / "evaluator"
    except RuntimeError:  # no home directory
        return None


def _machine() -> str:
    """Architecture and a checksum of the processor's instruction sets (Linux; elsewhere of its name)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        features = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return f"{platform.machine() or 'unknown'}-{zlib.crc32(features.encode()):08x}"
