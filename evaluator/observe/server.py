"""What a server is and takes: its models, and which fields of a request it knows, found by asking it once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from evaluator.errors import InputError
from evaluator.observe.client import OK, Exchange, ask, short

# What is asked for beside OpenAI's own fields, the most first: a server that refuses unknown fields takes a later row.
# vLLM 0.28 takes the first; TensorRT-LLM forbids fields that it does not know.
_USAGE = {"stream_options": {"include_usage": True}}
_FIELDS: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True, "return_token_ids": True, **_USAGE},
    {"ignore_eos": True, **_USAGE},
    {"min_tokens": True, **_USAGE},  # as many as max_tokens, of each request
    _USAGE,
    {},
)
_PROBE_PROMPT = 2  # tokens of the first request
_PROBE_TOKENS = 4  # of the answer to the first request: more than one, so that it has an end of its own
WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its"
).split()
"""Words of which one is a token in most vocabularies, for servers that take no token ids."""


@dataclass(frozen=True)
class PromptForm:
    """How prompts are sent: to which of OpenAI's paths, and as words or token ids. A chat takes words alone."""

    chat: bool = False
    words: bool = False

    @property
    def path(self) -> str:
        """The path behind the address of a server."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"


@dataclass(frozen=True)
class LiveServer:
    """A server that answered: ``fields`` of a request that it takes, and what cannot be had of it, in words."""

    base: str
    models: tuple[str, ...]  # in the order of the workload's
    fields: dict[str, Any]
    form: PromptForm
    notes: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where requests go."""
        return f"{self.base}{self.form.path}"

    def body(self, model: int, prompt: list[int], output_tokens: int) -> bytes:
        """A request for so many tokens."""
        return _body(self.models[model], prompt, output_tokens, self.fields, self.form)


def _body(model: str, prompt: list[int], output_tokens: int, fields: dict[str, Any], form: PromptForm) -> bytes:
    # The same word for the same id, so that prompts that begin alike in the scenario do so in words, and caches hit.
    text: Any = " ".join(WORDS[token % len(WORDS)] for token in prompt) if form.words else prompt
    # One message, whatever was said before: which prompts begin alike is then the same as in completions, and the
    # template of the model stands around all of it once.
    prompt_field = {"messages": [{"role": "user", "content": text}]} if form.chat else {"prompt": text}
    body = {"model": model, **prompt_field, "max_tokens": output_tokens, "stream": True, **fields}
    if "min_tokens" in fields:
        body["min_tokens"] = output_tokens
    return json.dumps(body).encode()


def base_of(url: str) -> str:
    """``http://host:port/path`` of what was said on the command line, without a ``/v1`` at its end. InputError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{url}: is no address ({error}); expected one such as http://127.0.0.1:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"{url}: is no address; expected one such as http://127.0.0.1:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(f"{url}: an address has neither a user, nor a query; a key goes by --key-env NAME")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def find_server(
    session: aiohttp.ClientSession,
    base: str,
    wanted: Sequence[str],
    named: Sequence[str],
    vocabulary: int,
    longest: int,
    form: PromptForm,
    wait_s: float,
) -> LiveServer:
    """The server at ``base`` after one short request; ``wanted`` models of the workload, ``named`` those of a user.

    Errors: InputError where none answers, where it has no such model, or refuses all forms of a request.
    """
    listed = await _models(session, base)
    models = _chosen(base, listed, wanted, named)
    for model in models:
        most = listed.get(model)
        if most is not None and longest > most:
            raise InputError(
                f"{base}: {model} takes {most:,} tokens of prompt and answer, the longest request has {longest:,}; "
                "start it with a larger limit, or shorten the workload's lengths"
            )
    # The highest id: that the server's vocabulary is smaller than the scenario's shows before the load, not within it.
    prompt = [vocabulary - 1, vocabulary // 2]
    # A dict for its order: the same refusal of several rows is said once, and the first is the one that tells.
    refusals: dict[str, None] = {}
    for fields in _FIELDS:
        exchange = Exchange(-1, 0, 0.0, len(prompt))
        body = _body(models[0], prompt, _PROBE_TOKENS, fields, form)
        await ask(session, f"{base}{form.path}", body, exchange, wait_s, wait_s)
        if exchange.status == OK:
            return LiveServer(base, models, fields, form, tuple(_notes(fields, exchange, form)))
        refusals[f"{exchange.status}: {exchange.error}"] = None
        if exchange.status not in ("HTTP 400", "HTTP 422"):  # not of the fields, and no others would help
            break
    remedy = "" if form.words else "; a server that takes no token ids may take --prompts words"
    if not form.chat and exchange.status == "HTTP 404":
        remedy = "; a server that only chats may take --chat"
    raise InputError(
        f"{base}{form.path}: a first request of {_PROBE_PROMPT} tokens failed: {next(iter(refusals))}{remedy}"
    )


async def _models(session: aiohttp.ClientSession, base: str) -> dict[str, int | None]:
    """Names that the server has, with the tokens that a request may have; none where it has no such list."""
    try:
        async with session.get(f"{base}/v1/models", allow_redirects=False) as response:
            if response.status in (401, 403):
                raise InputError(f"{base}: wants a key (HTTP {response.status}); --key-env NAME says where it is")
            if 300 <= response.status < 400:
                where = response.headers.get("Location", "nowhere")
                raise InputError(f"{base}: redirects to {where[:200]}, which was not named; name it if you mean it")
            if response.status != 200:
                return {}
            # vLLM's answer has `max_model_len`; OpenAI's own list has no such key.
            data = (await response.json(content_type=None)).get("data") or []
            longest = {str(model["id"]): model.get("max_model_len") for model in data}
            return {name: most if isinstance(most, int) else None for name, most in longest.items()}
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise InputError(f"{base}: no server answers there ({short(error, 200)})") from None
    except (ValueError, TypeError, KeyError, AttributeError):  # a list of another form is as good as none
        return {}


def _chosen(base: str, listed: dict[str, int | None], wanted: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    count = max(len(wanted), 1)
    if named:
        if len(named) != count:
            raise InputError(f"--served {' '.join(named)}: the workload asks for {count} models, name as many")
        unknown = [name for name in named if listed and name not in listed]
        if unknown:
            raise InputError(f"--served {unknown[0]}: {base} has {', '.join(listed)}")
        return tuple(named)
    if all(name in listed for name in wanted) and wanted:
        return tuple(wanted)
    if len(listed) == 1 and count == 1:
        return tuple(listed)
    has = f"{base} has {', '.join(listed)}" if listed else f"{base} does not list its models"
    raise InputError(f"{has}; say which is asked for by --served NAME{' (one for each model)' if count > 1 else ''}")


def _notes(fields: dict[str, Any], exchange: Exchange, form: PromptForm) -> list[str]:
    """What cannot be known or asked of a server, as far as its first answer tells."""
    notes = []
    if form.chat and exchange.prompt_tokens > _PROBE_PROMPT:
        added = exchange.prompt_tokens - _PROBE_PROMPT
        notes.append(f"its template made {exchange.prompt_tokens} tokens of {_PROBE_PROMPT} words: prompts are longer "
                     f"than the scenario's by about {added}")  # fmt: skip
    if not {"ignore_eos", "min_tokens"} & set(fields):
        notes.append("it knows neither ignore_eos nor min_tokens: answers may be shorter than the scenario's")
    if "stream_options" not in fields:
        notes.append("it does not count tokens: an answer has as many as it had pieces, a prompt as many as were sent")
    # NaN: the answer had no `prompt_tokens_details`.
    elif exchange.cached_tokens != exchange.cached_tokens:
        notes.append("it does not tell how much of a prompt it found cached (vLLM: --enable-prompt-tokens-details)")
    if not exchange.tokens:
        notes.append("it does not tell which tokens it answers: later turns of a session repeat others in their place")
    return notes
