"""Which simulator computes a configuration: the vectorised one, or the reference where that lacks a feature.

The request-level engine (``request_level``) computes nothing for which it is not asked by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from evaluator.catalog import Calibration
from evaluator.kv_managers import manager
from evaluator.policies import policy
from evaluator.routing import Choice, PrefixAware, PrefixRule, name_of, router_of
from evaluator.routing.round_robin import ROUND_ROBIN
from evaluator.scenario import Deployment, Routers, Workload
from evaluator.scenario.autoscaling import LATENCIES, TTFT, Autoscaling
from evaluator.scenario.deployment import ASYNCHRONOUS, BY_PRIORITY, QUEUED, SHORTEST_FIRST
from evaluator.traffic.requests import cached_by_content
from evaluator.traffic.roles import ROLES

AUTO, REQUEST, ITERATION, TOKEN = "auto", "request", "iteration", "token"
SIMULATORS = (AUTO, ITERATION, REQUEST, TOKEN)
PLAIN = (REQUEST, TOKEN)
"""Simulators in plain Python: nothing is compiled for them, and a process of them keeps to one processor."""

WORTH_COMPILING = {
    "fcfs_reserved": 5_000,
    "general": 10_000,
    "pipeline ranks": 5_000,
    "prefix caches": 5_000,
    "lockstep": 4_000,
}
"""Requests of a whole run, all configurations and seeds, from which on a program is worth its compilation.

Below, ``auto`` leaves the run to the reference, which gives the same times and is done before the program is compiled:
on a core it serves some 9,500 requests/s, 3,000 to 4,000 where KV is taken on demand or replicas run together, 450 to
2,900 over pipeline ranks, 500 to 1,600 with prefix caches by content and 700 with eight data-parallel ranks in lockstep
(the lower ones on a busy machine). Loading JAX and compiling takes 3 to 4 s of ``fcfs_reserved``, 6 to 12 s of the
general programs, 25 s and more of eight ranks, 13 s of prefix caches on both sides in one loop, of
which the reference does 200 to 325 requests/s. A program that is in the cache on disk is there in a second,
which nobody knows before asking for it; so the bounds are half of what they could be for one that is not."""
USUAL_ANSWER = 200
"""Tokens of an answer in the runs that these bounds are of. Where the reference computes each iteration by itself
(``is_stepped``), longer answers take it longer in proportion, and bounds are lower in proportion: 2,000 answers of
6,818 tokens took it 36 s over pipeline ranks."""
WORTH_OPTIMISING = {"general": 400_000, "prefix caches": 160_000, "lockstep": 100_000}
"""Requests of a program in a whole run from which on LLVM's optimisations pay back; below, ``auto`` has it compiled
``device.QUICKLY``, for a first answer in half the time.

What they save over what a request takes longer, in processor seconds of one program (``tests.benchmarks.regression``'s
cases under both, a shared AMD EPYC): 8 replicas 3.3 to 5 s over 5.6 us; prefix caches by content over two replicas some
14 s over 80 us; 16 ranks in lockstep 4 s over 33 us. So a program breaks even at 600,000, 180,000 and 130,000 requests.
The bounds are below, since a sweep that is repeated finds its programs in the cache and has only the slower runs. Whole
first sweeps of the gallery are in docs/speed.md."""
WORTH_A_PROGRAM = 20_000
"""Requests from which on routers that know prefix caches as they are are worth a program of their own beside that of
routers that hear late of them, which serves them as well.

It takes 14 s of a processor to compile (a shared AMD EPYC), of which 4 are tracing, which a sweep that is repeated
needs, too. Designs without prefix caches are worth theirs beside those with them: in the program that has caches, and
without LLVM's optimisations, 19,200 requests of ``conversations-apart`` took more than 50 s longer, to save 11 s."""
MOST_TIMES, MOST_SHARED = 4, 128
"""A program that is shared has room for at most so many times the replicas that there are, and for so many: each has a
ring as long as the longest output of all (``ring_bytes``)."""
MOST_LOOKS = 4_096
"""Looks that an autoscaler remembers in a program, which goes over all of them at each look; the reference keeps those
that count.

Over so many a look takes 36 us more than over 64, which is about what a request takes (20,000 looks at four replicas,
one core of a shared AMD EPYC), and all fleets of a group remember as many as any of them. By default an autoscaler
looks every 15 s, which makes them 17 hours."""
TOO_FEW = "too few requests for a program to be worth its compilation"


@dataclass(frozen=True)
class CompileKey:
    """What configurations must have in common to share a compiled program of the vectorised engine at a station.

    Beside it a program is compiled for shapes, as large as any of them needs (``groups.StationGroup``). Numbers are
    rounded up where a larger program costs next to nothing, so that few programs serve a sweep over them.
    """

    preemptive: bool = False  # the program of that name, about twice as slow as ``fcfs_reserved``
    pipeline_ranks: int = 1  # in ``preemptive`` only: batches in flight, of several pools the most of any
    fewer_ranks: bool = False  # some of several pools has fewer
    peaks: bool = False  # in ``preemptive`` only: some lane admits by the future peak of its KV (LightLLM)
    asynchronous: bool = False  # batches are planned before the one under way ends
    priorities: bool = False  # in ``preemptive`` only: requests wait by their priorities
    token_ratio: bool = False  # in ``preemptive`` only: all lanes admit by a ratio of new tokens (SGLang)
    swapping: bool = False  # in ``preemptive`` only: preempted requests may go to host memory
    kv_manager: str = ""  # in ``preemptive`` only: the one that keeps the KV by hooks of its own
    replicas: int = 1  # several run together in ``joint``: as many or fewer of them
    frontend: bool = False  # in ``joint``: users of a closed loop get their answers later than the engine has them
    branches: int = 1  # in ``fcfs_reserved`` only: of a request, as many or fewer of them
    on_demand: bool = False  # in ``fcfs_reserved`` only: KV is taken on demand; a lane that runs short runs again
    drafts: int = 0  # of a decode, as many or fewer
    cached: bool = False  # replicas have prefix caches
    kv_seen: bool = False  # in ``joint``: some router goes by the KV of replicas, its amount or what is in it
    guesses: bool = False  # with prefix caches: some router goes by scores, or by what it has sent alone, or
    late: bool = False  # by what was in the caches some time ago
    admits_first: bool = False  # in ``preemptive`` and ``joint``: some policy computes prompts alone
    preempts: bool = False  # in these: KV is taken on demand, so that it may run out and requests are preempted
    by_work: bool = False  # in these: requests wait by their work or priority
    admits_decodes: bool = False  # in these: some requests have no prompt to compute when they are admitted
    session_turns: bool = False  # users think about answers before they send the next request
    # With that, a request may wait for several answers, and share text with others than its session.
    agents: bool = False
    lockstep: bool = False  # the replicas are data-parallel ranks that start together; how many is not compiled in
    pools: int = 1  # the replicas that run together are those of several pools,
    phases: int = 1  # of one phase or of two
    route_at_first_token: bool = False  # the decode replica is chosen then, not when the KV is there
    kv_reservation: bool = False  # back-pressure: KV is sent when the decode replica has room
    scales: bool = False  # in ``joint``: replicas come and go
    sheds: bool = False  # in ``joint``: who comes to a long queue is refused
    reordered: bool = False  # stages in front of pools change the order in which requests come to them
    stages: bool = False  # those of a pipeline are events of the loop
    tables: tuple[int, int, int] = (1, 1, 1)  # sizes of those of routers and links: kinds of jobs, groups, pool pairs

    windowed: bool = False  # some replica has sliding-window layers
    experts: bool = False  # some replica has routed experts
    cost: Hashable = ()  # the form of the cost of an iteration (``cost.lanes.structure``)
    forms: tuple[tuple[Hashable, ...], ...] = ()  # of each pipeline rank, where pools in one loop differ in theirs
    requests: int = 0  # of a configuration and seed, which the width of a lane follows


FCFS_RESERVED = CompileKey()
THINKING = "sessions that think from the answer"
"""Why replicas and pools run together, where it depends on one answer when a certain other request is sent."""


FEWEST_DRAFTS = 8
"""Drafts of a program that has any: fewer cost next to nothing, and one program serves a sweep over their number."""

FEWEST_TOGETHER = 8
"""Replicas that a program for several has room for: a few more than there are cost nothing."""
SMALLEST_RING = 256
RING_BYTES = 1 << 30
"""Most bytes of all rings of replicas that run together: a fourth of what a worker of 4 GB has. A call on a CPU has one
lane at a time; on an accelerator so many lanes go together that all of them fit (``simulation.lanes``)."""
CACHE_BYTES, FEW_CACHES = 1 << 30, 128
"""Most bytes of their prefix caches; those of at most FEW_CACHES replicas run whatever they take."""


def program(
    deployment: Deployment,
    joint: bool = False,
    frontend: bool = False,
    branches: int = 1,
    cached: bool = False,
    session_turns: bool = False,
    lockstep: int = 1,
    drafts: int = 0,
    agents: bool = False,
) -> CompileKey:
    """The program for a deployment, whose replicas run together if ``joint``; the others as of ``CompileKey``.

    ``branches``: the most of any request. ``drafts``: of a decode.
    """
    record, ahead = policy(deployment.batching.policy), plans_ahead(deployment)
    general = CompileKey(
        True,
        deployment.pipeline_parallel,
        peaks=record.by_future_peak,
        priorities=deployment.batching.packing in BY_PRIORITY,
        asynchronous=ahead,
        drafts=draft_width(drafts),
        cached=cached,
    )
    # Before the order of requests: replicas that run together have the general moves anyway.
    if joint:
        return replace(
            general,
            replicas=together(deployment.ranks),
            frontend=frontend,
            session_turns=session_turns,
            agents=agents,
            lockstep=lockstep > 1,
            guesses=deployment.ranks > 1 and guesses_prefixes(deployment),
            late=deployment.ranks > 1 and knows_late(deployment),
            scales=deployment.autoscaling is not None,
            sheds=sheds(deployment),
        )
    swapping = swaps(deployment)
    # With drafts KV on demand goes to the general program at once: ``fcfs_reserved`` has no form for both.
    if cached or out_of_order(deployment) or (drafts and on_demand(deployment)):
        manager = kv_hooks(deployment)
        return replace(general, token_ratio=record.token_ratio, swapping=swapping, kv_manager=manager)
    if drafts:
        return CompileKey(drafts=general.drafts)
    if on_demand(deployment):
        return CompileKey(on_demand=True, swapping=swapping, asynchronous=ahead)
    if branches > 1:
        # A power of two, as all numbers that a program is compiled for; it takes requests with fewer branches, too.
        return CompileKey(branches=1 << (branches - 1).bit_length())
    return CompileKey(asynchronous=True) if ahead else FCFS_RESERVED


def serving(which: CompileKey, requests: int, others: Iterable[CompileKey]) -> CompileKey:
    """The program among ``others`` that serves so few requests as well: it has room for more replicas, or also has
    routers that hear late of prefix caches. Else the program itself."""
    if which.replicas == 1:
        return which
    if which.cached:
        late = replace(which, guesses=True, late=True)
        return late if requests < WORTH_A_PROGRAM and late in others else which
    if worth_optimising(which, requests):
        return which
    # An event takes longer with each replica that there is room for, if by little.
    room = [other.replicas for other in others if which == replace(other, replicas=which.replicas)]
    most = max(which.replicas, min(MOST_TIMES * which.replicas, MOST_SHARED))
    return replace(which, replicas=max(replicas for replicas in room if replicas <= most))


def in_any_order(which: CompileKey) -> CompileKey:
    """The general program for lanes that ran short of KV on demand in ``fcfs_reserved``."""
    return replace(which, preemptive=True, on_demand=False)


def grows_by_blocks(which: CompileKey) -> bool:
    """Whether the general program may count by blocks what decodes take of KV on demand (``common.kv_growth``).

    Managers of their own look at every block; drafts take blocks at uneven steps.
    """
    looks_at_every_block = which.drafts > 0 or which.windowed or which.peaks or bool(which.kv_manager)
    return which.preemptive and which.replicas == 1 and which.pipeline_ranks == 1 and not looks_at_every_block


def draft_width(drafts: int) -> int:
    """Drafts of a decode that a program has room for, if there are so many."""
    return max(FEWEST_DRAFTS, 1 << (drafts - 1).bit_length()) if drafts else 0


def out_of_order(deployment: Deployment) -> str | None:
    """What in a deployment takes requests out of their order, or keeps several batches in flight; None: nothing."""
    batching = deployment.batching
    record = policy(batching.policy)
    reasons = {
        "pipeline_parallel": deployment.pipeline_parallel > 1,
        f"policy {record.name}": record.preemptive_program,
        f"packing {batching.packing}": batching.packing != "fcfs",
        "long_prefill_token_threshold": batching.long_prefill_token_threshold > 0 and not record.whole_prompts,
        f"kv.manager {deployment.kv.manager}": bool(kv_hooks(deployment)),
    }
    return next((name for name, applies in reasons.items() if applies), None)


def together(replicas: int) -> int:
    """The most replicas of a program in which so many run together."""
    return 1 << (max(replicas, FEWEST_TOGETHER) - 1).bit_length()


def ring_of(longest_output: int) -> int:
    """Steps that a ring of the engine holds: a power of two above the longest output, in tokens."""
    # A sequence leaves at the step of its last token, at most ``longest_output`` steps ahead. The ring needs a cell for
    # each, and a power of two lets cells be found by a mask.
    return max(SMALLEST_RING, 1 << (longest_output + 1).bit_length())


def ring_bytes(replicas: int, ring: int, pipeline_ranks: int = 1, windowed: bool = False, drafts: bool = False) -> int:
    """Bytes of the rings of replicas that run together, see ``preemptive.state.Rings``.

    Each replica has a decode group, or in a pipeline one for every batch under way and one that is schedulable. A step
    of a group is a list (4 bytes) and a count of KV (8), with sliding windows a count of those that fill theirs (8),
    with drafts the tokens that they give (8) and what they add to windows (8).
    """
    groups = replicas * (1 if pipeline_ranks == 1 else pipeline_ranks + 1)
    return groups * ring * (12 + 8 * windowed + 8 * drafts * (1 + windowed))


def sheds(deployment: Deployment) -> bool:
    """Whether requests are refused where too many wait."""
    return deployment.batching.max_queued_requests is not None


def plans_ahead(deployment: Deployment) -> bool:
    """The next batch is planned before the tokens of the one under way are known."""
    return deployment.batching.planning == ASYNCHRONOUS


def swaps(deployment: Deployment) -> bool:
    """Preempted requests go to host memory, as far as it has room."""
    return on_demand(deployment) and deployment.kv.preemption == "swap"


def goes_by_work(deployment: Deployment) -> bool:
    """Waiting requests go by the work left, or by their priorities."""
    return deployment.batching.packing in ("least_work_left", *BY_PRIORITY)


def kv_hooks(deployment: Deployment) -> str:
    """The name of the KV manager whose hooks keep a replica's KV; nothing where the package's own do."""
    registered = manager(deployment.kv.manager)
    return registered.name if registered is not None and registered.hooks is not None else ""


def on_demand(deployment: Deployment) -> bool:
    """KV is taken as tokens come: the scenario says so, or the policy has no other way."""
    return "on_demand" in (deployment.kv.admission, policy(deployment.batching.policy).admission)


def has_frontend(workload: Workload, calibration: Calibration) -> bool:
    """Whether users of a closed loop get their answers, and send the next request, later than the engine has them."""
    users = workload.arrivals.users
    if workload.arrivals.process != "closed_loop" or users is None or users >= workload.requests:
        return False
    # Users who think have a calendar of their answers anyway (``CompileKey.session_turns``).
    if workload.feedback:
        return False
    # With as many users as requests none sends a second one, so that no answer is waited for.
    return calibration.frontend_s > 0 or calibration.lookahead_steps > 0


def is_joint(workload: Workload, deployment: Deployment, frontend: bool = False, lockstep: int = 1) -> bool:
    """When or where a request is sent is known only in the run, so that replicas must run together.

    ``frontend``: as of ``has_frontend``; then, where users think about answers and where requests may be refused, the
    program for several replicas runs one replica, too. ``lockstep``: so many data-parallel ranks start every iteration
    together.
    """
    if lockstep > 1 or deployment.autoscaling is not None or deployment.failures is not None or sheds(deployment):
        return True
    if workload.feedback or shares_stores(deployment):
        return True
    # A single replica of a closed loop needs no others, unless its users wait for more than the engine.
    closed, several = workload.arrivals.process == "closed_loop", deployment.ranks > 1
    if closed:
        return several or frontend
    return several and router_of(routed_by(deployment)).independent is None


def shares_stores(deployment: Deployment) -> bool:
    """Whether replicas find in a tier behind host memory what others have stored."""
    tiers = [tier.figures for tier in deployment.kv.offload_tiers] if deployment.kv.offload_bytes is not None else []
    return any(tier.capacity_bytes and tier.sharing(deployment.ranks) > 1 for tier in tiers)


def routed_by(deployment: Deployment) -> Choice:
    """The router of one pool."""
    assert not isinstance(deployment.router, Routers)
    return deployment.router


def _knows_who_serves(deployment: Deployment) -> bool:
    """Whether the program for replicas that come and go has the router: those that look at them, and in turn."""
    router = router_of(deployment.router) if not isinstance(deployment.router, Routers) else None
    return router is not None and (router.counts is not None or router.name == ROUND_ROBIN.name)


def shares_queue(deployment: Deployment) -> bool:
    """Whether requests wait for whichever replica has room, and not at one of them."""
    return deployment.ranks > 1 and router_of(routed_by(deployment)).queue


def by_reports(deployment: Deployment) -> bool:
    """Whether the router goes by what the ranks of a pool report of themselves between their iterations."""
    router = deployment.router
    return deployment.ranks > 1 and not isinstance(router, Routers) and router_of(router).by_reports


def guesses_prefixes(deployment: Deployment) -> bool:
    """Whether the router goes by prefixes, but not by what is in the caches now, or by scores."""
    router = deployment.router
    return isinstance(router, PrefixRule) and not (router.exact and router.scores is None)


def knows_late(deployment: Deployment) -> bool:
    """Whether the router goes by what was in the caches some time ago, or is foreseen to come into them."""
    return isinstance(deployment.router, PrefixAware) and not deployment.router.exact


def _branches(workload: Workload, deployment: Deployment) -> bool:
    """Whether requests decode on several branches in a pool; on a prefill side they are one sequence."""
    return workload.reasoning.several and not ROLES[deployment.role].first_token_only


def why_together(workload: Workload, deployment: Deployment, frontend: bool, lockstep: int) -> str | None:
    """Why the replicas of a pool must run together (``is_joint``), in words; None: each runs by itself."""
    if not is_joint(workload, deployment, frontend, lockstep):
        return None
    if deployment.autoscaling is not None:
        return "deployment.autoscaling"
    if deployment.failures is not None:
        return "deployment.failures"
    if sheds(deployment):
        return "batching.max_queued_requests"
    if workload.feedback:
        return THINKING
    if shares_stores(deployment):
        return "kv.offload_tiers that replicas share"
    if workload.arrivals.process == "closed_loop":
        return "a closed loop with a frontend" if frontend else "a closed loop over replicas"
    return "data_parallel" if lockstep > 1 else f"router {name_of(deployment.router)}"


def lacking(
    workload: Workload, deployment: Deployment, frontend: bool = False, alone: bool = True, lockstep: int = 1
) -> tuple[str, ...]:
    """The keys of a pool whose values only the reference knows; none where the vectorised engine can run it.

    ``alone``: it does not run in one loop with other pools, of which ``joint_pools`` knows what is lacking.
    """
    batching = deployment.batching
    planning, record = batching.planning, policy(batching.policy)
    keys = {
        # With a threshold several prompts are under way, which by priority go in turn with the decodes.
        f"batching.packing {batching.packing} with long_prefill_token_threshold": batching.packing in BY_PRIORITY
        and batching.long_prefill_token_threshold > 0,
        f"batching.packing {batching.packing} with several pools in one loop": batching.packing in BY_PRIORITY
        and not alone,
        # When requests are sent, and how long each has waited, would be known in the run alone.
        "batching.aging_tokens_per_s with users who wait for answers": batching.packing == SHORTEST_FIRST
        and batching.aging_tokens_per_s > 0
        and waits_for_answers(workload),
        f"batching.policy {record.name} with kv.prefix_caching": record.token_ratio
        and cached_by_content(workload, deployment),
        # There blocks get their names at other steps than the reference's.
        "kv.prefix_caching and speculative on a decode side": ROLES[deployment.role].prompt_resident
        and deployment.speculative is not None
        and cached_by_content(workload, deployment),
        "workload.adapters beyond lora.max_loras": waits_for_adapters(workload, deployment),
        "deployment.failures": deployment.failures is not None,
        "kv.offload_bytes": deployment.kv.offload_bytes is not None,
        f"batching.policy {record.name} with enable_mixed_chunk": record.token_ratio and batching.enable_mixed_chunk,
        f"batching.planning {planning} with pipeline_parallel": planning == QUEUED and deployment.pipeline_parallel > 1,
    }
    if deployment.autoscaling is not None:
        keys |= _lacking_of_fleets(workload, deployment, deployment.autoscaling, alone)
    if by_reports(deployment):
        keys[f"router {name_of(deployment.router)}"] = True
    if guesses_prefixes(deployment) and not alone:
        # What was sent, and what caches had some time ago, has arrays for the replicas of one pool.
        late = " that knows late" if knows_late(deployment) else " that guesses or goes by scores"
        keys[f"router {name_of(routed_by(deployment))}{late} over several pools"] = True
    apart, branches = out_of_order(deployment), _branches(workload, deployment)
    if apart is None and on_demand(deployment):
        apart = "kv.admission on_demand"
    keys[f"workload.reasoning.branches with {apart}"] = branches and apart is not None
    what = why_together(workload, deployment, frontend, lockstep) if alone else None
    keys[f"workload.reasoning.branches with {what}"] = branches and what is not None
    together_for = what if alone else "several pools in one loop"
    if together_for is not None:
        # These parts are of the program for a replica by itself.
        keys |= {
            f"batching.policy {record.name} with {together_for}": record.token_ratio,
            f"preemption swap with {together_for}": swaps(deployment),
            f"kv.manager {kv_hooks(deployment)} with {together_for}": bool(kv_hooks(deployment)),
        }
    return tuple(name for name, applies in keys.items() if applies)


def _lacking_of_fleets(
    workload: Workload, deployment: Deployment, scaling: Autoscaling, alone: bool
) -> dict[str, bool]:
    return {
        # Its replicas change, and with them the table of what such a router chooses.
        f"deployment.autoscaling with router {name_of(deployment.router)}": not _knows_who_serves(deployment),
        # Its program knows when requests come, and not when users send them who wait for answers.
        "deployment.autoscaling.metric ttft with users who wait for answers": scaling.metric == TTFT
        and waits_for_answers(workload),
        # Tokens planned ahead are counted before they come.
        f"deployment.autoscaling.metric {scaling.metric} with batching.planning asynchronous": scaling.metric
        in LATENCIES
        and plans_ahead(deployment),
        # In its program all replicas are of one fleet.
        "deployment.autoscaling with several pools in one loop": not alone,
        f"deployment.autoscaling.{scaling.longest} of more than {MOST_LOOKS:,} every_s": scaling.looks > MOST_LOOKS,
    }


def waits_for_answers(workload: Workload) -> bool:
    """Whether users send requests when they have the answers to others."""
    return workload.feedback or workload.arrivals.process == "closed_loop"


def waits_for_adapters(workload: Workload, deployment: Deployment) -> bool:
    """Whether requests name more LoRA adapters than a batch may hold, so that some wait for their adapter's place."""
    named, lora = workload.adapters, deployment.lora
    return named is not None and lora is not None and named.count > lora.max_loras


def is_stepped(deployment: Deployment) -> bool:
    """Whether the reference computes each iteration of a pool by itself, where it else leaps over those that are alike
    (``reference.Replica``)."""
    stepped = deployment.pipeline_parallel > 1 or plans_ahead(deployment) or deployment.kv.layer_groups
    return stepped or deployment.speculative is not None


def worth_compiling(
    workload: Workload, deployments: Sequence[Deployment], joint: bool, lockstep: bool, answer_tokens: float
) -> int:
    """Requests of a whole run from which on a program for these pools is worth its compilation.

    ``answer_tokens``: of a request in the mean.
    """
    bound = _worth_compiling(workload, deployments, joint, lockstep)
    # A pool that computes first tokens alone, of a prefill side or a stage, has no iterations of a long answer.
    if any(is_stepped(deployment) for deployment in deployments if not ROLES[deployment.role].first_token_only):
        bound = round(bound * min(1.0, USUAL_ANSWER / max(answer_tokens, 1.0)))
    return bound


def _worth_compiling(workload: Workload, deployments: Sequence[Deployment], joint: bool, lockstep: bool) -> int:
    if lockstep:
        return WORTH_COMPILING["lockstep"]
    if any(cached_by_content(workload, deployment) for deployment in deployments):
        return WORTH_COMPILING["prefix caches"]
    if any(deployment.pipeline_parallel > 1 for deployment in deployments):
        return WORTH_COMPILING["pipeline ranks"]
    # KV on demand may run short, so that the general program is compiled, too.
    general = joint or any(out_of_order(deployment) is not None or on_demand(deployment) for deployment in deployments)
    return WORTH_COMPILING["general" if general else "fcfs_reserved"]


def worth_optimising(which: CompileKey, requests: int) -> bool:
    """Whether so many requests of one program in a run pay back its optimisations."""
    # ``fcfs_reserved`` compiles in a second, of which optimisations are 0.3.
    if not which.preemptive:
        return True
    kind = "lockstep" if which.lockstep else "prefix caches" if which.cached else "general"
    return requests >= WORTH_OPTIMISING[kind]
