"""How much KV SGLang expects answers to take, by which it admits requests: the figures of ``published.TOKEN_RATIO``."""

# SGLang's own constants (python/sglang/srt/environ.py), which its command line does not set.
INITIAL_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO, times --schedule-conservativeness
LEAST_OF_INITIAL = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
RETRACT_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS: decodes for which there should be KV after a retraction
MOST_NEW_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: of a request, in all estimates


def ratios(conservativeness: float) -> tuple[float, float, float]:
    """``new_token_ratio`` where nobody was there, at the least, and by how much it falls with every decode."""
    initial = min(INITIAL_RATIO * conservativeness, 1.0)
    least = min(initial * LEAST_OF_INITIAL, 1.0)
    return initial, least, (initial - least) / DECAY_STEPS
