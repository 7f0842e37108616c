"""Recognition of files that are more than rows, by how they begin: a header that nobody meant would be read as numbers."""

from __future__ import annotations

import os
import re

from forebay.errors import RequestError

# Tar has its name where its first header ends.
HEAD_BYTES, TAR_AT = 4096, 257
# How files begin: what they are, and what reads them.
BEGINNINGS = (
    (b"\x89HDF\r\n\x1a\n", "HDF5", "forebay.feed.hdf5, or h5py"),
    (b"PAR1", "Parquet", "forebay.feed.parquet, or pyarrow.parquet"),
    (b"PK\x03\x04", "a ZIP archive, as .npz and what torch.save writes are", "forebay.feed.npz, numpy.load, or torch.load"),
    (b"ARROW1\0\0", "Arrow", "pyarrow.feather.read_table(forebay.open(NAME))"),
    (b"Obj\x01", "Avro", "Parquet or rows written of it"),
    (b"SQLite format 3\0", "SQLite", "rows written of it"),
    (b"GGUF", "GGUF", "safetensors of the same model, by forebay.feed.safetensors"),
    (b"\x89PNG\r\n\x1a\n", "PNG", "PIL.Image.open(forebay.open(NAME))"),
    (b"\xff\xd8\xff", "JPEG", "forebay.feed.files, or PIL.Image.open(forebay.open(NAME))"),
    (b"GIF8", "GIF", "PIL.Image.open(forebay.open(NAME))"),
    (b"RIFF", "RIFF, as WebP and WAV are", "PIL.Image.open(forebay.open(NAME))"),
    (b"\x1f\x8b\x08", "compressed by gzip", "gzip -dk NAME"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -dk NAME"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dk NAME"),
    (b"BZh", "compressed by bzip2", "bzip2 -dk NAME"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -dk NAME"),
    (b"\x80\x04\x95", "a pickle", "pickle.load(forebay.open(NAME))"),
    (b"\x80\x05\x95", "a pickle", "pickle.load(forebay.open(NAME))"),
)


def refuse(name: str) -> None:
    """RequestError for a local file whose first bytes are another format's header, which rows would be made of."""
    found = recognised(name)
    if found is not None:
        raise RequestError(f"rows of {name}", f"it is {found[0]}: its header would be read as rows", found[1])


def recognised(name: str) -> tuple[str, str] | None:
    """Format of a local file by its first bytes, and what reads it."""
    try:
        if not os.path.isfile(name):
            return None
        with open(name, "rb") as file:
            head = file.read(HEAD_BYTES)
        size = os.path.getsize(name)
    except (OSError, ValueError):  # whoever opens it says why
        return None
    found = _numpy(head) or _safetensors(head, size) or _records(head, size) or _by_beginning(head)
    if found is None:
        return None
    # gzip takes no file of another ending, as compressed TFRecords have.
    reads = "gzip -dc <NAME >OTHER" if found[1].startswith("gzip") and not name.endswith(".gz") else found[1]
    return found[0], reads.replace("NAME", repr(name))


def _by_beginning(head: bytes) -> tuple[str, str] | None:
    if head[TAR_AT : TAR_AT + 5] == b"ustar":
        return "a tar archive", "forebay.feed.webdataset, or tarfile.open(fileobj=forebay.open(NAME))"
    return next(((what, reads) for begins, what, reads in BEGINNINGS if head.startswith(begins)), None)


def _numpy(head: bytes) -> tuple[str, str] | None:
    if not head.startswith(b"\x93NUMPY") or len(head) < 12:
        return None
    wide = head[6] >= 2
    begin = (12 if wide else 10) + int.from_bytes(head[8:12] if wide else head[8:10], "little")
    if re.search(rb"'fortran_order': *True", head[:begin]):
        return "NumPy's .npy, in Fortran order", "numpy.save of numpy.ascontiguousarray(it), then forebay.feed.npy"
    return "NumPy's .npy", f"forebay.feed.npy, or start={begin}, where its array begins"


def _safetensors(head: bytes, size: int) -> tuple[str, str] | None:
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or not 2 <= length < size:
        return None
    return "safetensors", f"forebay.feed.safetensors, or start={8 + length}, where its tensors begin"


def _records(head: bytes, size: int) -> tuple[str, str] | None:
    """A TFRecord begins with a length and the masked sum of it."""
    from forebay import _core

    if len(head) < 16 or int.from_bytes(head[:8], "little") > size:
        return None
    is_sum = masked(_core.crc32c(head[:8])) == int.from_bytes(head[8:12], "little")
    return ("TFRecord", "forebay.feed.tfrecord") if is_sum else None


def masked(crc: int) -> int:
    """A CRC32C as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
