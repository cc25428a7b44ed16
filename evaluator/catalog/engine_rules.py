"""The defaults of each serving engine, by its release: the tables in ``models/engines``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evaluator.catalog.fields import Fields, load
from evaluator.catalog.hardware import Hardware
from evaluator.errors import InputError
from evaluator.records import kept_with_record

KEYS = ("batching.policy", "batching.limits", "batching.planning", "kv.memory_fraction", "kv.block_tokens",
        "kv.admission", "kv.full_prompt", "kv.prefix_caching", "api_servers")  # fmt: skip
"""The keys of which every table has a rule for every release; ``batching.limits`` are max_num_seqs and
max_num_batched_tokens. Others (``cuda_graphs``) are told and not simulated."""

PER_RANK = "data_parallel"
"""Of ``api_servers``: as many as a replica has data-parallel ranks."""

Release = tuple[int, ...]
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)+)(?:[.+-]?(?:post|rc|dev|cu)\w*)*")


@dataclass(frozen=True)
class DeviceLimits:
    """max_num_seqs and max_num_batched_tokens of the devices of a kind, with a name, of so much memory and more."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kind: str | None
    named: str | None  # a part of the device's name
    but: str | None  # a part that it does not have
    memory_bytes: float
    times_devices: bool

    def hold_on(self, hardware: Hardware) -> bool:
        """Whether they are those of a device, if no limits before them are."""
        name = hardware.name.lower()
        return (
            self.kind in (None, hardware.kind)
            and hardware.memory_bytes >= self.memory_bytes
            and (self.named is None or self.named in name)
            and (self.but is None or self.but not in name)
        )


@dataclass(frozen=True)
class Rule:
    """One row. ``value`` is what the engine does from ``since`` on; a scenario takes ``simulated``, for a reason."""

    key: str
    since: Release
    value: Any
    simulated: Any
    why: str
    source: str


# By identity, for there is one of each file: hashes over all rules, in the cache of ``_at``, took a fifth of a sweep.
@dataclass(frozen=True, eq=False)
class EngineRules:
    """The table of one engine. ``read_until`` is the last release whose source was read for it."""

    name: str
    label: str
    read_until: Release
    rules: tuple[Rule, ...]

    @property
    def newest(self) -> Release:
        """The release of the last row, whose rules hold for a scenario that names no release."""
        return max(rule.since for rule in self.rules)

    @property
    def oldest(self) -> Release:
        """The first release of which every key is known."""
        return max(min(rule.since for rule in self.rules if rule.key == key) for key in KEYS)

    @kept_with_record(most=64)
    def release(self, version: str | None) -> Release:
        """A release as numbers; None: the newest of the table. InputError for one that the table does not know."""
        if version is None:
            return self.newest
        numbers = _numbers(version.strip().lower())
        if numbers is None:
            raise InputError(f"{version!r} is no release of {self.label}; write one such as '{dotted(self.newest)}'")
        if not self._knows(numbers):
            # YAML reads 0.10 without quotes as 0.1, an old release that nobody meant.
            remedy = "name one of these, and say what differs by its own keys"
            if len(numbers) == 2 and self._knows((numbers[0], 10 * numbers[1])):
                written = dotted(numbers)
                remedy = f"write {written}0 in quotes, since without them YAML takes it for the number {written}"
            raise InputError(
                f"{self.label} {version} is not in the table of its defaults, which knows {dotted(self.oldest)} to "
                f"{dotted(self.read_until)}; {remedy}"
            )
        return numbers

    def _knows(self, release: Release) -> bool:
        # Compared to as many numbers as the table writes: 0.32.1 is of the release 0.32 that was
        # read, though the tuple (0, 32, 1) is greater than (0, 32).
        return self.oldest <= release[: max(2, len(self.oldest))] <= self.read_until

    def at(self, release: Release) -> Mapping[str, Rule]:
        """The rule of each key in a release: of those that it had by then, the last."""
        return _at(self, release)

    def of(self, version: str | None) -> Mapping[str, Rule]:
        """The rules of ``release(version)``, with its errors."""
        return self.at(self.release(version))

    def limits(self, release: Release, hardware: Hardware) -> DeviceLimits:
        """The limits of an iteration on a device."""
        cases = self.at(release)["batching.limits"].value
        # There is always one: `_rule` refuses a table whose last case does not hold on every device.
        return next(limits for limits in cases if limits.hold_on(hardware))


@lru_cache(maxsize=256)
def _at(table: EngineRules, release: Release) -> Mapping[str, Rule]:
    rules: dict[str, Rule] = {}
    # By release and not in the file's order, which groups rows by key; the sort is stable, so that
    # of two rows of one release the later holds.
    for rule in sorted(table.rules, key=lambda rule: rule.since):
        if rule.since <= release:
            rules[rule.key] = rule
    return rules


def dotted(release: Release) -> str:
    """A release as people write it."""
    return ".".join(map(str, release))


def in_words(value: Any) -> tuple[str, ...]:
    """What a rule says, in words; limits by device."""
    if isinstance(value, tuple):
        return tuple(map(_limits_in_words, value))
    return (str(value).lower() if isinstance(value, bool) else str(value),)


def _limits_in_words(limits: DeviceLimits) -> str:
    named = (limits.named or {"tpu": "other TPUs", "cpu": "CPUs"}.get(limits.kind or "", "")).strip()
    large = f"from {limits.memory_bytes / 2**30:g} GiB" if limits.memory_bytes else ""
    but = f" but {limits.but.upper()}" if limits.but else ""
    times = " per device" if limits.times_devices else ""
    where = f"{named or large or 'else'}{but}"
    return f"{where}: {limits.max_num_seqs:,} sequences, {limits.max_num_batched_tokens:,} tokens{times}"


def load_engine_rules(engine: str) -> EngineRules:
    """The table of an engine; InputError where it is unusable."""
    return load("engines", engine, _read)


def _read(document: Any, where: str, expected_name: str) -> EngineRules:
    given = Fields(document, where)
    table = EngineRules(
        given.named(expected_name),
        given.text("label"),
        release_of(given, "read_until"),
        tuple(_rule(Fields(row, f"{where}: rules.{number}")) for number, row in enumerate(given.raw("rules"), 1)),
    )
    given.finish()
    missing = [key for key in KEYS if key not in {rule.key for rule in table.rules}]
    if missing:
        raise InputError(f"{given.place('rules')}: there is none of {', '.join(missing)}")
    return table


def release_of(given: Fields, key: str) -> Release:
    """A release that a file names, as numbers; InputError for what is none."""
    release = _numbers(given.text(key))
    if release is None:
        raise InputError(f"{given.place(key)}: expected a release such as '0.28', got {given.text(key)!r}")
    return release


def _numbers(version: str) -> Release | None:
    """The numbers of a release as people write it; None of what is none."""
    match = _NUMBERS.fullmatch(version)
    return None if match is None else tuple(int(part) for part in match[1].split("."))


def _rule(given: Fields) -> Rule:
    key = given.choice("key", (*KEYS, "cuda_graphs"))
    limits = tuple(
        _limits(Fields(case, f"{given.where}.devices.{number}"))
        for number, case in enumerate(given.raw("devices", ()), 1)
    )
    value = limits if key == "batching.limits" else given.raw("value")
    rule = Rule(
        key,
        release_of(given, "since"),
        value,
        given.raw("simulated", value),
        given.text("why", ""),
        given.text("source"),
    )
    given.finish()
    if rule.simulated != value and not rule.why:
        raise InputError(f"{given.place('why')}: missing; say why {rule.simulated} is taken for {value}")
    if key == "batching.limits" and (not limits or limits[-1].kind or limits[-1].memory_bytes or limits[-1].named):
        raise InputError(f"{given.place('devices')}: the last must hold on every device")
    return rule


def _limits(given: Fields) -> DeviceLimits:
    limits = DeviceLimits(
        given.integer("max_num_seqs"),
        given.integer("max_num_batched_tokens"),
        given.text("kind", None),
        given.text("name", None),
        given.text("but", None),
        given.quantity("memory_bytes", "byte", 0.0),
        given.flag("times_devices", False),
    )
    given.finish()
    return limits
