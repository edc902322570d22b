"""The aggregate of random models against float64 numpy, rounded once: byte for byte.

The rounding here shares nothing with the library's: it divides by the quantum of the result's
binade, rounds that to an integer with ties to even, and multiplies back, all exact in float64.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

TOOL = sys.argv[1]
# significand bits, smallest normal exponent, numpy type of the bits, bytes
TYPES = {"F32": (24, -126, np.uint32), "F16": (11, -14, np.uint16), "BF16": (8, -126, np.uint16)}


def round_once(x, dtype):
    bits, min_exponent, _ = TYPES[dtype]
    _, exponent = np.frexp(x)  # x = m * 2^e, 0.5 <= |m| < 1
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, min_exponent) - (bits - 1))
    return np.rint(x / quantum) * quantum


def to_bits(x, dtype):
    """Values that `dtype` has exactly -> its bit patterns."""
    if dtype == "F32":
        return x.astype(np.float32).view(np.uint32)
    if dtype == "F16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bits(raw, dtype):
    if dtype == "F32":
        return np.frombuffer(raw, np.float32).astype(np.float64)
    if dtype == "F16":
        return np.frombuffer(raw, np.float16).astype(np.float64)
    wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float64)


def write_file(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, x) in tensors.items():
        size = to_bits(x, dtype).nbytes
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for dtype, x in tensors.values():
            file.write(to_bits(x, dtype).tobytes())


def read_file(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    return {name: (spec["dtype"], raw[8 + size + spec["data_offsets"][0]:8 + size + spec["data_offsets"][1]])
            for name, spec in header.items() if name != "__metadata__"}


def write_folder(folder, tensors, sharded=False):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "float32"}))
    if not sharded:
        return write_file(folder / "model.safetensors", tensors)
    weight_map = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        weight_map[name] = f"model-{i + 1:05d}-of-{len(tensors):05d}.safetensors"
        write_file(folder / weight_map[name], {name: tensor})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


def read_folder(folder):
    return {name: tensor for path in sorted(folder.glob("*.safetensors"))
            for name, tensor in read_file(path).items()}


def hard_values(rng, shape, dtype):
    """Weights of many sizes, subnormals, ties and signed zeros among them."""
    x = rng.standard_normal(shape) * 0.02
    flat = x.reshape(-1)
    special = [0.0, -0.0, 1.0, -1.0, 2.0**-24, 2.0**-25, 2.0**-130, -(2.0**-133), 2.0**-149, 1.0 + 2.0**-8,
               1.0 + 2.0**-7, 60000.0, 1.0 + 2.0**-11, 3.0 * 2.0**-25]
    flat[:len(special)] = special
    rest = flat[len(special):]
    rest *= np.ldexp(1.0, rng.integers(-20, 12, rest.size))
    return round_once(x, dtype)


def mean(models, weights, name):
    total = float(weights[0])
    acc = weights[0] * models[0][name][1]
    for model, weight in zip(models[1:], weights[1:]):
        acc = acc + weight * model[name][1]
        total += weight
    return acc / total


def run_tool(*arguments):
    subprocess.run([TOOL, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def expect(found, name, values, dtype, what):
    want = to_bits(round_once(values, dtype), dtype).reshape(-1)
    got = np.frombuffer(found[name][1], TYPES[dtype][2])
    assert found[name][0] == dtype, (what, name, found[name][0])
    bad = np.flatnonzero(got != want)
    assert bad.size == 0, (f"{what}: {name}: {bad.size} of {want.size} elements differ, first {bad[0]}: "
                           f"found {got[bad[0]]:#x}, expected {want[bad[0]]:#x}")


SHAPES = {"a.weight": (300, 1111), "b.bias": (17,), "c.scalar_like": (1,), "d.weight": (131072 + 5, 1)}


def random_models(rng, dtypes):
    models = []
    for dtype in dtypes:
        models.append({name: (dtype, hard_values(rng, shape, dtype) if shape != (1,) else np.array([0.75]))
                       for name, shape in SHAPES.items()})
    return models


def main():
    rng = np.random.default_rng(7)
    cases = [(["F32"] * 3, [1, 1, 1]), (["BF16"] * 4, [17, 4096, 3, 1e6]), (["F16"] * 2, [0.1, 0.7]),
             (["BF16", "F32", "F16"], [2.5, 1, 1 / 3])]
    compared = 0
    for index, (dtypes, weights) in enumerate(cases):
        models = random_models(rng, dtypes)
        with tempfile.TemporaryDirectory() as temp:
            base = pathlib.Path(temp)
            inputs = []
            for k, model in enumerate(models):
                write_folder(base / f"in{k}", model, sharded=k % 2 == 1)
                inputs += [base / f"in{k}", repr(float(weights[k]))]
            for dtype in TYPES:
                out = base / f"out-{dtype}"
                run_tool("average", dtype, out, 1 + index % 3, 400_000 if index % 2 else 1 << 40, *inputs)
                found = read_folder(out)
                assert found.keys() == SHAPES.keys()
                for name in SHAPES:
                    expect(found, name, mean(models, weights, name), dtype, f"case {index} as {dtype}")
                    compared += found[name][1].__len__() // np.dtype(TYPES[dtype][2]).itemsize
            master = {name: ("F32", hard_values(rng, shape, "F32")) if shape != (1,) else ("F32", np.array([0.1]))
                      for name, shape in SHAPES.items()}
            master = {name: ("F32", round_once(x, "F32")) for name, (_, x) in master.items()}
            write_folder(base / "master", master)
            for kind in ("deltas", "weights"):
                new, model = base / f"master-{kind}", base / f"model-{kind}"
                run_tool("step", base / "master", kind, "BF16", new, model, *inputs)
                new, model = read_folder(new), read_folder(model)
                for name in SHAPES:
                    value = mean(models, weights, name)
                    if kind == "deltas":
                        value = master[name][1] + value
                    expect(new, name, value, "F32", f"case {index}: master from {kind}")
                    expect(model, name, round_once(value, "F32"), "BF16", f"case {index}: model from {kind}")
                    compared += 2 * value.size
    print(f"{compared} elements equal numpy's, byte for byte")


main()
