"""The one table of what a result holds: unit, name and formula of every variable."""

from __future__ import annotations

from dataclasses import dataclass

from evaluator.metrics.elasticity import METRICS, STEP
from evaluator.metrics.model_error import MODEL_ERRORS
from evaluator.metrics.power import A100, H100, as_formula


@dataclass(frozen=True)
class Variable:
    """``long_name`` fits an axis of a plot; ``description`` is the formula of the glossary.

    ``dims`` are those of its arrays; one without a value per quantile lacks the last.
    """

    units: str
    long_name: str
    description: str
    dims: tuple[str, ...] = ("config", "quantile")


_LATENCIES = {
    "queue_wait_s": ("queue wait", "first scheduled - arrival"),
    "ttft_s": ("time to first token", "first output token - arrival, waiting included"),
    "tpot_s": (
        "time per output token",
        "(last token - first token) / (output_tokens - 1) of each request, of the branch that ends last where there "
        "are several; single-token outputs are left out",
    ),
    "e2e_s": ("end-to-end latency", "last output token - arrival, waiting included"),
    "itl_s": (
        "inter-token latency",
        "every gap between successive tokens of a sequence, pooled over tokens, those of all branches; the tokens that "
        "an iteration accepts come together and end one gap, as vllm bench serve counts it; simulator request does not "
        "know them",
    ),
}
_SESSIONS = {
    "session_s": (
        "time of a session",
        "last token of its last turn - arrival of its first turn, thinking included; of the sessions that a measured "
        "request opens, in the order in which they begin, up to the first that the run does not hold as a whole",
    ),
}
_OVER = "over the measured requests of a seed (the warm-up is cut), then the mean over the seeds"
_QUANTILE = f"quantile {_OVER}; linear interpolation between order statistics"
_ERROR = (
    "Monte-Carlo standard error: standard deviation over the seeds / sqrt(seeds); with one seed from batch means "
    "within the run"
)
_RATE = (
    "completed from the arrival of the first measured request to the last arrival / that time; where none is completed "
    "by then, or all come at once: all requests that came from then on / the time to their last completion"
)

_BY_ITERATION = "; NaN under simulator request, which follows requests and not iterations"

_SERVICE = {
    "throughput_rps": Variable("1/s", "request throughput", f"requests {_RATE}"),
    "output_tok_per_s": Variable(
        "token/s", "output throughput", f"output tokens, those of all branches, of requests {_RATE}"
    ),
    "total_tok_per_s": Variable("token/s", "total throughput", f"prompt and output tokens of requests {_RATE}"),
    "tok_per_s_per_gpu": Variable(
        "token/s",
        "output throughput per GPU",
        "output_tok_per_s / devices, without the CPUs of stages; of a fleet that scales those of replicas_mean",
    ),
}

_OTHERS = {
    "tok_per_s_per_user": Variable("token/s", "output speed per user", "1 / mean tpot_s"),
    "slo_attainment": Variable(
        "1",
        "SLO attainment",
        f"fraction of requests within all bounds that a request has, those of its class too, {_OVER}; a bound "
        "on a mean or a percentile is what each request is held against; requests without one are left out, NaN "
        "without any",
    ),
    "slo_attainment_stderr": Variable("1", "standard error of the SLO attainment", _ERROR),
    "slo_met": Variable(
        "1",
        "SLO met",
        "every objective, those of classes too, holds at its own statistic; false without an objective, where not "
        "feasible, and where saturated: a longer run would miss it; under slo.confidence also with that chance",
    ),
    "slo_chance": Variable(
        "1",
        "chance that the SLO is met",
        "chance that all objectives hold in a real system, given the model's expected error and chance of the run: the "
        "least of objective_chance, as the objectives of one design err together; NaN without an objective, where not "
        "feasible, and where the model's error is not known",
    ),
    "attained_rps": Variable(
        "1/s",
        "requests within the SLO",
        "requests within all their bounds / time from the first arrival to the last, of the measured requests, mean "
        "over the seeds; NaN without an objective and where all come at once",
    ),
    "refused_share": Variable(
        "1",
        "refused requests",
        "requests sent away since max_queued_requests waited / all measured requests, mean over the seeds; they have "
        "no latency, miss every objective and are not in the throughput",
    ),
    "lost_share": Variable(
        "1",
        "lost requests",
        "requests whose replica failed and that are not sent again / all measured requests, mean over the seeds; as "
        "those that are refused",
    ),
    "utilisation": Variable("1", "utilisation", f"busy time of the replicas / (replicas x makespan){_BY_ITERATION}"),
    "api_server_utilisation": Variable(
        "1",
        "utilisation of the API servers",
        "time that they need for all tokens and requests / (replicas x API servers of each x makespan), mean over the "
        "seeds; NaN where it is not known what they take",
    ),
    "mfu": Variable(
        "1",
        "model FLOP utilisation",
        f"useful FLOPs of the model / (busy time of the devices x peak FLOP/s){_BY_ITERATION}",
    ),
    "mbu": Variable(
        "1",
        "model bandwidth utilisation",
        f"useful bytes of the model / (busy time of the devices x peak byte/s){_BY_ITERATION}",
    ),
    "kv_used_mean": Variable(
        "1", "mean KV cache use", f"fraction of the KV capacity in use, mean over time and seeds{_BY_ITERATION}"
    ),
    "kv_used_max": Variable(
        "1", "highest KV cache use", f"largest fraction of the KV capacity in use, over all seeds{_BY_ITERATION}"
    ),
    "iterations": Variable(
        "1", "engine iterations", f"forward passes of all replicas, mean over the seeds{_BY_ITERATION}"
    ),
    "preemptions": Variable("1", "preemptions", "requests sent back to the queue, mean over the seeds"),
    "accepted_per_iteration": Variable(
        "token",
        "tokens per decode iteration",
        "output tokens that decode iterations give / decode iterations, both summed over the sequences: 1 + accepted "
        "drafts, and in the last iteration of a request what is left of its output; mean over the seeds; NaN without "
        "drafts",
    ),
    "prefix_hit_rate": Variable(
        "1",
        "prefix cache hit rate",
        "prompt tokens of the measured requests whose KV was there when they were admitted / all their prompt tokens, "
        "mean over the seeds",
    ),
    "decode_hit_rate": Variable(
        "1",
        "prefix cache hit rate of the decode side",
        "prompt tokens of the measured requests that were in the prefix cache of their decode replica, so that with "
        "transfer.backpressure nobody sent them / all their prompt tokens, mean over the seeds; prefix_hit_rate is "
        "the prefill side's",
    ),
    "host_hit_rate": Variable(
        "1",
        "host memory hit rate",
        "the part of prefix_hit_rate that was loaded from host memory (kv.offload_bytes), without what had come there "
        "from a tier for the request, mean over the seeds",
    ),
    "storage_hit_rate": Variable(
        "1",
        "storage hit rate",
        "the part of prefix_hit_rate that came from a tier behind host memory (kv.offload_tiers) which a replica has "
        "for itself, mean over the seeds",
    ),
    "shared_hit_rate": Variable(
        "1",
        "shared store hit rate",
        "the part of prefix_hit_rate that came from a tier behind host memory which replicas share, whoever of them "
        "stored it, mean over the seeds",
    ),
    "saturated": Variable(
        "1",
        "saturated",
        "a queue grows without bound in the window: the wait, of all stations together, drifts upwards by more than "
        "chance and does not come back, or the requests in the system still grow by more than chance in its second "
        "half, although it is as long as 3 of their passages or these become longer by 0.3 s per second; in at least "
        "half of the seeds; never under closed loop or all at once",
    ),
    "steady": Variable(
        "1",
        "steady state",
        "the run was long enough for its statistics: it is not saturated, its transient ends within the run, neither "
        "e2e_s nor the requests in the system drift by more than chance, and the window is as long as 5 mean passages "
        "of a request, and clients who wait for answers send at 0.9 of the rate asked for; in at least half of the "
        "seeds. False: more requests are needed, or the design does not keep up",
    ),
    "usd_per_mtok": Variable(
        "USD",
        "cost per million output tokens",
        "devices x USD per hour / output tokens per hour x 1e6, of replicas that come and go "
        "those of replicas_mean; NaN: no price",
    ),
    "joule_per_tok": Variable(
        "J",
        "energy per output token",
        "(busy time x busy power + idle time x idle power) of all devices / output tokens; busy power: TDP x "
        f"({as_formula(H100)}), fitted to H100, of Ampere's devices TDP x ({as_formula(A100)}), fitted to A100, where "
        "MFU and MBU count the rows with which kernels fill up experts, too; NaN where a power is not known and under "
        "simulator request",
    ),
    "tok_per_joule": Variable(
        "token/J", "output tokens per joule", "1 / joule_per_tok; NaN where a power is not known"
    ),
    "usd_per_hour": Variable(
        "USD/h",
        "price per hour",
        "devices x USD per hour of a device, of a fleet that scales those of replicas_mean; NaN: no price",
    ),
    "devices": Variable(
        "1",
        "devices",
        "devices of all replicas: replicas x tensor_parallel x pipeline_parallel x prefill_context_parallel; of a "
        "fleet that scales the most",
    ),
    "replicas_mean": Variable(
        "1",
        "replicas",
        "time that replicas are there, from the start of their start-up until they have gone / makespan, of all pools, "
        "mean over the seeds",
    ),
    "availability": Variable(
        "1",
        "availability",
        "time that replicas serve / time that they are there, of pools with deployment.failures; 1 of others; mean "
        "over the seeds",
    ),
    "device_hours": Variable(
        "h",
        "device-hours",
        "time that replicas are there x devices of a replica, over the whole run, warm-up and drain included, mean "
        "over the seeds",
    ),
    "weights_bytes": Variable(
        "byte",
        "weights per device",
        "bytes of model weights on one device; on one for attention where feed-forwards are apart",
    ),
    "kv_capacity_tokens": Variable("token", "KV capacity", "tokens of KV cache that one replica can hold"),
    "requests_run": Variable("1", "requests simulated", "requests per seed; more than at first under requests: auto"),
    "status": Variable("1", "status", "ok, or infeasible, why, and what to do"),
    "engine": Variable("1", "engine", "what computed the row: request | iteration | token"),
    "provenance": Variable(
        "1", "provenance", "where the efficiencies are from: calibrated | extrapolated | transferred | datasheet"
    ),
    "model_error_basis": Variable(
        "1", "basis of the model errors", "what the prediction rests on, which says how far it is expected to be off"
    ),
    "calibration_set": Variable("1", "calibration set", "which set of efficiencies; of several pools all, joined by +"),
}

_BAND = (
    "expected relative error of the prediction: 68 % of measured values lie within it x (1 +- error); from predictions "
    "of serving runs that were kept aside, of the case in model_error_basis"
)
_MEAN_ERROR = (
    f"{_BAND}. Of the mean, in servers that keep up; waits of saturated designs are off by more, which is in it. "
    "Towards saturation a latency is off by 1 + d ln latency / d ln rate times it, the sum of the elasticities to all "
    "times less those to all rates: tables multiply by it where the rate was swept"
)
_SERVED_ERROR = (
    f"{_BAND}. 0 where the design keeps up with its arrivals, which are then what is served; that of e2e_s where it is "
    "saturated, in a closed loop and of all at once"
)

_SEARCH = {
    "goodput_rps": Variable(
        "1/s",
        "goodput",
        "the highest rate of arrivals tried at which every objective holds, the lower end of the search's bracket; the "
        "other variables are of the run at this rate. 0 where no rate meets the objectives: then they are of the "
        "lowest rate tried",
    ),
    "goodput_high_rps": Variable(
        "1/s", "upper end of the goodput", "the lowest rate above goodput_rps at which an objective is missed"
    ),
    "goodput_rps_stderr": Variable(
        "1/s",
        "standard error of the goodput",
        "delta method: goodput_rps x (standard error / value of the latency that limits it) / (d ln latency / d ln "
        "rate), the slope between the trials next to the goodput that are 5 % or more away from it",
    ),
    "goodput_rps_per_gpu": Variable("1/s", "goodput per GPU", "goodput_rps / devices, without the CPUs of stages"),
    "goodput_per_usd": Variable("1/USD", "requests per dollar", "goodput_rps x 3600 / usd_per_hour; NaN: no price"),
    "goodput_limit": Variable("1", "objective that limits", "the one that goodput_high_rps misses by most"),
    "pool_layout": Variable(
        "1",
        "layout",
        "of each pool the replicas and how many devices share one: 4 x tp2 are four replicas of two devices",
    ),
    "goodput_rps_model_error": Variable(
        "1",
        "model error of the goodput",
        "expected relative error: that of the latency that limits it x (1 + 1 / (d ln latency / d ln rate)), the slope "
        "between the trials next to the goodput; where saturation limits it, that of e2e_s",
    ),
    "search_status": Variable(
        "1",
        "what the search came to",
        "bracketed or met; else why there is no rate, or no end of the rates, or which objective is missed",
    ),
}


BY_SEED = (
    *(name for latency in _LATENCIES for name in (latency, f"{latency}_mean")),
    *_SERVICE,
    "slo_attainment",
    "utilisation",
    "mfu",
    "mbu",
    "kv_used_mean",
    "iterations",
    "preemptions",
    "accepted_per_iteration",
    "prefix_hit_rate",
    "host_hit_rate",
    "storage_hit_rate",
    "shared_hit_rate",
    "decode_hit_rate",
    "joule_per_tok",
)
"""Variables that are means over the seeds, and can be had of each."""


def by_seed_name(name: str) -> str:
    """What the values of a variable by seed are called."""
    return f"{name}_by_seed"


def _table() -> dict[str, Variable]:
    table: dict[str, Variable] = {}
    for name, (long_name, formula) in (_LATENCIES | _SESSIONS).items():
        table[name] = Variable("s", long_name, f"{formula}; {_QUANTILE}")
        table[f"{name}_mean"] = Variable("s", f"mean {long_name}", f"{formula}; mean {_OVER}")
        table[f"{name}_stderr"] = Variable("s", f"standard error of the {long_name}", _ERROR)
        table[f"{name}_mean_stderr"] = Variable("s", f"standard error of the mean {long_name}", _ERROR)
    for name, variable in _SERVICE.items():
        table[name] = variable
        table[f"{name}_stderr"] = Variable(
            variable.units,
            f"standard error of the {variable.long_name}",
            "Monte-Carlo standard error: standard deviation over the seeds / sqrt(seeds); NaN with one seed",
        )
    # Of latencies the mean's error, of rates that of what is served: see ``model_error``.
    for name in MODEL_ERRORS:
        formula = _MEAN_ERROR if name in _LATENCIES else _SERVED_ERROR
        table[f"{name}_model_error"] = Variable("1", f"model error of the {table[name].long_name}", formula)
    # In the order in which tables and files list them: latencies, service, the rest, by seed, elasticities.
    table |= _OTHERS | _SEARCH | _stages() | _classes() | _pools() | _objectives()
    for name in BY_SEED:
        variable = table[name]
        dims = ("config", "seed", "quantile") if name in _LATENCIES else ("config", "seed")
        table[by_seed_name(name)] = Variable(
            variable.units, f"{variable.long_name} by seed", f"{variable.description}; here of each", dims
        )
    for name in METRICS:
        table |= _elasticity(name, table[name].long_name)
    return table


def _stages() -> dict[str, Variable]:
    times = {
        "stage_wait_s": ("wait at a stage", "start of its service - arrival there; of several steps the sum"),
        "stage_service_s": ("service time of a stage", "departure - start of its service; of several steps the sum"),
    }
    table: dict[str, Variable] = {}
    by_stage, by_quantile = ("config", "stage"), ("config", "stage", "quantile")
    for name, (long_name, formula) in times.items():
        formula = f"{formula}; of the requests that pass the stage"
        table[name] = Variable("s", long_name, f"{formula}; {_QUANTILE}", by_quantile)
        table[f"{name}_mean"] = Variable("s", f"mean {long_name}", f"{formula}; mean {_OVER}", by_stage)
        table[f"{name}_stderr"] = Variable("s", f"standard error of the {long_name}", _ERROR, by_quantile)
        table[f"{name}_mean_stderr"] = Variable("s", f"standard error of the mean {long_name}", _ERROR, by_stage)
    table["stage_share"] = Variable(
        "1", "requests of a stage", f"share of the requests that pass the stage, {_OVER}", by_stage
    )
    table["stage_utilisation"] = Variable(
        "1",
        "utilisation of a stage",
        "busy time of its servers or replicas / (their number x makespan), of several steps that of the busiest; NaN "
        "without a number of servers",
        by_stage,
    )
    return table


def _objectives() -> dict[str, Variable]:
    dims = ("config", "objective")
    return {
        "objective_ratio": Variable(
            "1",
            "statistic over its bound",
            "the statistic that the objective bounds / the bound; above 1 it is missed. Who is refused or lost waits "
            "forever; 0 of a latency that no request has, NaN where a design has no such objective",
            dims,
        ),
        "objective_ratio_stderr": Variable("1", "standard error of the statistic over its bound", _ERROR, dims),
        "objective_mean_error": Variable(
            "1",
            "model error of the mean latency of an objective",
            f"{_BAND}. Of the mean, in servers that keep up: by it the service is off",
            dims,
        ),
        "objective_model_error": Variable(
            "1",
            "model error of the statistic of an objective",
            f"{_BAND}. Of the measured statistic next above (mean, p90, p99), no less than the mean's, in servers that "
            "keep up; TPOT and ITL have the mean's",
            dims,
        ),
        "objective_headroom": Variable(
            "1",
            "headroom of an objective",
            "how many times as long all times of service may be until the objective is missed: the k at which k x (the "
            "statistic at k times the rate) is the bound, by the rates that were swept or tried; else by elasticities "
            "or, with one run alone, 1 / objective_ratio; of a saturated design at most what makes it keep up",
            dims,
        ),
        "objective_growth": Variable(
            "1",
            "growth of a slower service in an objective",
            "d ln statistic / d ln times of service where the bound is met just, at least 1; 1 if no other rate tells",
            dims,
        ),
        "objective_chance": Variable(
            "1",
            "chance that an objective holds",
            "normal distribution function of ln objective_headroom / s, s^2 = a^2 + (b^2 - a^2 + c^2) / "
            "objective_growth^2 with a = ln(1 + objective_mean_error), b = ln(1 + objective_model_error), c = "
            "objective_ratio_stderr / objective_ratio; NaN where the model's error is not known",
            dims,
        ),
        "objective_confidence": Variable(
            "1", "confidence asked for", "slo.confidence of the objective; NaN: none is asked for", dims
        ),
    }


def _pools() -> dict[str, Variable]:
    whole = {name: _OTHERS.get(name) or _SERVICE[name] for name in ("replicas_mean", "device_hours")}
    return {
        f"pool_{name}": Variable(
            variable.units,
            f"{variable.long_name} of a pool",
            f"{variable.description.replace(', of all pools', '')}; of the pool alone, where some of several scales",
            ("config", "pool"),
        )
        for name, variable in whole.items()
    }


def _classes() -> dict[str, Variable]:
    table: dict[str, Variable] = {}
    by_class, by_quantile = ("config", "class"), ("config", "class", "quantile")
    for name, (long_name, formula) in _LATENCIES.items():
        # Gaps between tokens are pooled over all sequences of a batch.
        if name == "itl_s":
            continue
        what, named = f"{formula}; of the requests of the class", f"class_{name}"
        table[named] = Variable("s", f"{long_name} of a class", f"{what}; {_QUANTILE}", by_quantile)
        table[f"{named}_mean"] = Variable("s", f"mean {long_name} of a class", f"{what}; mean {_OVER}", by_class)
        for ending, dims in (("", by_quantile), ("_mean", by_class)):
            error = f"standard error of the {table[named + ending].long_name}"
            table[f"{named}{ending}_stderr"] = Variable("s", error, _ERROR, dims)
    attainment = "fraction of the requests of the class within all bounds of the scenario and of the class"
    table |= {
        "class_share": Variable("1", "requests of a class", f"share of the requests of the class, {_OVER}", by_class),
        "class_refused_share": Variable(
            "1", "refused requests of a class", "requests of the class sent away / all of the class", by_class
        ),
        "class_lost_share": Variable(
            "1", "lost requests of a class", "requests of the class that are lost / all of the class", by_class
        ),
        "class_throughput_rps": Variable(
            "1/s", "request throughput of a class", f"requests of the class {_RATE}", by_class
        ),
        "class_output_tok_per_s": Variable(
            "token/s", "output throughput of a class", f"output tokens of requests of the class {_RATE}", by_class
        ),
        "class_slo_attainment": Variable(
            "1", "SLO attainment of a class", f"{attainment}, {_OVER}; NaN without an objective", by_class
        ),
        "class_slo_attainment_stderr": Variable(
            "1", "standard error of the SLO attainment of a class", _ERROR, by_class
        ),
        "class_slo_met": Variable(
            "1",
            "SLO of a class met",
            "every objective of the class holds at its own statistic; false where it has none",
            by_class,
        ),
    }
    return table


def _elasticity(name: str, long_name: str) -> dict[str, Variable]:
    dims = ("config", "input", "quantile")
    named = f"{name}_elasticity"
    return {
        named: Variable(
            "1",
            f"elasticity of the {long_name}",
            f"d ln {name} / d ln input = ln({name}(up) / {name}(down)) / (2 ln {1 + STEP:g}), up and down: the input "
            f"x {1 + STEP:g} and / {1 + STEP:g}, all else alike, on the same requests; NaN unless all are positive",
            dims,
        ),
        f"{named}_stderr": Variable(
            "1",
            f"standard error of the elasticity of the {long_name}",
            "Monte-Carlo standard error of the difference of paired runs (common random numbers), delta method: over "
            "the seeds; with one seed from batch means within the run, NaN where a metric has no value in a batch",
            dims,
        ),
        f"{named}_step_error": Variable(
            "1",
            f"step error of the elasticity of the {long_name}",
            "half the difference between the elasticities a step up and a step down: what the size of the step matters "
            "where the metric has a kink or jumps",
            dims,
        ),
    }


VARIABLES: dict[str, Variable] = _table()

INPUTS = {
    "memory_bandwidth": "bandwidth of the devices' memory",
    "flops": "peak FLOP/s of the devices, in every precision",
    "link_bandwidth": "bandwidth of every link between devices or pools, and of the one that KV is swapped over",
    "link_latency": "latency of every link; launches and ramps of collectives",
    "kernel_overhead": "fixed times of kernels: launches, and what they take per sequence and head",
    "host_overhead": "time of the host per iteration, per sequence, per request outside the engine, and at API servers",
}
"""Every rate and every fixed time of a replica is in exactly one of them: the first three are rates, the others times.

Hence all rates x times as fast and all times x times as short is another unit of time, and nothing else.
"""

# Coordinates by the last part of their key path; what is not here is read off its suffix or is text.
COORDINATE_UNITS = {
    "rate_rps": "1/s",
    "users": "1",
    "cv": "1",
    "usd_per_device_hour": "USD/h",
    "memory_fraction": "1",
    "memory_bytes": "byte",
    "memory_bandwidth": "byte/s",
    "power_w": "W",
    "idle_power_w": "W",
    "usd_per_hour": "USD/h",
    "bandwidth": "byte/s",  # of a link
    "latency": "s",
    "times": "1",  # multiples of a figure
    "relax": "1",  # a part of the bounds
    "confidence": "1",
}
_SUFFIXES = {
    "_s": "s",
    "_tokens": "token",
    "_bytes": "byte",
    "_rps": "1/s",
    "_w": "W",
    "_flops": "FLOP/s",
    "_bandwidth": "byte/s",
}


def coordinate_units(path: str) -> str:
    """Unit of a swept quantity by its key path; ``1`` for counts, fractions and names."""
    leaf = path.rsplit(".", 1)[-1]
    if leaf in COORDINATE_UNITS:
        return COORDINATE_UNITS[leaf]
    if path.startswith("slo.") or ".think_s." in path:
        return "s"
    if "peak_flops" in path:
        return "FLOP/s"
    return next((unit for suffix, unit in _SUFFIXES.items() if leaf.endswith(suffix)), "1")
