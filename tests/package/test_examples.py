"""What the repository shows works: the shipped scenarios and the README's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.plan import plan
from evaluator.scenario import load_scenario
from evaluator.yaml import loads_yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return [part.split("```")[0] for part in README.split(f"```{language}\n")[1:]]


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
    found = plan(load_scenario(ROOT / "scenarios" / f"{name}.yaml"))
    assert {member.status for member in found.members} == {"ok"}


def test_no_design_of_a_paper_s_study_is_left_to_the_reference():
    for name, designs in STUDIES.items():
        members = plan(load_scenario(ROOT / "scenarios" / f"{name}.yaml")).members
        assert len(members) == designs and {member.engine for member in members} == {"iteration"}


def test_a_model_of_32_billion_parameters_leaves_some_designs_no_room_for_the_longest_prompts():
    found = plan(load_scenario(ROOT / "scenarios" / "mist-code.yaml"))
    status = [member.status for member in found.members]
    assert len(status) == 411 and status.count("ok") == 146
    assert all("exceeds the KV cache" in one or "does not fit" in one for one in status if one != "ok")


@pytest.mark.parametrize(("engine", "router"), [("request", "shared_queue"), ("iteration", "round_robin")])
def test_bestserve_is_for_two_engines(engine, router):
    found = plan(load_scenario(ROOT / "scenarios" / "bestserve.yaml", [f"deployment.router={router}"]), engine=engine)
    assert len(found.members) == 30 and {member.status for member in found.members} == {"ok"}
    assert {member.engine for member in found.members} == {engine}


def test_quickstart_has_no_room_only_where_the_model_is_too_large():
    found = plan(load_scenario(ROOT / "scenarios" / "quickstart.yaml"))
    status = [member.status for member in found.members]
    assert len(status) >= 1000 and status.count("ok") > 0.8 * len(status)
    assert all("does not fit" in one for one in status if one != "ok")


def test_the_scenario_of_the_readme_can_run():
    text, forms, pools, drafts, pipeline, retrieval, auto, figures = map(loads_yaml, blocks("yaml"))
    found = plan(load_scenario(text))
    assert {member.status for member in found.members} == {"ok"}
    found = plan(load_scenario({key: text[key] for key in ("name", "workload", "slo")} | pools))
    assert len(found.members) == 4 and {member.status for member in found.members} == {"ok"}
    axes = {key: axis for key, axis in text["sweep"].items() if key != "deployment.batching"}  # 512 tokens are too few
    found = plan(load_scenario(text | {"deployment": text["deployment"] | drafts["deployment"], "sweep": axes}))
    assert {member.status for member in found.members} == {"ok"}
    found = plan(load_scenario(pipeline))
    assert len(found.members) == 6 and {member.status for member in found.members} == {"ok"}
    assert {member.engine for member in found.members} == {"iteration"}
    found = plan(load_scenario(retrieval))
    assert [member.status[:12] for member in found.members] == ["ok", "ok"]
    assert load_scenario(text | {"workload": text["workload"] | auto["workload"]}).workload.requests == 1000
    deployment = text["deployment"] | figures["deployment"]
    found = plan(load_scenario(text | {"deployment": deployment, "sweep": figures["sweep"]}))
    assert len(found.members) == 75 and {member.status for member in found.members} == {"ok"}
    where = {"deployment.tensor_parallel": [4, 8], "deployment.replicas": [1, 2], "where": forms["sweep"]["where"]}
    assert len(plan(load_scenario(text | {"sweep": where})).members) == 3


def test_the_stage_of_the_readme_runs(tmp_path):
    (code,) = [block for block in blocks("python") if "register(" in block]
    (tmp_path / "translate.py").write_text(code, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "translate.py")]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    one, two = map(float, printed.stdout.strip(" []\n").split())
    assert one == pytest.approx(5 * 0.08**2 / (2 * (1 - 5 * 0.08)), rel=0.1)  # M/D/1
    assert 0 < two < one / 4


def test_the_readme_has_no_gaps():
    assert not [word for word in README.split() if word.isupper() and "_" in word and word.endswith(("TABLE", "TIME"))]
