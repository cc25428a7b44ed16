"""What every test runs under: float64, no silent rank promotion, whole loops, a compilation cache inside the checkout.

Set through the environment, before anything imports JAX and for subprocesses too; tests without JAX never load it.
"""

import gc
import os
import sys
from functools import cache
from pathlib import Path

# Read when NumPy loads. OpenBLAS would take a thread a core in each of pytest's processes, and these wait for one
# another by spinning: the SVDs of a fit (2,600 rows, 30 columns) then take 400 ms instead of 5 on two busy cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

from evaluator import device
from evaluator.device import WHOLE_LOOPS
from tests.thorough import THOROUGH

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SLOW = (
    "calibrate/test_command.py",
    "calibrate/test_fit.py",
    "calibrate/test_fitted_sets.py",
    "calibrate/test_shipped.py",
    "calibrate/test_tables.py",
    "cli/test_interruptions.py",
    "compare/test_requests.py",
    "compare/test_simulate.py",
    "cost/test_fold.py::test_gradients_are_finite_differences",
    "execution/test_cluster.py",
    "measure/test_measure.py",
    "package/test_notebooks.py",
    "properties",
    "reference/test_leap.py",
    "report/page/test_browser.py",
    "report/test_sensitivity.py",
    "simulation/test_perfetto.py",
    "reference/serve/test_pool.py",
    "stations",
)
"""Folders, files and functions that compile many or large programs or run long; ``make test-fast`` leaves them out."""

GATES = (
    "execution/test_cluster.py::test_a_killed_worker_loses_nothing_and_doubles_nothing",
    "execution/test_cluster.py::test_the_command_starts_a_cluster_of_its_own",
    "execution/test_cluster.py::test_what_a_worker_cannot_use_is_the_users_input",
    "package/test_notebooks.py::test_a_notebook_runs_with_a_bar_tables_and_a_plot",
    "package/test_site.py::test_the_site_is_built_and_a_broken_link_ends_the_build",
    "report/page/test_browser.py",
)
"""Tests that wait for a Dask cluster, a notebook's kernel, the generator of the site or a browser. ``.ci/run`` and
``make test-thorough`` run them, by ``EVALUATOR_GATES=1`` and ``EVALUATOR_THOROUGH=1``; ``make test`` does not."""

OF_PROGRAMS = (
    "execution", "oracle", "package", "plan", "policies", "properties", "reference", "run", "simulation", "stages",
    "stations",
)  # fmt: skip
"""Folders whose tests run short scenarios on all programs, those that take ten seconds to compile included."""

OF_A_PROCESS = (
    (
        "stations/engine/fcfs_reserved", "properties/engine/test_fcfs_reserved.py",
        "properties/engine/test_branches.py", "stations/engine/joint", "properties/engine/test_joint.py",
        "stations/engine/preemptive/test_program.py", "properties/engine/test_preemptive.py",
        "stations/engine/preemptive/test_rounds.py", "stations/engine/preemptive/test_prefix_cache.py",
        "properties/engine/test_prefix_cache.py", "stations/engine/preemptive", "oracle/test_recordings.py", "stations",
        "properties", "calibrate", "cost",
    ),
    (
        "simulation", "run", "search", "report/test_sensitivity.py", "reference/serve", "compare", "policies", "stages",
        "test_validation.py", "accuracy", "execution", "reference", "cli",
    ),
    (
        "report/page/test_browser.py", "cli/test_interruptions.py", "execution/test_cluster.py",
        "observe/test_observe.py", "cli/test_signals.py", "package/test_notebooks.py", "simulation/test_perfetto.py",
        "package/test_wheel.py", "deploy/test_send_load.py", "plan/test_worth.py", "cli/test_robustness.py",
        "results/test_shards.py", "package/test_examples.py", "report",
    ),
)  # fmt: skip
"""Folders and files in the order in which one of three processes takes them, and the second, and the third.

Tests of the first two share programs: one that two processes need is compiled twice, if they need it at one time, and
traced twice in any case. Those of the third wait, most of the time, for processes that they start, from one server as
far as they are forked (``tests/forked.py``): on two cores the first two are busy meanwhile. What else takes long stands
at the end, so that it is begun early. A file named by itself belongs there rather than where its folder does."""

TRIMMED_BYTES, MOST_BYTES = 1 << 30, 2 << 30
"""Of a process between two files: above the first, freed memory is given back, above the second, programs are, too."""

os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling is most of what tests take. Without LLVM's optimisations it takes a third less, and of that a third less
# without the notes on aliases, which only these optimisations read. What XLA still does then is work that programs of
# short runs do not pay back, and again 45 % of it: LLVM combines instructions and, where it puts one function into
# another, notes aliases, at any level, in time by the square of a program's buffers; XLA looks at what loops carry for
# nothing, and checks the module between any two passes. Another 10 to 20 % go where XLA cuts a program's module into
# pieces for threads, of which a loop that is compiled whole makes one, and where it writes what is outside of loops by
# way of MLIR (a third of the time of the hundreds of small programs). Results differ by the last bit, where an addition
# takes its product unrounded in one program and not in the other; runs take as long.
UNOPTIMISED = (
    # Of ``--xla_backend_extra_options``, with which WHOLE_LOOPS ends: the first are LLVM's own.
    ",-debug-counter=instcombine-visit=0,-enable-noalias-to-md-conversion=false",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_enable_alias_scope_metadata=false",
    "--xla_llvm_enable_noalias_metadata=false",
    "--xla_llvm_enable_invariant_load_metadata=false",
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops,hlo-verifier",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
)
COMPILED = WHOLE_LOOPS if THOROUGH else WHOLE_LOOPS + " ".join(UNOPTIMISED)
os.environ["XLA_FLAGS"] = f"{COMPILED} {os.environ.get('XLA_FLAGS', '')}".strip()  # read when JAX starts
os.environ["JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"] = "0"  # a quarter of the time to lower a program
os.environ["MPLBACKEND"] = "agg"
device.MOST_PROGRAMS = 1 << 30  # tests count the programs that a call compiles
# Programs that tests start would compile the package's modules each time, where bytecode may not be written.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("EVALUATOR_CACHE", str(ROOT / ".cache"))
os.environ.pop("EVALUATOR_PATH", None)
os.environ.pop("EVALUATOR_DEBUG", None)


def pytest_report_header():
    """What of the tests runs."""
    return f"random cases: {'all' if THOROUGH else 'a share, EVALUATOR_THOROUGH=1 tries all'}"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect without the garbage collector, and in a cold checkout each process first what the others come to last.

    Nearly all that is made meanwhile stays: modules, tests, syntax trees, over which the collector would go again and
    again. And each of several processes collects all tests: what one has compiled the others read from its bytecode,
    if they do not all come to the same file at one time.
    """
    config = session.config
    if config.args == config.getini("testpaths") and "PYTEST_XDIST_WORKER" in os.environ:
        number, count = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), _processes()
        places = sorted({file.relative_to(TESTS).parts[0] for file in TESTS.rglob("test_*.py")} - {"benchmarks"})
        first = len(places) * number // count
        config.args = [str(TESTS / place) for place in [*places[first:], *places[:first]]]
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Mark what SLOW names, before ``-m`` selects; then put together what shares programs. A test elsewhere may carry
    the mark itself."""
    named = (*SLOW, *GATES, *(name for part in OF_A_PROCESS for name in part))
    gone = [name for name in named if not (TESTS / name.partition("::")[0]).exists()]
    if gone:
        raise pytest.UsageError(
            f"tests/conftest.py: SLOW, GATES or OF_A_PROCESS names what is not there: {', '.join(gone)}"
        )
    for item in items:
        place = f"{item.path.relative_to(TESTS).as_posix()}::{item.name.partition('[')[0]}"
        if _is_in(place, SLOW):
            item.add_marker(pytest.mark.slow)
        if _is_in(place, GATES) and not (THOROUGH or os.environ.get("EVALUATOR_GATES") == "1"):
            item.add_marker(pytest.mark.skip(reason="one of GATES in tests/conftest.py: EVALUATOR_GATES=1 runs it"))
    selected = yield
    items[:] = _by_process(items, _processes())
    return selected


def _is_in(place, names):
    """Whether a test is one of those that are named by folder, file or function."""
    return any(place == name or place.startswith((f"{name}/", f"{name}::")) for name in names)


def _processes():
    """Of pytest, among which the tests are shared."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _by_process(items, count):
    """As many equal runs of tests as there are processes, each of which starts with one: its own (OF_A_PROCESS), then
    some of no programs. What it has no time for the others take from its end."""
    parts = [[] for _ in range(count)]
    others = []
    # By their files first: all processes have the same order, whichever they collected first.
    for item in sorted(items, key=lambda item: (_place_of_file(item.path)[1], str(item.path))):
        part, _ = _place_of_file(item.path)
        (others if part is None else parts[part % count]).append(item)
    share = -(-len(items) // count)
    for own in parts:
        filling = max(share - len(own), 0)
        own += others[:filling]
        others = others[filling:]
    return [item for own in [*parts, others] for item in own]


@cache
def _place_of_file(path):
    """The process that takes the tests of a file, and their place there: that of the longest name that holds it."""
    place = path.relative_to(TESTS).as_posix()
    holding = [
        (len(name), process, number)
        for process, names in enumerate(OF_A_PROCESS)
        for number, name in enumerate(names)
        if place == name or place.startswith(f"{name}/")
    ]
    return max(holding)[1:] if holding else (None, 0)


def pytest_collection_finish():
    """Leave modules and collected tests, which stay to the end, to themselves: JAX makes enough objects while it traces
    for the garbage collector to look at everything over and over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 20)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of ground truth (traces, published configs), which is no part of the repository."""
    folder = Path(os.environ.get("EVALUATOR_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no ground-truth data in {folder}; EVALUATOR_DATA names its folder")
    return folder


@pytest.fixture(scope="session")
def bounds_of_users() -> dict[str, int]:
    """From how many requests on a program is worth its compilation, by the kind of program."""
    from evaluator.plan import simulators

    return dict(simulators.WORTH_COMPILING)


@pytest.fixture(autouse=True, scope="module")
def _compile_short_runs(request, bounds_of_users):
    """By default runs as short as those of tests go to the reference; tests of programs compare them with it.

    What is no test of the programs (``OF_PROGRAMS``) has ``fcfs_reserved`` alone, which compiles in a second.
    """
    from evaluator.plan import simulators

    folder = request.path.relative_to(TESTS).parts[0]
    kinds = bounds_of_users if folder in OF_PROGRAMS else ["fcfs_reserved"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulators, "WORTH_COMPILING", {**bounds_of_users, **dict.fromkeys(kinds, 0)})
        yield


@pytest.fixture(autouse=True, scope="module")
def _few_shapes(request):
    """Programs are compiled for few shapes (``tests.shapes``), but for tests of shapes and thorough ones."""
    if THOROUGH or request.path.relative_to(TESTS).parts[0] == "plan":
        yield
        return
    from evaluator.plan import groups
    from tests.shapes import CACHE_CELLS, CACHES, LANES, QUEUES, in_few_shapes

    exact = groups.station_group
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "station_group", lambda *asked: in_few_shapes(exact(*asked)))
        patch.setattr(groups, "FEWEST_STOPS", groups.FEWEST_STOPS._replace(queues=QUEUES))
        if "evaluator.compare.simulate" in sys.modules:  # which has the function under a name of its own
            from evaluator.compare import simulate

            run = simulate._run
            patch.setattr(simulate, "station_group", groups.station_group)
            patch.setattr(simulate, "_run", lambda which, given, lanes: run(which, given, max(lanes, LANES)))
        if "jax" in sys.modules:  # which this module would load
            patch.setattr("evaluator.simulation.request_dependencies.SMALLEST", CACHE_CELLS)
            from evaluator.simulation import lanes

            shape = lanes.cache_shape

            def of_several(pools, replicas, guesses):
                return shape(pools, max(replicas, CACHES) if replicas > 1 else replicas, guesses)

            patch.setattr(lanes, "cache_shape", of_several)
        yield exact


@pytest.fixture
def as_users_compile(_few_shapes, monkeypatch):
    """Programs have the shapes and parts that they have for a user: one more is compiled for the test."""
    if _few_shapes is not None:
        monkeypatch.setattr("evaluator.plan.groups.station_group", _few_shapes)


@pytest.fixture
def programs_run(_compile_short_runs, bounds_of_users, monkeypatch):
    """Short runs go to any of the programs."""
    from evaluator.plan import simulators

    monkeypatch.setattr(simulators, "WORTH_COMPILING", dict.fromkeys(bounds_of_users, 0))


@pytest.fixture
def as_users_run(_compile_short_runs, bounds_of_users, monkeypatch):
    """Short runs go where they go for a user."""
    from evaluator.plan import simulators

    monkeypatch.setattr(simulators, "WORTH_COMPILING", bounds_of_users)


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    """Between files a process that has grown gives back what compiling took, and if need be its programs.

    Files behind share few of them, and those are read from the compilation cache.
    """
    yield
    if _resident_bytes() > TRIMMED_BYTES:
        device.give_back()
        if _resident_bytes() > MOST_BYTES and "jax" in sys.modules:
            import jax

            jax.clear_caches()
            gc.collect()
            device.give_back()


def _resident_bytes() -> int:
    """Of this process, where Linux tells; else nothing."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@pytest.fixture
def evaluator(capsys):
    """Runs one command line: exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            _command()([str(argument) for argument in arguments], prog_name="evaluator")
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return run


@cache
def _command():
    """The command line with its options, which Typer reads anew from the functions of all commands at each call."""
    from typer.main import get_command

    from evaluator.cli.app import app

    return get_command(app)
