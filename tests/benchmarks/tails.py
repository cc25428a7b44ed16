"""Where the p99 of TTFT comes from: ``python -m tests.benchmarks.tails DATA`` reads runs request by request.

Each stage of the servers whose requests are all there (``blis_requests.parquet``) below saturation: p99 as the shipped
sets predict it, as measured, and as measured without the requests of the first minute of the run. A server compiles
kernels and fills its prefix cache in that minute; the prediction has the latter alone. Requests that wait longer than
1.5 times the p90 are counted by spells: those that come within two seconds of one another.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from evaluator.compare import compare_experiments
from evaluator.experiments import read_experiments

WARM_UP_S = 60.0
LONG, APART_S = 1.5, 2.0


def tails(data: Path) -> pd.DataFrame:
    """A row for each stage of a run: p99 of TTFT in ms, and how many long waits there are in the longest spell."""
    experiments = read_experiments(data / "vllm_serving_specs.json", data / "vllm_serving_actuals.csv")
    predicted = compare_experiments(experiments, seeds=(0,))
    predicted = predicted[(predicted["metric"] == "ttft_p99") & (predicted["status"] == "ok")]
    predicted = predicted.set_index([predicted["exp_id"].astype(str), predicted["stage_index"]])["predicted"]
    servers = pd.read_csv(data / "blis_servers.csv", dtype={"same_as_exp_id": str})
    requests = pd.read_parquet(data / "blis_requests.parquet")
    rows = []
    for _, server in servers.dropna(subset=["same_as_exp_id"]).iterrows():
        of_run = requests[requests["run_id"] == server["run_id"]]
        for stage, of_stage in of_run.groupby("stage"):
            if of_stage["failed"].any() or (server["same_as_exp_id"], stage) not in predicted.index:
                continue
            warm = of_stage[of_stage["arrival_s"] > of_run["arrival_s"].min() + WARM_UP_S]
            rows.append(
                {
                    "run": server["name"].split("-", 2)[-1],
                    "stage": stage,
                    "predicted_ms": predicted[server["same_as_exp_id"], stage],
                    "measured_ms": 1e3 * of_stage["ttft_s"].quantile(0.99),
                    "warm_ms": 1e3 * warm["ttft_s"].quantile(0.99),
                    "longest_spell": _longest_spell(warm),
                }
            )
    return pd.DataFrame(rows)


def _longest_spell(requests: pd.DataFrame) -> int:
    long = requests.loc[requests["ttft_s"] > LONG * requests["ttft_s"].quantile(0.9), "arrival_s"].sort_values()
    spells = np.cumsum(np.diff(long, prepend=-np.inf) > APART_S)
    return int(np.bincount(spells).max(initial=0))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tails", description=__doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder of the measurements")
    print(tails(parser.parse_args().data).to_string(index=False, float_format="{:.1f}".format))


if __name__ == "__main__":
    main()
