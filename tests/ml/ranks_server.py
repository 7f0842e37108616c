"""Ranks of torchrun's own agent, forked by one process that has imported PyTorch: that takes longer than what the ranks do.

On stdin a line of JSON for each launch, {script, words, said}, answered by the agent's process number; and {wait: number},
answered by its exit code. It computes nothing itself, so that threads are the forked processes' own.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import Any

import torch
from forebay import cli  # noqa: F401
from forebay.train import command, data, dlrm, parallel, ranks, split  # noqa: F401
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

RANKS = 2
# A first optimizer imports what takes twice as long as the rest of PyTorch.
torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))])


def rank(script: str, words: list[str]) -> None:
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def launch(asked: dict[str, Any]) -> int:
    """What `torchrun --standalone --nproc-per-node 2` does, in this process."""
    said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=RANKS, run_id=str(os.getpid()), rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork",
    )  # fmt: skip
    try:
        elastic_launch(config, rank)(asked["script"], asked["words"])
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                code = launch(asked)
                sys.stdout.flush()
                os._exit(code)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
