"""What the repository shows works: the shipped scenarios, and those that the README and docs/ write out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from evaluator import simulate
from evaluator.cli.app import app
from evaluator.plan import plan
from evaluator.scenario import load_scenario
from evaluator.yaml import loads_yaml

ROOT = Path(__file__).resolve().parents[2]
DATA = ("scenarios", "calibration", "models", "results")
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
PAGES = sorted(path for folder in ("", "docs", *DATA) for path in (ROOT / folder).glob("*.md"))
"""All texts for readers."""


def blocks(name, language):
    return [part.split("```")[0] for part in TEXTS[name].split(f"```{language}\n")[1:]]


STUDIES = {
    "hermes-batching": 288,
    "client-scaling": 45,
    "kv-storage": 128,
    "mist-maths": 411,
    "mist-retrieval": 411,
    "rag-placement": 8,
    "reasoning": 144,
    "vidur-search": 288,
}
"""Of papers, and how many designs each has."""


@pytest.mark.parametrize("name", ["policies", "closed-loop", "speculative", *STUDIES])
def test_every_design_of_a_shipped_scenario_can_run(name):
    """And none of a paper's study is left to the reference."""
    configurations = plan(load_scenario(ROOT / "scenarios" / f"{name}.yaml")).configurations
    assert {configuration.status for configuration in configurations} == {"ok"}
    if name in STUDIES:
        assert len(configurations) == STUDIES[name]
        assert {configuration.simulator for configuration in configurations} == {"iteration"}


def test_a_model_of_32_billion_parameters_leaves_some_designs_no_room_for_the_longest_prompts():
    found = plan(load_scenario(ROOT / "scenarios" / "mist-code.yaml"))
    status = [configuration.status for configuration in found.configurations]
    assert len(status) == 411 and status.count("ok") == 146
    assert all("exceeds the KV cache" in one or "does not fit" in one for one in status if one != "ok")


@pytest.mark.parametrize(("simulator", "router"), [("request", "shared_queue"), ("iteration", "round_robin")])
def test_bestserve_is_for_two_engines(simulator, router):
    found = plan(
        load_scenario(ROOT / "scenarios" / "bestserve.yaml", [f"deployment.router={router}"]), simulator=simulator
    )
    assert len(found.configurations) == 30 and {configuration.status for configuration in found.configurations} == {
        "ok"
    }
    assert {configuration.simulator for configuration in found.configurations} == {simulator}


def test_quickstart_has_no_room_only_where_the_model_is_too_large():
    found = plan(load_scenario(ROOT / "scenarios" / "quickstart.yaml"))
    status = [configuration.status for configuration in found.configurations]
    assert len(status) >= 1000 and status.count("ok") > 0.8 * len(status)
    assert all("does not fit" in one for one in status if one != "ok")


def feasible(tree):
    """The members of a scenario, all of which can run."""
    configurations = plan(load_scenario(tree)).configurations
    assert {configuration.status for configuration in configurations} == {"ok"}
    return configurations


def test_the_scenarios_of_the_readme_can_run():
    (readme,) = map(loads_yaml, blocks("README.md", "yaml"))
    assert len(feasible(readme)) == 40


def test_the_scenarios_of_the_docs_can_run():
    text, forms = map(loads_yaml, blocks("sweeps.md", "yaml"))
    (figures,) = map(loads_yaml, blocks("search.md", "yaml"))
    (auto,) = map(loads_yaml, blocks("run-length.md", "yaml"))
    feasible(text)
    assert load_scenario(text | {"workload": text["workload"] | auto["workload"]}).workload.requests == 1000
    deployment = text["deployment"] | figures["deployment"]
    assert len(feasible(text | {"deployment": deployment, "sweep": figures["sweep"]})) == 75
    where = {"deployment.tensor_parallel": [4, 8], "deployment.replicas": [1, 2], "where": forms["sweep"]["where"]}
    assert len(plan(load_scenario(text | {"sweep": where})).configurations) == 3


def test_the_deployments_of_the_docs_can_run(as_users_run, tmp_path, monkeypatch):
    text, *_ = map(loads_yaml, blocks("sweeps.md", "yaml"))
    host, pools, beside, drafts = map(loads_yaml, blocks("deployments.md", "yaml"))
    lora, affinity = map(loads_yaml, blocks("lora.md", "yaml"))
    offloaded, apart, users, agents, tasks, tiers, late = map(loads_yaml, blocks("caches.md", "yaml"))
    assert len(feasible({key: text[key] for key in ("name", "workload", "slo")} | pools)) == 4
    held = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
    beside = {"workload": text["workload"], "deployment": held | beside["deployment"], "sweep": beside["sweep"]}
    assert len(feasible(beside)) == 4
    axes = {key: axis for key, axis in text["sweep"].items() if key != "deployment.batching"}  # 512 tokens are too few
    feasible(text | {"deployment": text["deployment"] | drafts["deployment"], "sweep": axes})
    assert (
        len(feasible({"workload": text["workload"] | lora["workload"], "deployment": held | lora["deployment"]})) == 1
    )
    assert len(feasible({"workload": text["workload"]} | host)) == 1
    assert len(feasible(affinity)) == 5 and len(feasible(late)) > 1
    more = [users | {"deployment": users["deployment"] | each["deployment"]} for each in (offloaded, tiers)]
    for each in (users, *more, apart, agents):
        assert len(feasible(each)) == 1
    (calls,) = blocks("caches.md", "json")
    (tmp_path / "tasks.jsonl").write_text(calls, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = simulate(tasks)
    assert found.requests["cached_tokens"].tolist() == [0, 1024, 1024, 1200]
    assert found.summary["session_s_mean"].item() == pytest.approx(7.98, abs=0.05)


def test_the_traffic_of_the_docs_can_run(capsys):
    text, *_ = map(loads_yaml, blocks("sweeps.md", "yaml"))
    for asked in map(loads_yaml, [*blocks("traffic.md", "yaml"), *blocks("fleets.md", "yaml")]):
        workload, deployment = (text[part] | asked.get(part, {}) for part in ("workload", "deployment"))
        deployment |= {"hardware": "h200-sxm", "tensor_parallel": 4}
        deployment["batching"] = {"max_num_seqs": 64} | asked.get("deployment", {}).get("batching", {})
        assert len(feasible({"name": "traffic", "workload": workload, "deployment": deployment})) == 1
    (program,) = blocks("traffic.md", "python")
    exec(program, {})
    seconds, met = capsys.readouterr().out.split(maxsplit=1)
    assert 0 < float(seconds) < 1 and met.split() == ["[[", "True", "False]]"]


def test_the_day_of_chat_and_agents_of_the_docs_can_run(tmp_path, monkeypatch):
    """Of a hundredth of its conversations and tasks."""
    (write,) = [block for block in blocks("questions.md", "python") if "day.jsonl" in block]
    (asked,) = [block for block in blocks("questions.md", "yaml") if "day.jsonl" in block]
    monkeypatch.chdir(tmp_path)
    exec(write.replace("starts(3000)", "starts(30)").replace("starts(300)", "starts(3)"), {})
    assert len(feasible(loads_yaml(asked))) == 7


def test_the_pipelines_of_the_docs_can_run():
    pipeline, between, images, retrieval = map(loads_yaml, blocks("pipelines.md", "yaml"))
    assert len(feasible({"workload": retrieval["workload"]} | between)) == 1
    assert len(feasible(images)) == 1
    configurations = feasible(pipeline)
    assert len(configurations) == 6 and {configuration.simulator for configuration in configurations} == {"iteration"}
    found = plan(load_scenario(retrieval))
    assert [configuration.status[:12] for configuration in found.configurations] == ["ok", "ok"]


ONE_BY_ONE = "import runpy, sys; [(runpy.run_path(path, run_name='__main__'), print('end')) for path in sys.argv[1:]]"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The numbers that programs of the docs print, a stage and parts; one process runs them all and imports once."""
    folder = tmp_path_factory.mktemp("programs")
    (stage,) = [block for block in blocks("pipelines.md", "python") if "register(" in block]
    codes = [stage, *blocks("parts.md", "python")]
    paths = [folder / f"part{number}.py" for number in range(len(codes))]
    for path, code in zip(paths, codes, strict=True):
        path.write_text(code, encoding="utf-8")
    command = [sys.executable, "-c", ONE_BY_ONE, *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return [[float(word) for word in re.findall(r"[^\s\[\]]+", of_one)] for of_one in told.split("end\n")[:-1]]


def test_the_stage_of_the_docs_runs(printed):
    one, two = printed[0]
    assert one == pytest.approx(5 * 0.08**2 / (2 * (1 - 5 * 0.08)), rel=0.1)  # M/D/1
    assert 0 < two < one / 4


def test_the_parts_of_the_docs_run(printed):
    policy, router, units, hooks = printed[1:]
    continuous, unbounded = policy
    assert 0 < unbounded < continuous  # iterations of all prompts that wait are fewer
    in_turn, by_length = router
    assert 0 < in_turn != by_length > 0
    blocks_of_16, powers = units
    assert powers > 2 * blocks_of_16 > 0  # 4,096 tokens where 2,099 are needed
    vectorised, reference = hooks
    assert vectorised == pytest.approx(reference, rel=1e-9) and vectorised > blocks_of_16


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_no_gaps(name):
    words = TEXTS[name].split()
    assert not [word for word in words if word.isupper() and "_" in word and word.endswith(("TABLE", "TIME"))]


def commands(text):
    """Every command line of ours in a text's blocks for shells, without what stands before and behind it."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "evaluator" in words:
                words = words[words.index("evaluator") + 1 :]
                ends = [place for place, word in enumerate(words) if word in ("|", ">")]
                yield words[: ends[0]] if ends else words


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_commands_of_the_pages_parse(path):
    for words in commands(path.read_text(encoding="utf-8")):
        command, name, rest = typer.main.get_command(app), "evaluator", words
        if words == ["--help"]:
            continue
        while hasattr(command, "commands"):
            name, *rest = rest
            command = command.commands[name]
        command.make_context(name, rest)  # a usage error names the option


def test_commands_are_found():
    assert len([words for text in TEXTS.values() for words in commands(text)]) > 40
    assert list(commands("```sh\nA=1 evaluator sweep a.yaml \\\n  --json | jq .  # x\n```")) == [
        ["sweep", "a.yaml", "--json"]
    ]


def test_errors_that_readme_says_are_those_of_the_page():
    """It has the most important rows of docs/accuracy.md, in fewer words."""
    short = TEXTS["README.md"].partition("## How far to trust it")[2]
    rows = [line.split("|")[2:] for line in short.splitlines() if re.match(r"\| .*%", line)]
    assert len(rows) == 4
    for row in rows:
        assert "|".join(row) in TEXTS["accuracy.md"], row


def anchors(path):
    """What headings of a file are called in links: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target
