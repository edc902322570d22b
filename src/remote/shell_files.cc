// How it works: fixed scripts with names and sizes as arguments. Contents travel through stdin, and
// in the output after their sizes. An output that does not parse to its last line is a lost answer.
#include "shell_files.h"

#include <charconv>
#include <chrono>
#include <string>

#include "xffl/base/error.h"
#include "xffl/base/log.h"

namespace xffl::remote {
namespace {

using Type = FileInfo::Type;

// Arguments: a folder, then for each file its name and the maximum size of a wanted content.
constexpr const char* kLook = R"(
if ! cd -- "$1" 2>/dev/null; then
  if [ -d "$1" ]; then exit 3; fi
  echo none; exit 0
fi
shift
while [ $# -ge 2 ]; do
  if [ -h "$1" ]; then echo other
  elif [ -f "$1" ]; then
    size=$(($(wc -c <"$1"))) || exit 4
    if [ "$size" -le "$2" ]; then
      echo "content $size"
      if [ "$size" -gt 0 ]; then head -c "$size" <"$1"; fi
      echo
    else echo "file $size"; fi
  elif [ -d "$1" ]; then echo folder
  elif [ -e "$1" ]; then echo other
  else echo absent; fi
  shift 2
done
echo end)";

// Arguments: a folder, then for each file its name and size; the contents are on stdin. Exit code
// 4: a tool failed before any file had its final name.
constexpr const char* kPut = R"(
umask 077
mkdir -p -- "$1" && cd -- "$1" || exit 3
shift
put() {
  while [ $# -ge 2 ]; do
    case $1 in */) mkdir -p -- "$1" || exit 3; shift 2; continue ;; esac
    if [ -d "$1" ] && [ ! -h "$1" ]; then echo "$1 is a folder" >&2; exit 3; fi
    rm -rf -- "$1.tmp" || exit 3
    if [ "$2" -gt 0 ]; then head -c "$2" >"$1.tmp" || exit 3; else : >"$1.tmp" || exit 3; fi
    [ $(($(wc -c <"$1.tmp"))) -eq "$2" ] || exit 4
    sync "$1.tmp" 2>/dev/null || sync || exit 4
    shift 2
  done
}
name() {
  while [ $# -ge 2 ]; do
    case $1 in */) ;; *) mv -f -- "$1.tmp" "$1" || exit 3 ;; esac
    shift 2
  done
}
put "$@"
name "$@"
sync . 2>/dev/null || sync
echo end)";

std::chrono::milliseconds deadline_for(uint64_t bytes) {
  return std::chrono::seconds(60) + std::chrono::milliseconds(bytes / 64);  // 64 kB/s
}

// Parses the answer from front to back.
class Answer {
 public:
  Answer(const std::string& text, const RemotePath& folder) : rest_(text), folder_(folder) {}

  std::string_view line() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail_incomplete();
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return found;
  }
  std::string_view bytes(uint64_t count) {
    if (rest_.size() < count) fail_incomplete();
    const std::string_view found = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return found;
  }
  uint64_t number(std::string_view text) {
    uint64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size()) fail_incomplete();
    return value;
  }
  [[noreturn]] void fail_incomplete() const {
    throw Error(ErrorKind::kRemote, "the facility's answer about the files of " + folder_.str() +
                                        " is incomplete: '" + log::printable(rest_, 80) + "'");
  }

 private:
  std::string_view rest_;
  const RemotePath& folder_;
};

FileView parse_view(Answer& answer, uint64_t max_bytes) {
  const std::string_view line = answer.line();
  const std::string_view keyword = line.substr(0, line.find(' '));
  const auto size = [&] { return answer.number(line.substr(keyword.size() + 1)); };
  if (line == "absent") return {};
  if (line == "folder") return {FileInfo{Type::kFolder, 0}, {}};
  if (line == "other") return {FileInfo{Type::kOther, 0}, {}};
  if (keyword == "file" && line != keyword) return {FileInfo{Type::kRegular, size()}, {}};
  if (keyword != "content" || line == keyword || size() > max_bytes) answer.fail_incomplete();
  FileView view{FileInfo{Type::kRegular, size()}, std::string(answer.bytes(size()))};
  if (!answer.line().empty()) answer.fail_incomplete();
  return view;
}

[[noreturn]] void fail(const char* activity, const RemotePath& folder,
                       const CommandResult& result) {
  throw Error(ErrorKind::kIo, std::string("cannot ") + activity + " " + folder.str() +
                                  " at the facility: " + log::printable(result.err, 300));
}

}  // namespace

std::vector<FileView> look_by_shell(Session& session, const RemotePath& folder,
                                    std::span<const FileQuery> files) {
  std::vector<std::string> argv = {"sh", "-c", kLook, "xffl", folder.str()};
  uint64_t bytes = 0;
  for (const FileQuery& file : files) {
    argv.push_back("./" + file.name);
    argv.push_back(std::to_string(file.max_bytes));
    bytes += file.max_bytes;
  }
  const CommandResult result = session.run(argv, "", deadline_for(bytes), {});
  if (result.exit_code != 0) fail("look at the files of", folder, result);
  if (result.out == "none\n") return std::vector<FileView>(files.size());
  Answer answer(result.out, folder);
  std::vector<FileView> views;
  for (const FileQuery& file : files) views.push_back(parse_view(answer, file.max_bytes));
  if (answer.line() != "end") answer.fail_incomplete();
  return views;
}

bool put_by_shell(Session& session, const RemotePath& folder, std::span<const NewFile> files) {
  std::vector<std::string> argv = {"sh", "-c", kPut, "xffl", folder.str()};
  std::string contents;
  for (const NewFile& file : files) {
    argv.push_back("./" + file.name);
    argv.push_back(std::to_string(file.bytes.size()));
    contents += file.bytes;
  }
  const CommandResult result = session.run(argv, contents, deadline_for(contents.size()), {});
  if (result.exit_code == 4) return false;
  if (result.exit_code != 0) fail("put files into", folder, result);
  if (result.out != "end\n") Answer(result.out, folder).fail_incomplete();
  return true;
}

}  // namespace xffl::remote
