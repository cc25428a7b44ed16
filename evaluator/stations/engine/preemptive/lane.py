"""What a lane of the general engine is given, and what is compiled in."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from evaluator.cost.iteration import IterationCost
from evaluator.cost.kv import KvUnits
from evaluator.kv_managers import KvManager
from evaluator.stations.engine.common.arrays import (
    Array,
    Flag,
    FlagPerRequest,
    Float,
    FloatPerEntry,
    FloatPerStop,
    Int,
    IntPerEntry,
    IntPerReplica,
    IntPerRequest,
    IntPerSource,
    IntPerStop,
)
from evaluator.stations.engine.common.histogram import BINS
from evaluator.stations.engine.common.kv_growth import block_of
from evaluator.stations.engine.common.lane import LaneLimits, Requests
from evaluator.stations.engine.common.packed import pack
from evaluator.stations.engine.common.rings import in_ring, read
from evaluator.stations.engine.common.speculation import Speculation


class Rules(NamedTuple):
    """Scheduling beyond first come, first served with all KV reserved; numbers, as in ``Policy``."""

    on_demand: Flag  # KV is given as tokens come; where it runs out, the request admitted last is preempted
    whole_kv: Flag  # on_demand: a prompt gets the KV of its whole length on admission (Sarathi)
    watermark_units: Float  # on_demand: an admission leaves this much free
    full_prompt: Flag  # on_demand: and is made only where the whole prompt would fit
    long_prefill_tokens: Float  # most prompt tokens of one request in an iteration; infinite: no bound
    least_work: Flag  # the waiting request with the fewest tokens left goes first, or by ``Lane.priorities``
    look_every: Int  # LightLLM: decode iterations between two looks at the waiting queue; 0: another policy
    kv: KvUnits  # each field a Float
    frontend_s: Float  # closed loop with a frontend: an answer reaches its user so much later, and
    lookahead_steps: Float  # so many iterations of the request's mean length


class BlockContent(NamedTuple):
    """What is in the blocks of the requests, for a prefix cache: a number for each content with all before it.

    Up to ``known_blocks`` the blocks of a request are of ``sources``, ``each`` blocks of one after those of the other,
    with numbers that count up from that of the source; from there on the number is ``own_from`` plus the block's place.
    With ``ends`` a source may have fewer blocks than ``each``: it goes up to the place that is given there.

    A source, or what comes behind ``known_blocks``, is a *text*, which has a number of its own.

    Several pools may cut the same text into other blocks: arrays by request have a row of request slots for each pool,
    ``each`` and ``caches`` a number.
    """

    sources: IntPerSource
    sources_from: IntPerRequest  # where those of the request begin
    known_blocks: IntPerRequest
    each: Int
    own_from: IntPerRequest
    texts: IntPerSource  # the number of a source's text
    own_text: IntPerRequest
    ends: IntPerSource | None = None  # None: all sources of a request but the last have ``each`` blocks
    caches: Flag | None = None  # of several pools: blocks are found there by their content. None: they are


NO_COUNTER = -1
"""In place of a counter: the router is independent of the state, and has a table of its choices."""


class AgentCalls(NamedTuple):
    """Calls that wait for several answers, and answers that several calls wait for (``SessionTurns``)."""

    first_entry: IntPerRequest  # the entries of an answer go up to the first of the next one
    waits: IntPerRequest  # for so many answers


class SessionTurns(NamedTuple):
    """Users who send their next request some time after the answer to the one before.

    Who has finished a session opens the next of those that do not come at times of their own, as long as there are any.

    Each answer has an entry that says who follows it. A session is a chain, in which the entry of a request has its
    number; with ``calls`` it is a graph, and an answer has an entry for each request that waits for it, or one of NONE.
    """

    opening: IntPerRequest  # the requests that follow no other, in the order in which they are sent
    openings: Int  # how many of them come at times of their own: all in an open loop, else the first of each user
    sessions: Int  # how many there are
    following: IntPerEntry  # the request that follows, or NONE
    pause_s: FloatPerEntry  # from the answer until that is sent, or another session is opened
    calls: AgentCalls | None = None  # None: one request follows each answer, and waits for no other


class CacheShape(NamedTuple):
    """Sizes of the arrays of prefix caches, as large as any lane needs them; texts and blocks are of one replica.

    They are made anew for each lane: of ``Structure.replicas``, which may be more than any lane has, they took a tenth
    of its time.
    """

    texts: int
    blocks: int  # that are ever used: at most the capacity
    due: int  # tokens of a block, with drafts one more
    replicas: int = 1
    names: int = 0  # of blocks, where a router remembers what it has sent (``joint.sent_blocks``)
    events: int = 0  # changes of all caches that a router may have yet to hear of; 0: none hears of any late
    # No two requests of a lane ever fill blocks of one name by decoding, nor is such a block of a source.
    answers_apart: bool = False


class ScoreWeights(NamedTuple):
    """The highest sum of scores decides (``routing.scores.PrefixScores``), if that is ``chosen``, and no threshold."""

    chosen: Flag
    prefix: Float
    queue: Float
    kv: Float


class Remembered(NamedTuple):
    """The router knows what it has sent alone (``routing.PrefixApproximate``), if that is ``chosen``."""

    chosen: Flag
    blocks: Int  # that it remembers of a replica; below 0: as many as its cache has
    ttl_s: Float  # it forgets a block so long after it was sent; infinite: never


class Late(NamedTuple):
    """The router knows what the caches had some time ago (``routing.PrefixAware``), if that is ``chosen``."""

    chosen: Flag
    delay_s: Float
    predicts: Flag  # what was sent counts, too, for the ``ttl_s`` of what is remembered


class ByPrefix(NamedTuple):
    """The keys of a router that goes by prefixes (``routing.PrefixRule``), if one is ``chosen``."""

    chosen: Flag
    threshold: Float
    imbalance: Float
    imbalance_ratio: Float
    scores: ScoreWeights | None = None  # these two where some lane of the program has either
    remembered: Remembered | None = None
    late: Late | None = None  # with both of these


class RouterChoices(NamedTuple):
    """Who chooses the replica of a request.

    A router that looks at the replicas takes the least of a counter. One that does not has a table of its choices: by
    ``kind`` of request and, behind a prefill side with groups, by group, the replica of the first, the second, ... that
    is sent; or, with kind NONE, by request.
    """

    counter: Array  # int32 (phase,): number in ``routing.record.COUNTERS``, or NO_COUNTER
    assigned: Array  # int32 (group, request slot)
    kind: IntPerRequest | None = None  # None: no request has one
    turns: Array | None = None  # int32 (kind, group, request slot)
    by_prefix: ByPrefix | None = None  # with prefix caches


class Links(NamedTuple):
    """Between a prefill and a decode side, as ``plan.LinkPlan`` has them.

    A *way* is from one pool to another. Ways on which everything takes as long share a row of ``service_s``.
    """

    row: Array  # int32 (pool * pool,), from and to: the row of a way
    service_s: Array  # float64 (row * request slot,): what a job of the decode side occupies the link
    token_bytes: Array  # float64 (row,): of a token's KV, where the decode side may have a part of it
    ahead: Array  # float64 (row,): the share of it that may be sent before the first token
    bandwidth: Float
    latency_s: Float
    one_by_one: Flag  # every prefill replica sends one after the other
    asks_early: Flag  # back-pressure, layer by layer: room is asked for when a prompt's first chunk is computed


class Lockstep(NamedTuple):
    """Of several pools, some of whose replicas are data-parallel ranks that start together (``joint.lockstep``)."""

    first: IntPerReplica  # the first rank of the replica of a rank; itself where a pool's replicas go by themselves
    ranks: IntPerReplica  # of that replica


AT_LLM, AT_HOME = -2, -3


class Stops(NamedTuple):
    """The ways of requests through the stages of a pipeline that are in the loop, stop by stop (``joint.stages``).

    The stops of a request are cells in a row. At the first, which takes no time, it sets out; the last is with whoever
    sent it. Requests make as many visits to the LLM as they have stops there, each of which is a job.
    """

    first: IntPerRequest  # the stop at which it sets out
    llm: IntPerRequest  # of a job of the first side: its stop
    request: IntPerRequest  # and whose it is
    queue: IntPerStop  # the number of the queue; below 0: NONE of a delay, AT_LLM, AT_HOME
    seconds: FloatPerStop  # of the service
    number: IntPerStop  # of the visit, for the order of those who come at one time; AT_LLM and AT_HOME the (last) job
    servers: Array  # int32 (queue,)


class Network(NamedTuple):
    """Several pools that run together: pools side by side, or a prefill and a decode side.

    Each request has a *job* on every side that it passes. The jobs of the first side have the numbers of the requests;
    those of the second side come behind them in the same order. Replicas are
    numbered pool after pool. All that is a replica's alone (cost, limits, rules) has a leading axis ``pool``, and
    ``Requests.kv_units`` is a row of request slots for each pool.
    """

    jobs: Int  # of all sides
    pool: IntPerReplica
    phase: IntPerReplica  # NONE: there is no such replica
    model: IntPerReplica
    group: IntPerReplica
    asks: IntPerRequest  # the model of a job
    measured: FlagPerRequest
    before: IntPerRequest  # the job that goes before it on the first side, or NONE
    after: IntPerRequest  # the job that comes after it on the second side, or NONE
    grouped: Flag  # decode replicas of the group in which the prompt was computed
    links: Links
    lockstep: Lockstep | None = None  # None: no ranks in lockstep
    pipeline_ranks: IntPerReplica | None = None  # None: as many as the structure has
    order: IntPerRequest | None = None  # the requests in the order in which they are sent; None: that of their numbers
    stops: Stops | None = None  # None: requests pass no stages in the loop


class HostMemory(NamedTuple):
    """Where the KV of preempted requests is kept, as far as it fits, and copied back from when they are admitted."""

    units: Float  # room there; below 0 in a lane that computes all of it anew
    unit_s: Float  # to copy a unit in or out; the next batch takes so much longer


class NewTokenRules(NamedTuple):
    """Admission by a share of the tokens that running requests may still generate (SGLang's ``new_token_ratio``)."""

    initial: Float  # the ratio where nobody was there
    least: Float
    fall: Float  # with every decode
    max_prefill_tokens: Float  # of a batch of prompts, beside the token budget, which bounds its chunks


class Fleet(NamedTuple):
    """Replicas that come and go, by an autoscaler (``joint.autoscaler``); the fields are those of a deployment's."""

    metric: Int  # number in ``scenario.autoscaling.METRICS``
    target: Float
    least: Int  # replicas, with which it begins; the most are ``Cluster.replicas``
    every_s: Float
    window_s: Float
    cooldown_s: Float
    tolerance: Float
    start_up_s: Float  # the loading of the weights included
    begin_s: Float  # from when on it looks, and the first replicas are paid for
    lower: Float  # of two thresholds the other one; below 0: the target is no threshold
    trend: Flag  # the metric is foreseen by its trend


class Cluster(NamedTuple):
    """Replicas that run together; users and requests are those of all of them."""

    replicas: Int  # at most those of the structure
    router: RouterChoices
    # Of each replica in lockstep; ``replicas`` are those of all of them. None: no lockstep, or several pools.
    ranks: Int | None = None
    network: Network | None = None  # None: one pool
    fleet: Fleet | None = None  # None: all replicas are there all the time
    max_queued: Float | None = None  # so many wait at a replica, and who comes is refused; None: nobody ever is


class Lane(NamedTuple):
    """A replica, or several that run together.

    ``requests`` apart this is all that a lane is given: numbers and arrays, and parts that are None where no lane of
    the program has them. Of several pools the costs, limits and rules have a leading axis (pool,).
    """

    pipeline_ranks: tuple[IterationCost, ...]  # the cost of each pipeline rank
    limits: LaneLimits
    rules: Rules
    shared_units: IntPerRequest  # on_demand: units of a request's prefix that stay in the cache and are not counted
    content: BlockContent | None = None  # None: no prefix cache
    session_turns: SessionTurns | None = None  # None: nobody waits for an answer, but users of a closed loop
    speculation: Speculation | None = None  # None: a decode iteration gives one token
    cluster: Cluster | None = None  # None: one replica by itself
    host_memory: HostMemory | None = None  # None: preempted requests are computed anew
    new_tokens: NewTokenRules | None = None  # None: a policy other than SGLang's (``token_ratio``)
    # Whoever waits goes by these, the smallest first, in the place of the work left: ``rules.least_work`` is on then.
    # KV is reserved, since who gives way where it runs short is not who was admitted last. None: nobody has any.
    priorities: IntPerRequest | None = None


class Structure(NamedTuple):
    """What is compiled in: everything else is traced."""

    ring: int  # steps in the rings, a power of two above the longest output
    windowed: bool  # the model has sliding-window layers
    pipeline_ranks: int  # pipeline ranks, and batches in flight
    peaks: bool  # some lane admits by its future peak of KV (LightLLM)
    replicas: int = 1  # most replicas of a lane, see ``engine.joint``
    frontend: bool = False  # of a closed loop: users get their answers later than the engine has them; several replicas
    lockstep: bool = False  # replicas are data-parallel ranks that start together, see ``joint.lockstep``
    cache: CacheShape | None = None  # replicas have prefix caches; a unit of their KV is then a block
    pools: int = 1  # of several replicas: pools that they belong to, see ``Network``; what follows too
    phases: int = 1  # 2: a prefill and a decode side
    route_at_first_token: bool = False  # the decode replica is chosen with the first token, not when the KV is there
    kv_reservation: bool = False  # back-pressure: KV is sent when the decode replica has room, and kept until then
    asynchronous: bool = False  # the next batch is planned while one runs, see ``asynchronous``; with one rank
    kv_manager: KvManager | None = None  # a user's own, whose hooks keep the KV; alone
    # KV on demand whose growth is counted by remainders (``common.kv_growth``): at least the tokens of a block of any
    # lane; 0: it is noted step by step. Alone, with one rank, without windowed layers and drafts, and where nobody
    # decodes later than the batch into which it is admitted (``Given.admits_any_kind``).
    block_tokens: int = 0
    looks: int = 0  # of an autoscaler that any lane remembers at a time, see ``Fleet``; 0: replicas do not come and go
    # Of replicas that run together: some router, or reservation, may go by the KV that they have as of an arrival.
    kv_seen: bool = True
    admits_first: bool = True  # some lane computes prompts alone, and so admits before its decodes take a step
    servers: int = 0  # of each queue of stages in the loop that there is room for; 0: there are none, see ``Stops``
    preempts: bool = True  # some lane takes KV on demand, so that it may run out and requests are preempted
    by_work: bool = True  # in some lane the waiting requests go by their work or priority (``Rules.least_work``)
    admits_decodes: bool = True  # some request has no prompt to compute, and decodes as soon as it is admitted

    @property
    def alone(self) -> bool:
        """The replica has a loop of its own."""
        return self.replicas == 1

    @property
    def integrates(self) -> bool:
        """Of replicas that run together: the KV in use is added up over time whenever it changes, whoever uses it.

        Elsewhere a batch has so much KV for so long. In a pipeline batches overlap, as they do where they are planned
        ahead; and of blocks that a request keeps while it is in no batch (``kv_reservation``) others may be users, too.
        """
        overlap = self.pipeline_ranks > 1 or self.asynchronous
        return not self.alone and (overlap or (self.cache is not None and self.kv_reservation))

    @property
    def has_heap(self) -> bool:
        """Some waiting requests are not in the line of arrivals, see ``waiting``."""
        return self.preempts or self.by_work

    @property
    def lists_running(self) -> bool:
        """Running requests are in a list by their admission: the last one may be asked for, or the order."""
        return self.preempts or self.pipeline_ranks > 1 or self.asynchronous

    @property
    def histograms(self) -> int:
        """Of gaps between tokens: one for each pool, and for each of two planned batches of replicas that run together
        (``joint.asynchronous``)."""
        return self.pools + (2 * self.replicas if self.asynchronous and not self.alone else 0)

    @property
    def names_late(self) -> bool:
        """Blocks that decodes fill get their names when somebody looks for them (``prefix_cache.settle``).

        With answers apart no such block has another one to be named before or after. A batch in a pipeline knows the
        tokens of its own decode group alone, and a router that hears of names late needs the times of all.
        """
        cache = self.cache
        apart = cache is not None and cache.answers_apart and not cache.events
        return apart and self.pipeline_ranks == 1 and (self.alone or not self.asynchronous)

    def decode_groups(self) -> int:
        """Decode groups of decoding sequences, see ``state.DecodeGroups``.

        A pipeline has one in each batch in flight and a schedulable one. Without a pipeline a single one will do,
        because a batch is formed only after the one before has ended. Each replica has its own.
        """
        return self.replicas * (1 if self.pipeline_ranks == 1 else self.pipeline_ranks + 1)

    def cell(self, decode_group: Int, step: Int) -> Int:
        """Where a decode group's step is in the rings."""
        slot = in_ring(step, self.ring)
        return slot if self.decode_groups() == 1 else decode_group * self.ring + slot


class Given(NamedTuple):
    """All that stays the same during a lane's run: the functions of the loop read it and never change it."""

    pipeline_ranks: tuple[IterationCost, ...]
    limits: LaneLimits
    rules: Rules
    shared_units: IntPerRequest
    content: BlockContent | None
    session_turns: SessionTurns | None
    speculation: Speculation | None
    cluster: Cluster | None
    host_memory: HostMemory | None
    new_tokens: NewTokenRules | None
    priorities: IntPerRequest | None
    requests: Requests
    structure: Structure
    pool: Int | None = None  # of several pools: the number of the one whose figures these are
    ranks: Int | None = None  # and its pipeline ranks, where they have not as many
    histogram: Int | None = None  # the number of the one that gaps are entered into; None: that of the pool

    def batches_under_way(self) -> Int | int:
        """The most that a replica has under way: one for each of its pipeline ranks."""
        return self.structure.pipeline_ranks if self.ranks is None else self.ranks

    @property
    def together(self) -> Cluster:
        """The replicas that run together."""
        assert self.cluster is not None
        return self.cluster

    @property
    def network(self) -> Network | None:
        """Of several pools."""
        return self.together.network

    def cell(self, i: Int) -> Int:
        """Of request ``i``, in arrays that have a row of request slots for each of several pools."""
        return i if self.pool is None else self.pool * self.requests.arrival_s.shape[0] + i

    def padding(self) -> int:
        """The slot behind the requests, where masked writes go."""
        return int(self.requests.arrival_s.shape[0]) - 1

    def kv_units(self, i: Int) -> Int:
        """KV units of a finished request."""
        return read(self.requests.kv_units, self.cell(i))

    def on_demand(self) -> Flag:
        """KV is given as tokens come (``Rules.on_demand``)."""
        return self.rules.on_demand if self.structure.preempts else jnp.zeros((), bool)

    def by_work(self) -> Flag:
        """The waiting requests go by their work or priority (``Rules.least_work``)."""
        return self.rules.least_work if self.structure.by_work else jnp.zeros((), bool)

    def rows(self, decodes: Float) -> Float:
        """Tokens that so many decodes take of the token budget: one each, or with drafts as many as are verified."""
        return decodes if self.speculation is None else decodes * (self.speculation.drafts + 1.0)

    def first_bin(self) -> Int | int:
        """Where the histogram of the pool begins: each of several has its own, one behind the other."""
        number = self.pool if self.histogram is None else self.histogram
        return 0 if number is None else number * BINS

    def window(self) -> Float | None:
        """The attention window in tokens; None for a model without windowed layers."""
        return self.limits.window if self.structure.windowed else None

    def block(self) -> Int:
        """Tokens of a block."""
        return block_of(self.rules.kv)

    def prompts_alone(self) -> Flag:
        """Decodes wait while an iteration computes prompts."""
        return self.limits.policy.prefill_alone if self.structure.admits_first else jnp.zeros((), bool)

    def admits_any_kind(self) -> Flag:
        """One admission takes requests with and without a prompt to compute, which are computed alone then."""
        if not self.structure.admits_first:
            return jnp.zeros((), bool)
        return self.limits.policy.drain_first | (self.rules.look_every > 0)

    def every_token_takes_a_unit(self) -> Flag:
        """Then the growth of a decode group is its number of decodes, and need not be noted step by step."""
        kv = self.rules.kv
        if self.speculation is not None:
            return kv.block_tokens < 0.0
        # A request without anything to compute has the KV of its first token on admission. Where it may be admitted
        # beside a prompt that is computed alone, it decodes in a later batch, which must not count that token again:
        # only the rings know that.
        keeps = self.limits.prompts_resident | (self.host_memory is not None)
        waits = self.prompts_alone() & self.admits_any_kind() & keeps
        return (kv.block_tokens == 1.0) & (kv.window == 0.0) & (kv.sequence == 0.0) & ~waits


PackedLane = tuple[Any, tuple[Any, ...]]
"""A ``Lane`` whose first three parts are ``Packed``, and the others."""


def packed(lanes: Lane) -> PackedLane:
    """Lanes with a leading axis as the loop takes them."""
    several = lanes.cluster is not None and lanes.cluster.network is not None
    return pack(_Figures(*lanes[:3]), several), lanes[3:]


class _Figures(NamedTuple):
    pipeline_ranks: tuple[IterationCost, ...]
    limits: LaneLimits
    rules: Rules


def given_to(lane: PackedLane, requests: Requests, structure: Structure) -> Given:
    """What is given to a lane."""
    figures, others = lane
    return Given(*Lane(figures.pipeline_ranks, figures.limits, figures.rules, *others), requests, structure)
