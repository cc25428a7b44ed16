"""The cases of which the model's error was measured, and the table of these errors that the catalog holds.

A case is what a prediction rests on: serving runs of this device and model, its kernels alone, a data sheet. Its error
was measured by predicting serving runs as if no more than that were known of them (``evaluator compare --errors``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evaluator.catalog.fields import Fields, load
from evaluator.catalog.store import has
from evaluator.errors import InputError

SHARE = 0.68
"""The part of measured values that shall lie within a stated error: as within one standard deviation."""
STATISTICS = ("ttft_mean", "ttft_p90", "ttft_p99", "itl_mean", "e2e_mean", "e2e_p90", "e2e_p99")
"""What was measured of serving runs; their ITL is (mean E2E - mean TTFT) / (mean output tokens - 1), as TPOT is."""
LOADS = (48.0, 160.0)
"""Requests at a time on a replica that part the groups by which errors are told: at most so many, up to the next, more.
Servers with more than the first of these were off by twice as much as others of their case."""
LOAD_NAMES = ("up to 48", "up to 160", "more")
"""What these groups are called in tables of errors."""
FEWEST_SERVERS = 5
"""Servers that must have had a load for a case to tell of it: of fewer the band is their largest error."""
TABLE = "serving"
"""The table of errors that a prediction takes its own from."""


@dataclass(frozen=True)
class Case:
    """``told`` says what a prediction rests on. ``held_out`` and ``calibration`` are the options of ``compare`` that
    measure its error: what is kept aside, and the set that the fits start from, or that predicts (None: no fit), by
    ``kernels`` as of ``evaluator.calibrate.serving``. ``command``: another one that measures it. ``at_least``: a case
    of more runs, whose band is the least that is stated of this one.
    ``by_server``: its values are many loads and layouts of few models, each of which has one vote (``band``).
    ``farther``: the case whose error at a load is the least that is stated where this one had too few servers of such a
    load; "": none.
    ``same_model``: of the predicted runs only those whose model other runs of the same device are of. ``host``: the
    host's times were fitted to serving runs. ``own_servers``: its runs were on a device of whose servers the set is;
    ``no_servers``: it is of devices of which nobody measured servers. What errs for the one reason does so beside what
    errs for the other (``Errors.of``).
    """

    told: str
    held_out: str | None
    calibration: str
    same_model: bool = False
    host: bool = True
    kernels: str = "own"
    command: str = ""
    at_least: str = ""
    by_server: bool = False
    farther: str = "other_releases"
    own_servers: bool = False
    no_servers: bool = False


CASES: dict[str, Case] = {
    "runs": Case("serving runs of this device and model", "fold", "GPU-vllm", same_model=True, farther="other_models"),
    # Of two models alone, on 1, 2 and 4 devices: that layouts make no difference is not known from these.
    "other_layouts": Case(
        "serving runs of this device and model, in other layouts",
        "layout",
        "GPU-vllm",
        same_model=True,
        at_least="other_models",
        farther="other_models",
    ),
    "other_models": Case("serving runs of this device, other models", "model", "GPU-vllm"),
    # Of another release than that of the servers that a set was fitted to, in another campaign: what its authors did
    # not say is in these errors, too.
    "other_releases": Case(
        "another release of the engine",
        None,
        "",
        command="python -m tests.benchmarks.accuracy --errors FILE.yaml",
        at_least="other_models",
        by_server=True,
        own_servers=True,
        farther="",  # it has the largest loads of all
    ),
    "spread_experts": Case(
        "experts in 16 bits spread over devices",
        None,
        "",
        command="python -m tests.benchmarks.accuracy --errors FILE.yaml",
        by_server=True,
        own_servers=True,
    ),
    "state_layers": Case(
        "layers with a state in 16 bits",
        None,
        "",
        command="python -m tests.benchmarks.accuracy --errors FILE.yaml",
        by_server=True,
    ),
    "other_engines": Case(
        "another engine, KV in fp8 or weights in nvfp4, as of TensorRT-LLM's servers",
        None,
        "",
        command="python -m tests.benchmarks.accuracy --errors FILE.yaml",
        by_server=True,
    ),
    "other_devices": Case("kernels of this device, serving runs of others", "gpu", "GPU-vllm", no_servers=True),
    "kernels_and_host": Case(
        "kernels of this device, the host of serving runs of others",
        "gpu",
        "GPU-vllm",
        kernels="host",
        no_servers=True,
    ),
    "iterations": Case(
        "whole iterations of its model, shapes between measured ones",
        None,
        "",
        command="evaluator calibrate DATA... --hardware NAME --form polynomial --out SET.yaml --errors FILE.yaml",
    ),
    "kernels": Case("kernels of this device, no serving runs", None, "GPU-vllm", host=False),
    "transferred": Case("kernels and host of other devices", "gpu", "GPU-vllm", kernels="transferred", no_servers=True),
    "sheet_and_runs": Case("a data sheet, serving runs of other devices", "gpu", "datasheet"),
    "datasheet": Case("a data sheet", None, "datasheet", host=False),
}
"""What a prediction may rest on, the most first."""


@dataclass(frozen=True, eq=False)
class Errors:
    """A table of errors: ``bands`` by case and statistic of STATISTICS; how many ``runs`` and ``devices`` tell of each.

    A band is relative: SHARE of the measured values are within prediction x (1 +- band). ``by_load``: the same of the
    values of each group of LOADS; NaN where too few servers had such a load.
    """

    bands: Mapping[str, Mapping[str, float]]
    runs: Mapping[str, int]
    devices: Mapping[str, int] = field(default_factory=dict)
    by_load: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    def of(
        self, cases: Sequence[str], statistic: str, unmeasured: bool = False, concurrency: float | None = None
    ) -> float:
        """The largest band of these cases, of a prediction that rests on all of them. NaN: there is none.

        Two that err for reasons of their own err together as the root of their squares: a device of which no server was
        measured, and what servers of others measured on their own device (another release, experts that are spread).

        ``concurrency``: requests at a time on a replica; None: as the measured servers had, whatever their load.
        ``unmeasured``: something of it is in no measured run. Then it is taken to be no better than the worst of the
        cases that know as much of the host: what is not known are its kernels and what its devices send. So is a
        statistic that nobody measured of one of the cases. A case of which the table tells nothing has the error of
        those that stand in for it (``_standing_in``); where there are none it is the worst of all.
        """
        group = None if concurrency is None else load_group(concurrency)
        cases = list(dict.fromkeys(stand_in for case in cases for stand_in in self._standing_in(case)))
        bands = [self._band(case, statistic, group) for case in cases]
        # Asked without the load: at one, a case has figures of others where its own servers had too few such loads.
        untold = [case for case in cases if not self._band(case, statistic) > 0.0]  # NaN compares as False
        if any(case not in self.bands for case in untold):
            bands = [self._band(case, statistic, group) for case in self.bands]
        elif unmeasured or untold:
            host = all(CASES[case].host for case in cases)
            bands += [self._band(case, statistic, group) for case in self.bands if CASES[case].host or not host]
        else:
            of_device = [self._own(case, statistic, group) for case in cases if CASES[case].no_servers]
            # Of a statistic that a case did not measure it has the floor's error, which is no reason of its own.
            beside = [
                band
                for case, band in zip(cases, bands, strict=True)
                if CASES[case].own_servers and statistic in self.bands[case]
            ]
            bands += [math.hypot(of_kernels, of_servers) for of_kernels in of_device for of_servers in beside]
        return max((error for error in bands if error > 0.0), default=math.nan)

    def _standing_in(self, case: str) -> tuple[str, ...]:
        """The cases whose errors stand for those of one of which the table tells nothing; itself, where it does.

        What no server had that a set was fitted to (FEATURES) is off as the others of these are, which nobody had
        measured before either: the largest of them. Of the rest it is the next one in CASES, which knows less.
        """
        if self.bands.get(case) or case not in CASES:
            return (case,)
        measured = [name for name in CASES if self.bands.get(name)]
        if case in FEATURES:
            return tuple(name for name in measured if name in FEATURES) or (case,)
        order = list(CASES)
        farther = (
            name
            for name in measured
            # Whole iterations are of fits to one model, which tell of no other.
            if order.index(name) > order.index(case) and name not in (*FEATURES, ITERATIONS)
            and CASES[name].host == CASES[case].host
        )  # fmt: skip
        return (next(farther, case),)

    def is_beyond(self, case: str, statistic: str, group: int) -> bool:
        """Whether too few servers of a case had such a load, or a larger one; False where no load of it is known."""
        errors = self.by_load.get(case, {}).get(statistic, _NO_LOAD)
        groups_told = [number for number, error in enumerate(errors) if error > 0.0]  # NaN compares as False
        return bool(groups_told) and max(groups_told) < group

    def _band(self, case: str, statistic: str, group: int | None = None) -> float:
        """The band of one case; that of an E2E that was not measured is the larger one of TTFT and ITL. NaN: none."""
        error = self._at_load(case, statistic, group)
        floor = CASES[case].at_least if case in CASES else ""
        # ``fmax``, not ``max``: a case without a figure of its own has that of the floor, and no NaN.
        return float(np.fmax(error, self._at_load(floor, statistic, group))) if floor else error

    def _at_load(self, case: str, statistic: str, group: int | None) -> float:
        """The band of one case at a load: that of its servers with such a load.

        Where too few had it, the largest of three: of all its servers, of lower loads, and of the next case
        (``farther``) at this load. No load is surer than a lower one, whatever a table says of the two.
        """
        whole, at_loads = self._whole(case, statistic), self.by_load.get(case, {}).get(statistic, _NO_LOAD)
        # Of a case whose loads are not known, as of iterations, nothing is known by load either.
        if group is None or all(math.isnan(error) for error in at_loads):
            return whole
        lower = self._at_load(case, statistic, group - 1) if group else math.nan
        if at_loads[group] > 0.0:
            return float(np.fmax(at_loads[group], lower))
        farther = CASES[case].farther
        next_asked = self._at_load(farther, statistic, group) if farther else math.nan
        return float(np.fmax.reduce([whole, lower, next_asked]))

    def _own(self, case: str, statistic: str, group: int | None) -> float:
        """The band of one case by its own servers, at such a load or the next lower one that enough of them had."""
        groups = len(_NO_LOAD) if group is None else group + 1
        at_loads = self.by_load.get(case, {}).get(statistic, _NO_LOAD)[:groups]
        errors = [error for error in at_loads if error > 0.0]  # NaN compares as False
        return max(errors) if errors and group is not None else self._whole(case, statistic)

    def _whole(self, case: str, statistic: str) -> float:
        measured = self.bands.get(case, {})
        if statistic in measured or not statistic.startswith("e2e_"):
            return measured.get(statistic, math.nan)
        # The relative error of a sum is at most the larger one of its parts.
        return max((measured.get(f"{part}_mean", math.nan) for part in ("ttft", "itl")), default=math.nan)


_NO_LOAD = (math.nan,) * len(LOAD_NAMES)


def load_group(concurrency: float) -> int:
    """The place of a load among the groups of LOADS."""
    return bisect_left(LOADS, concurrency)


def band(errors: np.ndarray, share: float = SHARE, servers: Sequence[Hashable] | None = None) -> float:
    """The error that one more value is within with a probability of at least ``share``, from ``errors`` (value,).

    It is the k-th smallest of their n magnitudes with k = ceil((n + 1) share), as in split conformal prediction (Vovk,
    Gammerman, Shafer: Algorithmic Learning in a Random World, 2005); with fewer than two values there is none (NaN).

    ``servers`` (value,): which server each value is of; one more value is then one of another server. Loads of one
    server are off alike, so that n is the number of servers, and each value has its part of its server's one vote
    (Dunn, Wasserman, Ramdas: Distribution-Free Prediction Sets for Two-Layer Hierarchical Models, JASA 2023).
    """
    finite = np.isfinite(errors)
    magnitudes = np.abs(errors[finite])
    if len(magnitudes) < 2:
        return math.nan
    order = np.argsort(magnitudes, kind="stable")
    if servers is None:
        votes, voters = np.arange(1.0, len(order) + 1.0), len(order)
    else:
        named = [server for server, is_known in zip(servers, finite, strict=True) if is_known]
        values_of = Counter(named)
        votes, voters = np.cumsum([1.0 / values_of[named[value]] for value in order]), len(values_of)
    # With few values the rank lies beyond the last: the largest is then the most that can be said. Sums of parts miss
    # whole votes by rounding.
    rank = int(np.searchsorted(votes, (voters + 1) * share - 1e-9))
    return float(magnitudes[order[min(rank, len(order) - 1)]])


def bands_by_load(
    errors: np.ndarray, concurrency: np.ndarray, servers: Sequence[Hashable], by_server: bool
) -> tuple[float, ...]:
    """``band`` of the values of each group of LOADS (Mondrian conformal prediction: Vovk et al., section 4.5).

    NaN where fewer than FEWEST_SERVERS had such a load. ``concurrency`` (value,): NaN where it is not known. No load is
    said to be surer than a lower one: where its values would say so, both groups have the band of their values
    together, until none is left (the isotonic regression of the bands, by adjacent violators).
    """
    rows = np.flatnonzero(np.isfinite(errors) & np.isfinite(concurrency)).tolist()

    def band_of(places: list[int]) -> float:
        return band(errors[places], servers=[servers[place] for place in places] if by_server else None)

    blocks: list[tuple[list[int], list[int]]] = []  # groups, and the values of all of them
    for group in range(len(LOAD_NAMES)):
        groups, places = [group], [place for place in rows if load_group(concurrency[place]) == group]
        if len({servers[place] for place in places}) < FEWEST_SERVERS:
            continue
        while blocks and band_of(places) < band_of(blocks[-1][1]):
            lower_groups, lower = blocks.pop()
            groups, places = lower_groups + groups, lower + places
        blocks.append((groups, places))
    bands = {group: band_of(places) for groups, places in blocks for group in groups}
    return tuple(bands.get(group, math.nan) for group in range(len(LOAD_NAMES)))


def load_errors(name: str = TABLE) -> Errors:
    """The table of errors of this name (or path), the user's before the package's. Empty where there is none."""
    if not has("errors", name) and not name.endswith(".yaml"):
        return Errors({}, {})
    # A table bears no name of its own that could be another than its file's.
    return load("errors", name, _named_table)


def _named_table(document: Any, where: str, _: str) -> Errors:
    # A function of the module, as files are kept by path and reader: a lambda is another one in every call.
    return read_errors(document, where)


def read_errors(document: Any, where: str) -> Errors:
    """A table of errors from the content of its YAML; ``where`` is the file's name in messages."""
    given = Fields(document, where)
    share = given.number("share", high=1.0)
    # A table of another share has other numbers under the same names.
    if share != SHARE:
        raise InputError(f"{given.place('share')}: must be {SHARE:g}, got {share:g}; derive the table anew")
    listed = given.inner("cases")
    given.finish()
    bands: dict[str, dict[str, float]] = {}
    by_load: dict[str, dict[str, tuple[float, ...]]] = {}
    runs: dict[str, int] = {}
    devices: dict[str, int] = {}
    for name in listed.values:
        if name not in CASES:
            raise InputError(f"{listed.place(str(name))}: no such case; there are: {', '.join(CASES)}")
        case = listed.inner(name)
        runs[name] = case.integer("runs", minimum=1)
        # For whoever reads the file: where its figures come from.
        for text in ("derived", "command", "source"):
            case.text(text)
        devices[name] = len(case.sequence("devices"))
        figures = {statistic: _figures(case, statistic) for statistic in STATISTICS if statistic in case.values}
        bands[name] = {statistic: error for statistic, (error, _) in figures.items()}
        by_load[name] = {statistic: at_loads for statistic, (_, at_loads) in figures.items()}
        case.finish()
    return Errors(bands, runs, devices, by_load)


def _figures(case: Fields, statistic: str) -> tuple[float, tuple[float, ...]]:
    """The error of a statistic, and by load."""
    figures = case.inner(statistic)
    error = figures.number("error")
    # Groups of which a case does not tell are not there, and none in tables that were derived before there were groups.
    of_groups = tuple(figures.number(name, math.nan) for name in LOAD_NAMES)
    # Told beside the error, and not used here.
    for figure in ("median", "bias"):
        figures.raw(figure)
    figures.integer("values", minimum=2)
    figures.finish()
    return error, of_groups


ITERATIONS, OTHER_RELEASES, SPREAD_EXPERTS = "iterations", "other_releases", "spread_experts"
STATE_LAYERS, OTHER_ENGINES = "state_layers", "other_engines"
FEATURES = (SPREAD_EXPERTS, STATE_LAYERS, OTHER_ENGINES)
"""Cases of what no server had that a set was fitted to, and servers of others have."""


def cases_of(held_out: str | None, calibration: str) -> list[str]:
    """The cases whose errors a comparison with these options tells. InputError where it tells of none."""
    key = (held_out, calibration)
    # A case with a command of its own is measured by another tool than ``compare``.
    names = [name for name, case in CASES.items() if not case.command and (case.held_out, case.calibration) == key]
    if not names:
        options = "; ".join(dict.fromkeys(_options(case) for case in CASES.values() if not case.command))
        raise InputError(f"--errors: {_options(Case('', *key))} measures no case; those that do are: {options}")
    return names


def _options(case: Case) -> str:
    aside = [] if case.held_out is None else [f"--held-out {case.held_out}"]
    return " ".join([*aside, f"--calibration {case.calibration}"])


def command_of(case: str) -> str:
    """The command that measures a case."""
    return CASES[case].command or f"evaluator compare SPECS.json ACTUALS.csv {_options(CASES[case])} --errors FILE.yaml"


def plain(value: float) -> float:
    """A number with four digits."""
    return float(f"{float(value):.4g}")
