"""Reads every ELF file of a bundle (scripts/package.sh) and reports what would keep it from starting at a site.

    check_package.py FOLDER [--glibc 2.28]

The rules: no symbol of glibc above the given version; no symbol version of another library that the bundle's own copy of the library
lacks; programs need libpthread, a library of its own before 2.34; each needed library is in lib/, or one that every Linux or the
driver has; programs have the RPATH $ORIGIN/../lib and no RUNPATH, and a library's RPATH or RUNPATH has no folder of the host;
LD_LIBRARY_PATH, which comes before a RUNPATH, can replace no library; an unversioned libcudart.so is a link to the runtime; no absolute
path of the machine that built the programs. Exit code 0: all rules hold; 1: the output names file and rule.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

# The parts of glibc: the host's own loader brings them.
HOST = re.compile(r"(ld-linux-(x86-64|aarch64)|libc|libm|libdl|libpthread|librt|libutil|libresolv|libnsl|libanl)\.so\.\d+$")
# The driver's library, which only a library that waits for a GPU may need: a program with it does not start on a login node.
DRIVER = "libcuda.so.1"
# Libraries that belong to the site's drivers and network: a copy in the bundle would not fit them.
NEVER = re.compile(r"(libcuda|libnvidia-.*|libibverbs|librdmacm|libmlx5|libfabric|libcxi|libpmi.*|libpmix)\.so")


def readelf(*arguments):
    return subprocess.run(["readelf", "--wide", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def version_of(text):
    return tuple(int(part) for part in text.split("."))


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def dynamic(path):
    """needed, soname, rpath, runpath"""
    text = readelf("-d", path)
    one = lambda tag: next(iter(re.findall(rf"\({tag}\).*\[(.*)\]", text)), None)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text), one("SONAME"), one("RPATH"), one("RUNPATH")


def versions(path):
    """(needed: library -> symbol versions, defined: symbol versions)"""
    needed, defined, library, section = {}, set(), None, ""
    for line in readelf("-V", path).splitlines():
        if line.startswith("Version "):
            section = line
        elif "File:" in line:
            library = re.search(r"File: (\S+)", line).group(1)
            needed[library] = set()
        elif "Name:" in line:
            name = re.search(r"Name: (\S+)", line).group(1)
            if section.startswith("Version needs"):
                needed[library].add(name)
            elif section.startswith("Version definition"):
                defined.add(name)
    return needed, defined


def loaded_by_programs(parts, through_runpath=True):
    """The programs and the libraries that they load at their start; parts: file name -> (needed, runpath, is a program)"""
    queue = [name for name, (_, _, is_program) in parts.items() if is_program]
    found = set(queue)
    while queue:
        needed, runpath, _ = parts[queue.pop()]
        if runpath is None or through_runpath:
            new = {library for library in needed if library in parts} - found
            found |= new
            queue += new
    return found


def problems(folder, glibc):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and is_elf(path)]
    if not any(path.parent.name == "bin" for path in files):
        yield f"{folder}: no program in bin/"
    bundled = {path.name: versions(path)[1] for path in files if path.parent.name == "lib"}
    parts = {path.name: (needed, runpath, path.parent.name == "bin")
             for path in files for needed, _, _, runpath in [dynamic(path)]}
    by_rpath, at_start = loaded_by_programs(parts, through_runpath=False), loaded_by_programs(parts)
    for runtime in folder.glob("lib/libcudart.so.*"):
        link = folder / "lib/libcudart.so"
        if "libtorch_cuda.so" in parts and not (link.is_symlink() and os.readlink(link) == runtime.name):
            yield f"lib/libcudart.so: is no link to {runtime.name}: network plug-ins open it by this name"
    for path in files:
        name = path.relative_to(folder)
        needed, _, rpath, runpath = dynamic(path)
        if NEVER.match(path.name):
            yield f"{name}: belongs to the site and may not be in the bundle"
        for library in needed:
            if library == DRIVER and path.name in at_start:
                yield f"{name}: needs {library}, so that the programs do not start without a GPU"
            elif library not in bundled and not HOST.match(library) and library != DRIVER:
                yield f"{name}: needs {library}, which is not in lib/"
            elif library in bundled and runpath is not None and path.parent.name == "lib" and library not in by_rpath:
                yield f"{name}: has a RUNPATH, so that LD_LIBRARY_PATH can replace {library}: a program has to need it"
        if runpath is not None and path.parent.name == "bin":
            yield f"{name}: has a RUNPATH ({runpath}), expected an RPATH"
        for part in (rpath or runpath or "").split(":") if path.parent.name == "lib" else []:
            if part and not re.match(r"\$(ORIGIN|\{ORIGIN\})", part):
                yield f"{name}: its RPATH has {part}, a folder of the host that is searched before lib/"
        if path.parent.name == "bin" and rpath != "$ORIGIN/../lib":
            yield f"{name}: its RPATH is {rpath}, expected $ORIGIN/../lib"
        if path.parent.name == "bin" and "libpthread.so.0" not in needed and version_of(glibc) < (2, 34):
            yield f"{name}: does not need libpthread.so.0, without which threads fail before glibc 2.34"
        for library, symbols in versions(path)[0].items():
            for symbol in sorted(symbols):
                if symbol.startswith("GLIBC_") and HOST.match(library):
                    if not re.match(r"GLIBC_\d", symbol) or version_of(symbol[6:]) > version_of(glibc):  # GLIBC_PRIVATE, GLIBC_ABI_DT_RELR
                        yield f"{name}: needs {symbol} of {library}, above glibc {glibc}"
                elif library in bundled and symbol not in bundled[library]:
                    yield f"{name}: needs {symbol} of {library}, which the bundle's copy lacks"
        if path.parent.name == "bin":
            for match in sorted(set(re.findall(rb"/(?:home|work|root|build|tmp)/[\w./-]+\.(?:h|cc|hpp|so)\b", path.read_bytes())))[:3]:
                yield f"{name}: has a path of the building machine: {match.decode()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--glibc", default="2.28")
    arguments = parser.parse_args()
    found = list(problems(arguments.folder, arguments.glibc))
    for problem in found:
        print(problem)
    if not found:
        highest, count = (0,), 0
        for path in arguments.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and is_elf(path):
                count += 1
                for symbols in versions(path)[0].values():
                    highest = max([highest, *(version_of(s[6:]) for s in symbols if re.match(r"GLIBC_\d", s))])
        print(f"{count} ELF files; the newest glibc that one needs: {'.'.join(map(str, highest))}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
