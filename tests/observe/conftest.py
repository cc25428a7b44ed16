"""A server of completions and chats in a thread of its own, which answers well, or as a test says."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

METRICS = """# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 2.0
# HELP vllm:generation_tokens Tokens.
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="m"} 7.0
"""


class Completions:
    """``does(number, body)`` names what becomes of a request, of which the first is that which asks what is taken."""

    def __init__(self):
        self.models = [{"id": "m", "max_model_len": 8192}]
        self.paths, self.bodies, self.heads, self.most = [], [], [], 0
        self.does = lambda number, body: "answer"
        self.gap_s = 0.0
        self.metrics = METRICS
        self.tells_tokens = True
        self._running = 0

    @property
    def sent(self):
        """What came behind the first request."""
        return self.bodies[1:]

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:] if line)
                }
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                self.heads.append(fields)
                if not await self.answer(head.split()[1], json.loads(body) if body else None, writer):
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path, body, writer):
        if path == "/v1/models":
            return self.whole(writer, json.dumps({"data": self.models}))
        if path == "/metrics":
            return self.whole(writer, self.metrics, "text/plain; version=0.0.4", 200 if self.metrics else 404)
        self.paths.append(path)
        self.bodies.append(body)
        does = self.does(len(self.bodies) - 1, body)
        if does.isdigit():
            return self.whole(writer, json.dumps({"error": {"message": f"told {does}"}}), status=int(does))
        if does == "redirect":
            writer.write(b"HTTP/1.1 307 Temporary\r\nLocation: http://elsewhere.test/\r\nContent-Length: 0\r\n\r\n")
            return True
        if does == "hang up":
            return False
        if does == "stall":
            await asyncio.sleep(60)
        self._running += 1
        self.most = max(self.most, self._running)
        try:
            await self.stream(body, does, writer)
        finally:
            self._running -= 1
        return does == "answer"

    async def stream(self, body, does, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if "messages" in body:  # who speaks is told before the model has begun
            self.event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}, "prompt_token_ids": [1]}]})
            await writer.drain()
        for number in range(body["max_tokens"]):
            await asyncio.sleep(self.gap_s)
            if does in ("break off", "cut short") and number == 1:
                writer.write(b"0\r\n\r\n" if does == "cut short" else b"")
                return
            said = {"delta": {"content": " a"}} if "messages" in body else {"text": " a"}
            choice = said | ({"token_ids": [7]} if self.tells_tokens else {})
            self.event(writer, {"error": {"message": "out of memory"}} if does == "fail" else {"choices": [choice]})
        if "messages" in body:
            self.event(writer, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        asked = body["prompt"] if "prompt" in body else f"<user> {body['messages'][0]['content']} <assistant>"
        prompt = len(asked if isinstance(asked, list) else asked.split())
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens": prompt}
        self.event(writer, {"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": 5}}})
        self.chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def event(self, writer, event):
        data = f"data: {json.dumps(event)}\n\n".encode()
        self.chunk(writer, data[:9])  # chunks end within lines
        self.chunk(writer, data[9:])

    @staticmethod
    def chunk(writer, data):
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    @staticmethod
    def whole(writer, text, kind="application/json", status=200):
        data = text.encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        return True


@pytest.fixture
def server():
    serving, ready, loop = Completions(), threading.Event(), asyncio.new_event_loop()

    async def run():
        listening = await asyncio.start_server(serving.serve, "127.0.0.1", 0)
        serving.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        ready.set()
        await serving.ended.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def whole():
        asyncio.set_event_loop(loop)
        serving.ended = asyncio.Event()
        loop.run_until_complete(run())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=whole)
    thread.start()
    ready.wait()
    yield serving
    loop.call_soon_threadsafe(serving.ended.set)
    thread.join()
