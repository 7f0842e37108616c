"""The command line of emulation: a table of verbs, each loaded when it is used."""

from __future__ import annotations

import click

from forebay.command_line.lazy import LazyGroup

EXAMPLES = """\b
Examples:
  forebay emulate workloads
  forebay emulate datasize --workload resnet50 --accelerator h100 --accelerators 8
  forebay emulate datagen --workload resnet50 --data /data/resnet50 --files 3200
  forebay emulate run --workload resnet50 --accelerator h100 --accelerators 8 --data /data/resnet50"""

# verb → (module:command, the question it answers)
VERBS = {
    "run": ("forebay.emulate.run:command", "Is this storage fast enough for N accelerators?"),
    "search": ("forebay.emulate.search:command", "How many accelerators does this storage keep busy?"),
    "datasize": ("forebay.emulate.datasize:command", "How large must the data set be under the rules?"),
    "matrix": ("forebay.emulate.matrix:command", "A published table: workloads × drives × numbers of drives."),
    "datagen": ("forebay.emulate.datagen:command", "Create a workload's data set."),
    "check": ("forebay.emulate.check:command", "Do these results comply with the rules?"),
    "export": ("forebay.emulate.mlcommons:command", "Write results in the layout of MLPerf Storage v1.0."),
    "checkpoint": ("forebay.emulate.checkpoint:command", "How fast can a large model's checkpoint be written and read?"),
    "kvcache": ("forebay.emulate.kvcache.verb:command", "How fast is this storage as a serving engine's KV cache?"),
    "workloads": ("forebay.emulate.show_workloads:command", "Which workloads are there, and with which constants?"),
}


class EmulateVerbs(LazyGroup):
    table = VERBS
    noun = "verb of emulate"


@click.group(
    name="emulate",
    cls=EmulateVerbs,
    epilog=EXAMPLES,
    short_help="How many accelerators does this storage keep busy?",
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """How many accelerators does this storage keep busy under the rules of MLPerf Storage?

    Reads real samples, waits as long as an accelerator would compute, and reports the share of time that it was busy
    (accelerator utilisation, AU). Results are MLPerf-style and unverified.
    """
