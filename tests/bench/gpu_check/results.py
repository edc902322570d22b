"""Result files of a check: results.jsonl (a line a measurement), gpu_check.log, details.tar.

A line of results.jsonl is appended by one write and synced before the next measurement begins; a torn last line, which only a crash of
the machine can leave, is cut off by the next writer and passed over by the reader. details.tar holds everything else (outputs of the
programs, metrics, reports) and is replaced by rename. Nothing in the output folder grows beyond 16 MiB.
"""
import contextlib
import datetime
import io
import json
import os
import pathlib
import tarfile

MAX_LOG_BYTES = 4 << 20
MAX_DETAILS_BYTES = 15 << 20
MAX_LINE_BYTES = 256 << 10


def read_results(*paths):
    """The records of these files, in order; other lines are skipped."""
    records = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            for line in pathlib.Path(path).read_text(errors="replace").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    record = json.loads(line)
                    if isinstance(record, dict) and "name" in record:
                        records.append(record)
    return records


def append_line(path, line):
    """Appends by one write, synced; cuts off a torn last line first."""
    data = line.encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        whole = end
        while whole > 0 and os.pread(descriptor, 1, whole - 1) != b"\n":
            whole = os.pread(descriptor, whole, 0).rfind(b"\n") + 1
        if whole != end:
            os.ftruncate(descriptor, whole)
        os.pwrite(descriptor, data, whole)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shortened(data, limit):
    """Shortens to `limit`: keeps the first quarter and the last three quarters of it."""
    if len(data) <= limit:
        return data
    mark = b"\n[... %d bytes were left out ...]\n" % (len(data) - limit)
    room = max(0, limit - len(mark))
    return data[:room // 4] + mark + data[len(data) - (room - room // 4):]


def largest_share(sizes, limit):
    """The largest size limit per file for which all files together stay within `limit`."""
    sizes, left = sorted(sizes), limit
    for index, size in enumerate(sizes):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left -= size
    return limit


class Results:
    """`state` persists between stages; `out` receives the files of this run and may be the same folder."""

    def __init__(self, state, out):
        self.state, self.out, self.details = state, out, state / "details"
        for folder in (self.state, self.out, self.details):
            folder.mkdir(parents=True, exist_ok=True)

    def append(self, record):
        line = json.dumps(record)
        if len(line) > MAX_LINE_BYTES:  # drops lists, keeps figures
            line = json.dumps({key: value for key, value in record.items() if key not in ("tests", "kernels")})
        for folder in {self.state, self.out}:
            append_line(folder / "results.jsonl", line)
        self.bundle()

    def known(self):
        return read_results(self.state / "results.jsonl")

    def say(self, text):
        line = f"{datetime.datetime.now():%H:%M:%S} {text}"
        with contextlib.suppress(OSError):  # stdout may be closed
            print("gpu_check:", text, flush=True)
        log = self.out / "gpu_check.log"
        if not log.exists() or log.stat().st_size < MAX_LOG_BYTES:
            with open(log, "a") as file:
                file.write(line + "\n")

    def bundle(self):
        """Replaces details.tar atomically."""
        files = sorted(path for path in self.details.rglob("*") if path.is_file())
        # A header and padding of 512 bytes each.
        share = largest_share([path.stat().st_size for path in files], MAX_DETAILS_BYTES - 1024 * len(files))
        temporary = self.out / ".details.tar.tmp"
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in files:
                data = shortened(path.read_bytes(), share)
                entry = tarfile.TarInfo(str(path.relative_to(self.details)))
                entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
                archive.addfile(entry, io.BytesIO(data))
        os.replace(temporary, self.out / "details.tar")
