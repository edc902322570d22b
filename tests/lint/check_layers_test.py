"""check_layers.py finds each kind of violation."""
import pathlib
import subprocess
import sys
import tempfile

CHECK = pathlib.Path(__file__).parent.parent.parent / "scripts" / "check_layers.py"


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
        return done.returncode, done.stdout


CLEAN = {
    "src/base/CMakeLists.txt": "xffl_module(base SOURCES a.cc)",
    "src/plan/CMakeLists.txt": "xffl_module(plan\n  SOURCES p.cc\n  DEPENDS base)",
    "src/plan/p.cc": '#include "xffl/base/error.h"\n',
}


def expect(changes, words):
    code, out = run({**CLEAN, **changes})
    assert (code == 0) == (words is None), out
    assert words is None or words in out, out


expect({}, None)
expect({"src/plan/p.cc": '#include "xffl/remote/session.h"\n'}, "does not list 'remote'")
expect({"src/plan/p.cc": "#include <torch/torch.h>\n"}, "only trainer modules")
expect({"include/xffl/plan/p.h": "#include <yaml-cpp/yaml.h>\n"}, "third-party types stay")
expect({"src/base/b.cc": "#include <libssh/libssh.h>\n"}, "does not belong in the trainer half")
expect({"src/base/log.cc": "#include <fmt/format.h>\n#include <spdlog/logger.h>\n"}, None)
expect({"src/plan/p.cc": "#include <fmt/format.h>\n"}, "only src/base/log.cc")
expect({"apps/a/main.cc": "#include <spdlog/spdlog.h>\n"}, "only src/base/log.cc")
expect({"src/base/CMakeLists.txt": "xffl_module(base SOURCES a.cc DEPENDS plan)"}, "depend on each other")
expect({"src/plan/CMakeLists.txt": "xffl_module(plan SOURCES p.cc DEPENDS base ghost)"}, "which is not a module")
KERNELS = {
    "src/kernels/CMakeLists.txt": "xffl_module(kernels SOURCES cpu/k.cc)\nxffl_module(kernels_cuda SOURCES cuda/k.cu DEPENDS base kernels)",
    "src/kernels/cuda/k.cu": '#include "xffl/kernels/cpu/k.h"\n#include "xffl/kernels/cuda/k.h"\n',
    "include/xffl/kernels/cuda/k.h": '#include "xffl/base/error.h"\n',
}
expect(KERNELS, None)
expect({**KERNELS, "src/kernels/cpu/k.cc": '#include "xffl/kernels/cuda/k.h"\n'}, "does not list 'kernels_cuda'")
expect({**KERNELS, "src/kernels/cuda/k.cu": "#include <torch/torch.h>\n"}, "only trainer modules")
expect({**KERNELS, "include/xffl/kernels/cpu/k.h": '#include "xffl/base/error.h"\n'}, "does not list 'base'")
LOCAL = "namespace {{\n{}\n}}  // namespace\n"
for local in (
    "struct Part {{}};",
    "constexpr size_t kMost = 3;",
    "void row(Writer& {}, const std::vector<int>& cells) {{\n}}",
):
    texts = {f"src/plan/{name}.cc": LOCAL.format(local.format(name)) for name in ("q", "r")}
    expect(texts, "is defined in q.cc too")
    expect({"src/plan/q.cc": texts["src/plan/q.cc"], "src/base/r.cc": texts["src/plan/r.cc"]}, None)
expect({"src/plan/q.cc": LOCAL.format("int f(int a) {\n}"), "src/plan/r.cc": LOCAL.format("int f(double a) {\n}")}, None)
print("ok")
