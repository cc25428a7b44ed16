from pathlib import Path

import pytest

from evaluator.device import compilation_cache


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

    from evaluator.device import configure

    configure()
    configure()
    assert jnp.ones(1).dtype == "float64"
    assert jax.config.jax_compilation_cache_dir == str(compilation_cache())
