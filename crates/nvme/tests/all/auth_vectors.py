"""Makes auth_vectors.txt: what DH-HMAC-CHAP's two ends should say, computed with Python's hashlib, hmac and pow only.

    python3 crates/nvme/tests/all/auth_vectors.py > crates/nvme/tests/all/auth_vectors.txt

A line: hash, group, the two secrets' transformations ("-": one way), SHA-256 of the Challenge, Reply and Success1 in a
row. The random bytes, names and keys are those of `auth.rs` beside this file. The primes come from their definition in
RFC 7919, appendix A: 2^b - 2^(b-64) + ([2^(b-130) e] + X) 2^64 - 1.
"""

import hashlib
import hmac
from decimal import Decimal, getcontext

getcontext().prec = 2600
E = Decimal(1).exp()
X = {2048: 560316, 3072: 2625351, 4096: 5736041, 6144: 15705020, 8192: 10965728}
HASHES = {1: "sha256", 2: "sha384", 3: "sha512"}
HOST, SUBSYSTEM = b"nqn.2014-08.org.nvmexpress:uuid:host", b"nqn.2026-11.org.example:vector"
TRANSACTION = 0x1234


def prime(bits):
    return 2**bits - 2 ** (bits - 64) + (int(E * Decimal(2) ** (bits - 130)) + X[bits]) * 2**64 - 1


def mac(hash_id, key, data):
    return hmac.new(key, data, HASHES[hash_id]).digest()


def transformed(key, transform, nqn):
    return mac(transform, key, nqn + b"NVMe-over-Fabrics") if transform else key


def random(step, first):
    data = bytes((i * step + first) & 255 for i in range(132))
    exponent = int.from_bytes(bytes([data[64] | 0x80]) + data[65:128], "big")
    return data[:64], exponent, int.from_bytes(data[128:], "big")


def transcript(hash_id, group, host_transform, ctrl_transform):
    size = hashlib.new(HASHES[hash_id]).digest_size
    (c1, x, s1), (c2, y, s2) = random(3, 1), random(5, 2)
    c1, c2 = c1[:size], c2[:size]
    bits = [0, 2048, 3072, 4096, 6144, 8192][group]
    dh1 = dh2 = b""
    a1, a2 = c1, c2
    if group:
        p = prime(bits)
        dh1, dh2 = (pow(2, e, p).to_bytes(bits // 8, "big") for e in (x, y))
        ks = hashlib.new(HASHES[hash_id], pow(2, x * y, p).to_bytes(bits // 8, "big")).digest()
        a1, a2 = mac(hash_id, ks, c1), mac(hash_id, ks, c2)
    tid = TRANSACTION.to_bytes(2, "little")
    host_key = transformed(bytes(range(32)), host_transform, HOST)
    challenge = b"\1\1\0\0" + tid + bytes([size, 0, hash_id, group]) + len(dh1).to_bytes(2, "little")
    challenge += s1.to_bytes(4, "little") + c1 + dh1
    question = a1 + s1.to_bytes(4, "little") + tid + b"\0HostHost" + HOST + b"\0" + SUBSYSTEM
    both = ctrl_transform is not None
    reply = b"\1\2\0\0" + tid + bytes([size, 0, both, 0]) + len(dh2).to_bytes(2, "little")
    reply += (s2 if both else 0).to_bytes(4, "little") + mac(hash_id, host_key, question)
    reply += (c2 if both else bytes(size)) + dh2
    success = b"\1\3\0\0" + tid + bytes([size, 0, both]) + bytes(7)
    if both:
        ctrl_key = transformed(bytes(range(100, 148)), ctrl_transform, SUBSYSTEM)
        question = a2 + s2.to_bytes(4, "little") + tid + b"\0Controller" + SUBSYSTEM + b"\0" + HOST
        success += mac(hash_id, ctrl_key, question)
    return challenge + reply + success


if __name__ == "__main__":
    for hash_id in HASHES:
        for group in range(6):
            for host, ctrl in ((0, None), (hash_id, 0), (group % 4, hash_id)):
                digest = hashlib.sha256(transcript(hash_id, group, host, ctrl)).hexdigest()
                print(hash_id, group, host, "-" if ctrl is None else ctrl, digest)
