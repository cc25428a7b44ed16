"""What the design delivers and what it costs: throughput, use of the hardware, money and energy."""

from __future__ import annotations

import numpy as np

from evaluator.metrics.outcomes import Outcomes
from evaluator.metrics.power import busy_power
from evaluator.metrics.statistics import over_seeds
from evaluator.metrics.use import Use
from evaluator.metrics.window import Window

SECONDS_PER_HOUR = 3600.0


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient, NaN where the denominator is not positive."""
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=np.asarray(denominator) > 0)


def _ratio_or_0(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Quotient, 0 where the denominator is not positive."""
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)


def throughput(outcomes: Outcomes, window: Window) -> dict[str, np.ndarray]:
    """throughput_rps, output_tok_per_s, total_tok_per_s and the same per GPU; (config, seed).

    What is completed from the arrival of the first measured request to the last arrival, all of it by requests that
    came before or after: in a steady state as much as comes in. The drain behind the last arrival, in which the design
    empties, is left out. Where nothing is completed by then, or all requests come at once, it is the work of all that
    came from then on, up to their last completion. Of a closed loop whole cycles are counted (``_cycle_start``); where
    its users have sessions, up to the arrival that opens the last one: from then on they leave, one after the other.
    """
    inside, took_s = _counted(outcomes, window)

    def done(amount: np.ndarray) -> np.ndarray:
        # einsum adds the amounts of a mask without a float copy of either; they are integers and booleans.
        return np.einsum("...r,...r->...", inside, np.asarray(amount), dtype=np.float64, casting="unsafe")

    accelerators = outcomes.summed("devices") if outcomes.accelerators is None else outcomes.accelerators
    devices_there = np.broadcast_to(accelerators[:, None], outcomes.makespan_s.shape)
    for use in outcomes.stations:
        devices_there = devices_there - (use.devices[:, None] - use.devices_there(outcomes.makespan_s))
    output, prompt = done(outcomes.tokens.output_tokens), done(outcomes.tokens.prompt_tokens)
    work = {
        "throughput_rps": np.count_nonzero(inside, axis=-1).astype(np.float64),
        "output_tok_per_s": output,
        "total_tok_per_s": prompt + output,
        "tok_per_s_per_gpu": _ratio(output, devices_there),
    }
    return {name: _ratio(amount, took_s) for name, amount in work.items()}


def _counted(outcomes: Outcomes, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Which requests are completed in the time that ``throughput`` counts, (config, seed, request), and how long that
    is, (config, seed)."""
    arrival_s = outcomes.times.arrival_s
    last_s = arrival_s.max(axis=-1)
    if outcomes.sessions is not None:
        leave_s = np.where(outcomes.sessions.opens, arrival_s, -np.inf).max(axis=-1)
        last_s = np.where((outcomes.users[:, None] > 0) & np.isfinite(leave_s), leave_s, last_s)
    first_s = _cycle_start(outcomes, window.least(arrival_s), last_s)
    ended = outcomes.times.last_token_s
    # Who is refused leaves on arrival, or is lost with its replica, and completes nothing.
    unanswered = outcomes.times.unanswered
    answered = np.ones(1, dtype=bool) if unanswered is None else ~unanswered
    inside = (ended > first_s[..., None]) & (ended <= last_s[..., None]) & answered
    steady = inside.any(axis=-1)
    took_s = last_s - first_s
    if not steady.all():
        # Without a completion before the last arrival the rate is the work over the time until it is done. It is that
        # of all who came, whichever of them the statistics leave out: of requests that come at once, those before the
        # steady state take their share of this time, too.
        came = arrival_s >= first_s[..., None]
        inside = np.where(steady[..., None], inside, came & answered)
        took_s = np.where(steady, last_s, np.where(came, ended, -np.inf).max(axis=-1)) - first_s
    return inside, took_s


def _cycle_start(outcomes: Outcomes, first_s: np.ndarray, last_s: np.ndarray) -> np.ndarray:
    """Where throughput begins to be counted, (config, seed): of a closed loop whole cycles before ``last_s``.

    Users who begin together end together for long: their requests come and go in waves, and a window of two and a
    half waves may hold the completions of three. Between one arrival and the arrival k x users behind it every user
    has sent, on average, k requests, wherever in a wave the two are; so that throughput x mean time in the system are
    the users, as Little's law has it. Runs with less than a cycle behind the warm-up keep ``first_s``.
    """
    start_s = np.array(first_s)
    for config in np.flatnonzero(outcomes.users > 0):
        arrivals = np.sort(outcomes.times.arrival_s[config], axis=-1)  # users answer out of order: (seed, request)
        for seed, begins in enumerate(first_s[config]):
            # Whole cycles back from the arrival that ends the window.
            last = int(np.searchsorted(arrivals[seed], last_s[config, seed], side="right")) - 1
            behind = last - int(np.searchsorted(arrivals[seed], begins))
            whole = behind - behind % int(outcomes.users[config])
            if whole > 0:
                start_s[config, seed] = arrivals[seed, last - whole]
    return start_s


def hardware_use(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """utilisation, mfu, mbu, kv_used_mean, iterations and more over the whole run; (config, seed).

    Busy time is summed over replicas, each of which has devices / replicas devices with their peaks together. Over
    several stations the utilisation is weighed by devices, MFU and MBU are of what all could do while they were busy.
    """
    devices_there = [use.devices_there(outcomes.makespan_s) for use in outcomes.stations]
    devices = sum(devices_there[1:], devices_there[0])
    busy, flops, moved = (np.zeros_like(outcomes.makespan_s) for _ in range(3))
    for use, of_use in zip(outcomes.stations, devices_there, strict=True):
        replicas = use.replicas[:, None]
        share = _ratio(of_use, devices)
        # Weighed by devices: a pool of eight that waits counts eight times one that works alone.
        busy = busy + share * _ratio(use.totals.busy_s, use.replica_s(outcomes.makespan_s))
        device_busy_s = use.totals.busy_s * (use.devices[:, None] / replicas)
        flops = flops + device_busy_s * use.peak_flops[:, None]
        moved = moved + device_busy_s * use.peak_bandwidth[:, None]
    return {
        "utilisation": np.minimum(busy, 1.0),  # two sums that round
        "mfu": _ratio(outcomes.summed("flops"), flops),
        "mbu": _ratio(outcomes.summed("bytes"), moved),
        "kv_used_mean": kv_used_mean(outcomes),
        "iterations": outcomes.summed("iterations"),
        "preemptions": outcomes.summed("preemptions"),
        # 0 / 0 is NaN: nothing was drafted.
        "accepted_per_iteration": _ratio(outcomes.summed("decoded_tokens"), outcomes.summed("decoded")),
    }


def prefix_hit_rate(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Prompt tokens of the measured requests that were in a cache when they came / all their prompt tokens."""
    return _of_prompts(outcomes, window, outcomes.tokens.cached_tokens)


def host_hit_rate(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Prompt tokens that host memory had / all prompt tokens."""
    return _of_prompts(outcomes, window, outcomes.tokens.host_tokens)


def storage_hit_rate(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Prompt tokens that a tier of the replica's own behind host memory had / all prompt tokens."""
    return _of_prompts(outcomes, window, outcomes.tokens.storage_tokens)


def shared_hit_rate(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Prompt tokens that a tier had which replicas share / all prompt tokens."""
    return _of_prompts(outcomes, window, outcomes.tokens.shared_tokens)


def decode_hit_rate(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Prompt tokens of the measured requests that the decode side had in its cache / all their prompt tokens."""
    return _of_prompts(outcomes, window, outcomes.tokens.decode_hit_tokens)


def _of_prompts(outcomes: Outcomes, window: Window, tokens: np.ndarray | None) -> np.ndarray:
    cached = np.zeros(1) if tokens is None else window.total(tokens)
    prompt = outcomes.tokens.prompt_tokens
    if outcomes.times.unanswered is not None:
        prompt = np.where(outcomes.times.unanswered, 0, prompt)
    return np.broadcast_to(_ratio(cached, window.total(prompt)), outcomes.makespan_s.shape)


def refused_share(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Measured requests that were sent away / all of them, (config, seed)."""
    return _share(outcomes, window, outcomes.times.refused)


def lost_share(outcomes: Outcomes, window: Window) -> np.ndarray:
    """Measured requests that were lost with a replica / all of them, (config, seed)."""
    return _share(outcomes, window, outcomes.times.lost)


def _share(outcomes: Outcomes, window: Window, some: np.ndarray | None) -> np.ndarray:
    share = np.zeros(1) if some is None else window.total(some) / window.count
    return np.broadcast_to(share, outcomes.makespan_s.shape)


def attained(outcomes: Outcomes, window: Window, inside: np.ndarray | None) -> np.ndarray:
    """attained_rps, (config,): measured requests within their bounds / the time in which all of these arrive.

    ``inside`` as of ``latency.within_objectives``, NaN for requests without a bound; NaN where all come at once.
    """
    if inside is None:
        return np.full(outcomes.status.size, np.nan)
    arrival_s = outcomes.times.arrival_s
    took_s = window.largest(arrival_s) - window.least(arrival_s)
    # So many gaps as requests but one lie between the first arrival and the last.
    scale = (window.count - 1.0) / window.count
    bounded = np.isfinite(inside).any(axis=-1)
    return over_seeds(np.where(bounded, _ratio(scale * np.nansum(inside, axis=-1), took_s), np.nan))


def kv_used_mean(outcomes: Outcomes) -> np.ndarray:
    """Fraction of the KV capacity that is in use, over the whole run, (config, seed); stations weighed by their bytes.

    Units and bytes are of one device of each replica, which all its devices have alike.
    """
    bytes_of = [_of_kv(use, use.kv_capacity_units * use.kv_unit_bytes * use.devices) for use in outcomes.stations]
    whole = sum(bytes_of[1:], bytes_of[0])[:, None]
    used = np.zeros_like(outcomes.makespan_s)
    for use, kv_bytes in zip(outcomes.stations, bytes_of, strict=True):
        capacity = use.kv_capacity_units[:, None] * use.replica_s(outcomes.makespan_s)
        used = used + _of_kv(use, _ratio(kv_bytes[:, None], whole) * _ratio(use.totals.kv_unit_s, capacity))
    return used


def kv_used_max(outcomes: Outcomes) -> np.ndarray:
    """Largest fraction of the KV capacity of any replica of any station, (config, seed)."""
    used = [_of_kv(use, _ratio(use.totals.kv_units_max, use.kv_capacity_units[:, None])) for use in outcomes.stations]
    return np.max(used, axis=0)


def _of_kv(use: Use, values: np.ndarray) -> np.ndarray:
    """The values, 0 where the station has no KV cache."""
    has = use.kv_capacity_units > 0
    return np.where(has if values.ndim == 1 else has[:, None], values, 0.0)


def price(outcomes: Outcomes, output_tok_per_s: np.ndarray) -> np.ndarray:
    """usd_per_mtok, (config,): all devices are paid for the whole measured window; NaN where a price is not known.

    Of replicas that come and go as many as are there on the mean over the run.
    """
    paid = [over_seeds(use.devices_there(outcomes.makespan_s)) * use.usd_per_hour for use in outcomes.stations]
    return 1e6 * _ratio(sum(paid[1:], paid[0]) / SECONDS_PER_HOUR, output_tok_per_s)


def fleet(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """replicas_mean and device_hours over the whole run, (config, seed): what is there and paid for, of all pools; and
    availability, the part of that time in which it served."""
    replicas_there, paid_s, up_s = (np.zeros_like(outcomes.makespan_s) for _ in range(3))
    for use in outcomes.stations:
        replica_s = use.replica_s(outcomes.makespan_s)
        # A link or a delay has servers, which are no replicas: they have no devices.
        replicas_there = replicas_there + np.where(
            use.devices[:, None] > 0, _ratio(replica_s, outcomes.makespan_s), 0.0
        )
        per_replica = np.divide(use.devices, use.replicas, out=np.zeros_like(use.devices), where=use.replicas > 0)
        paid_s = paid_s + replica_s * per_replica[:, None]
        up_s = up_s + use.up_s(outcomes.makespan_s) * per_replica[:, None]
    return {
        "replicas_mean": replicas_there,
        "device_hours": paid_s / SECONDS_PER_HOUR,
        "availability": np.divide(up_s, paid_s, out=np.ones_like(up_s), where=paid_s > 0),
    }


def fleet_of_pools(outcomes: Outcomes) -> dict[str, np.ndarray]:
    """pool_replicas_mean and pool_device_hours, (config, pool), where replicas of one of several pools come and go; NaN
    of pools that a configuration has not."""
    names, configs = outcomes.pool_names, outcomes.status.size
    if not names:
        return {}
    table = {name: np.full((configs, len(names)), np.nan) for name in ("pool_replicas_mean", "pool_device_hours")}
    for use in outcomes.stations:
        if use.name not in names:
            continue
        column, replica_s = names.index(use.name), use.replica_s(outcomes.makespan_s)
        table["pool_replicas_mean"][:, column] = over_seeds(_ratio(replica_s, outcomes.makespan_s))
        of_replica = use.devices / use.replicas / SECONDS_PER_HOUR
        table["pool_device_hours"][:, column] = over_seeds(replica_s) * of_replica
    return table


def energy(outcomes: Outcomes) -> np.ndarray:
    """joule_per_tok per output token, (config, seed); NaN where a power is not known.

    Over the whole run a device takes idle_power_w while its replica waits, and while it is busy a part of power_w that
    follows from its FLOPs and bytes over its peaks, by the law of its architecture (``power``). Where only power_w is
    known the energy is not guessed.
    """
    joule = np.zeros_like(outcomes.makespan_s)
    for use in outcomes.stations:
        per_replica = (use.devices / use.replicas)[:, None]
        # Busy time is of replicas, power of devices, of which a replica has ``per_replica``.
        busy_s = use.totals.busy_s * per_replica
        idle_s = (use.replica_s(outcomes.makespan_s) - use.totals.busy_s) * per_replica
        tdp, idle = use.power_w[:, None], use.idle_power_w[:, None]
        # What kernels execute takes power, tokens of nobody included, which are no part of the MFU that is stated.
        computed = _ratio_or_0(use.executed_flops, busy_s * use.peak_flops[:, None])
        moved = _ratio_or_0(use.executed_bytes, busy_s * use.peak_bandwidth[:, None])
        joule = joule + busy_s * busy_power(tdp, idle, use.power_law[:, None], computed, moved) + idle_s * idle
    given = outcomes.tokens.output_tokens
    if outcomes.times.unanswered is not None:
        given = np.where(outcomes.times.unanswered, 0, given)
    tokens = np.asarray(given).sum(axis=-1, dtype=np.float64)
    return _ratio(joule, np.broadcast_to(tokens, joule.shape))
