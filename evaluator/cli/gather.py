"""``evaluator gather``: the shards of a sweep, put together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from evaluator.cli.options import QuietOption
from evaluator.cli.output import tell
from evaluator.errors import InputError

LISTED = 20  # numbers of missing shards in a message


def gather(
    out: Annotated[Path, typer.Argument(metavar="NAME.zarr", help="What `evaluator sweep --shard` was told to write.")],
    quiet: QuietOption = False,
) -> None:
    """Check that all shards of a sweep are there and put them together; else print the commands of those missing."""
    from evaluator.results.gather import gather as join

    gathered = join(out)
    if gathered.missing:
        # On stdout, one a line: ``evaluator gather NAME.zarr | parallel`` computes what is missing.
        commands = list(gathered.commands)
        tell("\n".join(commands), commands=commands)
        # Twenty numbers fill a line or two; stdout has the commands of all.
        numbers = ", ".join(str(shard.number) for shard in gathered.missing[:LISTED])
        more = ", ..." if len(gathered.missing) > LISTED else ""
        raise InputError(
            f"{out}: {len(gathered.missing):,} of {gathered.shards:,} shards are missing: {numbers}{more}; "
            f"the commands above compute them, in any order and on any machine{_beside(gathered.others)}"
        )
    if not quiet:
        typer.echo(
            f"wrote {out}: {gathered.designs:,} designs of {gathered.shards:,} shards{_beside(gathered.others)}",
            err=True,
        )


def _beside(others: Sequence[Path]) -> str:
    """The folders of shards of other sweeps, which an earlier command left beside the output."""
    return (
        f"; shards of other sweeps lie in {', '.join(map(str, others))}; remove them, if not wanted" if others else ""
    )
