"""`forebay feed`: what a loader makes of these files here, without a training script."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import BROKE, CHECK_FAILED, DONE, INTERRUPTED, ForebayError, MachineError, RequestError
from forebay.flags import _integer
from forebay.units import parse_bytes

if TYPE_CHECKING:
    from forebay.feed.loader import Loader

EXAMPLES = """\b
Examples:
  forebay feed train.bin --row-bytes 912 --batch-size 8192
  forebay feed /data/parts --row-bytes 150528 --shuffle blocks --epochs 2 --json
  forebay feed features.npy --device cuda:0 --verify
  torchrun --nproc-per-node 2 --no-python forebay feed train.bin --row-bytes 912"""
# Without --batch-size, samples that make about as many bytes.
BATCH_BYTES = 8 << 20
PROGRESS_EVERY_S = 0.25
# An argument of a Loader with its value, as errors name it.
ARGUMENT = re.compile(r"\b(batch_size|prefetch|rank|world|pin_limit|seed|shuffle|device|path|cache)=['\"]?([\w:.]+)['\"]?")

Record = dict[str, Any]


@click.command("feed", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--row-bytes", metavar="SIZE", help="Bytes of a sample. Default: as the format says (.npy, .tar …).")
@click.option("--start", metavar="SIZE", help="Byte of each file where its samples begin. Default: 0.")
@click.option("--batch-size", metavar="N", help="Samples of a batch. Default: about 8 MiB of them.")
@click.option(
    "--shuffle",
    type=click.Choice(("rows", "blocks", "none")),
    default="rows",
    help="rows: any sample anywhere; blocks: blocks of 6 MB, 16 of them mixed; none: in order. Default: rows.",
)
@click.option("--seed", default="0", metavar="N", help="Seed of the order. Default: 0.")
@click.option("--device", default="cpu", metavar="NAME", help="cpu, pinned, cuda or cuda:1. Default: cpu.")
@click.option("--path", type=click.Choice(("auto", "mapped", "bounce", "gds")), default="auto", help="How bytes reach a GPU.")
@click.option("--epochs", default="1", metavar="N", help="Times that all samples are read. Default: 1.")
@click.option("--prefetch", metavar="N", help="Batches that are read ahead. Default: 2 to 16, as memory and caches suggest.")
@click.option("--columns", metavar="LIST", help="Read only these fields of a sample, separated by commas.")
@click.option("--drop-last", is_flag=True, help="Leave out what makes no whole batch for every rank.")
@click.option("--rank", metavar="N", help="This rank. Default: as torchrun, MPI or Slurm says, else 0.")
@click.option("--world", metavar="N", help="Number of ranks. Default: as the launcher says, else 1.")
@click.option("--pin-limit", metavar="SIZE", help="Memory of all batches together. Default: 1g, or what a few batches need.")
@click.option(
    "--cache",
    type=click.Choice(("auto", "fill", "bypass")),
    default="auto",
    help="Read what isn't cached into the page cache, or past it. Default: auto, by what fits in memory.",
)
@click.option("--verify", is_flag=True, help="Compare each sample with a second reading of its file.")
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout.")
@click.option("-o", "--out", metavar="FILE", help="Save the record to FILE; .jsonl appends a line.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
def command(files: tuple[str, ...], as_json: bool, out: str | None, quiet: bool, **flags: Any) -> int:
    """How fast, and at what CPU cost, does a loader hand out the samples of these files?

    The same loader as `forebay.feed.Loader` in a training script: batches in an order that seed, epoch and position decide,
    read ahead by threads of this process. FILE is a file, several, or a folder.
    """
    from forebay.bench import save
    from forebay.feed import show

    output = save.Output(out, save.RUN) if out else None
    loader = open_loader(files, flags)
    if not len(loader):
        has = f"{loader.samples:,} samples are no batch of {loader.batch_size:,}"
        ranks = f" for each of {loader.world} ranks" if loader.world > 1 else ""
        loader.close()
        raise RequestError("--drop-last", f"{has}{ranks}: nothing is left", "a smaller --batch-size, or no --drop-last")
    try:
        record, failure = run(loader, _number(flags["epochs"], "--epochs", 1), flags["verify"], quiet)
    finally:
        loader.close()
    save.conclude(record, output, as_json, None if quiet else show.text(record))
    if failure is not None:
        raise failure
    if record["result"]["errors"]["verify_failed"]:
        return CHECK_FAILED
    if record["result"]["interrupted"]:
        return INTERRUPTED
    # A rank may have nothing but empty batches, where fewer samples than ranks are left.
    return DONE if record["feed"]["batches"] else BROKE


def _number(value: str, flag: str, least: int) -> int:
    number = _integer(value, flag)
    if not least <= number < 1 << 63:
        raise RequestError(f"{flag} {value}", f"is not {least} or more", f"{flag} {least}")
    return number


@contextlib.contextmanager
def in_flags() -> Iterator[None]:
    """Errors of a Loader's arguments name the flags that they came from."""
    try:
        yield
    except (RequestError, MachineError) as error:
        said = (ARGUMENT.sub(as_flag, text) for text in (error.asked, error.found, error.next))
        raise type(error)(*(text.replace(", --", " --") for text in said)) from None


def as_flag(found: re.Match[str]) -> str:
    return f"--{found[1].replace('_', '-')} {found[2]}"


def open_loader(files: tuple[str, ...], flags: dict[str, Any]) -> Loader:
    """The loader that the flags describe. Raises RequestError in the command line's words."""
    import warnings

    from forebay.feed import dataset
    from forebay.feed.loader import Loader
    from forebay.feed.samples import Samples

    row_bytes, start = flags["row_bytes"], flags["start"]
    if row_bytes is not None:
        bytes_ = parse_bytes(row_bytes, "--row-bytes")
        if not 1 <= bytes_ < 1 << 31:
            raise RequestError(f"--row-bytes {row_bytes}", "is not between 1 byte and 2 GiB", "--row-bytes 912")
        import numpy as np

        schema = np.dtype((np.uint8, (bytes_,)))
        try:
            data = dataset.rows(list(files), schema, start=parse_bytes(start, "--start") if start else 0)
        except RequestError as error:
            next = re.sub(r"forebay\.feed\.\w+", "no --row-bytes", error.next)
            raise RequestError(error.asked, error.found, next.replace("start=", "--start ")) from None
    elif start is not None:
        raise RequestError(f"--start {start}", "is of rows whose length is given", f"--row-bytes 912 --start {start}")
    else:
        data = dataset.open_dataset(list(files))
    columns = flags["columns"]
    if columns is not None:
        data = data.only([name.strip() for name in columns.split(",") if name.strip()])
    sample = data.mean_bytes if isinstance(data, Samples) else sum(bytes_ for bytes_, _ in data.columns)
    batch, limit = flags["batch_size"], flags["pin_limit"]
    count = {key: None if flags[key] is None else _number(flags[key], f"--{key}", 0) for key in ("rank", "world")}
    with warnings.catch_warnings(), in_flags():
        # The summary has it.
        warnings.simplefilter("ignore")
        return Loader(
            data,
            _number(batch, "--batch-size", 1) if batch else max(1, BATCH_BYTES // sample),
            shuffle=flags["shuffle"],
            seed=_number(flags["seed"], "--seed", 0),
            device=flags["device"],
            path=flags["path"],
            prefetch=None if flags["prefetch"] is None else _number(flags["prefetch"], "--prefetch", 1),
            drop_last=flags["drop_last"],
            rank=count["rank"],
            world=count["world"],
            pin_limit=None if limit is None else parse_bytes(limit, "--pin-limit"),
            cache=flags["cache"],
        )


def run(loader: Loader, epochs: int, verify: bool, quiet: bool = True) -> tuple[Record, ForebayError | None]:
    """Reads so many epochs; the record of what was handed out, and what broke."""
    shown = not quiet and sys.stderr.isatty()
    checked, wrong, interrupted = 0, [], False
    failure: ForebayError | None = None
    doubt, last = loader.doubt(), time.monotonic()
    check = None
    if verify:
        from forebay.feed.check import check_of

        check = check_of(loader.dataset)
    batches, done = epochs * len(loader), 0
    try:
        for _ in range(epochs):
            for batch in loader:
                done += 1
                if check is not None:
                    wrong += check.differences(batch, loader.samples_at(batch.position, batch.rows, batch.epoch))
                    checked += batch.rows
                del batch
                if shown and time.monotonic() - last >= PROGRESS_EVERY_S:
                    last = time.monotonic()
                    _show(f"\r\x1b[K{done:,} of {batches:,} batches")
    except KeyboardInterrupt:
        interrupted = True
    except ForebayError as error:
        failure = error
    finally:
        if shown:
            _show("\r\x1b[K")
    record = loader.record(verified=checked if verify else None, interrupted=interrupted)
    if doubt is not None:
        advice = "--cache fill" if "cache=" in doubt else "--shuffle blocks"
        record["warnings"].append({"id": "uncached_rows", "text": doubt, "next": advice})
    if wrong:
        record["result"]["errors"]["verify_failed"] = len(wrong)
        record["result"]["errors"]["examples"] = wrong[:5]
    return record, failure


def _show(text: str) -> None:
    from forebay.bench.terminal import takes_more

    if takes_more(sys.stderr):
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
