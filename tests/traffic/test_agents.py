"""Tasks of agents: who waits for whom, and what prompts have in common."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.plan import plan
from evaluator.run import simulate
from evaluator.scenario import Agents, Arrivals, Exponential, Geometric, Lengths, Sessions, Workload, load_scenario
from evaluator.scenario.trace import read_trace
from evaluator.traffic.agents import calls_of
from evaluator.traffic.jobs import Jobs
from evaluator.traffic.request_sampler import RequestSampler
from evaluator.traffic.roles import ROLES
from tests.scenario.build import scenario

TASKS = Sessions(2, 40, turns=Geometric(2.0, 5), think_s=Exponential(3.0), agents=Agents(3, 2, 0.5))
WORKLOAD = Workload(
    Arrivals("poisson", rate_rps=5.0),
    Lengths("uniform", {"prompt_min": 5, "prompt_max": 60, "output_min": 1, "output_max": 40}),
    600,
    100,
    seeds=(0,),
    sessions=TASKS,
)
CLOSED = Arrivals("closed_loop", users=7)
AGENTS = (
    "workload.lengths={source: uniform, prompt_min: 20, prompt_max: 300, output_min: 1, output_max: 60}",
    "workload.requests=200",
    "workload.sessions={turns: {mean: 2}, think_s: {mean: 1}, agents: {fan_out: 3, share: 0.7}}",
    "deployment.kv.prefix_caching=true",
    "deployment.replicas=2",
)
USERS = "workload.arrivals={process: closed_loop, users: 5, rate_rps: null}"


def jobs_of(arrivals: Arrivals) -> Jobs:
    return RequestSampler().jobs(replace(WORKLOAD, arrivals=arrivals), 0, ROLES["mixed"])


def test_a_task_by_hand():
    """An agent of three calls and two sub-agents of two and one: 0 starts 1, 2 and 3; 4 reads 2 and 3."""
    calls = calls_of(Agents(2, 1), iter([3, 2, 1, 1, 1, 1]), 7)
    assert calls.before == [-1, 0, 1, 0, 0, 4, -1, 6, 6, 6]
    assert calls.joins == [[], [], [], [], [2, 3], [], [], [], [], [7, 8]]
    assert calls.agent == [0, 1, 1, 2, 0, 0, 3, 4, 5, 3]
    assert calls.task == [0] * 6 + [1] * 4 and calls.first == [0] * 6 + [6] * 4
    assert np.flatnonzero(calls.last).tolist() == [5, 9]
    assert calls.steps().tolist() == [0, 1, 2, 1, 3, 4, 0, 1, 1, 2]


@pytest.mark.parametrize("turns", [1, 3, Geometric(1.0), Geometric(3.0), Geometric(3.0, 4)])
def test_mean_calls_of_a_task(turns):
    sessions = Sessions(turns=turns, agents=Agents(2, 2))
    rng = np.random.default_rng(0)

    def drawn():
        while True:
            yield turns if isinstance(turns, int) else int(min(rng.geometric(1 / turns.mean), turns.max or 10**9))

    calls = calls_of(sessions.agents, drawn(), 20_000)
    assert len(calls) / (calls.task[-1] + 1) == pytest.approx(sessions.mean_turns, rel=0.03)


@pytest.mark.parametrize("arrivals", [WORKLOAD.arrivals, CLOSED, Arrivals("all_at_once")], ids=lambda one: one.process)
def test_calls_come_behind_those_that_they_wait_for(arrivals):
    jobs = jobs_of(arrivals)
    turns = jobs.sharing.turns
    graph, rows = turns.graph, np.arange(len(jobs))
    assert (turns.previous < rows).all() and (np.sort(turns.place) == rows).all()
    for row in rows:
        joined = graph.joins[row]
        assert (joined < row).all() and len(joined) in (0, 3) and (turns.session[joined] == turns.session[row]).all()
    opens = turns.previous < 0
    assert (turns.place[opens] == turns.first[opens]).all() and (np.diff(turns.session[opens]) > 0).all()
    assert (turns.rest_s is None) == (arrivals is not CLOSED)


def test_prompts_are_what_was_said_before_and_the_answers_of_sub_agents():
    jobs = jobs_of(CLOSED)
    turns, demand = jobs.sharing.turns, jobs.demand
    prompt, output, graph = demand.prompt_tokens, demand.output_tokens, turns.graph
    for row, before in enumerate(turns.previous.tolist()):
        if before < 0:
            said = 40
        elif graph.agent[row] == graph.agent[before]:
            said = prompt[before] + output[before] + output[graph.joins[row]].sum()
        else:
            said = max(40, int(0.5 * (prompt[before] + output[before])))
        assert 5 <= prompt[row] - said <= 60


def test_sub_agents_begin_with_blocks_of_who_starts_them():
    jobs = jobs_of(CLOSED)
    turns, demand, graph = jobs.sharing.turns, jobs.demand, jobs.sharing.turns.graph
    contents = [list(one) for one in jobs.sharing.contents(jobs.id, demand.prompt_tokens, demand.kv_tokens, 8)]
    levels = set()
    for row, before in enumerate(turns.previous.tolist()):
        content, system = contents[row], -1 - jobs.sharing.system[row]
        assert len(content) == demand.kv_tokens[row] // 8 and content[:5] == [system] * 5
        levels.add(len(set(content)))
        if before < 0:
            continue
        if graph.agent[row] == graph.agent[before]:
            assert content[: len(contents[before])] == contents[before]
            continue
        shared = int(jobs.sharing.inherited_tokens[row]) // 8
        assert content[:shared] == contents[before][:shared]
        assert set(content[shared:]) <= {graph.agent[row]}
    assert max(levels) == 4  # a system prompt, the first agent, one that it starts, and one that this one starts


@pytest.mark.parametrize("asked", [(USERS,), (), (USERS, "deployment.router=session")])
def test_a_call_is_made_when_all_that_it_waits_for_are_answered(asked):
    asked = (*AGENTS, *asked)
    ran = simulate(scenario(*asked))
    assert ran.summary["engine"].item() == "token"
    whole = plan(scenario(*asked))
    turns = whole.jobs(whole.configurations[0])[0].sharing.turns
    sent_s, answered_s = (ran.requests[name].to_numpy() for name in ("arrival_s", "last_token_s"))
    for row in np.flatnonzero(turns.previous >= 0):
        waited = [turns.previous[row], *turns.graph.joins[row]]
        np.testing.assert_allclose(sent_s[row], answered_s[waited].max() + turns.think_s[row], rtol=1e-12)
    if turns.rest_s is not None:
        ends, opens = turns.last, turns.previous < 0
        free_s = np.sort(answered_s[ends] + turns.rest_s[ends])
        np.testing.assert_allclose(sent_s[opens], np.append(np.zeros(5), free_s)[: opens.sum()], rtol=1e-12)
    # The time of a task is from its first call to the last answer of the agent that was asked.
    table = ran.requests
    whole_tasks = np.intersect1d(turns.session[turns.last], turns.session[turns.previous < 0])
    spans = [answered_s[turns.last & (turns.session == task)].item() - sent_s[turns.session == task].min()
             for task in whole_tasks if table["measured"][np.argmax(turns.session == task)]]  # fmt: skip
    assert ran.summary["session_s_mean"].item() == pytest.approx(np.mean(spans), rel=1e-9)


def test_what_is_shared_is_found():
    """Sub-agents side by side find what the agent that starts them was asked; without a share nothing of it."""
    alone = "workload.sessions.agents.share=0"
    found = [simulate(scenario(*AGENTS, USERS, *more)).summary["prefix_hit_rate"].item() for more in ((), (alone,))]
    assert found[0] > found[1] + 0.05


def test_prefill_and_decode_apart():
    pools = "deployment={pools: {p: {role: prefill}, d: {role: decode}}, replicas: null, kv: {prefix_caching: false}}"
    assert simulate(scenario(*AGENTS[:3], USERS, pools)).summary["status"].item() == "ok"


def test_what_cannot_be():
    with pytest.raises(InputError, match=r"sessions\.think_from: agents wait for answers; use think_from: answer"):
        scenario(*AGENTS, "workload.sessions.think_from=arrival")
    with pytest.raises(InputError, match=r"sessions\.agents: a task has .* calls in the mean, more than 10,000"):
        scenario("workload.sessions={turns: 9, agents: {fan_out: 50, depth: 4}}")


# --- traces of tasks


def trace_of(path, *rows) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arrivals = f"{{process: trace, file: '{path}', rate_rps: null}}"
    return f"workload={{arrivals: {arrivals}, lengths: null, requests: null, warmup_requests: 0, sessions: null}}"


def row(name, waits=(), **more) -> dict:
    return {"request_id": name, "wait_for": list(waits), "input_length": 600, "output_length": 20, **more}


DYNAMO = (
    # As a recorder has them: by task, with keys left out where they say nothing.
    row("a1", timestamp=5000, session_id="a", hash_ids=[1, 2]),
    row("a2", ["a1"], delay=10, tool_wait_ms=490, session_id="a", hash_ids=[1, 3]),
    row("a3", ["a1"], session_id="a", hash_ids=[1, 4]),
    row("a4", ["a2", "a3"], tool_wait_ms=1000, hash_ids=[1, 5]),
    {**row("b1", timestamp=2000, hash_ids=[9, 2])} | {"wait_for": None},
    row("b2", ["b1"], delay=250, hash_ids=[9, 6]),
)


def test_a_trace_says_which_answers_a_call_waits_for(tmp_path):
    asked = (trace_of(tmp_path / "t.jsonl", *DYNAMO), "deployment.kv.prefix_caching=true")
    ran = simulate(scenario(*asked))
    table = ran.requests
    # In the order of their tasks; a clock's first second is that of the trace.
    assert table["session"].tolist() == [0, 0, 1, 1, 1, 1] and table["turn"].tolist() == [0, 1, 0, 1, 2, 3]
    sent, answered = table["arrival_s"], table["last_token_s"]
    assert sent[0] == 2.0 and sent[2] == 5.0
    np.testing.assert_allclose(sent[[1, 3, 4]] - answered[[0, 2, 2]].to_numpy(), [0.25, 0.5, 0.0], atol=1e-12)
    assert sent[5] == pytest.approx(max(answered[3], answered[4]) + 1.0)
    assert table["cached_tokens"].tolist() == [0, 512, 0, 512, 512, 512]
    spans = [answered[1] - sent[0], answered[5] - sent[2]]
    assert ran.summary["session_s_mean"].item() == pytest.approx(np.mean(spans))
    assert ran.summary["engine"].item() == "token"


def test_the_last_of_several_answers_ends_a_task(tmp_path):
    asked = trace_of(tmp_path / "t.jsonl", row("a", timestamp=0), row("b", ["a"]), row("c", ["a"], delay=900))
    ran = simulate(scenario(asked))
    assert ran.summary["session_s_mean"].item() == pytest.approx(ran.requests["last_token_s"].max())


def test_a_session_that_another_goes_on_from_ends_with_its_own_last_answer(tmp_path):
    """As sub-agents with sessions of their own, which begin with an answer of the session that starts them."""
    of_a, of_b = {"session_id": "a"}, {"session_id": "b"}
    asked = trace_of(
        tmp_path / "t.jsonl",
        row("a1", timestamp=0, **of_a), row("b1", ["a1"], delay=500, **of_b), row("b2", ["b1"], **of_b),
    )  # fmt: skip
    ran = simulate(scenario(asked))
    sent, answered = ran.requests["arrival_s"], ran.requests["last_token_s"]
    assert ran.requests["session"].tolist() == [0, 1, 1] and sent[1] == pytest.approx(answered[0] + 0.5)
    spans = [answered[0] - sent[0], answered[2] - sent[1]]
    assert ran.summary["session_s_mean"].item() == pytest.approx(np.mean(spans))


BAD = {
    "unknown": ((row("a", timestamp=0), row("b", ["c"])), r"row 2, wait_for: no row before it has the request_id 'c'"),
    "behind": ((row("a", ["b"]), row("b", timestamp=0)), r"row 1, wait_for: no row before it has the request_id 'b'"),
    "twice": ((row("a", timestamp=0), row("a", ["a"])), r"row 2, request_id: must be a text that no other row has"),
    "no list": ((row("a", timestamp=0, wait_for="b"),), r"row 1, wait_for: must be a list of request_id, got 'b'"),
    "no number": ((row("a", timestamp="0"),), r"row 1 waits for no other and has no timestamp, a number"),
    "null": ((row("a", timestamp=None),), r"row 1 waits for no other and has no timestamp, a number"),
    "no time": ((row("a"),), r"row 1 waits for no other and has no timestamp"),
    "negative": ((row("a", timestamp=-5),), r"row 1, timestamp: must be milliseconds of at least 0, got -5"),
    # Rows are counted as in the file, whatever their order in time.
    "no tokens": (
        (row("a", timestamp=9000), row("b", timestamp=0, output_length=0)),
        r"row 2, output_tokens: must be an integer of at least 1, got 0",
    ),
    "some hashes": ((row("a", timestamp=9000, hash_ids=[1, 2]), row("b", timestamp=0)), r"row 2 has no hash_ids"),
    "too few hashes": (
        (row("a", timestamp=9000, hash_ids=[1, 2]), row("b", timestamp=0, hash_ids=[1])),
        r"row 2, hash_ids: 1 blocks for a prompt of 600 tokens, which are 2 of 512",
    ),
    "no lengths": (
        ({"request_id": "a", "wait_for": [], "timestamp": 0, "input_length": 9},),
        r"no column output_tokens or output_length;",
    ),
    "delay": ((row("a", timestamp=0), row("b", ["a"], delay=-1)), r"row 2, delay: must be milliseconds of at least 0"),
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sessions": {"think_from": "arrival"}}, r"think_from: requests of a trace with wait_for wait for answers"),
        ({"lengths": {"source": "fixed", "prompt_tokens": 9, "output_tokens": 9}}, "use its lengths, too"),
    ],
)
def test_requests_that_wait_for_others_are_not_sent_with_them(tmp_path, changed, message):
    path = tmp_path / "t.jsonl"
    trace_of(path, row("a", timestamp=0), row("b", ["a"]))
    arrivals = {"process": "trace", "file": str(path)}
    with pytest.raises(InputError, match=message):
        load_scenario({
            "workload": {"arrivals": arrivals, "lengths": {"trace": str(path)}, **changed},
            "deployment": {"model": "llama-3.1-8b", "hardware": "h100-sxm"},
        })  # fmt: skip


def test_columns_of_other_files_that_are_called_so_are_not_read(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens,wait_for,wait_s\n0,9,9,somebody,\n1,9,9,,\n")
    assert read_trace(str(tmp_path / "t.csv"), ("arrival_s", "prompt_tokens", "output_tokens")).wait_for is None


@pytest.mark.parametrize(("rows", "message"), BAD.values(), ids=list(BAD))
def test_traces_that_say_nothing_of_use(tmp_path, rows, message):
    rows = [dict(one) for one in rows]
    with pytest.raises(InputError, match=message):
        scenario(trace_of(tmp_path / "t.jsonl", *rows))
