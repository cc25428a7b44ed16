"""bench.py against a server of completions: what it sends is the load, and what it measures is told."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from evaluator.deploy import load


class Completions(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if len(self.server.bodies) in self.server.failing:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"overloaded")
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 5}}
        events = [{"choices": [{"token_ids": [7]}]}] * body["max_tokens"] + [{"choices": [], "usage": usage}]
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        for start in range(0, len(data), 37):  # chunks that end within lines
            part = data[start : start + 37].encode()
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as serving:
        serving.bodies, serving.failing = [], ()
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def run(server, tmp_path, requests, **head):
    whole = {"models": ["m"], "vocabulary": 5000, "users": None, "warm": [], "warmup_requests": 0,
             "cooldown_requests": 0, "seed": 0, "predicted": {"ttft_s": {"p50": 0.01}}, **head}  # fmt: skip
    (tmp_path / "load.jsonl").write_text("\n".join(map(json.dumps, [whole, *requests])))
    command = [
        sys.executable,
        load.__file__.replace("load.py", "send_load.py"),
        f"http://127.0.0.1:{server.server_port}",
    ]
    ran = subprocess.run([*command, "--time-limit", "20"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    return ran, rows


def request(number, *prompt, output=3, **more):
    return {"id": number, "at_s": 0.01 * number, "output_tokens": output, "prompt": list(map(list, prompt)), **more}


def test_prefixes_are_the_same_tokens_and_turns_hold_the_answers(server, tmp_path):
    requests = [
        request(0, ("system 0", 8), ("request 0", 4)),
        request(1, ("system 0", 8), ("request 1", 4)),
        request(2, ("turn 2", 5), after=0, think_s=0.05),
    ]
    ran, rows = run(server, tmp_path, requests, warm=[[["system 0", 8]]])
    assert ran.returncode == 0, ran.stderr
    warm, *sent = (body["prompt"] for body in server.bodies)
    first, second, turn = [*sorted(sent, key=len)[:2], max(sent, key=len)]
    assert first[:8] == second[:8] == warm and first[8:] != second[8:]
    assert len(turn) == 12 + 3 + 5 and turn[:8] == warm and turn[12:15] == [7, 7, 7]
    assert [row["output_tokens"] for row in rows] == ["3"] * 3 and rows[0]["cached_tokens"] == "5"
    assert "3 requests in" in ran.stdout and "TTFT" not in ran.stdout and "ttft p50:" in ran.stdout
    assert "prefix cache:" in ran.stdout


def test_a_second_run_shares_nothing_with_the_first(server, tmp_path):
    for _ in range(2):
        assert run(server, tmp_path, [request(0, ("request 0", 8))])[0].returncode == 0
    first, second = (body["prompt"] for body in server.bodies)
    assert len(first) == len(second) == 8 and first != second


def test_users_wait_for_their_answers(server, tmp_path):
    ran, rows = run(server, tmp_path, [request(n, ("r", 2)) for n in range(6)], users=1)
    starts = sorted((float(row["sent_s"]), float(row["e2e_s"])) for row in rows)
    assert ran.returncode == 0
    assert all(later >= sent + took for (sent, took), (later, _) in itertools.pairwise(starts))


def test_a_failed_request_is_told_and_the_others_are_kept(server, tmp_path):
    server.failing = (1,)
    ran, rows = run(server, tmp_path, [request(n, ("r", 2)) for n in range(3)])
    assert ran.returncode == 1 and "1 failed" in ran.stdout and "503" in ran.stderr and "overloaded" in ran.stderr
    assert len(rows) == 3 and sum(bool(row["error"]) for row in rows) == 1


def test_no_server(server, tmp_path):
    server.server_close()
    ran, rows = run(server, tmp_path, [request(0, ("r", 2))])
    assert ran.returncode == 1 and "1 failed" in ran.stdout and rows[0]["error"]


def test_a_turn_that_is_sent_at_its_time_waits_for_no_answer(server, tmp_path):
    requests = [request(0, ("request 0", 4)), request(1, ("turn 1", 5), after=0) | {"at_s": 0.0}]
    ran, rows = run(server, tmp_path, requests)
    assert ran.returncode == 0 and [row["prompt_tokens"] for row in rows] == ["4", "12"]
    assert "1 answers were not known token by token" in ran.stdout
