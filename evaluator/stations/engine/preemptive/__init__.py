"""The engine's general program: KV on demand, pipelines, shares of long prompts, any order of the queue, prefix caches.

Here a replica has a loop of its own; ``engine.joint`` runs several, each as here, on one clock. Both take a ``Lane``.
"""

from evaluator.stations.engine.preemptive.lane import (
    NO_COUNTER,
    AgentCalls,
    BlockContent,
    ByPrefix,
    CacheShape,
    Cluster,
    Fleet,
    HostMemory,
    KvUnits,
    Lane,
    Late,
    Links,
    Lockstep,
    Network,
    NewTokenRules,
    Remembered,
    RouterChoices,
    Rules,
    ScoreWeights,
    SessionTurns,
    Structure,
)
from evaluator.stations.engine.preemptive.program import run_lanes

__all__ = [
    "NO_COUNTER",
    "AgentCalls",
    "BlockContent",
    "ByPrefix",
    "CacheShape",
    "Cluster",
    "Fleet",
    "HostMemory",
    "KvUnits",
    "Lane",
    "Late",
    "Links",
    "Lockstep",
    "Network",
    "NewTokenRules",
    "Remembered",
    "RouterChoices",
    "Rules",
    "ScoreWeights",
    "SessionTurns",
    "Structure",
    "run_lanes",
]
