"""Requests that can't be met, as they are typed: exit code 2, a message that names the fault, a line of what to type, and a
folder as it was. One row each; a request that needs more than files to be told belongs to the tests of its verb."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from test_emulate_dlio_files import LLAMA
from test_emulate_dlio_files import UNET as DLIO
from test_emulate_workloads import OWN

Content = str | bytes
Mark = pytest.MarkDecorator


def of(command: str, *rows: tuple[str, str], mark: Mark | None = None, files: dict[str, Content] | None = None) -> list[Any]:
    """Rows of (words, what is said): the words follow those of the command, in a folder with these files."""
    marks = [mark] if mark is not None else []
    lines = [(f"{command} {words}", said) for words, said in rows]
    return [pytest.param(line, files or {}, said, id=line[:80], marks=marks) for line, said in lines]


def file(
    name: str, command: str, *rows: tuple[Content | tuple[str, str], str], text: str = "", mark: Mark | None = None
) -> list[Any]:
    """Rows of (content, what is said) of the file `name`, or (old, new) of its `text`."""
    made, marks = [], [mark] if mark is not None else []
    for content, said in rows:
        if isinstance(content, tuple):
            assert content[0] in text, content
            content = text.replace(*content, 1)
        made.append(pytest.param(command, {name: content}, said, id=f"{name}: {said}"[:80], marks=marks))
    return made


def many(text: str) -> str:
    """Lines of a CSV file for each of which `;;` stands."""
    return text.replace(";;", "\n") + "\n"


WORKLOADS = [
    *of("emulate run --data .",
        ("--workload unet", "unet3d"),
        ("--workload unet3d", "--accelerator, one of a100, h100, b200"),
        ("--workload unet3d --accelerator v100", "a100, h100, b200"),
        ("--workload unet3d --accelerator h100 --rules v3.0", "v1.0 or v2.0 or text"),
        ("--workload unet3d --accelerator h100 --rules v4", "one of v1.0, v2.0, v3.0, text"),
        ("--workload llama3-8b", "forebay emulate checkpoint"),
        ("--workload nowhere/a.toml", "a file that exists")),
    *file("mine.toml", "emulate workloads show mine.toml",
          (("batch = 2", "bacth = 2"), "key 'bacth': is not a key of a workload\n  try: 'batch'"),
          (("batch = 2", "batch = 0"), "key 'batch': is 0"),
          (("batch = 2", "batch = true"), "key 'batch': is True"),
          (("batch = 2", 'batch = "2"'), "key 'batch': is '2'"),
          (("batch = 2\n", ""), "key 'batch': is missing"),
          (("compute_s = 0.5", "compute_s = 0"), "above 0"),
          (("compute_s = 0.5", "compute_s = nan"), "key 'compute_s': is nan"),
          (('"raw"', '"zip"'), "one of npz"),
          (('"raw"', '"parquet"'), "key 'columns': is missing"),
          (('title = "mine"', "variant = 3"), "[[variant]]"),
          (('title = "mine"', 'rules = ["v9"]'), "a list of v1.0"),
          (('title = "mine"', 'columns = [{ name = "a" }]'), "key 'type': is missing"),
          (('title = "mine"', 'columns = [{ name = "a", type = "int8", size = 3 }]'), "key 'size'"),
          (('title = "mine"', 'kind = "both"'), "training or checkpoint"),
          (('title = "mine"', 'kind = "checkpoint"'), "key 'format'"),
          (('title = "mine"', "title = "), "is not TOML"),
          (("au_pct_min = 90", "au_pct_min = 90\n[[variant]]\n[[variant]]\nbtach = 1"), "variant 2: key 'btach'"),
          text=OWN, mark=pytest.mark.promise("EMU-2", "PLN-18")),
]  # fmt: skip

DLIO_FILES = [
    *file("unet3d_h100.yaml", "emulate run --dlio unet3d_h100.yaml --data .",
          (("batch_size: 7", "bacth_size: 7"), "yaml:17: key 'reader.bacth_size': is not a key that DLIO reads"),
          (("batch_size: 7", "bacth_size: 7"), "try: reader.batch_size"),
          (("record_length_bytes:", "record_lenght_bytes:"), "try: dataset.record_length_bytes"),
          (("metric:", "metrics:"), "yaml:28: key 'metrics.au'"),
          (("batch_size: 7", "batch_size: 0"), "yaml:17: key 'reader.batch_size': is 0"),
          (("batch_size: 7", "batch_size: seven"), "is 'seven'"),
          (("computation_time: 0.323", "computation_time: 0"), "above 0"),
          (("    computation_time: 0.323\n", ""), "'train.computation_time': is missing"),
          (("0.323", "{mean: 0.3, stdev: 0.1}"), "varying length"),
          (("0.323", "0.323\n    computation_time_stdev: 0.2"), "varying length"),
          (("format: npz", "format: csv"), "isn't emulated"),
          (("format: npz", "format: parquet"), "dataset.parquet.columns': is missing"),
          (("format: npz", "format: npz\n  compression: gzip"), "compressed samples"),
          (("data_loader: pytorch", "data_loader: dali"), "one of pytorch, tensorflow"),
          (("read_threads: 4", "read_threads: 4\n  preprocess_time: 0.1"), "time spent by readers"),
          (("train: True", "train: False"), "nothing trains"),
          (("metric:", "storage: {storage_type: s3}\nmetric:"), "object stores are out of scope"),
          (("au: 0.90", "au: 90"), "a share from 0 to 1"),
          (("metric:", "output: {metric: {exclude_start_steps: 5}}\nmetric:"), "leave out the first step, and no other"),
          (("metric:", "output: {metric: {exclude_end_steps: 1}}\nmetric:"), "try: without output.metric.exclude_end_steps"),
          (("file_shuffle: seed", "file_shuffle: maybe"), "seed, random or off"),
          (DLIO + "data_reader:\n  batch_size: 3\n", "is set twice"),
          text=DLIO, mark=pytest.mark.promise("EMU-9")),
    *file("llama3_8b.yaml", "emulate checkpoint --dlio llama3_8b.yaml --dir . --closed",
          (("num_layers: 32", "num_layers: 0"), "llama3_8b.yaml:5: key 'model.num_layers': is 0"),
          (("    vocab_size: 128256\n", ""), "'model.transformer.vocab_size': is missing"),
          (("zero_stage: 3", "zero_stage: 4"), "a whole number from 0 to 3"),
          (("fsync: True", "fsync: True\n  recovery_rank_shift: True"), "isn't emulated"),
          (("num_layers: 32", "num_layers: 31"), "'model.parallelism.data': is missing"),
          (("num_layers: 32\n  parallelism: {", "num_layers: 31\n  parallelism: {data: 8, "), "llama_8b isn't a published model"),
          (("llama_8b\n  type: transformer\n", "llama3-8b\n  model_datatype: bf16\n"), "model_type not as published [workload]"),
          (("num_layers", "num_layer"), "is not a key that DLIO reads"),
          text=LLAMA, mark=pytest.mark.promise("EMU-9")),
    *of("emulate checkpoint --dlio mine.yaml --dir .",
        *((ranks, "try: --ranks 4, or a multiple of tensor × pipeline, 4") for ranks in ("", "--ranks 3", "--ranks 6")),
        files={"mine.yaml": LLAMA.replace("num_layers: 32", "num_layers: 31").replace("tensor: 1", "tensor: 4")
                                 .replace("llama_8b", "mine")}, mark=pytest.mark.promise("EMU-9")),
    # What is no part of YAML that they use.
    *file("f.yaml", "emulate run --dlio f.yaml --data .",
          ("a: 1\na: 2", "f.yaml:2: sets 'a' a second time"),
          ("a: &x 1", "f.yaml:1: has a &"),
          ("a: *x", "has a *"),
          ("a: !!int 1", "has a !"),
          ("a: |\n  text", "has a |"),
          ("a: 1\n\tb: 2", "f.yaml:2: is indented by a tab"),
          ("a: 1\n  b: 2", "f.yaml:2: is indented deeper"),
          ("a:\n    b: 1\n  c: 2", "f.yaml:3"),
          ("a: 'x", "has no closing '"),
          ("a: [1, 2", "has no closing ]"),
          ("a: {b 1}", "without 'key: value'"),
          ("a: b: c", "second ':'"),
          ("just words", "is not 'key: value'"),
          ("- 1", "is a list"),
          ('a: "\\x41"', "isn't supported"),
          ("a: [1] 2", "has text after"),
          ("a: " + "[" * 99 + "]" * 99, "nested too deeply"),
          ("\n".join(" " * n + "a:" for n in range(60)), "nested too deeply")),
]  # fmt: skip

REPLAY = "emulate kvcache replay t --model llama3.1-8b --prefill-rate 10000"
GOOD = '{"timestamp": 5, "input_length": 600, "hash_ids": [1, 2]}\n'
REFERENCE = "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
BURST = "Timestamp,Model,Request tokens,Response tokens"
REPLAYS = [
    *file("t", f"{REPLAY} --dir model:d7-ps1010",
          (GOOD + GOOD.replace("5,", "4,"), "line 2: goes back in time"),
          (GOOD + GOOD[:20], "line 2: is no JSON document: the trace ends within it"),
          (GOOD.replace("600", "0"), "line 1: has an input_length of 0"),
          (GOOD.replace("600", "1000000000"), "line 1: has an input_length of 1000000000"),
          (GOOD.replace("600", "5000"), "2 hash_ids for 5000 tokens, which are 10 blocks"),
          (GOOD.replace("[1, 2]", "[1, null]"), "hash_ids that are no list"),
          (GOOD.replace("5,", '"x",'), "has the time x"),
          ("[" * 9000, "begins neither"),
          ("{" + "[" * 9000, "is no JSON document"),
          ("", "is empty"),
          (REFERENCE + "\n1,Read,5,T,k", "line 2: has 5 columns, not 6"),
          (REFERENCE + "\n1,Grow,5,T,k,P", "has the operation Grow"),
          (REFERENCE + "\n1,Read,0,T,k,P", "has 0 bytes"),
          (BURST + "\n1,m,1000000000,3", "has request tokens of 1000000000"),
          (gzip.compress(GOOD.encode() * 1000)[:60], "can't be unpacked"),
          mark=pytest.mark.promise("KVC-44")),
    *of(REPLAY,
        ("", "no folder was given"),
        ("--dir a/b", "folder above it"),
        ("--dir . --storage-tier 999999t", "has room for"),
        ("--dir . --blocks 100", "--blocks 100: must be a multiple of 4096"),
        ("--dir model:d7-ps1010 --verify", "no content"),
        ("--dir model:d9", "in no catalogue"),
        ("--dir 'model:d7-ps1010?latency_us=5'", "a replay knows drives"),
        ("--dir model:d7-ps1010 --speed 0", "must be"),
        ("--dir model:d7-ps1010 --prefill-rate x", "is not a number"),
        ("--dir model:d7-ps1010 --model gpt-9", "gpt-9"),
        files={"t": GOOD}, mark=pytest.mark.promise("KVC-44")),
]  # fmt: skip

CELLS = "drive,path,io_size_kib,throughput_gibps"
HEAD = "drive,location,path,io_size_kib,throughput_gibps,gdsio_workers,snap_queues"
RUNS = "workload,drive,n_drives,system,accelerators_h100_emulated,dataset_gib,au_1_pct"
QUERIES = [
    *file("q.csv", "plan predict --query q.csv",
          ("drive;path;io_size_kib;throughput_gibps\nD7-PS1010;gds;64;\n", "separated by ;"),
          ("drive\tpath\tio_size_kib\tthroughput_gibps\n", "separated by a tab"),
          (many(f"{CELLS};;D7-PS1010,gds,1e300,"), "beyond anything that can be measured"),
          (many(f"{CELLS};;D7-PS1010,gds,64,-2"), "must be 0 or more"),
          (many(f"{CELLS},cpu_usr_pct;;D7-PS1010,gds,64,,120"), "must be 0 to 100"),
          (many(f"{HEAD};;D7-PS1010,remote,gds,64,,,1O"), "'1O' is not a number"),
          (many("workload,path,io_size_kib,workers_per_gpu_drive_pair,gpu_drive_pairs,metric,value;;"
                "rand write,gds,4,12,8,throughput_gbps,"), "no write"),
          (many("workload,drive,n_drives,accelerators_h100_emulated,dataset_gib,au_1_pct,valid,au_threshold_pct;;"
                "unet3d,D7-PS1010,1,4,,,,101"), "au_threshold_pct: is 101"),
          mark=pytest.mark.promise("PLN-2")),
    *file("q.csv", "plan predict --query q.csv",
          (many(f"{HEAD};;D7-PS1010,local,gds,64,abc,32,"), "column throughput_gibps: 'abc' is not a number"),
          (many(f"{HEAD};;D7-PS1010,local,gds,64,,32,7"), "a local drive has no DPU queues"),
          (many(f"{HEAD};;D7-PS1010,remote,gds,64,,32,33"), "at most 31"),
          (many(f"{HEAD};;D7-PS1010,remote,gds,64,,32,2.5"), "is 2.5, not a whole number"),
          (many(f"{HEAD};;D7-PS1010,remote,gds,64,,32,-3"), "row 2, column snap_queues: is -3"),
          (many(f"{HEAD};;D7-PS1010,remote,gds,64,,32,0"), "row 2, column snap_queues: is 0"),
          (many(f"{HEAD};;D7-PS1010,local,gds,64,,0,"), "column gdsio_workers: is 0"),
          (many(f"{HEAD};;D7-PS1010,local,gds,inf,,32,"), "'inf' is not a number"),
          (many(f"{RUNS};;unet3d,D7-PS1010,2,D54U-3U,-4,5030,"), "column accelerators_h100_emulated: is -4"),
          (many(f"{RUNS};;unet3d,D7-PS1010,2,D54U-3U,4.5,5030,"), "is 4.5, not a whole number"),
          (many(f"{RUNS};;unet3d,D7-PS1010,2.5,D54U-3U,4,5030,"), "column n_drives: is 2.5"),
          (many(f"{RUNS};;unet3d,D7-PS1010,2,D54U-3U,4,0,"), "column dataset_gib: is 0"),
          (many("system,drive,n_drives,training_time_min;;D74H-7U,D7-PS1010,,"), "column n_drives: is blank"),
          mark=pytest.mark.promise("PLN-2")),
]  # fmt: skip

PLANS = [
    *of("plan run --drive D7-PS1010",
        ("--accelerators 8", "are for emulated workloads, and io is not one"),
        ("--workload dlrm --accelerators 8", "and dlrm is not one"),
        ("--workload job", "needs a training rate"),
        ("--workload unet3d --samples-per-s 3", "has a rate of its own"),
        ("--workload retinanet", "has no constants for it"),
        ("--workload unet3d --rules v3.0", "v1.0 or v2.0"),
        ("--workload bort", "is not known"),
        ("--rules v1.0", "are for emulated workloads"),
        ("--link '100 furlongs'", "is not a number of GiB/s"),
        ("--link 0Gb/s", "is not a number above 0"),
        ("--cores 40 --threads 8", "the host has 8 threads"),
        ("--drives 4 --hosts 3", "can't be spread evenly over 3 hosts"),
        mark=pytest.mark.promise("PLN-18")),
    *file("plan.toml", "plan run plan.toml",
          *((f'drive = "D7-PS1010"\ndrives = 4\n{tables}', said) for tables, said in (
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\nunder = "b"', "which doesn't exist"),
              ('[[pcie]]\nname = "a"\ngib_s = 1.0\nunder = "b"\n[[pcie]]\nname = "b"\ngib_s = 1.0\nunder = "a"',
               "is under itself"),
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\n[[pcie]]\nname = "a"\ngib_s = 10.0', "is given twice"),
              ('[[pcie]]\nname = "a"', "needs the speed of its link"),
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\ngen = 5\nlanes = 16', "needs the speed of its link, given once"),
              ('[[pcie]]\nname = "a"\ngen = 9\nlanes = 16', "is not a PCIe link"),
              ('[[pcie]]\nname = "a"\ngib_s = -1.0', "is not a number above 0"),
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\ndrives = 2.5', "is not a whole number"),
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\ndrives = 9', "the PCIe tree has 9"),
              ('[[pcie]]\nname = "a"\ngib_s = 10.0\ndisks = 1', "has no key 'disks'"),
              ("[[pcie]]\ngib_s = 10.0", "has no name"),
              ('pcie = "a"', "is not a list"))),
          mark=pytest.mark.promise("PLN-13")),
    *of("plan",
        ("compare", "names no drive"),
        ("compare --drive D7-PS1010 --location near", "is not known"),
        ("whatif --drive D7-PS1010 --vary worker=1:3", "did you mean workers"), mark=pytest.mark.promise("PLN-10")),
    *of("plan run --drive D7-PS1010 --drives 4 --accelerators 2 --workload unet3d --simulate",
        ("--hosts 0", "hosts 0"),
        ("--hours -1", "hours -1"),
        ("--hours nan", "hours nan"),
        ("--storage shared", "contradicts location local"),
        ("--storage cloud", "is not known"),
        ("--sizes large", "is not known"),
        ("--jitter compute=-1", "is not a distribution"),
        ("--jitter weather=1", "is neither compute nor requests"),
        ("--jitter compute=exponential:0.3", "coefficient of variation is 1"),
        ("--fault drive", "has no time"),
        ("--fault drive@60:drive=4", "doesn't exist"),
        ("--fault drive@60:until=30", "is not after it"),
        ("--fault drive@9999", "is outside the 3600 simulated"),
        ("--fault host@60:back=90,without=80", "both back and without"),
        ("--fault moon@60", "is not a kind of fault"),
        ("--job workload=llama3-8b --fault host@60:without=90,job=1", "never complete"),
        ("--job drives=3", "is not a setting of a job"),
        ("--job workload=io,start=60,stop=30", "stops before it starts"),
        ("--seeds 1000", "from 1 to 100"),
        mark=pytest.mark.promise("PLN-11")),
    *file("plan.toml", "plan run plan.toml --simulate",
          *((f'[system]\ndrive = "D7-PS1010"\n[workload]\nworkload = "unet3d"\n[simulate]\n{key}', said) for key, said in (
              ('copies = "yes"', "neither true nor false"), ("weather = 1", "is not a setting of a simulation"))),
          mark=pytest.mark.promise("PLN-11")),
]  # fmt: skip

JOBS = [
    *file("j.fio", "fio j.fio --parse-only",
          ("bs=4k\n", "before the first section"),
          ("[]\n", "not a section"),
          ("[a\n", "not a section"),
          ("[a]\n=3\n", "not a setting"),
          ("[a]\nbs 4k\n", "not a setting"),
          ("[a]\ninclude other.fio\n", "include isn't supported"),
          ("[a]\nrw=trim\n", "[a] rw=trim"),
          ("[a]\nrw=readd\n", "[a] rw=readd"),
          ("[a]\nbs=4q\n", "[a] bs=4q"),
          ("[a]\nbs=4i\n", "[a] bs=4i"),
          ("[a]\nbs=-4k\n", "[a] bs=-4k: is not a size"),
          ("[a]\nrw=write\nbs=4k,-8k\n", "[a] bs=-8k: is not a size"),
          ("[a]\nbsrange=4k-\n", "[a] bsrange=4k-: is not a size\n  try: bsrange=4k-64k"),
          ("[a]\nrw=rw\nbsrange=4k-8k,8k-16k\n", "different ranges"),
          ("[a]\nbssplit=4k/60:8k/60\n", "don't add up to 100"),
          ("[a]\nbssplit=4k/60\n", "don't add up to 100"),
          ("[a]\nbssplit=:\n", "1 to 64 sizes"),
          ("[a]\nrw=randread\nrandom_distribution=zoned:60/5:60/95\n", "don't add up to 100"),
          ("[a]\nrw=randread\nrandom_distribution=zoned:50/0:50/100\n", "an empty zone"),
          ("[a]\nrw=randread\nrandom_distribution=zoned:50/5:50/95,100/100\n", "is not one of"),
          ("[a]\nrw=randread\nrandom_distribution=sequence:a\n", "is not one of"),
          ("[a]\nbs=1,2,3,4\n", "more than three"),
          ("[a]\nsize=9999999999999999p\nfilename=f\n", "overflows"),
          ("[a]\nsize=50%\nfilename=f\n", "size=50%"),
          ("[a]\nsize=0\nfilename=f\n", "size=0"),
          ("[a]\nrw=write\n", "has no size"),
          ("[a]\noffset=10%\nfilename=f\n", "offset=10%"),
          ("[a]\nnumjobs=0\nfilename=f\n", "numjobs=0"),
          ("[a]\nnumjobs=some\nfilename=f\n", "numjobs=some"),
          ("[a]\nioengine=rados\nfilename=f\n", "ioengine=rados"),
          ("[a]\nioengine=libcufile\ncuda_io=odd\nfilename=f\n", "cuda_io=odd"),
          ("[a]\nioengine=libcufile\ngpu_dev_ids=a\nfilename=f\n", "gpu_dev_ids=a"),
          ("[a]\nruntime=soon\nfilename=f\n", "runtime=soon"),
          ("[a]\nrw=randread\nrandom_distribution=pareto:0.9\nfilename=f\n", "pareto"),
          ("[a]\nrw=randrw\nrwmixread=120\nfilename=f\n", "above 100"),
          ("[a]\nrw=rw\nrate=1m,300m\nfilename=f\n", "next whole percentage misses a rate"),
          ("[a]\nrw=rw\nbs=1m,4k\nrate=900m,1k\nfilename=f\n", "next whole percentage misses a rate"),
          ("[a]\nrw=rw\nrate=1m,\nfilename=f\n", "only one of"),
          ("[a]\nrate=1m,2m,3m,4m\nfilename=f\n", "more than three"),
          ("[a]\nioengine=filestat\nfilename=f\n", "forebay files DIR"),
          ("[a]\nioengine=dircreate\nfilename=f\n", "--phases mkdir"),
          ("[a]\nioengine=http\nfilename=f\n", "object store"),
          ("[a]\nsize=(1k\nfilename=f\n", "closing bracket"),
          ("[a]\nsize=(1k/0)\nfilename=f\n", "divides by 0"),
          ("[a]\nsize=(1-2k)\nfilename=f\n", "below 0"),
          ("[a]\nsize=(1k+)\nfilename=f\n", "not an expression"),
          ("[a]\nsize=(1k;)\nfilename=f\n", "closing bracket"),
          ("[a]\nsize=2*1k\nfilename=f\n", "is not a size"),
          ("[a]\nsize=$ncpus/0\nfilename=f\n", "divides by 0"),
          ("[a]\nsize=" + "(" * 99 + "1\nfilename=f\n", "nested too deeply"),
          ("[a]\ndirect=perhaps\nfilename=f\n", "direct=perhaps"),
          ("[a]\nsync=perhaps\nfilename=f\n", "sync=perhaps"),
          ("[a]\nmem=cudamalloc\nfilename=f\n", "mem=cudamalloc"),
          ("[a]\ncpus_allowed=all\nfilename=f\n", "cpus_allowed=all"),
          ("[a]\nnuma_cpu_nodes=all\nfilename=f\n", "numa_cpu_nodes=all"),
          ("[a]\nkb_base=7\nfilename=f\n", "kb_base=7"),
          ("[a]\nfilename=:\n", "names no file"),
          ("[a]\nfilename=a\0b\n", "NUL"),
          ("[a]\nsize=${FOREBAY_TEST_UNSET}\n", "FOREBAY_TEST_UNSET is not set"),
          ("\n".join(f"[{n}]" for n in range(1002)), "more than 1000"),
          ("\n" * ((1 << 20) + 1), "1 MiB"),
          (b"[a]\n\xff\xfe", "not text")),
    *of("fio --parse-only", ("no.fio", "No such"), (".", "directory")),
    *of("bench nil: --passes 1 --metrics",
        *((address, f"--metrics {address}") for address in ("host", "host:", "1:2:3", "127.0.0.1:99999", ":9400", "-1"))),
    *of("demo --quick --dir .", ("--out file/below", "--out"), files={"file": ""}),
]  # fmt: skip

SWEEPS = [
    *file("t.toml", "sweep t.toml nil: --dry-run",
          ("[job]\n\ndept = 3", "t.toml:3: field 'dept'"),
          ("rouns = 3", "t.toml:1: key 'rouns'"),
          ("[[point]]\ndepth = 1\n[[point]]\nqueue = 1", "t.toml:4: field 'queue'"),
          ("[matrix]\nio-size = ['64k', '12q']", "t.toml:2: --io-size 12q"),
          ("[matrix]\ndepth = []", "t.toml:2: key 'depth'"),
          ("[job]\ndepth = [1, 2]", "[matrix] for lists"),
          ("[matrix]\ndepth = [{a = 1}]", "has a dict for a value"),
          ("order = 'sideways'", "t.toml:1: key 'order': is \"sideways\""),
          ("rounds = 0", "rounds"),
          ("rounds = true", "rounds"),
          ("alternate = 'speed'", "speed"),
          ("alternate = 'path'\norder = 'random'", "alternate"),
          ("matrix = 3", "is not a table"),
          ("point = 3", "is not a list of tables"),
          ("[fallback]\ngds = ['teleport']", "teleport"),
          ("[job\n", "is not TOML"),
          ("a = " + "[" * 5000, "t.toml"),
          mark=pytest.mark.promise("FLT-8")),
]  # fmt: skip

TABLE = [
    *WORKLOADS, *DLIO_FILES, *REPLAYS, *QUERIES, *PLANS, *JOBS, *SWEEPS,
]  # fmt: skip


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.promise("CMD-9")
@pytest.mark.parametrize(("command", "files", "said"), TABLE)
def test_what_cannot_be_met_is_refused_by_name_and_changes_nothing(
    command: str, files: dict[str, Content], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, held in files.items():
        (tmp_path / name).write_bytes(held.encode() if isinstance(held, str) else held)
    before = content(tmp_path)
    code, out, err = typed(capsys, *shlex.split(command))
    assert code == 2 and out == "" and said in err, (code, out, err)
    assert "\n  try: " in err, err
    assert content(tmp_path) == before
