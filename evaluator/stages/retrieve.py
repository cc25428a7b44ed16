"""Retrieval: the request is embedded, an index is searched, what is found is re-ranked and goes to the model.

    - stage: retrieve
      pool: cpu                                # {role: stage, hardware: cpu-grace}: searches, and embeds
      embedding: e5-base
      index: {centroids: 4e6, probes: 50, points_per_probe: 5000}
      documents: 20
      tokens_per_document: 512
      link: pcie-gen4-x4

The search is that of RAGO (``cost.vector_search``): the queries that wait are searched for together. Embedding and
re-ranking are passes of encoders, batched by the policy of their pool, which computes one model: a re-ranker beside an
embedding model needs a pool of its own. A pool that embeds and searches does so at the same time, neither slowing down
the other, and its memory is held against the index and against the model one by one. The text of the documents goes
over the link to the model, and is computed with the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evaluator.catalog.links import load_link
from evaluator.catalog.what_if import WhatIf, model_named
from evaluator.cost.dtypes import BYTES
from evaluator.cost.vector_search import SPREADS, VectorIndex, search_time
from evaluator.keys import (
    Place,
    choice,
    count,
    flag,
    in_catalog,
    key,
    model_name,
    number,
    quantity,
    section,
    text,
)
from evaluator.stages.record import StageKind, StagePool, StageRequests, Work
from evaluator.stages.steps import Batched, Pass, Shipped, Step

PQ_DIMENSIONS = 8
"""Dimensions that a byte of PQ code stands for, where none is given: RAGO's 96 bytes of 768 dimensions."""


@dataclass(frozen=True)
class Index:
    """``kind`` has one value so far. ``dimensions`` and ``pq_bytes`` None: see ``vectors``."""

    centroids: int = key(count(), says="Lists of the index.")
    probes: int = key(count(), says="Lists that a query searches.")
    points_per_probe: float = key(number(above=0), says="Vectors in a list.")
    kind: str = key(choice("ivf_pq"), "ivf_pq", "An inverted file with product quantisation.")
    dimensions: int | None = key(count(), None, "Of a vector; the hidden size of the embedding model where absent.")
    pq_bytes: float | None = key(number(above=0), None, "Of a coded vector; a byte for 8 dimensions where absent.")
    centroid_dtype: str = key(choice("fp32", "bf16", "fp16", "fp8", "int8"), "fp32", "Of centroids and plain vectors.")
    rescored: int = key(count(least=0), 0, "Vectors that are compared again with their plain ones.")
    reuse_centroids: bool = key(flag, False, "A batch of queries reads the centroids once, not each for itself.")
    spread: str = key(
        choice(*SPREADS),
        "best",
        "Of queries over cores: each on one, or each on all; best: the faster for the size of the batch.",
    )

    def vectors(self, dimensions: int) -> VectorIndex:
        """The index of vectors of so many dimensions as its cost sees it."""
        whole = dimensions * BYTES[self.centroid_dtype]
        return VectorIndex(
            centroids=float(self.centroids),
            probes=float(self.probes),
            points_per_probe=self.points_per_probe,
            pq_bytes=dimensions / PQ_DIMENSIONS if self.pq_bytes is None else self.pq_bytes,
            centroid_bytes=whole,
            rescored=float(self.rescored),
            vector_bytes=whole,
            reuse_centroids=self.reuse_centroids,
        )


def _check_index(index: Index, place: Place) -> None:
    if index.probes > index.centroids:
        raise place.key("probes").error(f"{index.probes:,} probes are more than the {index.centroids:,} centroids")
    points = index.probes * index.points_per_probe
    if index.rescored > points:
        raise place.key("rescored").error(f"{index.rescored:,} vectors are more than the {points:,.0f} of all probes")


_link = in_catalog("links", load_link)


@dataclass(frozen=True)
class Retrieve:
    """Of a search; without ``link`` the documents are where the model is."""

    index: Index = key(section(Index, _check_index), says="What is searched.")
    documents: int = key(count(), says="Documents that are added to the prompt.")
    tokens_per_document: int = key(count(), says="Tokens that each adds.")
    embedding: str | WhatIf | None = key(model_name, None, "A model that embeds the prompt; none where absent.")
    embedding_pool: str | None = key(text, None, "Where that is done; the stage's pool where absent.")
    reranker: str | WhatIf | None = key(model_name, None, "A model that reads the prompt with every candidate.")
    reranker_pool: str | None = key(text, None, "Where that is done; the stage's pool where absent.")
    candidates: int | None = key(count(), None, "Documents that the re-ranker reads; as many as it keeps where absent.")
    max_batch: int = key(count(most=65_536), 64, "Queries that are searched for together at most.")
    max_wait_s: float = key(quantity("s", least=0), 0.0, "How long a query waits for others at most.")
    link: str | None = key(_link, None, "Over which the documents come to the model, one request after the other.")
    bytes_per_token: float = key(number(above=0), 4.0, "Of a document's text on the link.")


def _check(asked: Retrieve, place: Place) -> None:
    if asked.embedding is None and asked.index.dimensions is None:
        raise place.key("index").key("dimensions").error("must be there where there is no embedding model")
    for name in ("embedding", "reranker"):
        model = getattr(asked, name)
        if model is None and getattr(asked, f"{name}_pool") is not None:
            raise place.key(f"{name}_pool").error(f"there is no {name} to run on it; add {name}, or leave it out")
    if asked.candidates is not None:
        if asked.reranker is None:
            raise place.key("candidates").error("there is no reranker to read them; add reranker, or leave it out")
        if asked.candidates < asked.documents:
            raise place.key("candidates").error(
                f"{asked.candidates:,} are fewer than the {asked.documents:,} documents that are kept of them"
            )


def _pass(of: str | WhatIf, tokens: NDArray[np.int64], name: str, pool: str | None, sequences: int = 1) -> Pass:
    """A pass over texts, cut to what the model has positions for; encoders were trained on texts cut so, too."""
    most = model_named(of).max_positions - 1  # an engine's pool leaves a position for a token to come
    return Pass(of, np.minimum(tokens, most), sequences, name, pool)


def _vectors(asked: Retrieve) -> VectorIndex:
    dimensions = asked.index.dimensions
    if dimensions is None:
        assert asked.embedding is not None  # ``_check``
        dimensions = model_named(asked.embedding).hidden
    return asked.index.vectors(dimensions)


def _problem(index: VectorIndex, pool: StagePool | None) -> str | None:
    """Why the pool cannot search the index, and what to do."""
    if pool is None:
        return "a search needs a CPU; add deployment.pools.cpu: {role: stage, hardware: cpu-grace} and say pool: cpu"
    hardware, memory = pool.hardware, pool.devices * pool.hardware.memory_bytes
    if hardware.cores is None:
        return (
            f"pool {pool.name}: a search needs a CPU, and {hardware.title} has no cores; use cpu-grace or "
            f"cpu-sapphire-rapids, or state its cores, as hardware: {{like: {hardware.name}, cores: 64}}"
        )
    if index.bytes > memory:
        return (
            f"pool {pool.name}: does not fit: an index of {index.bytes / 1e9:,.0f} GB ({index.points:,.0f} vectors of "
            f"{index.pq_bytes:g} bytes, {index.centroids:,.0f} centroids) exceeds the {memory / 1e9:,.0f} GB of "
            f"{pool.devices} x {hardware.title}; use smaller pq_bytes, fewer points, or more tensor_parallel"
        )
    return None


def _search_s(asked: Retrieve, index: VectorIndex, pool: StagePool) -> NDArray[np.float64]:
    """Seconds of a search for 1, 2, ... queries together. The devices of a replica hold a share of the index each, and
    search it at the same time (RAGO's servers, over which its load is even)."""
    hardware, share = pool.hardware, 1.0 / pool.devices
    # Centroids, lists and vectors to rescore are divided over the devices; the lists of a query are spread evenly.
    shard = replace(
        index, centroids=index.centroids * share, probes=index.probes * share, rescored=index.rescored * share
    )
    queries = np.arange(1.0, asked.max_batch + 1.0)
    return search_time(shard, queries, float(hardware.cores or 1), hardware.memory_bandwidth, asked.index.spread)  # type: ignore[arg-type]


def work(asked: Retrieve, visit: StageRequests) -> Work:
    """The steps of one retrieval for each request."""
    prompt, retrieved_tokens = visit.prompt_tokens, asked.documents * asked.tokens_per_document
    # The steps are made also where the pool cannot search, with times that nobody reads: which
    # steps there are may depend on the parameters alone, as all configurations of a chunk share
    # them.
    index, pool = _vectors(asked), visit.pool
    problem = _problem(index, pool)
    steps: list[Step] = []
    if asked.embedding is not None:
        steps.append(_pass(asked.embedding, prompt, "embed", asked.embedding_pool))
    seconds = np.zeros(asked.max_batch) if pool is None else _search_s(asked, index, pool)
    steps.append(Batched(seconds, None, asked.max_wait_s, "search"))  # by as many servers as the pool has replicas
    if asked.reranker is not None:
        # A cross-encoder reads query and document together, one sequence for each candidate.
        read, candidates = prompt + asked.tokens_per_document, asked.candidates or asked.documents
        steps.append(_pass(asked.reranker, read, "rerank", asked.reranker_pool, candidates))
    if asked.link is not None:
        link = load_link(asked.link)
        steps.append(Shipped(retrieved_tokens * asked.bytes_per_token, link.bandwidth, link.latency_s, name="transfer"))
    return Work(tuple(steps), adds_tokens=retrieved_tokens, problem=problem)


RETRIEVE = StageKind(
    "retrieve", Retrieve, work, "Documents from an index of vectors, which are added to the prompt.", check=_check
)
