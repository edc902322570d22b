#!/usr/bin/env python3
"""Checks the includes of all modules against the dependencies in their CMakeLists.txt.

DEPENDS of xffl_module() lists all dependencies of a module. Errors are: an include of a header of another module, a
third-party header in a public header, a torch header in the coordinator half, and a coordinator library in the
trainer half; and two .cc files of a module that define the same local name, because XFFL_UNITY compiles them together.
Only src/base/log.cc may include spdlog and fmt.

    scripts/check_layers.py [SOURCE_FOLDER]     exit code 0: clean; 1: problems, one per line
"""
import pathlib
import re
import sys

GROUND = {"base", "kernels", "job", "checkpoint", "pack", "tokens"}
TRAINER = {"comm", "kernels_cuda", "llama", "shard", "train"}
# Header-only value types that public headers may show (base/json.h).
ALLOWED_PUBLIC = {"nlohmann/json.hpp"}
# LibTorch ships another fmt: these headers may only be used without LibTorch's headers on the include path.
LOG_LIBRARIES = re.compile(r"^(spdlog|fmt)/")
LOG_SOURCE = "src/base/log.cc"
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
THIRD_PARTY = re.compile(
    r"^(torch|ATen|c10|caffe2|nlohmann|yaml-cpp|spdlog|fmt|CLI|sqlite3|openssl|libssh|gloo|nccl|cuda|zstd|xxhash|sentencepiece)"
)
FORBIDDEN_IN_TRAINER = re.compile(r"^(libssh|yaml-cpp|sentencepiece|sqlite3)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
LOCAL_BLOCK = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.M | re.S)
LOCAL_NAME = re.compile(
    r"^(?:(?:struct|class|enum(?: class)?) (?P<type>\w+)\b(?!;)"
    r"|(?:constexpr|const|static|thread_local)\b[^;={(]*?\b(?P<value>\w+)(?:\[\w*\])?(?: = |\{|;)"
    r"|(?!return|using|namespace|template)[\w:][\w:<>,&* ]*?[ &*](?P<function>\w+)(?P<parameters>\([^;{]*?\)) (?:noexcept )?\{)",
    re.M,
)
MODULE = re.compile(r"xffl_module\(\s*(\w+)(.*?)\)", re.S)


def declared_modules(root):
    """Maps each module to the modules that it may include."""
    modules = {}
    for path in sorted(root.glob("src/*/CMakeLists.txt")):
        for name, body in MODULE.findall(path.read_text()):
            words = body.split()
            depends = set()
            if "DEPENDS" in words:
                for word in words[words.index("DEPENDS") + 1 :]:
                    if word in ("SOURCES", "PRIVATE_LIBS", "TORCH"):
                        break
                    depends.add(word)
            modules[name] = depends
    return modules


def folder_of(module):
    """A module's folder below src/ and include/xffl/: kernels_cuda is kernels/cuda."""
    return module.replace("_", "/", 1)


def module_of(path, modules):
    """The module that a path below src/ or include/xffl/ belongs to: the one with the longest folder."""
    owners = [module for module in modules if path.startswith(folder_of(module) + "/")]
    return max(owners, key=len, default=path.split("/")[0])


def check_log_libraries(root, path):
    if path == root / LOG_SOURCE:
        return []
    headers = [header for header in INCLUDE.findall(path.read_text(errors="replace")) if LOG_LIBRARIES.match(header)]
    return [f"{path}: {header}: only {LOG_SOURCE} may include spdlog and fmt" for header in headers]


def check_file(path, module, modules, public):
    problems = []
    for header in INCLUDE.findall(path.read_text()):
        if header.startswith("xffl/"):
            other = module_of(header.removeprefix("xffl/"), modules)
            if other != module and other not in modules[module]:
                problems.append(f"{path}: module '{module}' includes {header} but does not list '{other}' in DEPENDS")
        elif TORCH.match(header) and (module not in TRAINER or path.suffix == ".cu"):
            problems.append(f"{path}: {header}: only trainer modules may include torch, except in .cu files")
        elif public and THIRD_PARTY.match(header) and header not in ALLOWED_PUBLIC and module not in TRAINER:
            problems.append(f"{path}: {header}: third-party types stay in .cc files")
        elif module in TRAINER | GROUND and FORBIDDEN_IN_TRAINER.match(header):
            problems.append(f"{path}: {header} does not belong in the trainer half")
    return problems


def local_names(text):
    """The names that the anonymous namespaces of a file define; a function's name comes with the types of its parameters."""
    names = set()
    for block in LOCAL_BLOCK.findall(text):
        for match in LOCAL_NAME.finditer(block):
            name = match["type"] or match["value"]
            names.add(name or match["function"] + re.sub(r"(?<=[&*>\w]) ?\b\w+(?= = |[,)])", "", " ".join(match["parameters"].split())))
    return names


def check_local_names(root, modules):
    first, problems = {}, []
    for path in sorted((root / "src").rglob("*.cc")):
        module = module_of(path.relative_to(root / "src").as_posix(), modules)
        if module in TRAINER:
            continue  # compiled with LibTorch's headers, one file at a time
        for name in sorted(local_names(path.read_text())):
            other = first.setdefault((module, name), path)
            if other != path:
                problems.append(f"{path}: {name} is defined in {other.name} too; XFFL_UNITY compiles both together")
    return problems


def check_halves(modules):
    problems = []
    for module, depends in modules.items():
        if module in GROUND and depends - GROUND:
            problems.append(f"src/{module}: ground depends on {sorted(depends - GROUND)}")
        if module in TRAINER and depends - GROUND - TRAINER:
            problems.append(f"src/{module}: the trainer half depends on {sorted(depends - GROUND - TRAINER)}")
        if module not in TRAINER and depends & TRAINER:
            problems.append(f"src/{module}: depends on the trainer half: {sorted(depends & TRAINER)}")
        for other in depends:
            if other not in modules:
                problems.append(f"src/{module}: DEPENDS names '{other}', which is not a module")
    return problems


def check_cycles(modules):
    done, open_ = set(), []

    def visit(module):
        if module in done:
            return []
        if module in open_:
            return [f"modules depend on each other: {' -> '.join(open_[open_.index(module):] + [module])}"]
        open_.append(module)
        problems = [p for other in sorted(modules.get(module, ())) for p in visit(other)]
        open_.pop()
        done.add(module)
        return problems

    return [problem for module in sorted(modules) for problem in visit(module)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    modules = declared_modules(root)
    if not modules:
        print(f"{root}: no module found", file=sys.stderr)
        return 1
    problems = check_halves(modules) + check_cycles(modules) + check_local_names(root, modules)
    for root_folder, public in ((root / "src", False), (root / "include" / "xffl", True)):
        for path in sorted(root_folder.rglob("*")):
            module = module_of(path.relative_to(root_folder).as_posix(), modules)
            if module in modules and path.suffix in (".h", ".cc", ".cu"):
                problems += check_file(path, module, modules, public)
    for folder in ("apps", "include", "src", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu"):
                problems += check_log_libraries(root, path)
    for problem in problems:
        print(problem)
    print(f"{len(modules)} modules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
