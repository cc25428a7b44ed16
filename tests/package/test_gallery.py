"""The gallery is whole: every scenario has its entry, pictures are there and can be made, commands are right."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from evaluator.cli.app import app
from evaluator.cli.options import read_scenario
from tests.benchmarks.pictures import LARGEST, PICTURES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scenarios"
GALLERY = (FOLDER / "README.md").read_text(encoding="utf-8")
ENTRIES = [line for line in GALLERY.splitlines() if "**[" in line]
COMMANDS = re.findall(r"`(evaluator [^`]+)`", "\n".join(ENTRIES))
SCENARIOS = sorted(path for pattern in ("*.yaml", "*.ipynb") for path in FOLDER.glob(pattern))


def test_every_scenario_has_one_entry_with_a_question_a_command_and_what_it_shows():
    for path in SCENARIOS:
        (entry,) = [line for line in ENTRIES if f"**[{path.stem}](" in line and f"]({path.name})" in line]
        _, picture, text, _ = entry.split("|")
        question, *commands, shows = text.strip().split("<br>")
        assert "?" in question and shows.endswith("."), path.name
        assert commands and all(command.startswith("`") and path.stem in command for command in commands), path.name
        assert not picture.strip() or re.search(r"\]\(([^)]+)\)", picture).group(1) in PICTURES, path.name


def test_every_entry_is_of_a_scenario():
    named = {re.search(r"\*\*\[([^]]+)\]", line).group(1) for line in ENTRIES}
    assert named == {path.stem for path in SCENARIOS}


def test_pictures_are_there_made_by_the_list_and_small():
    assert {path.name for path in FOLDER.glob("*.png")} == set(PICTURES)
    for name in PICTURES:
        assert f"({name})" in GALLERY, name
        assert (FOLDER / name).stat().st_size <= LARGEST, f"{name}: make pictures NAMES={name} makes it small"


def test_links_of_the_gallery_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)|src=\"([^\"]+)\"", GALLERY):
        assert (FOLDER / "".join(target)).exists(), target


def test_a_study_that_has_a_text_is_linked_by_it():
    for path in FOLDER.glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in GALLERY, path.name


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_gallery_parses_and_its_scenario_loads(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,5\n")
    (tmp_path / "requests.csv").write_text("")
    name, *arguments = shlex.split(line)[1:]
    context = typer.main.get_command(app).commands[name].make_context(name, arguments)
    assert read_scenario(context.params["scenario"], context.params["changes"]).name == context.params["scenario"]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_a_command_draws_names_its_scenario(name, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr("subprocess.run", lambda command, **_: ran.append(command[3:]))
    if "line" in vars(PICTURES[name]):
        PICTURES[name](tmp_path / name)
        command, *arguments = ran[0]
        context = typer.main.get_command(app).commands[command].make_context(command, arguments)
        assert read_scenario(context.params["scenario"], context.params["changes"]).sweep
        assert name.startswith(context.params["plot"].stem)
