"""What JAX must be told before the first computation: float64 clocks, loops compiled whole, a compilation cache."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any

# XLA's CPU backend runs a loop's operations one by one, unless the loop's arrays are smaller than this many bytes: then
# it compiles the loop, inner loops included, into one function. The engine's event loop is 20 times faster that way.
WHOLE_LOOPS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000000000000"
FEW_LOOKS = ",-instcombine-max-copied-from-constant-users=0,-instcombine-max-allocsite-removable-users=0"
"""Options of LLVM's own, behind those of ``WHOLE_LOOPS``. A loop that is compiled whole has a table of pointers on the
stack, with thousands of uses. Whenever LLVM simplified one of them it looked through all others, for whether the table
is a copy of a constant or can go, which it never is: with these two it does not. The programs with prefix caches, which
are the largest, compile in seven tenths of the time to the same results, and small ones as before."""
KNOWS_THEM = ("0.10.2",)
"""Releases of jaxlib whose LLVM was seen to know these options (0.7.1 knows one). Where it does not, it ends the
process."""

MOST_PROGRAMS = 16
"""Compiled programs that a process keeps, of all kinds together: more than a sweep has as a rule, and a bound for a
Python session of many sweeps. One of ``fcfs_reserved`` takes some 40 MB, one of ``joint`` 100. One that is needed again
is read from the compilation cache, in some 0.2 s."""

KEPT_BYTES = {-3: 32 << 20, -1: 64 << 20}
"""Of glibc's ``mallopt``, by the numbers of M_MMAP_THRESHOLD and M_TRIM_THRESHOLD: blocks of up to 32 MB, the most that
it takes, lie in the heap, and up to 64 MB at the end of a heap stay there when they are free. By default what a chunk
leaves goes back to the system, which makes every page anew for the next chunk: a tenth of the time of a
sweep that a process repeats, some 5 % of a single command."""
KEEPING = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
"""Variables by which a user tells glibc what to keep; ``GLIBC_TUNABLES`` is another way to say the same."""

LEVEL = "xla_backend_optimization_level"
OF_LOOPS: dict[str, bool | int | str] = {
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion,simplify-while-loops,hlo-verifier",
    "xla_cpu_enable_fast_min_max": True,
}
"""Options of XLA for loops. Its passes over them move what does not change in front of them, and hand it over to the
loops inside: a pointer for each number and loop, written on every trip. Without them a general program takes a tenth
less time, and compiles in less. The verifier checks the module between any two passes. A minimum is one instruction
and not five where it need not hand on NaN, which no time or count is."""
QUICKLY: dict[str, bool | int | str] = {
    **OF_LOOPS,
    LEVEL: 0,
    # Notes on which buffers are apart help LLVM's optimisations alone, and cost most where a program has many buffers.
    "xla_llvm_enable_alias_scope_metadata": False,
    "xla_llvm_enable_noalias_metadata": False,
    "xla_llvm_enable_invariant_load_metadata": False,
}
"""Options of XLA with which the general programs compile in half the time or less, and run at half their speed or
less (``plan.simulators.WORTH_OPTIMISING``). What they compute differs by rounding at most: without optimisations an
addition may take a product that is rounded, where it takes it unrounded with them."""

_counted: list[Any] = []  # the jitted functions whose programs are counted


@cache
def configure() -> None:
    """Switch on float64, whole loops and the compilation cache. Idempotent; to be called before the first JAX array.

    Every clock is float64: float32 loses 1e-3 of a p99 over 100,000 requests. A cache that the user gave to JAX
    (``JAX_COMPILATION_CACHE_DIR``) is left as it is; where no folder can be written, programs are compiled anew.
    glibc keeps freed memory of the whole process (``KEPT_BYTES``), also of what else runs in it, unless variables of
    the user tell it what to keep.
    """
    _keep_pages()
    # Before ``import jax``: XLA reads its flags when the first backend starts.
    _compile_loops_whole()
    import jax

    jax.config.update("jax_enable_x64", True)
    # A loop's operations come through some thirty of our functions. To write all of them down beside each operation
    # takes a quarter of the time in which a program is lowered; the line that wrote it is what a message of XLA needs.
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    folder = compilation_cache()
    if folder is not None and jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Programs that compile faster are not worth a file: reading it back takes as long.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def accelerated() -> bool:
    """Whether JAX computes on something else than processors, where all lanes go in step (``lane.over_lanes``)."""
    configure()  # before there is a backend
    import jax

    return jax.default_backend() != "cpu"


def bounded(jitted: Any) -> Any:
    """A jitted function; all that were given forget their programs before they have more than ``MOST_PROGRAMS``.

    JAX keeps whatever it has compiled. It forgets all of a function's programs or none; forgetting those that run is
    no harm, for their calls hold them.
    """
    # By ``is``, since ``in`` would compare jitted functions by ==.
    if not any(function is jitted for function in _counted):
        _counted.append(jitted)
    # _cache_size is no public name of JAX; ``tests`` notice when it goes.
    if sum(function._cache_size() for function in _counted) >= MOST_PROGRAMS:
        for function in _counted:
            function.clear_cache()
        give_back()
    return jitted


def compiled(jitted: Any, options: dict[str, bool | int | str], *static: str) -> Any:
    """A jitted function with these static arguments by name, compiled with options of XLA.

    The function itself where XLA_FLAGS say how far programs are optimised: whoever sets a level there wants it for all
    programs.
    """
    return jitted if LEVEL in os.environ.get("XLA_FLAGS", "") else _with_options(jitted, tuple(options.items()), static)


@cache
def _with_options(jitted: Any, options: tuple[tuple[str, Any], ...], static: tuple[str, ...]) -> Any:
    import jax

    return jax.jit(jitted.__wrapped__, static_argnames=static, compiler_options=dict(options))


def give_back() -> None:
    """Free memory back to the system: glibc keeps most of what programs leave (0.9 of 1.4 GB), in pieces too small for
    the next ones, which then come on top. Elsewhere nothing is done."""
    trim = _of_malloc("malloc_trim")
    if trim is not None:
        trim(0)


def _keep_pages() -> None:
    """Let malloc keep ``KEPT_BYTES``, unless the user told it what to keep."""
    mallopt = _of_malloc("mallopt")
    said = any(name in os.environ for name in KEEPING) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if mallopt is not None and not said:
        for parameter, size in KEPT_BYTES.items():
            mallopt(parameter, size)


def _of_malloc(name: str) -> Any:
    """A function of glibc; None elsewhere: musl has neither of those that are asked for."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def _compile_loops_whole() -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_small_while_loop_byte_threshold" in flags:
        return
    from jaxlib.version import __version__  # which leaves XLA alone

    options = FEW_LOOKS if __version__ in KNOWS_THEM else ""
    os.environ["XLA_FLAGS"] = f"{flags} {WHOLE_LOOPS}{options}".strip()
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():  # XLA has read its flags already
        warnings.warn(
            f"JAX was in use before evaluator: simulations will be slow. Set XLA_FLAGS='{WHOLE_LOOPS}', "
            "or call evaluator.device.configure() before the first JAX computation.",
            RuntimeWarning,
            stacklevel=3,
        )


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
    # A cache that can be listed and not written would fail at the first program.
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
        # Without it all machines of an architecture share a folder, which is right for those alike.
        features = platform.processor()
    return f"{platform.machine() or 'unknown'}-{zlib.crc32(features.encode()):08x}"
