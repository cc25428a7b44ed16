"""Command lines of serving engines, written from the keys of a deployment and read as them.

``table.py`` has the arguments of each engine as recorded of its source, ``flags.py`` what keys and flags have to do
with one another, ``vllm.py``, ``sglang.py`` and ``trtllm.py`` the tables of the engines; ``shell.py`` reads scripts
that start servers, ``manifests.py`` the YAML in which such scripts stand.
"""

from evaluator.arguments.flags import WHOLE, CommandLine, StatedPool, unsaid
from evaluator.arguments.manifests import read_servers
from evaluator.arguments.shell import COMMAND_LINES, FLEET_NOTE, POOL_NOTE, Started, read_script
from evaluator.arguments.table import Arguments, Flags, arguments_of, get, leaves, tree_of
from evaluator.arguments.trtllm import CONFIG, TRTLLM

__all__ = [
    "COMMAND_LINES",
    "CONFIG",
    "FLEET_NOTE",
    "POOL_NOTE",
    "TRTLLM",
    "WHOLE",
    "Arguments",
    "CommandLine",
    "Flags",
    "Started",
    "StatedPool",
    "arguments_of",
    "get",
    "leaves",
    "read_script",
    "read_servers",
    "tree_of",
    "unsaid",
]
