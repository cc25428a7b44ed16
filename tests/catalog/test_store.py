"""Where entries are found, and what is said of those that are not there."""

import os
import subprocess
import sys

import pytest

from evaluator import load_scenario, simulate
from evaluator.catalog import data_folder, load_hardware, load_model, model_to_yaml, names
from evaluator.catalog.fields import forget_changed
from evaluator.catalog.store import find, looked_for_once
from evaluator.catalog.what_if import WhatIf, device
from evaluator.errors import InputError

TINY = """
name: llama-3.1-8b
source: 'mine'
hidden: 8
vocabulary: 8
max_positions: 8
layers: [{count: 1, dense: {intermediate: 8}}]
"""


def test_unknown_names_are_answered_with_close_ones():
    with pytest.raises(
        InputError, match=r"unknown model 'llama-3.1-80b'; did you mean llama-3.1-.*there are: bge-reranker-v2-m3"
    ):
        load_model("llama-3.1-80b")
    with pytest.raises(InputError, match="unknown hardware 'H100'; did you mean h100-"):
        load_hardware("H100")
    with pytest.raises(InputError, match=r"unknown model 'zzzz' \(there are: "):
        load_model("zzzz")
    with pytest.raises(InputError, match=r"model: there is no file 'absent\.yaml'"):
        load_model("absent.yaml")
    with pytest.raises(InputError, match="model: expected a name, got 3"):
        load_model(3)
    with pytest.raises(InputError, match="unknown kind of catalog entry 'model'; did you mean models"):
        names("model")


def test_names_do_not_leave_the_folder():
    with pytest.raises(InputError, match=r"unknown model '\.\./hardware/l4'"):
        load_model("../hardware/l4")


def test_a_folder_of_ones_own_comes_first(tmp_path, monkeypatch):
    own = tmp_path / "own"
    (own / "models" / "llm").mkdir(parents=True)
    (own / "models" / "llm" / "llama-3.1-8b.yaml").write_text(TINY)
    usual = load_model("llama-3.1-8b")
    monkeypatch.setenv("EVALUATOR_PATH", os.pathsep.join([str(tmp_path), str(own)]))
    assert data_folder("models")[0] == (own / "models" / "llm").resolve()
    assert load_model("llama-3.1-8b").source == "mine"
    assert "llama-3.1-70b" in names("models")
    monkeypatch.delenv("EVALUATOR_PATH")
    assert load_model("llama-3.1-8b") == usual


def test_a_folder_that_is_not_there_is_not_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("EVALUATOR_PATH", os.pathsep.join([str(tmp_path), "my-modles"]))
    for use in (lambda: load_model("llama-3.1-8b"), lambda: names("models")):
        with pytest.raises(InputError, match="EVALUATOR_PATH: there is no folder my-modles"):
            use()


def test_the_current_directory_is_searched(tmp_path, monkeypatch):
    (tmp_path / "models" / "llm").mkdir(parents=True)
    model = load_model("qwen3-8b")
    text = model_to_yaml(model).replace("name: qwen3-8b", "name: mine")
    (tmp_path / "models" / "llm" / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert load_model("mine").layers == model.layers
    assert "mine" in names("models")


def test_nothing_here_imports_jax():
    code = "import sys, evaluator.catalog as c; c.load_model('deepseek-v3'); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_links_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llm").mkdir(parents=True)
    (tmp_path / "models" / "llm" / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "models" / "hardware").symlink_to("hardware")
    assert "loop" not in names("models") and "llama-3.1-8b" in names("models")
    assert load_hardware("h100-sxm").name == "h100-sxm"
    with pytest.raises(InputError, match=r"model 'loop': .*loop\.yaml is a link that leads to no file"):
        load_model("loop")


def test_a_file_that_is_edited_between_two_runs_is_read_again(tmp_path):
    text = (data_folder("models")[-1] / "qwen3-8b.yaml").read_text().replace("name: qwen3-8b", "name: mine")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    scenario = {
        "name": "edited", "deployment": {"model": str(path), "hardware": "h100-sxm"},
        "workload": {"arrivals": {"process": "all_at_once"}, "requests": 2, "warmup_requests": 0,
                     "lengths": {"source": "fixed", "prompt_tokens": 100, "output_tokens": 4}},
    }  # fmt: skip
    before = simulate(load_scenario(scenario)).requests["e2e_s"].mean()
    assert simulate(load_scenario(scenario)).requests["e2e_s"].mean() == before
    path.write_text(text.replace("count: 36", "count: 108", 1) + "# another size of file\n")
    assert load_model(str(path)).layers[0].count == 36  # within a run it stays what it was
    assert simulate(load_scenario(scenario)).requests["e2e_s"].mean() > 2 * before


def test_within_a_plan_a_file_is_looked_for_once(tmp_path, monkeypatch):
    (tmp_path / "models/hardware").mkdir(parents=True)
    mine = tmp_path / "models/hardware/mine.yaml"
    mine.write_text("name: mine")
    monkeypatch.setenv("EVALUATOR_PATH", str(tmp_path))
    with looked_for_once():
        assert find("hardware", "mine") == mine
        mine.unlink()
        assert find("hardware", "mine") == mine
        with pytest.raises(InputError, match="unknown hardware 'yours'"):
            find("hardware", "yours")
        (tmp_path / "models/hardware/yours.yaml").write_text("name: yours")
        assert find("hardware", "yours").stem == "yours"  # what was not found is looked for again
    with pytest.raises(InputError, match="unknown hardware 'mine'"):
        find("hardware", "mine")


def test_a_device_like_one_of_a_file_follows_the_file(tmp_path):
    """Between two runs; within one all is of the file as it was."""
    path = tmp_path / "mine.yaml"
    text = find("hardware", "h100-sxm").read_text().replace("name: h100-sxm", "name: mine")
    path.write_text(text)
    described = WhatIf.of({"like": str(path), "memory_bandwidth": 3e12})
    before = device(described).memory_bytes
    assert "memory_bytes: 80GiB" in text
    path.write_text(text.replace("memory_bytes: 80GiB", "memory_bytes: 90GiB"))
    assert device(described).memory_bytes == before
    forget_changed()
    assert device(described).memory_bytes == 90 * 2**30
