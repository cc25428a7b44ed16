import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.device import compilation_cache, configure

ROOT = Path(__file__).resolve().parents[1]


def test_the_cache_is_made_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("EVALUATOR_CACHE", str(tmp_path / "mine"))
    folder = compilation_cache()
    assert folder.is_dir() and folder.is_relative_to(tmp_path / "mine" / "jax")


def test_an_empty_name_switches_the_cache_off(monkeypatch):
    monkeypatch.setenv("EVALUATOR_CACHE", "")
    assert compilation_cache() is None


def test_the_default_is_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("EVALUATOR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation_cache().is_relative_to(tmp_path / "evaluator" / "jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert compilation_cache().is_relative_to(tmp_path / "home" / ".cache" / "evaluator")


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVALUATOR_CACHE", str(tmp_path / name))
    assert compilation_cache() is None


def test_configure_switches_on_float64_and_the_cache_and_may_be_repeated():
    import jax
    import jax.numpy as jnp

    configure()
    configure()
    assert jnp.ones(1).dtype == "float64"
    assert jax.config.jax_compilation_cache_dir == str(compilation_cache())


@pytest.fixture
def anew(monkeypatch):
    """``configure`` as if it had not been called, with flags of the test's choice, on a JAX that is in use."""
    import jax.numpy as jnp

    jnp.ones(1).block_until_ready()
    configure.cache_clear()
    yield lambda flags: monkeypatch.setenv("XLA_FLAGS", flags)
    configure.cache_clear()


def test_loops_are_compiled_whole_and_other_flags_kept(anew):
    anew("--xla_dump_to=somewhere")
    with pytest.warns(
        RuntimeWarning, match="JAX was in use before evaluator: simulations will be slow. Set XLA_FLAGS="
    ):
        configure()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[0] == "--xla_dump_to=somewhere"
    assert len(flags) == 2 and "xla_cpu_small_while_loop_byte_threshold" in flags[1]


@pytest.mark.filterwarnings("ignore:JAX was in use")
def test_options_of_llvm_are_given_to_releases_that_know_them_alone(anew, monkeypatch):
    for release, count in (("0.10.2", 2), ("0.7.1", 0)):
        monkeypatch.setattr("jaxlib.version.__version__", release)
        configure.cache_clear()
        anew("")
        configure()
        assert os.environ["XLA_FLAGS"].count("-instcombine-") == count


def test_a_threshold_of_the_user_is_left_as_it_is(anew):
    chosen = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=7"
    anew(chosen)
    configure()
    assert os.environ["XLA_FLAGS"] == chosen


def test_a_program_that_configures_first_is_not_warned():
    program = "from evaluator.device import configure; configure(); import jax; assert jax.numpy.ones(1).dtype == float"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's malloc that is told")
@pytest.mark.parametrize(
    ("variable", "kept"),
    [
        ({}, True),
        ({"MALLOC_TOP_PAD_": "0"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}, False),
        ({"MALLOC_ARENA_MAX": "2"}, True),
    ],
)
def test_pages_of_arrays_that_are_free_are_kept_unless_the_user_told_malloc_otherwise(variable, kept):
    program = """
import resource
import numpy as np
from evaluator.device import configure

configure()
np.ones(400_000)  # 3.2 MB, 781 pages, which are free when the line ends
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(400_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment | variable, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) < 100) == kept
