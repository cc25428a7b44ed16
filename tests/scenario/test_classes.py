"""``workload.classes`` as files say it: shares, objectives, priorities, a trace's columns, and what is refused."""

from __future__ import annotations

import pytest

from evaluator.errors import InputError
from evaluator.scenario import Objective, all_objectives, expand, load_scenario

CLASSES = {"interactive": {"share": 3, "slo": {"ttft": {"p95": "1s"}, "relax": 0.1}}, "batch": {"share": 1}}


def with_classes(base, classes, **workload):
    return base | {"workload": base["workload"] | {"classes": classes} | workload}


def trace(tmp_path, columns="class,priority", rows=("chat,0", "batch,3", "chat,-1")):
    file = tmp_path / "trace.csv"
    lines = [f"{second},10,5,{row}" for second, row in enumerate(rows)]
    file.write_text("\n".join([f"arrival_s,prompt_tokens,output_tokens,{columns}", *lines]))
    return {"lengths": {"trace": str(file)}, "requests": len(rows)}


def test_classes_and_their_objectives(base):
    found = load_scenario(with_classes(base, CLASSES))
    assert found.workload.class_names == ("interactive", "batch")
    assert found.workload.classes["batch"].share == 1 and found.workload.classes["batch"].priority is None
    (objective,) = all_objectives(found.workload, ())
    assert objective == Objective("ttft", "p95", pytest.approx(1.1), 0.1, "interactive")
    assert all_objectives(load_scenario(base).workload, found.slo) is found.slo


def test_keys_of_classes_are_swept_and_set(base):
    axes = {"workload.classes.batch.priority": [0, 5], "workload.classes.interactive.slo.ttft.p95": ["1s", "2s"]}
    found = load_scenario(with_classes(base, CLASSES) | {"sweep": axes}, ["workload.classes.batch.share=7"])
    points = [point[0].classes for point in expand(found).points]
    assert [(one["batch"].priority, one["interactive"].slo[0].bound_s) for one in points] == [
        (0, pytest.approx(1.1)), (0, pytest.approx(2.2)), (5, pytest.approx(1.1)), (5, pytest.approx(2.2)),
    ]  # fmt: skip
    assert {one["batch"].share for one in points} == {7} and points[0]["interactive"].slo[0].request_class


def test_a_trace_says_classes_and_priorities(base, tmp_path):
    found = load_scenario(with_classes(base, {"chat": {"slo": {"e2e": {"mean": "9s"}}}}, **trace(tmp_path)))
    assert found.workload.class_names == ("chat", "batch")
    assert found.workload.trace.request_class.tolist() == [0, 1, 0]
    assert found.workload.trace.priority.tolist() == [0, 3, -1]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({}, r"workload\.classes: expected shares by class such as \{interactive: 0\.7\}"),
        ({"a": {"priority": 1}}, r"classes\.a\.share: is required, as no trace with a column class says"),
        ({"a": {"share": 0}}, r"classes\.a\.share: must be greater than 0"),
        ({"a": {"share": 1, "prio": 1}}, r"classes\.a\.prio: unknown key \(did you mean priority\?\)"),
        ({"a": {"share": 1, "priority": 0.5}}, r"classes\.a\.priority: expected an integer"),
        ({"a": {"share": 1, "priority": 10**7}}, r"classes\.a\.priority: must be an integer from -1000000 to 1000000"),
        ({"a": {"share": 1, "slo": {"itl": {"p90": 1}}}}, r"classes\.a\.slo\.itl: gaps .* by class; use tpot"),
        ({"a": {"share": 1, "slo": {"ttft": {"p95": 1500}}}}, r"classes\.a\.slo\.ttft\.p95: 1500 is 1,500 s"),
    ],
)
def test_what_is_refused(base, classes, message):
    with pytest.raises(InputError, match=message):
        load_scenario(with_classes(base, classes))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"chat": 1}, r"classes\.chat\.share: the trace has a column class, which says it already"),
        ({"other": {}}, r"classes\.other: no request of the trace is of this class; its column class has chat, batch"),
        ({"chat": {"priority": 1}}, r"classes\.chat\.priority: the trace has a column priority, which says it already"),
    ],
)
def test_what_a_trace_says_already_is_refused(base, tmp_path, classes, message):
    with pytest.raises(InputError, match=message):
        load_scenario(with_classes(base, classes, **trace(tmp_path)))


@pytest.mark.parametrize(
    ("row", "message"),
    [("chat,x", r"row 1, priority: 'x' is not a number"), ("chat,0.5", r"row 1, priority: must be an integer from"),
     (" ,1", r"row 1, class: must be the name of a class")],
)  # fmt: skip
def test_columns_that_are_none(base, tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        load_scenario(with_classes(base, {"chat": {}}, **trace(tmp_path, rows=(row,))))


def test_turns_have_the_lengths_of_the_workload(base):
    classes = {"a": {"share": 1, "lengths": {"source": "fixed", "prompt_tokens": 1, "output_tokens": 1}}}
    with pytest.raises(InputError, match=r"several turns with lengths of classes are not there"):
        load_scenario(with_classes(base, classes, sessions={"turns": 3, "think_s": 1}))
