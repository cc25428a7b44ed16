"""Sends the load of load.jsonl to an OpenAI-compatible server, and tells what came of it beside what was predicted.

    python3 bench.py http://127.0.0.1:8000 [--load load.jsonl] [--out requests.csv] [--time-limit SECONDS]

Requests go to /v1/completions as lists of token ids, at the times, with the lengths and with the shared prefixes of the
simulation; answers are streamed and go on to their full length. Needs nothing but Python 3.9.
"""

import argparse
import asyncio
import csv
import json
import os
import random
import sys
import time
import urllib.parse


def text_of(source, tokens, vocabulary, seed):
    """The first tokens of a source: the same ids wherever it stands. Low ids, among which are special ones, are not
    used where there are others."""
    low = min(1000, vocabulary // 2)
    return random.Random(f"{seed} {source}").choices(range(low, vocabulary), k=tokens)


class Load:
    """What is sent, and what is known of answers while they come."""

    def __init__(self, head, requests):
        self.head, self.requests = head, requests
        # Of this run alone: a server that still holds the prompts of an earlier run would find them in its cache.
        self.seed = f"{head['seed']} {os.urandom(8).hex()}"
        self.prompts = {}
        self.answers = {}
        self.done = {request["id"]: asyncio.Event() for request in self.requests}
        self.asked_after = {request["after"] for request in self.requests if "after" in request}
        self.invented = 0  # answers whose tokens the server did not tell

    def prompt(self, request):
        said = []
        if "after" in request:
            before = request["after"]
            if before not in self.answers:  # it is sent at its time, answered or not
                self.answered(self.requests[before], [])
            said = self.prompts[before] + self.answers[before]
        for source, tokens in request["prompt"]:
            said = said + text_of(source, tokens, self.head["vocabulary"], self.seed)
        if request["id"] in self.asked_after:
            self.prompts[request["id"]] = said
        return said

    def answered(self, request, tokens):
        if request["id"] in self.asked_after and request["id"] not in self.answers:
            wanted = request["output_tokens"]
            if len(tokens) != wanted:  # the server counts tokens, and does not tell which
                self.invented += 1
                tokens = text_of(f"answer {request['id']}", wanted, self.head["vocabulary"], self.seed)
            self.answers[request["id"]] = tokens


async def stream(url, body, time_limit):
    """Yields (time, event) of a streamed answer."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(url.hostname, url.port or 80, limit=2**24), time_limit
    )
    try:
        path = f"{url.path.rstrip('/')}/v1/completions"
        head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()
        status = (await asyncio.wait_for(reader.readline(), time_limit)).decode("latin-1").split()
        chunked = False
        while line := (await asyncio.wait_for(reader.readline(), time_limit)).strip():
            # vLLM and SGLang stream in chunks (HTTP/1.1); a proxy may pass the body on as it is, to the end of the
            # connection.
            chunked |= line.lower().replace(b" ", b"") == b"transfer-encoding:chunked"
        if len(status) < 2 or status[1] != "200":
            rest = await asyncio.wait_for(reader.read(2000), time_limit)
            raise OSError(f"the server answered {' '.join(status[1:])}: {rest.decode(errors='replace')[:300]}")
        buffer = b""
        async for part in parts(reader, chunked, time_limit):
            buffer += part
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    yield time.perf_counter(), json.loads(line[5:])
    finally:
        writer.close()


async def parts(reader, chunked, time_limit):
    """The body of an answer, as it comes."""
    while True:
        if not chunked:
            part = await asyncio.wait_for(reader.read(65536), time_limit)
            if not part:
                return
            yield part
            continue
        size = int((await asyncio.wait_for(reader.readline(), time_limit)).split(b";")[0] or b"0", 16)
        if size == 0:
            return
        yield await asyncio.wait_for(reader.readexactly(size), time_limit)
        # The empty line behind a chunk.
        await reader.readline()


async def send(load, request, url, start, time_limit, rows):
    """One request; its row is added whatever comes of it."""
    prompt = load.prompt(request)
    models = load.head["models"]
    body = {
        "model": models[request.get("model", 0)],
        "prompt": prompt,
        "max_tokens": request["output_tokens"],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    sent = time.perf_counter()
    row = {"id": request["id"], "sent_s": sent - start, "prompt_tokens": len(prompt), "error": ""}
    first = last = None
    tokens: list = []
    usage: dict = {}
    try:
        async for at, event in stream(url, body, time_limit):
            if "error" in event:
                raise OSError(str(event["error"])[:300])
            # Tokens by the server's own count, in the last event: one event may hold several tokens.
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                first, last = first or at, at
                tokens += choice.get("token_ids") or []
        if first is None or last is None:
            raise OSError("the answer was empty")
        count = usage.get("completion_tokens", request["output_tokens"])
        row |= {"output_tokens": count, "ttft_s": first - sent, "e2e_s": last - sent}
        row["tpot_s"] = (last - first) / (count - 1) if count > 1 else ""
        row["cached_tokens"] = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", "")
    except (TimeoutError, OSError, ValueError, EOFError) as error:
        row["error"] = str(error) or type(error).__name__
    rows.append(row)
    load.answered(request, tokens)
    load.done[request["id"]].set()


async def run(load, url, time_limit, rows):
    """Sends everything; the seconds that it took."""
    for prompt in load.head["warm"]:
        warm = {"id": -1, "prompt": prompt, "output_tokens": 1}
        ids = load.prompt(warm)
        body = {"model": load.head["models"][0], "prompt": ids, "max_tokens": 1, "stream": True}
        async for _ in stream(url, body, time_limit):
            pass
    start = time.perf_counter()
    users = load.head["users"]
    following = {request["after"]: request for request in load.requests if "think_s" in request}
    opening = iter([request for request in load.requests if "think_s" not in request])

    async def one(request):
        if "think_s" in request:
            await load.done[request["after"]].wait()
            await asyncio.sleep(request["think_s"])
        else:
            await asyncio.sleep(max(0.0, request["at_s"] - (time.perf_counter() - start)))
        await send(load, request, url, start, time_limit, rows)

    async def user():
        for request in opening:  # whoever has finished a session opens the next one
            while request is not None:
                await send(load, request, url, start, time_limit, rows)
                turn = following.get(request["id"])
                await asyncio.sleep(turn["think_s"] if turn else request.get("rest_s", 0.0))
                request = turn

    if users:
        await asyncio.gather(*(user() for _ in range(users)))
    else:
        await asyncio.gather(*map(one, load.requests))
    return time.perf_counter() - start


def quantile(values, level):
    """Between the two values around it, as NumPy has it."""
    values = sorted(values)
    place = level * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def told(load, rows, seconds):
    """The measured figures beside the predicted ones, as lines."""
    count = len(load.requests)
    last = count - load.head["cooldown_requests"]
    kept = [row for row in rows if not row["error"] and load.head["warmup_requests"] <= row["id"] < last]
    lines = [f"{len(rows)} requests in {seconds:.1f} s, {sum(bool(row['error']) for row in rows)} failed"]
    predicted = load.head["predicted"]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        values = [row[name] for row in kept if row[name] != ""]
        for level, value in predicted.get(name, {}).items():
            if values:
                measured = quantile(values, float(level[1:]) / 100)
                error = f"{100 * (value / measured - 1):+.1f}%" if measured else ""
                lines.append(f"{name[:-2]} {level}: {1e3 * measured:.2f} ms, predicted {1e3 * value:.2f} ms {error}")
    tokens = sum(row["output_tokens"] for row in rows if not row["error"])
    lines.append(f"output: {tokens / seconds:.1f} tokens/s over the whole run")
    hits = [row["cached_tokens"] for row in kept if row["cached_tokens"] not in ("", None)]
    if hits:
        asked = sum(row["prompt_tokens"] for row in kept)
        lines.append(f"prefix cache: {100 * sum(hits) / asked:.1f}% of prompt tokens were cached")
    if load.invented:
        lines.append(
            f"{load.invented} answers were not known token by token when the next turn was sent: "
            "the turns after them share only prompts"
        )
    return lines


COLUMNS = "id sent_s prompt_tokens output_tokens ttft_s tpot_s e2e_s cached_tokens error".split()


def write(path, rows):
    """A row for each request, in the order of the load and not in that of the answers."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["id"]))


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--load", default="load.jsonl")
    parser.add_argument("--out", default="requests.csv", help="a row for each request")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds without a sign of life of the server")
    options = parser.parse_args()
    url = urllib.parse.urlsplit(options.url)
    if url.scheme != "http" or not url.hostname:
        parser.error(f"{options.url} is no address such as http://127.0.0.1:8000")
    rows: list = []

    async def whole():
        with open(options.load, encoding="utf-8") as file:
            head, *requests = [json.loads(line) for line in file if line.strip()]
        load = Load(head, requests)
        return load, await run(load, url, options.time_limit, rows)

    try:
        load, seconds = asyncio.run(whole())
    except OSError as error:
        sys.exit(f"error: {error}")
    finally:
        write(options.out, rows)
    print("\n".join(told(load, rows, seconds)))
    if any(row["error"] for row in rows):
        first = next(row for row in rows if row["error"])
        sys.exit(f"request {first['id']} failed: {first['error']}")


if __name__ == "__main__":
    main()
