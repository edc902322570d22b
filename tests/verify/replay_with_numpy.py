"""The models of a run from its first master and its updates, in float64 with numpy.

    replay_with_numpy.py RUN_FOLDER     exit code 0: all rounds agree byte for byte; 1: a round differs

It shares no code with xffl: it reads the mirror of the journal and the safetensors files itself.
"""
import json
import pathlib
import struct
import sys

import numpy as np


def read_folder(folder):
    """name -> (dtype, raw bytes)"""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        for name, spec in json.loads(raw[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = spec["data_offsets"]
                tensors[name] = (spec["dtype"], raw[8 + size + begin:8 + size + end])
    return tensors


def floats(dtype, raw):
    if dtype == "F32":
        return np.frombuffer(raw, np.float32).astype(np.float64)
    if dtype == "BF16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    raise SystemExit(f"unexpected type {dtype}")


def to_bfloat16(x):
    """float32 -> bits, rounded to nearest with ties to even"""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def main(run):
    frozen = {}
    for line in (run / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "participants_frozen":
            payload = json.loads(event["payload"])
            frozen[event["round"]] = sorted(zip(payload["facilities"], payload["weights"]))
    master = {name: floats(*tensor) for name, tensor in read_folder(run / "r0000/master").items()}
    for number, participants in sorted(frozen.items()):
        folder = run / f"r{number:04}"
        updates = [(weight, read_folder(folder / name / "update")) for name, weight in participants]
        total = sum(weight for weight, _ in updates)
        published = read_folder(folder / "global")
        for name, old in master.items():
            mean = sum(weight * floats(*update[name]) for weight, update in updates) / total
            new = (old + mean).astype(np.float32)
            if to_bfloat16(new).tobytes() != published[name][1]:
                print(f"round {number} differs in {name}")
                return 1
            master[name] = new.astype(np.float64)
    print(f"{len(frozen)} rounds agree")
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
