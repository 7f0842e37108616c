"""Tab completion and manual pages, both made from the commands themselves."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from forebay.errors import RequestError

SHELLS = ("bash", "zsh", "fish")
INSTALL = {
    "bash": 'eval "$(forebay completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(forebay completion zsh)" in ~/.zshrc, after compinit',
    "fish": "forebay completion fish > ~/.config/fish/completions/forebay.fish",
}


@click.command("completion")
@click.argument("shell", required=False, metavar="[bash|zsh|fish]")
def completion(shell: str | None) -> int:
    """Print a script for tab completion of forebay's verbs and flags.

    \b
    bash: eval "$(forebay completion bash)" in ~/.bashrc
    zsh:  eval "$(forebay completion zsh)" in ~/.zshrc, after compinit
    fish: forebay completion fish > ~/.config/fish/completions/forebay.fish
    """
    from click.shell_completion import get_completion_class

    from forebay.cli import forebay

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        found = "is not a supported shell" if name else "no shell was named and SHELL is unset"
        raise RequestError(f"completion {name}".strip(), found, "forebay completion bash, zsh or fish")
    maker = get_completion_class(name)
    assert maker is not None, "click knows these three"
    # Not `source()`: for bash it first runs the shell to check its version, which may be another machine's.
    made = maker(forebay, {}, "forebay", "_FOREBAY_COMPLETE")
    click.echo(made.source_template % made.source_vars())
    click.echo(f"to use it: {INSTALL[name]}", err=True)
    return 0


@click.command("man")
@click.argument("verb", required=False)
@click.option("--out", metavar="DIR", help="Write all pages to DIR, as forebay.1, forebay-bench.1 and so on.")
def man(verb: str | None, out: str | None) -> int:
    """Print the manual page of forebay, or of a VERB, as input for man: forebay man bench | man -l -"""
    if out is not None:
        return write_pages(Path(out), verb)
    click.echo(page(verb), nl=False)
    return 0


def write_pages(folder: Path, verb: str | None = None) -> int:
    """All pages into a folder, or one verb's. They replace older ones, and are written through no link."""
    from forebay.bench.save import place, unwritable

    try:
        folder.mkdir(parents=True, exist_ok=True)
        pages = {f"forebay-{each}.1" if each else "forebay.1": each for each in ([verb] if verb else [None, *verbs()])}
        others = [name for name in pages if os.path.lexists(at := folder / name) and (at.is_symlink() or not _is_a_page(at))]
        try:
            for name, each in pages.items():
                if others:
                    raise FileExistsError(others[0])
                place(folder / name, page(each), _is_a_page)
                click.echo(str(folder / name))
        except FileExistsError as error:
            found = f"{others[0] if others else name} exists and isn't a Forebay manual page, so it isn't overwritten"
            raise RequestError(f"--out {folder}", found, "another directory") from error
    except OSError as error:
        raise unwritable(f"--out {folder}", error, "directory") from error
    return 0


def _is_a_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(12) == b'.TH "FOREBAY'


def verbs() -> list[str]:
    from forebay.cli import VERBS

    return list(VERBS)


def page(verb: str | None = None) -> str:
    """The roff source of one page, in the man macros."""
    from forebay import __version__
    from forebay.cli import VERBS, forebay

    if verb is not None and verb not in VERBS:
        raise RequestError(f"man {verb}", "is not a verb", f"one of {', '.join(VERBS)}")
    root = as_run(forebay, "forebay")
    if verb is None:
        command: click.Command = forebay
        context, title, question = root, "forebay", "feed GPUs from storage, and measure how well that works"
    else:
        found = forebay.get_command(root, verb)
        assert found is not None, "the table of verbs was asked"
        command, title, question = found, f"forebay-{verb}", VERBS[verb][1]
        context = as_run(command, verb, root)
    parts = [
        f'.TH "{title.upper()}" "1" "" "Forebay {roff(__version__)}" "Forebay Manual"',
        f".SH NAME\n{roff(title)} \\- {roff(question)}",
        f".SH SYNOPSIS\n{synopsis(command, context)}",
        f".SH DESCRIPTION\n{paragraphs(command.help or '')}",
        options(command, context),
        _verbs_section() if verb is None else _verbs_of(command, context),
        f".SH EXAMPLES\n{paragraphs(_examples(command.epilog))}" if command.epilog else "",
        EXIT_STATUS,
        _see_also(verb),
    ]
    return "\n".join(p for p in parts if p) + "\n"


def as_run(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    """The context that `command` runs in. Another one's --help, without its -h, would stay with the command for good."""
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


EXIT_STATUS = """.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
The run finished, and what it checked does not hold.
.TP
.B 2
The request is wrong.
.TP
.B 3
This machine can't do it.
.TP
.B 4
The run failed midway; what was measured is saved.
.TP
.B 130
Interrupted; what was measured is saved."""


def synopsis(command: click.Command, context: click.Context) -> str:
    pieces = " ".join(command.collect_usage_pieces(context))
    return f".B {roff(context.command_path)}\n{roff(pieces)}"


def options(command: click.Command, context: click.Context) -> str:
    """An entry for each option that isn't hidden."""
    entries = []
    for parameter in command.get_params(context):
        found = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and found is not None:
            flags, words = found
            entries.append(f".TP\n.B {roff(flags)}\n{roff(words) or 'No description.'}")
    return ".SH OPTIONS\n" + "\n".join(entries) if entries else ""


def _verbs_section() -> str:
    from forebay.cli import VERBS

    return ".SH VERBS\n" + "\n".join(f".TP\n.B {roff(v)}\n{roff(q)}" for v, (_, q) in VERBS.items())


def _verbs_of(command: click.Command, context: click.Context) -> str:
    """Each verb of a verb that has some, with its flags; "" for any other."""
    if not isinstance(command, click.Group):
        return ""
    made = []
    for name in command.list_commands(context):
        one = command.get_command(context, name)
        assert one is not None, "the group itself named it"
        within = as_run(one, name, context)
        flags = options(one, within).removeprefix(".SH OPTIONS\n")
        made.append(f".SS {roff(name)}\n{synopsis(one, within)}\n{paragraphs(one.help or '')}\n{flags}")
    return ".SH VERBS\n" + "\n".join(made)


def _see_also(verb: str | None) -> str:
    others = [f".BR {roff(f'forebay-{v}')} (1)" for v in verbs()] if verb is None else [".BR forebay (1)"]
    return ".SH SEE ALSO\n" + ",\n".join(others)


def _examples(epilog: str) -> str:
    return re.sub(r"^Examples:\n", "", epilog.replace("\b\n", ""), flags=re.MULTILINE).replace("\n", "\n\b")


def paragraphs(text: str) -> str:
    """Click's help text as paragraphs; those that it marks with \\b keep their lines."""
    made = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = [line.strip() for line in block.splitlines()]
        if "\b" in block:
            kept = [line.replace("\b", "").strip() for line in lines]
            made.append(".PP\n.nf\n" + "\n".join(roff(line) for line in kept if line) + "\n.fi")
        else:
            made.append(".PP\n" + roff(" ".join(lines)))
    return "\n".join(made)


def roff(text: str) -> str:
    """Escaped: backslashes, hyphens that are typed, and a full stop or quote that begins a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in escaped.split("\n"))
