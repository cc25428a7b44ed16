"""evaluator observe against a server that answers well, badly, or not at all."""

from __future__ import annotations

import signal
import socket
import time

import numpy as np
import pandas as pd
import pytest

from evaluator import load_scenario, simulate
from evaluator.observe.client import Exchange, _heed
from tests.forked import Forked

SCENARIO = """
name: small
workload:
  arrivals: {process: poisson, rate_rps: 200}
  lengths: {source: fixed, prompt_tokens: 40, output_tokens: 4}
  requests: 20
  warmup_requests: 2
deployment: {model: llama-3.1-8b, hardware: h100-sxm}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def observe(evaluator, server, small, tmp_path):
    """Runs the command: exit code, stdout, stderr, the table of requests (None: it wrote none)."""

    def run(*arguments, url=None):
        out = tmp_path / "observed.csv"
        code, told, noted = evaluator("observe", url or server.url, small, "--requests", out, *arguments)
        return code, told, noted, pd.read_csv(out) if out.exists() else None

    return run


def settings(*changes):
    return [word for change in changes for word in ("--set", change)]


def test_the_table_is_that_of_a_simulation_and_compare_takes_it(observe, small, evaluator, tmp_path):
    code, told, _, table = observe()
    assert code == 0 and "20 of 20 requests sent" in told and "20 ok" in told
    simulated = simulate(load_scenario(small)).requests
    assert table.columns.tolist()[: len(simulated.columns)] == simulated.columns.tolist()
    same = ["config", "seed", "request", "prompt_tokens", "output_tokens", "measured"]
    assert (table[same] == simulated[same]).all(axis=None)
    np.testing.assert_allclose(table["due_s"], simulated["arrival_s"], atol=1e-6)
    assert (table["late_s"] >= 0).all() and np.allclose(table["arrival_s"] - table["due_s"], table["late_s"])
    assert (table["cached_tokens"] == 5).all() and (table["status"] == "ok").all() and (table["chunks"] == 4).all()
    assert (table["ttft_s"] > 0).all() and (table["e2e_s"] >= table["ttft_s"]).all()
    code, told, _ = evaluator("compare", tmp_path / "observed.csv", "--scenario", small)
    assert code == 0 and told.startswith("20 requests, ")


def test_gauges_are_sampled_and_everything_is_kept_at_both_ends(observe, server, tmp_path):
    server.gap_s = 0.05
    observe("--metrics-every", "0.05")
    metrics = pd.read_csv(tmp_path / "observed.metrics.csv")
    times = metrics.groupby("metric")["at_s"].nunique()
    assert times["vllm:generation_tokens_total"] == 2 and times["vllm:num_requests_running"] > 3
    assert metrics["labels"].unique().tolist() == ['{"model_name": "m"}']


def test_a_server_without_metrics_is_told(observe, server, tmp_path):
    server.metrics = ""
    code, _, noted, _ = observe()
    assert code == 0 and "/metrics: HTTP 404" in noted and not (tmp_path / "observed.metrics.csv").exists()


def test_prompts_are_token_ids_with_the_simulated_prefixes(observe, server):
    observe(*settings("workload.sessions={system_prompts: 1, system_tokens: 8}"))
    warm, *sent = (body["prompt"] for body in server.sent)
    assert len(warm) == 8 and all(len(prompt) == 48 and prompt[:8] == warm for prompt in sent)
    assert len({tuple(prompt) for prompt in sent}) == 20
    assert all(body["ignore_eos"] and body["max_tokens"] == 4 for body in server.sent[1:])


def test_turns_begin_with_what_was_said_and_wait_for_answers(observe, server):
    server.gap_s = 0.01
    code, _, _, table = observe(*settings("workload.sessions={turns: 4, think_s: 0.02}", "workload.warmup_requests=0"))
    assert code == 0
    prompts = sorted((body["prompt"] for body in server.sent), key=len)
    assert {len(prompt) for prompt in prompts} <= {40, 84, 128, 172} and len(prompts[-1]) > 40
    long = prompts[-1]
    before = next(prompt for prompt in prompts if prompt == long[: len(prompt)] and len(prompt) == len(long) - 44)
    assert long[len(before) : len(before) + 4] == [7] * 4
    assert table["prompt_tokens"].max() == len(long)


def test_users_wait_for_their_answers(observe, server):
    server.gap_s = 0.005
    code, _, _, table = observe(*settings("workload.arrivals={process: closed_loop, users: 3}"))
    assert code == 0 and server.most == 3 and len(table) == 20


def test_no_more_are_in_flight_than_allowed(observe, server):
    server.gap_s = 0.01
    code, told, _, table = observe("--max-in-flight", "2", *settings("workload.arrivals={process: all_at_once}"))
    assert code == 0 and server.most == 2 and "requests waited for --max-in-flight" in told
    assert table["late_s"].max() > 0.03


def test_a_limit_of_open_files_is_no_refusal_of_the_server(observe, monkeypatch):
    resource = pytest.importorskip("resource")
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    assert observe()[0] == 0 and raised == [(1024 + 128, 4096)]
    code, _, noted, _ = observe("--max-in-flight", "8000")
    assert code == 2 and "only 4,096 files may be open at a time (ulimit -Hn); use at most 3,968" in noted


def test_failures_are_counted_by_kind(observe, server, small, evaluator, tmp_path):
    kinds = {3: "503", 4: "hang up", 5: "break off", 6: "fail", 7: "redirect", 8: "stall", 9: "503",
             10: "cut short"}  # fmt: skip
    server.does = lambda number, body: kinds.get(number, "answer")
    code, told, _, table = observe("--silence-limit", "0.5")
    assert code == 3 and len(table) == 20
    assert table["status"].value_counts().to_dict() == {
        "ok": 12, "HTTP 503": 2, "connection lost": 2, "broken answer": 1, "error in the stream": 1, "redirect": 1,
        "stalled": 1,
    }  # fmt: skip
    assert "2 HTTP 503: " in told and "told 503" in told and "to http://elsewhere.test/, which was not named" in told
    failed = table[table["status"] != "ok"]
    assert failed["e2e_s"].isna().all()
    code, told, _ = evaluator("compare", tmp_path / "observed.csv", "--scenario", small)
    assert code == 0 and told.startswith("12 requests (8 more failed, and are left out)")


def test_a_request_has_a_time_limit_whatever_comes(observe, server):
    server.gap_s = 0.2
    code, told, _, table = observe(
        "--time-limit", "0.5", *settings("workload.requests=3", "workload.warmup_requests=0")
    )
    assert code == 3 and table["status"].eq("time limit").all() and "3 time limit: not answered within 0.5 s" in told


def test_a_server_that_stops_ends_the_run(observe, server):
    server.does = lambda number, body: "answer" if number < 5 else "hang up"
    code, _, noted, table = observe("--most-failures", "4", *settings("workload.requests=300"))
    assert code == 3 and len(table) < 100
    assert "ended early: the last 4 requests failed one after the other (connection lost: " in noted


def test_the_run_has_a_longest_duration(observe, server):
    server.gap_s = 0.3
    code, _, noted, table = observe("--max-duration", "0.5", *settings("workload.lengths.output_tokens=8"))
    assert code == 3 and "the 0.5 s of --max-duration were over" in noted
    assert (table["status"] == "cut off").all() and len(table) == 20


def test_fields_that_a_server_does_not_know_are_left_out(observe, server):
    server.does = lambda number, body: "400" if "return_token_ids" in body else "answer"
    server.tells_tokens = False
    code, _, noted, table = observe()
    assert code == 0 and (table["status"] == "ok").all() and "later turns of a session" in noted
    server.bodies.clear()
    server.does = lambda number, body: "422" if {"ignore_eos", "min_tokens"} & set(body) else "answer"
    code, _, noted, table = observe()
    assert code == 0 and "answers may be shorter" in noted


def test_words_for_a_server_of_text(observe, server):
    server.does = lambda number, body: "400" if isinstance(body["prompt"], list) else "answer"
    code, _, noted, _ = observe()
    assert code == 2 and "told 400" in noted and "--prompts words" in noted
    code, _, _, table = observe("--prompts", "words")
    assert code == 0 and (table["prompt_tokens"] == 40).all()


def test_a_chat_gets_words_and_its_first_token_is_the_first_that_is_said(observe, server):
    server.gap_s = 0.05
    code, told, noted, table = observe("--chat", *settings("workload.sessions={system_prompts: 1, system_tokens: 8}"))
    assert code == 0 and "20 ok" in told and set(server.paths) == {"/v1/chat/completions"}
    assert all(body["ignore_eos"] and "prompt" not in body for body in server.bodies)
    warm, *sent = (body["messages"] for body in server.sent)
    texts = [messages[0]["content"].split() for messages in sent]
    assert all(len(messages) == 1 and messages[0]["role"] == "user" for messages in sent)
    system = warm[0]["content"].split()
    assert len(system) == 8 and all(len(text) == 48 and text[:8] == system for text in texts)
    # The piece that says who speaks came at once, the first token after a gap of the server.
    assert (table["chunks"] == 4).all() and (table["ttft_s"] >= 0.05).all() and (table["output_tokens"] == 4).all()
    assert (table["prompt_tokens"] == 50).all() and "its template made 4 tokens of 2 words" in noted


def test_a_chat_whose_tokens_are_not_told_is_counted_by_its_deltas(observe, server):
    server.tells_tokens = False
    server.does = lambda number, body: "400" if "stream_options" in body else "answer"
    code, _, noted, table = observe("--chat")
    assert code == 0 and (table["chunks"] == 4).all() and "it does not count tokens" in noted


@pytest.mark.parametrize(
    "delta, said",
    [
        ({"content": "a"}, True),
        ({"role": "assistant", "content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"content": ""}, True),  # a token that is no text yet, such as a half of a character
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
    ],
)
def test_what_is_a_token_of_a_chat(delta, said):
    exchange = Exchange(0, 0, 0.0, 1)
    _heed({"choices": [{"delta": delta}]}, 1.0, exchange)
    assert exchange.chunks == said and (exchange.first_s == 1.0) == said


def test_a_chat_takes_no_token_ids_and_a_server_that_only_chats_is_told_of(observe, server):
    code, _, noted, _ = observe("--chat", "--prompts", "tokens")
    assert code == 2 and "a chat takes no token ids" in noted
    server.does = lambda number, body: "answer" if "messages" in body else "404"
    code, _, noted, _ = observe()
    assert code == 2 and "told 404" in noted and "a server that only chats may take --chat" in noted
    assert observe("--chat")[0] == 0


def test_a_server_of_several_models_is_told_which(observe, server):
    server.models = [{"id": "a"}, {"id": "b"}]
    code, _, noted, _ = observe(*settings("deployment.model=qwen3-0.6b"))
    assert code == 2 and "has a, b; say which is asked for by --served NAME" in noted
    code, _, _, _ = observe("--served", "b")
    assert code == 0 and {body["model"] for body in server.sent} >= {"b"}
    code, _, noted, _ = observe("--served", "c")
    assert code == 2 and "--served c: " in noted


def test_each_request_asks_for_its_model(observe, server):
    server.models = [{"id": "x"}, {"id": "y"}]
    two = settings(
        "workload.models={llama-3.1-8b: 0.5, qwen3-8b: 0.5}",
        "deployment={hardware: h100-sxm, "
        "pools: {a: {role: mixed, model: llama-3.1-8b}, b: {role: mixed, model: qwen3-8b}}}",
    )
    code, _, noted, _ = observe(*two)
    assert code == 2 and "has x, y; say which is asked for by --served NAME (one for each model)" in noted
    code, _, _, table = observe(*two, "--served", "x", "--served", "y")
    assert code == 0 and set(table["model"]) == {"llama-3.1-8b", "qwen3-8b"}
    asked = [body["model"] for body in server.sent]
    assert {model: asked.count(model) for model in "xy"} == {
        "x": (table["model"] == "llama-3.1-8b").sum(),
        "y": (table["model"] == "qwen3-8b").sum(),
    }


def test_what_of_the_requests_is_not_sent_is_told(observe):
    code, _, noted, _ = observe(*settings("workload.adapters={count: 4}", "deployment.lora={max_loras: 4}"))
    assert code == 0 and "requests are sent to the model itself: the load does not say which adapter" in noted
    classes = "workload.classes={chat: {share: 0.5, priority: 1}, rest: {share: 0.5}}"
    code, _, noted, _ = observe(*settings(classes))
    assert code == 0 and "requests are sent without their priorities" in noted and "adapter" not in noted


def test_proxies_of_the_environment_are_not_used(observe, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert observe()[0] == 0


def test_a_key_goes_to_the_server_only_where_it_was_named(observe, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    observe()
    assert not any("authorization" in head for head in server.heads)
    assert observe("--key-env", "OPENAI_API_KEY")[0] == 0
    assert server.heads[-1]["authorization"] == "Bearer secret"
    code, _, noted, _ = observe("--key-env", "NO_SUCH_KEY")
    assert code == 2 and "the environment has no such variable" in noted


@pytest.mark.parametrize(
    "url, told",
    [
        ("127.0.0.1:8000", "is no address"),
        ("ftp://host/", "is no address"),
        ("http://", "is no address"),
        ("http://host:99999", "is no address"),
        ("http://user:pass@host", "a key goes by --key-env"),
        ("http://host/?a=1", "has neither a user, nor a query"),
    ],
)
def test_addresses_that_are_none(observe, url, told):
    code, _, noted, table = observe(url=url)
    assert code == 2 and told in noted and table is None


def test_no_server(observe):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        code, _, noted, table = observe(url=f"http://127.0.0.1:{free.getsockname()[1]}")
    assert code == 2 and "no server answers there" in noted and table is None


def test_requests_that_are_too_long_for_the_server(observe, server):
    server.models = [{"id": "m", "max_model_len": 43}]
    code, _, noted, _ = observe()
    assert code == 2 and "m takes 43 tokens of prompt and answer, the longest request has 44" in noted


def test_a_version_at_the_end_of_the_address_and_a_choice_of_a_sweep(observe, server):
    axis = settings("sweep={workload.arrivals.rate_rps: [100, 200]}")
    code, _, noted, _ = observe(*axis)
    assert code == 2 and "rate_rps" in noted
    code, _, _, table = observe(*axis, "--select", "rate_rps=100", url=f"{server.url}/v1/")
    assert code == 0 and table["config"].eq(0).all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_it_has(server, small, tmp_path, number):
    server.gap_s = 0.02
    out = tmp_path / "observed.csv"
    words = ["observe", server.url, small, "--requests", out]
    words += settings("workload.arrivals.rate_rps=20", "workload.requests=2000")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = Forked("from evaluator.cli import main; main()", words)
        while len(server.bodies) < 15 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 128 + number, told
    assert f"interrupted; what was observed is kept in {out}" in told
    table = pd.read_csv(out)
    assert 10 <= len(table) < 1000 and (table["status"] == "ok").any()
    assert set(table["status"]) <= {"ok", "cut off"}
