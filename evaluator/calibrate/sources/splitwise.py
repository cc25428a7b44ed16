"""Splitwise (Mutinifni/splitwise-sim, MIT): iterations of Llama-2-70B and BLOOM-176B in an engine of 2023."""

from __future__ import annotations

import pandas as pd

from evaluator.calibrate.sources.columns import hardware

MODELS = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}


def perf_model(frame: pd.DataFrame) -> pd.DataFrame:
    """One prefill and one mean decode step per row; repetitions are kept, flagged rows are not."""
    # Rows that upstream made up, or has twice, or marks as suspect.
    frame = frame[~(frame["is_synthetic"] | frame["is_exact_duplicate"] | frame["is_suspect"])]
    common = {
        "op_class": "iteration",
        "hardware": hardware(frame["gpu"]),
        "engine": "splitwise",
        "engine_version": "2023",
        "model": frame["model"].map(MODELS),
        "tensor_parallel": frame["tensor_parallel_size"],
    }
    prefills = pd.DataFrame(
        common
        | {"prompts": frame["batch_size"], "prompt_tokens": frame["prompt_tokens"], "decodes": 0, "context": 0}
        | {"time_s": frame["prompt_time_s"]}
    )
    decodes = pd.DataFrame(
        common
        | {"prompts": 0, "prompt_tokens": 0, "decodes": frame["batch_size"]}
        # The mean decode of a request, at the context in the middle of its output.
        | {"context": frame["prompt_tokens"] + frame["output_tokens"] / 2, "time_s": frame["token_time_s"]}
    )
    return pd.concat([prefills, decodes], ignore_index=True)


CONVERTERS = (("Splitwise", {"prompt_time_s", "token_time_s", "is_suspect"}, perf_model),)
