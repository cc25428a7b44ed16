"""Names for the arrays of a lane: what an annotation says of dtype and shape.

Shapes are those of one lane. What goes into ``run_lanes`` and comes out of it has a leading ``lane`` axis on top;
inside, ``lax.map`` or ``vmap`` takes it away. Inputs may be NumPy arrays, everything inside the loop is a JAX array.

The axes: ``request`` is the number of request slots of the lane, ``ring`` the number of steps in a ring,
``group`` the number of decode groups (sequences that decode together; 1 in the program for arrivals in order),
``rank`` the number of pipeline ranks, ``branch`` the most branches of a request, ``draft`` the most tokens that a
sequence drafts in an iteration, ``replica`` the most replicas of a lane in which several run together (else 1),
``counter`` the number of things that their router may count, ``bin`` and ``peak`` the lengths of the histogram of gaps
and of the peaks of a fitted cost. Of a prefix cache ``text`` and ``block`` are the texts and the blocks of a
replica, ``source`` the sources of text, ``event`` the changes that a router has yet to hear of; ``entry`` is of an
answer and who waits for it. The ``+ 1`` is the padding cell that masked writes go to, see ``rings``.

The second part of each annotation is dtype and shape as text, which a test reads to check what the loop carries.
"""

from __future__ import annotations

from typing import Annotated, Any

Array = Any  # of any dtype and shape: helpers that work on all of them

Flag = Annotated[Any, "bool"]
Int = Annotated[Any, "int32"]
Float = Annotated[Any, "float64"]

FloatPerRequest = Annotated[Any, "float64", "request + 1"]
FlagPerRequest = Annotated[Any, "bool", "request + 1"]
IntPerRequest = Annotated[Any, "int32", "request + 1"]
KeyPerRequest = Annotated[Any, "uint32", "request + 1"]
FloatPerDraft = Annotated[Any, "float64", "draft"]
IntPerBranch = Annotated[Any, "int32", "(request + 1) * branch"]
RequestTimes = Annotated[Any, "float64", "request"]  # in results, without the padding cell
RequestTokens = Annotated[Any, "int32", "request"]

IntPerGroup = Annotated[Any, "int32", "group"]
FloatPerGroup = Annotated[Any, "float64", "group"]

FloatPerGroupRank = Annotated[Any, "float64", "group * rank"]

FlagPerRank = Annotated[Any, "bool", "rank"]
IntPerRank = Annotated[Any, "int32", "rank"]
FloatPerRank = Annotated[Any, "float64", "rank"]

IntPerReplica = Annotated[Any, "int32", "replica"]
FlagPerReplica = Annotated[Any, "bool", "replica"]
FloatPerReplica = Annotated[Any, "float64", "replica"]
Counts = Annotated[Any, "float64", "replica", "counter"]  # see ``routing.record.COUNTERS``
RequestReplicas = Annotated[Any, "int32", "request"]  # in results, without the padding cell

StepBits = Annotated[Any, "uint64", "group * ring // 64"]  # one bit for each step of the ring
StepLists = Annotated[Any, "int32", "group * ring + 1"]  # first request of a linked list for each step
StepCounts = Annotated[Any, "int64", "group * ring + 1"]  # tagged counts, see ``rings.tagged_add``

TimeHeap = Annotated[Any, "float64", "request + 2"]
CodeHeap = Annotated[Any, "int64", "request + 2"]
Bins = Annotated[Any, "float64", "bin"]
Peaks = Annotated[Any, "float64", "peak"]

IntPerRing = Annotated[Any, "int32", "2 * text * replica"]
IntPerText = Annotated[Any, "int32", "text * replica"]
IntPerRun = Annotated[Any, "int32", "block * replica + replica"]  # with a sentinel for each replica
IntPerEvent = Annotated[Any, "int32", "event + 1"]
FloatPerEvent = Annotated[Any, "float64", "event + 1"]
IntPerSource = Annotated[Any, "int32", "source"]

IntPerEntry = Annotated[Any, "int32", "entry"]
FloatPerEntry = Annotated[Any, "float64", "entry"]
IntPerStop = Annotated[Any, "int32", "stop"]
FloatPerStop = Annotated[Any, "float64", "stop"]
