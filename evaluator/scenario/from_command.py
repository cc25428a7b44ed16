"""``deployment: {from: serve.sh}``: the deployment that a script starts, with what is said beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator.arguments import arguments_of, read_servers
from evaluator.keys import Place, listed, shown
from evaluator.scenario.key_paths import put
from evaluator.yaml import read_text

FROM = "from"
SAYS = (
    "A shell script, or YAML of Dynamo, llm-d, Kubernetes or Docker Compose, that starts servers of vLLM or SGLang; "
    "keys beside it come before what it says."
)


def started_by(tree: Mapping[str, Any], place: Place) -> dict[str, Any] | None:
    """The tree with the keys of its script in the place of ``from``; None where it names none.

    Errors: InputError for a script that starts no servers, and for flags that the recorded version of the engine does
    not have: a design without them would be another one.
    """
    deployment = tree.get("deployment")
    if not isinstance(deployment, Mapping) or FROM not in deployment:
        return None
    here = place.key("deployment").key(FROM)
    name = deployment[FROM]
    if not isinstance(name, str):
        raise here.error(f"expected the name of a script or manifest, got {shown(name)}")
    path = Path(name)
    # Beside the scenario first, as trace files are: a scenario with its script can be moved, and run from
    # anywhere.
    if place.folder is not None and (place.folder / path).is_file():
        path = place.folder / path
    if not path.is_file():
        raise here.error(f"there is no file {name}")
    model = deployment.get("model")
    started = read_servers(read_text(path), str(path), model if isinstance(model, str) else None)
    if started.unknown:
        versions = " or ".join(f"{engine} {arguments_of(engine).version}" for engine in started.engines)
        raise here.error(
            f"{path} has {listed(started.unknown)}, which {versions} does not take; correct it, or write its "
            f"deployment with `evaluator catalog import {path}` and leave {FROM} out"
        )
    beside = {key: value for key, value in deployment.items() if key != FROM}
    # What is said beside ``from`` is merged over what the script says, key by key.
    return {**tree, "deployment": put(started.tree, (), beside)}
