#!/usr/bin/env python3
"""Checks the readers of Parquet and Arrow against pyarrow and datasets: same_tables.py XFFL_TOKENIZE TOKENIZER_FOLDER [DAMAGED]

Seeded random tables of ids, labels, masks, texts and conversations: chunked, sliced, lists of every kind, all widths of integers, null and
empty rows, several row groups, compressed, Arrow files and streams, and folders of datasets' save_to_disk with several shards. The
sequences equal the rows that pyarrow gives; texts and conversations give the bytes of the same rows in JSONL. Damaged files are
refused with their place and leave no output. Exit code 77: pyarrow or datasets is not installed, or xffl-tokenize was built without
libarrow.
"""

import hashlib
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    print(f"SKIPPED: {error}; scripts/bootstrap.sh test installs it")
    sys.exit(77)
datasets.disable_progress_bars()

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
        length = [] if "--sequence-length" in arguments else ["--sequence-length", "100000"]
        done = subprocess.run([self.program, "encode", *map(str, arguments), "--output", shard, "--no-pack", *length],
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
        mask_kind = rng.choice(LISTS)
        columns["attention_mask"] = pa.array(masks, mask_kind(pa.int8())).cast(mask_kind(rng.choice([pa.int8(), pa.int64(), pa.bool_()])))
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


def check_largest_ids(run, folder):
    for width, largest in ((pa.int8(), 127), (pa.uint8(), 255), (pa.int16(), 32767), (pa.uint16(), 65535)):
        path = folder / "largest.parquet"
        pq.write_table(pa.table({"input_ids": pa.array([[largest, 1]], pa.list_(width))}), path)
        assert run.sequences("--vocab-size", 70000, "--input", path) == [[largest, 1]], width


def check_texts(run, rng, folder, tokenizer):
    texts = [rng.choice([None, "", " \n"]) if rng.random() < 0.1 else mixed_text(rng.randint(1, 200), rng.randrange(1 << 30)) for _ in range(300)]
    chats = [[{"role": "user", "content": text or "x"}, {"role": "assistant", "content": "sì " + str(i)}] for i, text in enumerate(texts)]
    message = pa.struct([("content", pa.large_string()), ("role", pa.string()), ("weight", pa.float32())])
    lines = folder / "rows.jsonl"
    prompts = [rng.choice(["", "Che ore sono? ", "  Kolik je hodin?\n"]) for _ in texts]
    lines.write_text("".join(json.dumps({"body": text or "", "question": prompt, "messages": chat}) + "\n"
                             for text, prompt, chat in zip(texts, prompts, chats)), encoding="utf-8")
    text_flags = ["--tokenizer", tokenizer, "--text-field", "body", "--validation-output", folder / "val.tokens"]
    chat_flags = ["--tokenizer", tokenizer, "--format", "chat", "--chat-template", "mistral"]
    twice_flags = ["--tokenizer", tokenizer, "--text-field", "body", "--prompt-field", "body"]
    prompt_flags = ["--tokenizer", tokenizer, "--text-field", "body", "--prompt-field", "question", "--mask-prompt", "--documents", 250]
    val = folder / "val.tokens"

    def shards(path):
        return [run.must(*text_flags, "--input", path), val.read_bytes(), run.must(*chat_flags, "--input", path),
                run.must(*prompt_flags, "--input", path), run.must(*twice_flags, "--input", path)]

    expected, count = shards(lines), 0
    assert len(set(expected)) == 5
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = chunked(rng, {"question": pa.array([prompt or None for prompt in prompts], pa.dictionary(pa.int8(), pa.string())),
                              "messages": pa.array(chats, rng.choice(LISTS)(message)), "body": pa.array(texts, kind)}).unify_dictionaries()
        for what, path in write(rng, table, folder, "texts"):
            assert shards(path) == expected, (what, kind)
            count += 5 * len(texts)
    many = folder / "many.parquet"
    pq.write_table(table, many)
    for command, source in (("lines", lines), ("table", many)):
        subprocess.run([run.program, "train", "--input", source, "--text-field", "body", "--output", folder / command, "--vocab-size", "4000"],
                       check=True, stdout=subprocess.DEVNULL)
    assert (folder / "lines/tokenizer.model").read_bytes() == (folder / "table/tokenizer.model").read_bytes()
    return count


def check_datasets(run, rng, folder):
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
    with pa.ipc.new_file(folder / "data.feather", data.data.table.schema) as writer:
        writer.write_table(data.data.table)
    assert run.must("--vocab-size", VOCAB, "--input", folder / "data.feather") == run.must("--vocab-size", VOCAB, "--input", folder / "one")
    data.to_parquet(folder / "data.parquet")
    assert run.must("--vocab-size", VOCAB, "--input", folder / "data.parquet") == run.must("--vocab-size", VOCAB, "--input", folder / "one")
    refused(run, 2, "is a folder without state.json", "--vocab-size", VOCAB, "--input", folder)
    state = folder / "one/state.json"
    good = state.read_text()
    for text, part in (("{", "state.json"), ("{}", "_data_files"), ('{"_data_files": []}', "should be a list of one or more files"),
                       ('{"_data_files": [{"filename": "../../etc/passwd"}]}', "expected the name of a file in the folder"),
                       ('{"_data_files": [{"filename": "absent.arrow"}]}', "absent.arrow does not exist"),
                       (good.replace("{", '{"_indices_data_files": [{"filename": "i.arrow"}], ', 1), "selects rows")):
        state.write_text(text)
        refused(run, None, part, "--vocab-size", VOCAB, "--input", folder / "one")
    return count


def check_prepare(run, folder, tokenizer):
    """A job of `xffl prepare` makes the shards of encode, from a folder of save_to_disk and from a pattern of Parquet files."""
    lines = "".join(f"{hashlib.sha256((tokenizer / name).read_bytes()).hexdigest()}  {name}\n"
                    for name in ("tokenizer.model", "tokenizer.json", "tokenizer_config.json") if (tokenizer / name).exists())
    job = {"format": "xffl-prepare-job", "version": 2, "tokenizer_sha256": hashlib.sha256(lines.encode()).hexdigest(), "template": "",
           "text_field": "text", "prompt_field": "", "document": "paragraph", "mask_prompt": False, "pack": False, "validation_fraction": 0,
           "sequence_length": 100000, "chat_template": "", "messages_field": "messages", "id_type": "uint16", "end_id": -1}
    rows = {"input_ids": [[1, 2, 3], [4, 5]], "labels": [[-100, 2, 3], [4, 5]], "text": ["uno", "due tre"],
            "messages": [[{"role": "user", "content": "Che ore sono?"}, {"role": "assistant", "content": "Le sei."}]] * 2}
    run.must("--tokenizer", tokenizer, "--input", __file__)
    vocab_size = json.loads(subprocess.check_output([run.program, "inspect", "--json", folder / "out.tokens"]))["vocab_size"]
    data = datasets.Dataset.from_dict(rows)
    data.save_to_disk(folder / "jobs/disk", num_shards=2)
    for part in (0, 1):
        data.shard(2, part).to_parquet(folder / f"jobs/part-{part}.parquet")
        data.shard(2, part).select_columns(["input_ids", "labels"]).to_json(folder / f"jobs/part-{part}.jsonl")
    for number, (keys, flags) in enumerate([
            ({"text_format": "ids"}, ["--vocab-size", vocab_size]),
            ({"text_format": "auto"}, ["--tokenizer", tokenizer]),
            ({"text_format": "parquet"}, ["--tokenizer", tokenizer]),
            ({"text_format": "chat", "chat_template": "mistral"}, ["--tokenizer", tokenizer, "--format", "chat", "--chat-template", "mistral"])]):
        for text, inputs in ((folder / "jobs/disk", [folder / "jobs/disk"]),
                             (folder / "jobs/*.parquet", [folder / f"jobs/part-{part}.parquet" for part in (0, 1)]),
                             (folder / "jobs/*.jsonl", [folder / f"jobs/part-{part}.jsonl" for part in (0, 1)])):
            if keys["text_format"] == "parquet" and text.name == "disk" or keys["text_format"] != "ids" and text.suffix == ".jsonl":
                continue
            place = folder / f"prepared{number}.{text.suffix}" / "job1"
            (place / "out").mkdir(parents=True)
            shutil.copytree(tokenizer, place / "tokenizer")
            (place / "job.json").write_text(json.dumps({**job, **keys, "files": [str(text)]}))
            done = subprocess.run([run.program, "prepare", "--job", place / "job.json"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, (keys, done.stderr)
            given = ["--format", "ids"] if text.suffix == ".jsonl" else []
            assert (place.parent / "train.tokens").read_bytes() == run.must(*flags, *given, "--input", *inputs), keys
            assert json.loads((place.parent / "prepared.json").read_text())["files"] == 2


def refused(run, code, part, *arguments):
    result = run.encode(*arguments)
    assert isinstance(result, tuple), f"accepted, expected: {part}"
    assert (result[0] == code or code is None) and part in result[1], (part, result)


def check_refusals(run, folder, tokenizer):
    def table(columns, name="bad.parquet", **more):
        pq.write_table(pa.table(columns, **more), folder / name)
        return ["--vocab-size", 100, "--input", folder / name]

    ids = pa.array([[1, 2]] * 3)
    data = CORRUPT
    refused(run, data, 'no column "input_ids"; the file has: a, b', *table({"a": [1], "b": [2]}))
    refused(run, data, 'column "input_ids" should be a list of whole numbers, found string', *table({"input_ids": ["1"]}))
    refused(run, data, "found list<", *table({"input_ids": [[1.5]]}))
    refused(run, data, "bad.parquet: row 1: input_ids: element 1 is null", *table({"input_ids": [[1], [1, None]]}))
    refused(run, data, "bad.parquet: row 2: element 1 is 100, expected a token id 0 to 99", *table({"input_ids": [[1], None, [1, 100]]}))
    refused(run, data, "bad.parquet: row 0: element 0 is -1", *table({"input_ids": [[-1]]}))
    refused(run, data, "bad.parquet: row 0: element 0 is 4294967301", *table({"input_ids": [[(1 << 32) + 5]]}))
    refused(run, data, "row 2: labels has 1 elements, input_ids 2", *table({"input_ids": ids, "labels": [[1, 2], [1, 2], [1]]}))
    refused(run, data, "row 0: labels has 5 where the id is 2", *table({"input_ids": ids, "labels": [[1, 5]] * 3}))
    refused(run, data, "row 0: attention_mask is 0 at element 1",
            *table({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}))
    refused(run, data, "labels are present, unlike in the first document",
            *table({"input_ids": ids}, "a.parquet"), *table({"input_ids": ids, "labels": ids})[2:])
    refused(run, data, "labels are absent, unlike in the first document",
            *table({"input_ids": ids, "labels": ids}, "a.parquet"), *table({"input_ids": ids})[2:])
    refused(run, data, 'no column "labels"', *table({"input_ids": ids}), "--labels")
    refused(run, data, 'column "labels" should be a list of whole numbers, found int64 (it has an element for each of input_ids',
            *table({"input_ids": ids, "labels": [0, 1, 0]}))
    refused(run, data, "bad.parquet: row 1: 3 ids, a sequence has at most 2", *table({"input_ids": [[1], [1, 2, 3]]}), "--sequence-length", 2)
    refused(run, data, "fixed_size_list", *table({"input_ids": pa.array([[]] * 3, pa.list_(pa.int32(), 0))}))
    refused(run, data, "more than one column", *table([pa.array([[1]]), pa.array([[2]])], names=["input_ids", "input_ids"]))
    texts = ["--tokenizer", tokenizer]
    latin = pa.array([b"a", b"b", b"citt\xe0", b"c"]).view(pa.string())
    refused(run, data, "bad.parquet: not UTF-8 text at row 2 or later", *texts, *table({"text": latin})[2:])
    refused(run, data, 'no column "text"; the file has: body', *texts, *table({"body": ["a"]})[2:])
    refused(run, data, 'column "text" should be text, found int64', *texts, *table({"text": [1]})[2:])
    refused(run, data, "bad.parquet: row 1: a text has more than 64 MiB", *texts, *table({"text": ["a", "b" * (65 << 20)]})[2:])
    chats = [*texts, "--format", "chat", "--chat-template", "mistral"]
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    refused(run, data, 'column "messages" should be a list of structs with the texts role and content, found list<',
            *chats, *table({"messages": [[{"role": "user", "text": "a"}]]})[2:])
    refused(run, data, "bad.parquet: row 1: message 1 has no role or no content (null)",
            *chats, *table({"messages": [[user, answer], [user, {"role": "assistant"}]]})[2:])
    refused(run, data, "bad.parquet: row 0: message 1: the field tool_calls is in no chat template of xffl",
            *chats, *table({"messages": [[user, {**answer, "tool_calls": ["f()"]}], [user, answer]]})[2:])
    refused(run, None, "bad.parquet: row 1: message 0", *chats, *table({"messages": [[user, answer], [{**user, "role": "x"}]]})[2:])
    refused(run, 2, "--vocab-size needs ids", *texts, *table({"text": ["a"]}))
    (folder / "empty.arrow").write_bytes(b"")
    refused(run, data, "empty.arrow: not a readable Arrow file", "--vocab-size", 100, "--input", folder / "empty.arrow")
    whole = pa.table({"input_ids": ids})
    with pa.ipc.new_stream(folder / "cut.arrow", whole.schema) as writer:
        for _ in range(3):
            writer.write_table(whole)
    assert len(run.sequences("--vocab-size", 100, "--input", folder / "cut.arrow")) == 9
    stream = (folder / "cut.arrow").read_bytes()
    (folder / "cut.arrow").write_bytes(stream[:-8])  # libarrow would read it
    refused(run, data, "cut.arrow: not a readable Arrow file: Invalid: no mark", "--vocab-size", 100, "--input", folder / "cut.arrow")
    # The changed id is in the vocabulary: only the page's checksum shows the damage.
    sums = ["--vocab-size", 100, "--input", folder / "sums.parquet"]
    pq.write_table(pa.table({"input_ids": pa.array([[1, 2, 77]], pa.list_(pa.int64()))}), folder / "sums.parquet",
                   compression="none", use_dictionary=False, write_page_checksum=True)
    assert run.sequences(*sums) == [[1, 2, 77]]
    written, changed = (struct.pack("<3q", 1, 2, last) for last in (77, 78))
    page = (folder / "sums.parquet").read_bytes()
    assert page.count(written) == 1
    (folder / "sums.parquet").write_bytes(page.replace(written, changed))
    refused(run, data, "sums.parquet: damaged at row 0 or later", *sums)
    (folder / "text.parquet").write_text("not a table\n" * 100)
    refused(run, data, "text.parquet: not a readable Parquet file", "--vocab-size", 100, "--input", folder / "text.parquet")


def check_damage(run, rng, folder, tokenizer, num_turns):
    """Cut files are refused, and files with flipped bytes never crash the program, hang it or leave an output."""
    rows = random_rows(rng, 300)
    chats = [[{"role": "user", "content": f"Kolik je {i}?"}, {"role": "assistant", "content": "sì " * (i % 7 + 1)}] for i in range(300)]
    columns = {"input_ids": [ids for ids, _ in rows], "labels": [labels for _, labels in rows], "messages": chats,
               "text": pa.array([mixed_text(50, i % 40) or "x" for i in range(300)]).dictionary_encode()}
    flags = [["--vocab-size", VOCAB], ["--tokenizer", tokenizer],
             ["--tokenizer", tokenizer, "--format", "chat", "--chat-template", "mistral"]]
    for what, path in write(rng, chunked(rng, {name: pa.array(column) if isinstance(column, list) else column
                                               for name, column in columns.items()}), folder, "damaged"):
        good, codes = path.read_bytes(), {}
        for turn in range(num_turns):
            bad = bytearray(good)
            is_cut = turn % 4 == 0
            if is_cut:
                bad = bad[:rng.randrange(len(bad))]
            else:
                for _ in range(rng.choice([1, 3, 20])):
                    # Half of the damage is where the metadata is.
                    at = rng.randrange(len(bad)) if rng.random() < 0.5 else rng.choice([rng.randrange(600), -1 - rng.randrange(600)])
                    bad[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            path.write_bytes(bad)
            result = run.encode(*flags[turn % 3], "--input", path)
            code = 0 if isinstance(result, bytes) else result[0]
            assert code >= 0, f"{what}: signal {-code} in turn {turn}"
            assert code in (0, CORRUPT, REJECTED) and (code != CORRUPT or path.name in result[1]), (what, turn, result)
            assert code != 0 or not is_cut, f"{what}: a cut file was accepted in turn {turn}"
            codes[code] = codes.get(code, 0) + 1
        assert codes[CORRUPT] >= num_turns // 4, codes
        print(f"{what}: damaged files by exit code: {codes}")


CORRUPT, REJECTED = 0, 0


def main(program, tokenizer, num_damaged="60"):
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
        check_largest_ids(run, folder)
        print(f"lists of fixed size: {check_fixed_lists(run, rng, folder)} rows are equal")
        print(f"texts and conversations: {check_texts(run, rng, folder, tokenizer)} rows are equal")
        print(f"save_to_disk: {check_datasets(run, rng, folder)} rows are equal")
        check_prepare(run, folder, pathlib.Path(tokenizer))
        check_refusals(run, folder, tokenizer)
        check_damage(run, rng, folder, tokenizer, int(num_damaged))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
