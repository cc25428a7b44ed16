"""``evaluator observe``: a scenario's traffic against a live server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evaluator.cli.failures import GATE
from evaluator.cli.options import QuietOption, ScenarioArgument, SetOption, check_output, read_scenario
from evaluator.cli.output import fail, tell
from evaluator.cli.signals import interrupted, told_to_stop
from evaluator.errors import InputError

if TYPE_CHECKING:
    from evaluator.observe import Observed

LATE_S = 0.01
"""Requests that are sent later than this, in one of a hundred, are told of: latencies are blurred by as much."""


UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:8000.")]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Choose one configuration of a sweep, such as rate_rps=4."),
]
RequestsOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Write one row per request here (.csv or .parquet), as simulate does; beside "
        "it FILE.metrics.csv, what the server tells at /metrics.",
    ),
]
ServedOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="What the server calls the model; repeated for several in the scenario's "
        "order. The only one that it has where absent.",
    ),
]
ChatOption = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Send to /v1/chat/completions, each prompt as one message of words; the server's "
        "template adds to them. Default: /v1/completions.",
    ),
]
PromptsOption = Annotated[
    str | None,
    typer.Option(
        metavar="tokens|words",
        help="Prompts as token ids, of exactly the scenario's lengths; or as "
        "words, of about these, for servers that take text alone. Default: tokens; words of a chat.",
    ),
]
KeyEnvOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable with the key that the server wants.")
]
MaxInFlightOption = Annotated[
    int, typer.Option(min=1, max=65536, metavar="N", help="Most requests in flight; more wait, and are late.")
]
MaxDurationOption = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Most seconds of the run; what is in flight then is cut off.")
]
TimeLimitOption = Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds that a request may take.")]
SilenceLimitOption = Annotated[
    float, typer.Option(min=0.1, metavar="S", help="Seconds that the server may be silent while it owes an answer.")
]
MostFailuresOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Stop after so many failures one after the other.")
]
MetricsEveryOption = Annotated[
    float, typer.Option(min=0.0, metavar="S", help="Seconds between samples of the server's gauges; 0: none.")
]


def observe(
    url: UrlArgument,
    scenario: ScenarioArgument,
    select: SelectOption = None,
    requests: RequestsOption = Path("observed.csv"),
    served: ServedOption = None,
    chat: ChatOption = False,
    prompts: PromptsOption = None,
    key_env: KeyEnvOption = None,
    max_in_flight: MaxInFlightOption = 1024,
    max_duration: MaxDurationOption = 3600.0,
    time_limit: TimeLimitOption = 600.0,
    silence_limit: SilenceLimitOption = 300.0,
    most_failures: MostFailuresOption = 50,
    metrics_every: MetricsEveryOption = 1.0,
    changes: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Send a scenario's traffic to a live OpenAI-compatible server, and write what came of each request.

    Exit code 3 where a request failed or the run ended early; the file has what there was.
    """
    _check(requests, prompts, chat)
    loaded = read_scenario(scenario, changes)
    import pandas  # noqa: F401  # what is loaded while a signal ends the run could not be unwound

    from evaluator.observe import LoadLimits, PromptForm
    from evaluator.observe import observe as run
    from evaluator.progress import Progress
    from evaluator.results.selection import parse_selection

    limits = LoadLimits(max_in_flight, max_duration, time_limit, silence_limit, most_failures)
    wanted = parse_selection(select or ())
    # The order of the two: ``told_to_stop`` raises the interruption at its end, when all is written, and
    # ``interrupted`` around it then says where.
    with interrupted(f"what was observed is kept in {requests}"), told_to_stop() as stopped_by:
        with nullcontext() if quiet else Progress(0, "requests") as progress:
            observed = run(
                loaded, url, select=wanted, served=served or (), form=PromptForm(chat, chat or prompts == "words"),
                key_env=key_env, limits=limits, metrics_every_s=metrics_every, progress=progress, stopped_by=stopped_by,
            )  # fmt: skip
        # Inside the block: a signal while the file is written must not unwind it.
        written = _write(observed, requests)
    tell(lambda: _described(observed), **_found(observed))
    if not quiet:
        for note in observed.notes:
            typer.echo(f"{observed.server.base}: {note}", err=True)
        typer.echo(f"wrote {' and '.join(map(str, written))}", err=True)
    _gate(observed)


def _check(requests: Path, prompts: str | None, chat: bool) -> None:
    """InputError for what can be refused before anything is read, drawn or sent."""
    from importlib.util import find_spec

    check_output(requests, "--requests", (".csv", ".parquet"))
    if prompts not in (None, "tokens", "words"):
        raise InputError(f"--prompts {prompts}: is no form of a prompt; allowed: tokens, words")
    if chat and prompts == "tokens":
        raise InputError("--prompts tokens: a chat takes no token ids; leave it out, or leave out --chat")
    # Looked for and not imported: that is left to the run.
    for package in ("aiohttp", "prometheus_client"):
        if find_spec(package) is None:
            raise InputError(f"observe needs {package}: pip install 'evaluator[observe]'")


def _found(observed: Observed) -> dict[str, Any]:
    from evaluator.observe.table import latencies, statuses

    names = ("seconds", "planned", "held", "ended_by", "notes")
    return {name: getattr(observed, name) for name in names} | {
        "statuses": lambda: statuses(observed.requests),
        "latencies": lambda: latencies(observed.requests),
    }


def _write(observed: Observed, path: Path) -> list[Path]:
    from evaluator.results import write_requests

    written = [write_requests(observed.requests, path)]
    if len(observed.metrics):
        written.append(write_requests(observed.metrics, path.with_suffix(".metrics.csv")))
    return written


def _described(observed: Observed) -> str:
    """What came of the requests, and their latencies in milliseconds."""
    from evaluator.observe.table import latencies, statuses

    requests = observed.requests
    sent = len(requests)
    lines = [f"{sent:,} of {observed.planned:,} requests sent in {observed.seconds:.1f} s to {observed.server.base}"]
    for status, count in statuses(requests).items():
        # One example for each kind of failure: of a thousand requests that fail alike one line tells why.
        first = next(iter(requests["error"][requests["status"] == status]), "")
        lines.append(f"  {count:,} {status}" + (f": {first}" if first else ""))
    answered = requests[requests["status"] == "ok"]
    tokens = answered[["prompt_tokens", "output_tokens"]].sum()
    lines.append(
        f"{len(answered) / observed.seconds:.4g} requests/s, {tokens['output_tokens'] / observed.seconds:.4g} output "
        f"tokens/s, {tokens['prompt_tokens'] / observed.seconds:.4g} prompt tokens/s"
    )
    cached = answered["cached_tokens"]
    if cached.notna().any() and tokens["prompt_tokens"]:
        lines.append(f"{100 * cached.sum() / tokens['prompt_tokens']:.1f} % of prompt tokens were found cached")
    if observed.held:
        lines.append(f"{observed.held:,} requests waited for --max-in-flight")
    lines.append(f"{'ms':6} {'mean':>10} {'p50':>10} {'p90':>10} {'p99':>10} {'max':>10}")
    rows = latencies(requests)
    for row in rows:
        values = " ".join(f"{1e3 * row[name]:10.4g}" for name in ("mean", "p50", "p90", "p99", "max"))
        lines.append(f"{row['metric'].removesuffix('_s'):6} {values}")
    late = next((row["p99"] for row in rows if row["metric"] == "late_s"), 0.0)
    # Requests that waited for ``--max-in-flight`` are late by the user's own limit, which has a line already.
    if late > LATE_S and not observed.held:
        lines.append(
            f"one request of a hundred was sent {1e3 * late:.3g} ms late or more: this machine is too busy, or too "
            "slow for this load, and the latencies are blurred by as much"
        )
    return "\n".join(lines)


def _gate(observed: Observed) -> None:
    failed = int((observed.requests["status"] != "ok").sum())
    # Both fail the gate, but an early end is told alone: the failures may follow from it.
    if observed.ended_by:
        fail("gate", f"ended early: {observed.ended_by}")
    elif failed:
        fail("gate", f"{failed:,} of {len(observed.requests):,} requests failed")
    if failed or observed.ended_by:
        raise typer.Exit(GATE)
