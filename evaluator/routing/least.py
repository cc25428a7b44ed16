"""Routers that look at the replicas: a request goes to the one with the least of something, the first of several."""

from __future__ import annotations

from evaluator.routing.record import Router

LEAST_OUTSTANDING = Router("least_outstanding", "The fewest requests that have not finished.", counts="requests")
# No router of a real server knows output lengths; this and the next one are the bound that a perfect predictor gives.
LEAST_WORK = Router(
    "least_work", "The fewest tokens to compute and to generate, output lengths being known.", counts="work_tokens"
)
LEAST_TOKENS = Router(
    "least_tokens", "The fewest tokens to generate, output lengths being known.", counts="output_tokens"
)
# The only counter here that servers themselves publish (vLLM's gauge of KV cache usage), but for the waiting
# requests.
LEAST_KV = Router(
    "least_kv", "The least of the KV cache in use or needed by the requests that wait.", counts="kv_units"
)
LEAST_CONTEXT = Router(
    "least_context",
    "The fewest tokens of prompts and outputs so far (load by context length).",
    counts="context_tokens",
)
