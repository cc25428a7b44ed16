"""Makes the pictures of the scenarios and of docs/errors.md anew: those named on the command line, or all.

``make pictures`` runs it. A picture is what a command of Evaluator draws, or a function for what no command does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks import bestserve, designs, hermes, kv_storage, mist, rag, screens, vidur
from tests.benchmarks.accuracy.pictures import PICTURES as OF_ERRORS
from tests.benchmarks.timing import ROOT

FOLDER, PAGES = ROOT / "scenarios", ROOT / "docs"
COLOURS = 112  # of a picture's palette: a third of the bytes, and no difference that one sees
LARGEST = 150_000
"""Bytes of a picture, at most."""


@dataclass(frozen=True)
class Command:
    """A command line of Evaluator, without ``--plot``; and what it plots to, where the picture lies beside that."""

    line: str
    plot: str | None = None

    def __call__(self, path: Path) -> None:
        target = path.with_name(self.plot or path.name)
        arguments = [*self.line.split(), "--top", "0", "--plot", str(target)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-m", "evaluator", *arguments], env=environment, check=True)


PICTURES: Mapping[str, Callable[[Path], None]] = {
    "quickstart.png": Command("sweep quickstart"),
    "quickstart-sensitivity.png": Command(
        "sweep quickstart --set workload.seeds=[0,1,2,3] --sensitivity", plot="quickstart.png"
    ),
    "quickstart-page.png": screens.draw_page,
    "choose-hardware.png": screens.draw_notebook,
    "what-if-bandwidth.png": screens.draw_notebook,
    "policies.png": designs.draw_policies,
    "speculative.png": designs.draw_speculative,
    "closed-loop.png": Command("sweep closed-loop"),
    "data-parallel.png": designs.draw_data_parallel,
    "eight-gpus.png": Command("optimize eight-gpus"),
    "disaggregation.png": designs.draw_disaggregation,
    "mixed-beside-apart.png": designs.draw_mixed_beside_apart,
    "prefix-caching.png": Command("sweep prefix-caching"),
    "cache-tiers.png": Command("sweep cache-tiers"),
    "conversations.png": Command("sweep conversations"),
    "conversations-apart.png": Command("sweep conversations-apart"),
    "agents.png": designs.draw_agents,
    "late-routers.png": Command("sweep late-routers"),
    "adapters.png": Command("sweep adapters"),
    "long-prompts.png": Command("sweep long-prompts"),
    "experts-apart.png": Command("sweep experts-apart"),
    "day-of-chat.png": designs.draw_day,
    "outage.png": designs.draw_outage,
    "shortest-first.png": designs.draw_shortest_first,
    "day-apart.png": designs.draw_day_apart,
    "encoders.png": Command("sweep encoders"),
    "rag-placement.png": rag.draw,
    "kv-storage.png": kv_storage.draw,
    "bestserve.png": bestserve.draw,
    "hermes-batching.png": hermes.draw_batching,
    "client-scaling.png": hermes.draw_scaling,
    "reasoning.png": hermes.draw_reasoning,
    "vidur-search.png": vidur.draw,
    "mist-search.png": mist.draw,
}
"""How each picture is made: a function that writes it to a path whose last part is the picture's name."""
EVERY = {**PICTURES, **OF_ERRORS}


def make(name: str) -> float:
    """Make one picture; the seconds it took. The old one is replaced when the new one is whole."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        EVERY[name](path)
        shrink(path)
        place(name).write_bytes(path.read_bytes())
    return time.perf_counter() - start


def place(name: str) -> Path:
    """Where a picture is kept."""
    return (PAGES if name in OF_ERRORS else FOLDER) / name


def shrink(path: Path) -> None:
    """Give a PNG a palette of COLOURS of its own, each of which was the worst met by those before it."""
    from PIL import Image

    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"), np.uint32)  # (row, column, channel)
    packed = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    found, place, count = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1).astype(float)
    weight = np.sqrt(count)  # so that the thin lines of a legend keep their colour beside large areas
    kept = [int(count.argmax())]
    nearest, distance = np.zeros(len(found), np.uint8), ((colours - colours[kept[0]]) ** 2).sum(1)
    while len(kept) < min(COLOURS, len(found)):
        kept.append(int((weight * distance).argmax()))
        other = ((colours - colours[kept[-1]]) ** 2).sum(1)
        nearest = np.where(other < distance, len(kept) - 1, nearest).astype(np.uint8)
        distance = np.minimum(distance, other)
    small = Image.fromarray(nearest[place].reshape(packed.shape))
    small.putpalette(colours[kept].astype(np.uint8).tobytes())
    small.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME.png", help=f"of {', '.join(EVERY)}; all without any")
    chosen = parser.parse_args().names or EVERY
    unknown = [name for name in chosen if name not in EVERY]
    if unknown:
        parser.error(f"no picture {', '.join(unknown)}; there are {', '.join(EVERY)}")
    failed = False
    for name in chosen:
        try:
            seconds = make(name)
        except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as reason:
            failed = True
            print(f"{name:<28} not made: {reason}", flush=True)
            continue
        size = place(name).stat().st_size
        note = "" if size <= LARGEST else f"  more than the {LARGEST / 1e3:.0f} kB that a picture may have"
        print(f"{name:<28}{seconds:6.1f} s {size / 1e3:5.0f} kB{note}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
