"""``evaluator deploy``: the command lines and files that run a design of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluator.cli.options import QuietOption
from evaluator.cli.output import tell
from evaluator.errors import InputError

ResultArgument = Annotated[
    Path, typer.Argument(metavar="RESULT.nc", help="What `evaluator optimize --out` or `sweep --out` wrote.")
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NUMBER|NAME=VALUE",
        help="The design: its number in the ranked table, or values such as tp=4,hardware=h100-sxm, of which the "
        "best is taken; config=ROW is a row of the grid. The best of all where absent.",
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        metavar="vllm|sglang|trtllm|compose|kubernetes|llm-d|dynamo",
        help="What it is written for; the engine that was simulated where absent.",
    ),
]
FolderOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Write all files here; else the commands go to stdout.")
]
ModelIdOption = Annotated[
    str | None, typer.Option(metavar="ORG/NAME", help="The Hugging Face repository that is served.")
]


def deploy(
    result: ResultArgument,
    select: SelectOption = None,
    to: ToOption = None,
    out: FolderOption = None,
    model_id: ModelIdOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write what runs a design: command lines or manifests, the router, and the load that checks the prediction."""
    # Inside the command, as everywhere in this room: ``--help`` must not wait for NumPy and xarray.
    from evaluator.deploy import TARGETS
    from evaluator.deploy import deploy as files_of
    from evaluator.results import read

    if to is not None and to not in TARGETS:
        raise InputError(f"--to {to}: is no target; allowed: {', '.join(TARGETS)}")
    # Checked before the result is read and the files are made, as every command checks its outputs first.
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is no folder; name a new one")
    deployed = files_of(read(result), select or (), to, model_id, str(result))
    if not quiet:
        typer.echo(f"{result}: {deployed.chosen}", err=True)
        for remark in deployed.remarks:
            typer.echo(f"not the same: {remark}", err=True)
    if out is None:
        # Without a folder only the first file can go to stdout; the order of the files says which one
        # starts the deployment.
        first, *others = deployed.files
        tell(deployed.files[first].rstrip(), deployed=deployed)
        if not quiet:
            typer.echo(f"--out FOLDER writes {first} with {', '.join(others)}", err=True)
        return
    tell(None, deployed=deployed)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in deployed.files.items():
        # Charts have files in folders of their own.
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    if not quiet:
        typer.echo(f"wrote {', '.join(deployed.files)} to {out}", err=True)
