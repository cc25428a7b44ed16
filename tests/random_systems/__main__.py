"""Random systems on both simulators, in batches that share programs; what disagrees is made small and written down.

    python -m tests.random_systems --cases 1000
    python -m tests.random_systems --structure 17      # one structure again, from the beginning

A line of the output file is a structure with its systems: a run that was interrupted goes on behind the last one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import tests.conftest  # noqa: F401 - programs without optimisations: it sets XLA_FLAGS before JAX starts
from tests.random_systems.compare import TOLERANCE, Verdict, shrunk, verdicts
from tests.random_systems.draw import features, structure, system

STRUCTURES = 500
"""Of so many the first systems say which parts are drawn at all."""
FRUITLESS = 40
"""Structures one after the other of which nothing is compared, after which a run ends: all of them are for the
reference alone, or refused."""
DRAWN = 40
"""Systems that are drawn of a structure; some are refused, some are for the reference alone."""


def main() -> int:
    """Exit code 3 where simulators disagree, as of other gates."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_systems", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="systems to compare (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first structure (0)")
    parser.add_argument(
        "--each", type=int, default=16, help="systems of a structure that are compared at the most (16)"
    )
    parser.add_argument("--programs", type=int, default=3, help="programs that are compiled for a structure (3)")
    parser.add_argument("--structure", type=int, help="this structure alone, whose differences are printed")
    parser.add_argument("--part", help="structures whose systems have this part alone, such as autoscaling")
    parser.add_argument("--tries", type=int, default=60, help="to make a system smaller that disagrees (60)")
    parser.add_argument("--out", type=Path, default=Path(".cache/random-systems.jsonl"), help="where lines are kept")
    asked = parser.parse_args()
    if asked.each < 1:
        parser.error(f"argument --each: must be at least 1, not {asked.each}")
    if asked.part and asked.part not in (parts := _parts()):
        parser.error(f"argument --part: no structure has {asked.part!r}; choose one of {', '.join(sorted(parts))}")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    if asked.structure is not None:
        line = _line(asked.structure, asked)
        print(json.dumps(line, indent=1))
        return 3 if _apart([line]) else 0
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done, fruitless = {line["structure"] for line in lines}, 0
    for number in itertools.count(asked.first):
        if _compared(lines) >= asked.cases:
            break
        if number in done or (asked.part and asked.part not in features(system(structure(number), 0))):
            continue
        lines.append(_line(number, asked))
        with asked.out.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(f"{_compared(lines):5d} compared, {len(_apart(lines))} apart: {_summary(lines[-1])}", file=sys.stderr)
        _forget()
        fruitless = 0 if _compared(lines[-1:]) else fruitless + 1
        if fruitless == FRUITLESS:
            print(f"ends here: of {FRUITLESS} structures one after the other nothing was compared", file=sys.stderr)
            break
    print("\n".join(_report(lines)))
    return 3 if _apart(lines) else 0


def _parts() -> frozenset[str]:
    """The parts that structures have, by which they can be asked for."""
    return frozenset().union(*(features(system(structure(number), 0)) for number in range(STRUCTURES)))


def _line(number: int, asked: argparse.Namespace) -> dict[str, Any]:
    """A structure, with what became of its systems."""
    parts, start = structure(number), time.process_time()
    trees = [system(parts, place) for place in range(DRAWN)]
    of_systems: list[Verdict] = list(verdicts(trees, asked.programs, asked.each))
    systems = [
        {
            **{name: value for name, value in vars(verdict).items() if value},
            "features": sorted(features(trees[verdict.number])),
        }
        for verdict in sorted(of_systems, key=lambda verdict: verdict.number)
    ]
    for verdict in of_systems:
        if verdict.outcome != "tie" and not verdict.apart <= TOLERANCE:
            small = asked.out.parent / f"random-system-{number}-{verdict.number}.yaml"
            small.write_text(yaml.safe_dump(trees[verdict.number], sort_keys=False))
            print(f"system {number}-{verdict.number}: {verdict.where} by {verdict.apart:.3g}; {small}", file=sys.stderr)
            if asked.tries:
                small.write_text(yaml.safe_dump(shrunk(trees[verdict.number], asked.tries), sort_keys=False))
                break  # others of the structure likely differ for the same reason
    return {"structure": number, "parts": parts, "cpu_s": round(time.process_time() - start, 1), "systems": systems}


def _forget() -> None:
    """Programs of a structure serve no other one."""
    import jax

    from evaluator import device

    jax.clear_caches()
    device.give_back()


def _systems(lines: Sequence[Mapping[str, Any]], outcome: str) -> list[Mapping[str, Any]]:
    return [system for line in lines for system in line["systems"] if system["outcome"] == outcome]


def _compared(lines: Sequence[Mapping[str, Any]]) -> int:
    return len(_systems(lines, "compared"))


def _apart(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that differ, and those for the reference alone that it does not answer in order."""
    return [*_differing(_systems(lines, "compared")), *_differing(_systems(lines, "reference"))]


def _differing(systems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [system for system in systems if not system.get("apart", 0.0) <= TOLERANCE]


def _summary(line: Mapping[str, Any]) -> str:
    counts = Counter(system["outcome"] for system in line["systems"])
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    return f"structure {line['structure']} in {line['cpu_s']} s: {outcomes}"


def _report(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each feature, as docs/equality.md has them, and what all of it comes to."""
    both, alone = _systems(lines, "compared"), _systems(lines, "reference")
    columns = both, _differing(both), alone, _differing(alone)
    names = sorted({name for system in both + alone for name in system["features"]})
    rows = ["| part | compared | equal | for the reference alone | of these wrong |", "|---|---:|---:|---:|---:|"]
    for name in names:
        of_name = [[system for system in systems if name in system["features"]] for systems in columns]
        rows.append(f"| {name} | {_counts(*of_name)} |")
    pairs = Counter(pair for each in both for pair in itertools.combinations(sorted(each["features"]), 2))
    most = max((each.get("apart", 0.0) for each in both), default=0.0)
    parts = [len(each["features"]) for each in both]
    reasons = Counter(each["why"] for each in alone)
    return [
        *rows,
        f"| together | {_counts(*columns)} |",
        "",
        f"{len(lines)} structures, {sum(each['requests'] for each in both if 'requests' in each)} requests, "
        f"{sum(each.get('preemptions', 0) for each in both)} preemptions; {sum(parts) / max(len(parts), 1):.1f} parts "
        f"in a system, {len(pairs)} pairs of parts together in some; largest difference {most:.2g}; "
        f"{len(_systems(lines, 'tie'))} left out, since who of two at one time goes first is rounding; "
        f"{sum(line['cpu_s'] for line in lines):.0f} s of a processor",
        *(f"  {count} for {why}" for why, count in reasons.most_common()),
    ]


def _counts(*columns: Sequence[Mapping[str, Any]]) -> str:
    """Cells of a row: systems that were compared, are equal, are for the reference alone, and break it."""
    both, apart, alone, broken = map(len, columns)
    return f"{both} | {both - apart} | {alone} | {broken}"


if __name__ == "__main__":
    sys.exit(main())
