#!/usr/bin/env python3
"""Checks the readers of Parquet and Arrow against pyarrow and datasets: same_tables.py XFFL_TOKENIZE TOKENIZER_FOLDER

Seeded random tables of ids, labels, masks, texts and conversations: chunked, sliced, lists of every kind, all widths of integers, null and
empty rows, several row groups, compressed, Arrow files and streams, and folders of datasets' save_to_disk with several shards. The
sequences equal the rows that pyarrow gives; texts and conversations give the bytes of the same rows in JSONL. Damaged files are
refused with their place and leave no output. Exit code 77: pyarrow is not installed, or xffl-tokenize was built without libarrow.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)
try:
    import datasets
    datasets.disable_progress_bars()
except ImportError as error:
    datasets = None

from hf_same_ids import read_shard, read_targets
from mixed_text import mixed_text

VOCAB = 30000
LISTS = [pa.list_, pa.large_list]
WIDTHS = [pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


class Run:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def encode(self, *arguments):
        """The bytes of the shard, or the exit code and message of an error."""
        shard = self.folder / "out.tokens"
        shard.unlink(missing_ok=True)
        done = subprocess.run([self.program, "encode", *map(str, arguments), "--output", shard, "--no-pack", "--sequence-length", "100000"],
                              capture_output=True, text=True, timeout=100, check=False)
        if done.returncode == 0:
            return shard.read_bytes()
        assert not shard.exists() and not list(self.folder.glob("*.part*")), "an error left an output"
        return done.returncode, done.stderr

    def must(self, *arguments):
        result = self.encode(*arguments)
        assert isinstance(result, bytes), (arguments, result)
        return result

    def sequences(self, *arguments, targets=False):
        self.must(*arguments)
        shard = self.folder / "out.tokens"
        return list(zip(read_shard(shard), read_targets(shard))) if targets else read_shard(shard)


def random_rows(rng, num_rows):
    rows = []
    for _ in range(num_rows):
        ids = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 5, 40]))]
        labels = [token if rng.random() < 0.6 else -100 for token in ids]
        labels[-1] = ids[-1]
        rows.append((ids, labels) if len(ids) > 1 else (ids + [7], labels + [7]))
    return rows


def chunked(rng, columns):
    """A table whose chunks begin inside larger arrays."""
    batches, size, at = [], len(next(iter(columns.values()))), 0
    while at < size:
        end = min(size, at + rng.randint(1, 60))
        before = max(0, at - rng.randint(0, 9))
        batches.append(pa.table({name: column.slice(before, end - before) for name, column in columns.items()}).slice(at - before))
        at = end
    return pa.concat_tables(batches)


def write(rng, table, folder, name):
    """The table in every kind of file: (what, path)."""
    parquet, file, stream = (folder / f"{name}.{end}" for end in ("parquet", "arrow", "stream.arrow"))
    codec = rng.choice(CODECS)
    pq.write_table(table, parquet, compression=codec, row_group_size=rng.choice([7, 50, 1000]), use_dictionary=rng.random() < 0.5,
                   data_page_size=rng.choice([64, 4096]), version=rng.choice(["1.0", "2.6"]) if codec != "none" else "2.6",
                   data_page_version=rng.choice(["1.0", "2.0"]))
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "lz4", "zstd"]))
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    return [(f"parquet, {codec}", parquet), ("arrow file", file), ("arrow stream", stream)]


def check_ids(run, rng, folder, turn):
    rows = random_rows(rng, rng.choice([1, 30, 2500 if turn % 10 == 0 else 200]))
    ids, labels, masks = [], [], []
    for row_ids, row_labels in rows:
        left, right = (rng.randint(0, 4), rng.randint(0, 4)) if turn % 2 else (0, 0)
        ids.append([0] * left + row_ids + [0] * right)
        labels.append([-100] * left + row_labels + [-100] * right)
        masks.append([0] * left + [1] * len(row_ids) + [0] * right)
    nothing = [None, []]
    for _ in range(rng.randint(0, 5)):
        at = rng.randrange(len(ids) + 1)
        for column in (ids, labels, masks):
            column.insert(at, rng.choice(nothing))
    kind, width = rng.choice(LISTS), rng.choice(WIDTHS)
    columns = {"note": pa.array([None if rng.random() < 0.3 else "x" * rng.randint(0, 9) for _ in ids]), "input_ids": pa.array(ids, kind(width)),
               "token_type_ids": pa.array(masks, pa.list_(pa.int8()))}
    if turn % 2:
        columns["attention_mask"] = pa.array(masks, rng.choice(LISTS)(rng.choice([pa.int8(), pa.int64(), pa.bool_()])))
    plain = dict(columns)
    columns["labels"] = pa.array(labels, rng.choice(LISTS)(rng.choice([pa.int32(), pa.int64()])))
    expected = [(row_ids, [int(label != -100) for label in row_labels]) for row_ids, row_labels in rows]
    for what, path in write(rng, chunked(rng, columns), folder, "labelled"):
        found = run.sequences("--vocab-size", VOCAB, "--input", path, targets=True)
        assert found == [each for each in expected if any(each[1][1:])], (turn, what, kind, width)
    for what, path in write(rng, chunked(rng, plain), folder, "plain"):
        assert run.sequences("--vocab-size", VOCAB, "--input", path) == [each for each, _ in expected], (turn, what, kind, width)
    lines = folder / "rows.ids"
    lines.write_text("".join(json.dumps(each) + "\n" for each, _ in expected))
    assert run.must("--format", "ids", "--vocab-size", VOCAB, "--input", lines) == run.must("--vocab-size", VOCAB, "--input", path)
    return 6 * len(rows)


def check_fixed_lists(run, rng, folder):
    rows = [[rng.randrange(VOCAB) for _ in range(8)] for _ in range(300)]
    table = chunked(rng, {"input_ids": pa.array(rows, pa.list_(pa.int32(), 8))})
    for what, path in write(rng, table, folder, "fixed"):
        assert run.sequences("--vocab-size", VOCAB, "--input", path) == rows, what
    return 3 * len(rows)


def check_texts(run, rng, folder, tokenizer):
    texts = [rng.choice([None, "", " \n"]) if rng.random() < 0.1 else mixed_text(rng.randint(1, 200), rng.randrange(1 << 30)) for _ in range(300)]
    chats = [[{"role": "user", "content": text or "x"}, {"role": "assistant", "content": "sì " + str(i)}] for i, text in enumerate(texts)]
    message = pa.struct([("content", pa.large_string()), ("role", pa.string()), ("weight", pa.float32())])
    lines = folder / "rows.jsonl"
    lines.write_text("".join(json.dumps({"body": text or "", "messages": chat}) + "\n" for text, chat in zip(texts, chats)), encoding="utf-8")
    text_flags = ["--tokenizer", tokenizer, "--text-field", "body", "--validation-output", folder / "val.tokens"]
    chat_flags = ["--tokenizer", tokenizer, "--format", "chat", "--chat-template", "mistral"]
    val = folder / "val.tokens"
    expected = run.must(*text_flags, "--input", lines), val.read_bytes(), run.must(*chat_flags, "--input", lines)
    count = 0
    for kind in (pa.string(), pa.large_string()):
        table = chunked(rng, {"body": pa.array(texts, kind), "messages": pa.array(chats, rng.choice(LISTS)(message))})
        for what, path in write(rng, table, folder, "texts"):
            found = run.must(*text_flags, "--input", path), val.read_bytes(), run.must(*chat_flags, "--input", path)
            assert found == expected, (what, kind)
            count += len(texts)
    return count


def check_datasets(run, rng, folder):
    if datasets is None:
        print("SKIPPED: folders of save_to_disk: no datasets")
        return 0
    rows = random_rows(rng, 500)
    data = datasets.Dataset.from_dict({"input_ids": [ids for ids, _ in rows], "labels": [labels for _, labels in rows],
                                       "attention_mask": [[1] * len(ids) for ids, _ in rows]})
    shuffled = data.shuffle(seed=3).select(range(20, 420))
    count = 0
    for name, each, shards in (("one", data, 1), ("three", data, 3), ("shuffled", shuffled, 2)):
        each.save_to_disk(folder / name, num_shards=shards)
        loaded = datasets.load_from_disk(folder / name)
        expected = [(row["input_ids"], [int(label != -100) for label in row["labels"]]) for row in loaded]
        found = run.sequences("--vocab-size", VOCAB, "--input", folder / name, targets=True)
        assert found == [row for row in expected if any(row[1][1:])], name
        count += len(expected)
    assert len(list((folder / "three").glob("*.arrow"))) == 3
    datasets.DatasetDict({"train": data}).save_to_disk(folder / "splits")
    refused(run, 2, "name one", "--vocab-size", VOCAB, "--input", folder / "splits")
    run.must("--vocab-size", VOCAB, "--input", folder / "splits/train")
    return count


def refused(run, code, part, *arguments):
    result = run.encode(*arguments)
    assert isinstance(result, tuple), f"accepted, expected: {part}"
    assert (result[0] == code or code is None) and part in result[1], (part, result)


def check_refusals(run, rng, folder):
    def table(columns, name="bad.parquet"):
        pq.write_table(pa.table(columns), folder / name)
        return ["--vocab-size", 100, "--input", folder / name]

    ids = pa.array([[1, 2]] * 3)
    data = CORRUPT
    refused(run, data, 'no column "input_ids"; the file has: a, b', *table({"a": [1], "b": [2]}))
    refused(run, data, 'column "input_ids" should be a list of whole numbers, found string', *table({"input_ids": ["1"]}))
    refused(run, data, "found list<", *table({"input_ids": [[1.5]]}))
    refused(run, data, "bad.parquet: row 1: input_ids: element 1 is null", *table({"input_ids": [[1], [1, None]]}))
    refused(run, data, "bad.parquet: row 2: element 1 is 100, expected a token id 0 to 99", *table({"input_ids": [[1], None, [1, 100]]}))
    refused(run, data, "bad.parquet: row 0: element 0 is -1", *table({"input_ids": [[-1]]}))
    refused(run, data, "row 2: labels has 1 elements, input_ids 2", *table({"input_ids": ids, "labels": [[1, 2], [1, 2], [1]]}))
    refused(run, data, "row 0: labels has 5 where the id is 2", *table({"input_ids": ids, "labels": [[1, 5]] * 3}))
    refused(run, data, "row 0: attention_mask is 0 at element 1",
            *table({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}))
    refused(run, data, "labels are present, unlike in the first document",
            *table({"input_ids": ids}, "a.parquet"), *table({"input_ids": ids, "labels": ids})[2:])
    refused(run, data, 'no column "labels"', *table({"input_ids": ids}), "--labels")
    (folder / "empty.arrow").write_bytes(b"")
    refused(run, data, "empty.arrow: not a readable Arrow file", "--vocab-size", 100, "--input", folder / "empty.arrow")
    (folder / "text.parquet").write_text("not a table\n" * 100)
    refused(run, data, "text.parquet: not a readable Parquet file", "--vocab-size", 100, "--input", folder / "text.parquet")


def check_damage(run, rng, folder, tokenizer):
    """Cut files are refused, and files with flipped bytes never crash the program."""
    rows = [ids for ids, _ in random_rows(rng, 300)]
    tables = write(rng, pa.table({"input_ids": rows, "text": [mixed_text(50, i) or "x" for i in range(300)]}), folder, "damaged")
    codes = {}
    for what, path in tables:
        good = path.read_bytes()
        for turn in range(40):
            bad = bytearray(good)
            if turn < 10 and what != "arrow stream":
                bad = bad[:rng.randrange(len(bad) - 1)]
            else:
                for _ in range(rng.choice([1, 3, 20])):
                    bad[rng.randrange(len(bad))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            path.write_bytes(bad)
            flags = ["--vocab-size", VOCAB] if turn % 2 else ["--tokenizer", tokenizer]
            result = run.encode(*flags, "--input", path)
            code = 0 if isinstance(result, bytes) else result[0]
            assert code >= 0, f"{what}: signal {-code} in turn {turn}"
            assert code in (0, CORRUPT, REJECTED) and (code != CORRUPT or path.name in result[1]), (what, turn, result)
            assert code != 0 or turn >= 10 or what == "arrow stream", f"{what}: a cut file was accepted"
            codes[code] = codes.get(code, 0) + 1
    print(f"damaged files by exit code: {codes}")


CORRUPT, REJECTED = 0, 0


def main(program, tokenizer):
    global CORRUPT, REJECTED
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = Run(program, folder)
        pq.write_table(pa.table({"input_ids": [[1, 2]]}), folder / "probe.parquet")
        probe = run.encode("--vocab-size", 10, "--input", folder / "probe.parquet")
        if isinstance(probe, tuple) and "built without libarrow" in probe[1]:
            print("SKIPPED: xffl-tokenize was built without libarrow")
            return 77
        (folder / "bad.ids").write_text("[]\n")
        CORRUPT = run.encode("--format", "ids", "--vocab-size", 10, "--input", folder / "bad.ids")[0]
        (folder / "none.ids").write_text("")
        REJECTED = run.encode("--format", "ids", "--vocab-size", 10, "--input", folder / "none.ids")[0]
        print(f"pyarrow {pa.__version__}: ids: {sum(check_ids(run, rng, folder, turn) for turn in range(40))} rows are equal")
        print(f"lists of fixed size: {check_fixed_lists(run, rng, folder)} rows are equal")
        print(f"texts and conversations: {check_texts(run, rng, folder, tokenizer)} rows are equal")
        print(f"save_to_disk: {check_datasets(run, rng, folder)} rows are equal")
        check_refusals(run, rng, folder)
        check_damage(run, rng, folder, tokenizer)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
