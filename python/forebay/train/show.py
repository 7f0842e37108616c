"""A record of training as a page of text for a terminal. Pure: a record in, a string out."""

from __future__ import annotations

from typing import Any

from forebay.numbers import bytes_, count, percent, seconds, significant, whole

# Whose Adagrad a record names, where the model has a choice; others name what they update by.
ADAGRADS = ("numpy", "torch", "fused")


def text(record: dict[str, Any], width: int = 110) -> str:
    """Formats what was trained, how fast, on which supply, to which quality, at what cost, and the advice."""
    from forebay.bench.summary import wrapped

    part, missing = record["train"], record["missing"]
    rows = [
        ("model", model(record)),
        ("peak", peak(part)),
        ("supply", supply(part)),
        ("rate", rate(part, missing)),
        ("wait", wait(part, missing)),
        ("quality", quality(part, missing)),
        ("ways", ways(part)),
        ("parts", parts(part, missing)),
        ("CPU", cpu(part, missing)),
        ("path", path(record)),
        ("hash", f"{part['batch_hash']} of the {whole(part['samples'])} samples handed out"),
    ]
    rows += [(each["area"], each["text"]) for each in part["advice"]]
    rows += [("warning", f"{w['text']} (try: {w['next']})") for w in record.get("warnings") or []]
    if record["result"].get("interrupted"):
        rows.append(("note", "interrupted: this is what was measured until then"))
    return wrapped([(name, said) for name, said in rows if said], width)


def model(record: dict[str, Any]) -> str:
    part, found = record["train"], record["environment"]
    gpus = found.get("gpus") or []
    where = (
        gpus[0]["name"]
        if part["device"].startswith("cuda") and gpus
        else f"{found['cpu']}, {count(found['cores'], 'core')}"
    )
    if part.get("ranks"):
        where = f"{part['ranks']} ranks, each {where}"
    rule = "Adam" if part["model"] == "gnn" else "Adagrad"
    by = f"{rule} by {part['optimizer']}" if part["optimizer"] in ADAGRADS else part["optimizer"]
    weights = f" of {whole(part['weights'])} weights" if part.get("weights") else ""
    what = f"{part['model']}{weights}, {by}, on {where}"
    return f"{what} · batches of {whole(part['batch'])} · seed {part['seed']}, order {part['order']}"


def within(interval: Any) -> str:
    return "" if not interval else f" ({_short(interval[0])} to {_short(interval[1])})"


def _short(value: float) -> str:
    return whole(value) if value >= 100 else significant(value)


def peak(part: dict[str, Any]) -> str:
    if part["peak_samples_per_s"] is None:
        return "not measured"
    rate = (
        f"{whole(part['peak_samples_per_s'])} samples/s{within(part['peak_samples_per_s_ci95'])} from memory"
    )
    return f"{rate}: it takes {significant(part['demand_gib_s'])} GiB/s"


def supply(part: dict[str, Any]) -> str:
    of, got = part["supply"], part["supply_gib_s"]
    if got is None:
        return "not measured"
    if of["asked_gib_s"] is None:
        of_memory = ", out of the page cache" if part["cached"] else ""
        return f"the loader alone brings {significant(got)} GiB/s here{of_memory}"
    gpus = f", {'each' if part.get('ranks') else 'one'} of {of['gpus']} GPUs' share" if of["gpus"] > 1 else ""
    reported = f"simulated supply of {significant(of['asked_gib_s'])} GiB/s{gpus}; by the clock {significant(got)} GiB/s"
    reported += " of all" if part.get("ranks") else ""
    if of["scaled_by"]:
        reported += f", scaled by {significant(of['scaled_by'])} to this model's peak"
    if of["drive"]:
        low, high = of["predicted_p10_gib_s"], of["predicted_p90_gib_s"]
        reported += (
            f" · what plan predicts of {of['drives']} × {of['drive']} ({significant(low)} to {significant(high)}); "
            f"their data sheet has {significant(of['sheet_gib_s'])}"
        )
    return f"{reported} · the loader alone brings {significant(part['loader_gib_s'])}"


def rate(part: dict[str, Any], missing: dict[str, str]) -> str:
    if part["samples_per_s"] is None:
        return f"not measured: {missing.get('train.samples_per_s', '')}"
    said = f"{whole(part['samples_per_s'])} samples/s{within(part['samples_per_s_ci95'])}"
    said += f", {significant(part['rate_gib_s'])} GiB/s"
    if part["peak_samples_per_s"]:
        said += f": {percent(part['samples_per_s'] / part['peak_samples_per_s'])} of the peak"
    return f"{said} · {whole(part['samples'])} samples in {seconds(part['seconds'])}, evaluations and all"


def wait(part: dict[str, Any], missing: dict[str, str]) -> str:
    if part["input_wait_pct"] is None:
        return f"not measured: {missing.get('train.input_wait_pct', '')}"
    said = f"{significant(part['input_wait_pct'])} % of the time for a batch"
    idle = part["gpu_idle_pct"]
    return said + (f"; the GPU idles {significant(idle)} %" if idle is not None else "")


def quality(part: dict[str, Any], missing: dict[str, str]) -> str:
    if part["quality"] is None:
        return f"not measured: {missing.get('train.quality', '')}"
    said = f"{part['quality_name']} {part['quality']:.4f}; target {part['quality_target']:.4f}"
    if part["quality_best"] is not None:
        said += f", best reachable {part['quality_best']:.4f}"
    if part["samples_to_target"] is not None:
        return f"{said} · target reached after {whole(part['samples_to_target'])} samples, {seconds(part['seconds_to_target'])}"
    return f"{said} · target not reached: {missing.get('train.samples_to_target', '')}"


def ways(part: dict[str, Any]) -> str:
    """Of a graph's features: the load, an epoch and this run by each way."""
    of = part.get("graph")
    if of is None:
        return ""
    reported = []
    for way, each in of["ways"].items():
        load = f"load {seconds(each['load_s'])}, " if way == "bulk" and each["load_s"] is not None else ""
        epoch = "" if each["epoch_s"] is None else f"an epoch {seconds(each['epoch_s'])}"
        total = "" if each["sum_s"] is None else f", in all {seconds(each['sum_s'])}"
        reported.append(f"{way}{' (this run)' if each['measured'] else ''}: {load}{epoch or 'not measured'}{total}")
    first = "" if of["first_batch_s"] is None else f" · first batch after {seconds(of['first_batch_s'])}"
    return " · ".join(reported) + first


def parts(part: dict[str, Any], missing: dict[str, str]) -> str:
    of = part["parts"]
    if of is None:
        return ""
    total = f"{whole(of['samples'])} ÷ {whole(of['samples_per_s'])}/s + {of['evaluations']} × {seconds(of['evaluation_s'])}"
    if of.get("load_s"):
        total = f"load {seconds(of['load_s'])} + {total}"
    off = (
        "" if of["off_pct"] is None else f"; the whole took {seconds(of['whole_s'])} ({of['off_pct']:+.1f} %)"
    )
    return f"{total} = {seconds(of['sum_s'])}{off}"


def cpu(part: dict[str, Any], missing: dict[str, str]) -> str:
    run, feed = part["cpu_s_per_gib"], part["feed_cpu_s_per_gib"]
    said = [
        f"{name} {significant(of['user'] + of['system'])} CPU-s/GiB "
        f"(user {significant(of['user'])}, system {significant(of['system'])})"
        for name, of in (("all of it", run), ("the loader alone", feed))
        if of
    ]
    return " · ".join(said) or f"not measured: {missing.get('train.cpu_s_per_gib', '')}"


def path(record: dict[str, Any]) -> str:
    part = record["train"]
    moved = ", ".join(f"{bytes_(n)} {way}" for way, n in part["bytes"].items() if n) or "nothing moved"
    kept = record["cache"]["resident_after"]
    cached = "" if kept is None else f" · {percent(kept)} of the file in the page cache at the end"
    if part["cached"] is not None:
        cached += " and before" if part["cached"] else "; not all of it before"
    return f"{part['path']} · {moved}{cached}"
