#include "shell_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <sstream>
#include <string>

#include "framed_command.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"

namespace xffl::remote {
namespace {

// Exit codes of the scripts in this file, distinct from the commands' codes.
constexpr int kNotThere = 90, kNotRegular = 91, kTooShort = 92;
constexpr int kCannotExecute = 126, kNoSuchCommand = 127;
constexpr size_t kMaxListed = 100'000;  // of a folder
// The C locale fixes the messages that this file compares; the umask hides new files from other
// users.
constexpr std::string_view kHead = "LC_ALL=C; export LC_ALL; umask 077; ";

// A program that does not start may print "No such file or directory", too: of a library.
bool has_started(int exit_code) {
  return exit_code != kCannotExecute && exit_code != kNoSuchCommand;
}

std::string q(const RemotePath& path) { return quote_for_shell(path.str()); }

bool contains(const std::string& err, std::string_view text) {
  return err.find(text) != std::string::npos;
}

std::optional<uint64_t> number(std::string_view text, int base = 10) {
  uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (end.ec != std::errc() || end.ptr == text.data()) return std::nullopt;
  return value;
}

[[noreturn]] void fail_to_parse(const std::string& activity, const std::string& out) {
  throw Error(ErrorKind::kIo, "cannot " + activity +
                                  ": unexpected output of the facility's command: '" +
                                  log::printable(out, 200) + "'");
}

using Type = FileInfo::Type;

// The two scripts are fixed, with names and sizes as arguments. Contents travel through stdin, and
// in the output after their sizes. An output that does not parse to its last line is a lost answer.
//
// Arguments: a folder, then for each file its name and the maximum size of a wanted content. All
// tests of `[` are false for a name on a file server that does not answer, so stat's message
// decides that a name is absent. A second view() sees the name that has appeared during the first
// one. Exit codes 3 and 4: the folder or a file cannot be examined.
constexpr const char* kLook = R"(
absent() {
  problem=$(LC_ALL=C stat $2 -- "$1" 2>&1 >/dev/null)
  case "$? $problem" in
    "0 "*) return 1 ;;
    "1 "*": No such file or directory" | "1 "*": Not a directory") return 0 ;;
  esac
  echo "$problem" >&2
  exit 3
}
view() {
  if [ -h "$1" ]; then echo other
  elif [ -f "$1" ]; then
    size=$(wc -c <"$1") || exit 4
    size=$((size))
    if [ "$size" -le "$2" ]; then
      echo "content $size"
      if [ "$size" -gt 0 ]; then head -c "$size" <"$1"; fi
      echo
    else echo "file $size"; fi
  elif [ -d "$1" ]; then echo folder
  elif [ -e "$1" ]; then echo other
  elif absent "$1"; then echo absent
  else return 1; fi
}
if ! cd -- "$1" 2>/dev/null; then
  if absent "$1" -L || [ ! -d "$1" ]; then echo none; exit 0; fi
  echo "$1 cannot be entered" >&2
  exit 3
fi
shift
while [ $# -ge 2 ]; do
  view "$1" "$2" || view "$1" "$2" || exit 3
  shift 2
done
echo end)";

// Arguments: a folder, then for each file its name and size; the contents are on stdin. Exit code
// 4: a tool failed before any file had its final name, or the sync of the names failed.
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
    sync "$1.tmp" || exit 4
    shift 2
  done
}
name() {
  while [ $# -ge 2 ]; do
    case $1 in */) ;; *) mv -fT -- "$1.tmp" "$1" || exit 3 ;; esac
    shift 2
  done
}
put "$@"
name "$@"
sync . || exit 4
echo end)";

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

std::string require_regular(const RemotePath& path) {
  return std::string(kHead) + "if [ -L " + q(path) + " ]; then exit 91; fi; if [ ! -e " + q(path) +
         " ]; then exit 90; fi; if [ ! -f " + q(path) + " ]; then exit 91; fi; ";
}

std::string dd_read(const RemotePath& path, const char* offset, const char* length) {
  return "dd if=" + q(path) + " iflag=skip_bytes,count_bytes,fullblock skip=" + offset +
         " count=" + length + " bs=1048576 status=none";
}

std::string dd_read(const RemotePath& path, uint64_t offset, uint64_t length) {
  return dd_read(path, std::to_string(offset).c_str(), std::to_string(length).c_str());
}

std::string dd_write(const RemotePath& path, uint64_t offset) {
  return std::string(kHead) + "if [ -L " + q(path) + " ]; then exit 91; fi; if [ -e " + q(path) +
         " ] && [ ! -f " + q(path) + " ]; then exit 91; fi; dd of=" + q(path) +
         " iflag=fullblock oflag=seek_bytes conv=notrunc bs=262144 seek=" + std::to_string(offset);
}

std::optional<uint64_t> dd_copied(std::string_view err) {
  const size_t end = err.find(" byte");  // "12 bytes (...) copied", the last line
  if (end == std::string_view::npos) return std::nullopt;
  const size_t start = err.rfind('\n', end);
  return number(err.substr(start == std::string_view::npos ? 0 : start + 1));
}

void fail_by(int exit_code, const std::string& err, const std::string& activity) {
  const auto fail = [&](ErrorKind kind, const std::string& why) {
    throw Error(kind, "cannot " + activity + " at the facility: " + why);
  };
  const std::string message = log::printable(err, 500);
  if (exit_code == kNotThere) fail(ErrorKind::kNotFound, "no such file");
  if (exit_code == kNotRegular) fail(ErrorKind::kIo, "not a regular file");
  if (!has_started(exit_code)) fail(ErrorKind::kUnsupported, message);
  if (contains(err, "No such file or directory")) fail(ErrorKind::kNotFound, message);
  fail(ErrorKind::kIo, message + " (exit code " + std::to_string(exit_code) + ")");
  throw Error(ErrorKind::kInternal, "not reached");
}

CommandResult ShellFiles::run(const std::string& script, std::string_view stdin_text,
                              const std::stop_token& stop) {
  return run_script(connection_, std::string(kHead) + script, stdin_text,
                    connection_->timeouts().operation, stop);
}

CommandResult ShellFiles::check(const std::string& activity, const std::string& script,
                                std::string_view stdin_text) {
  CommandResult result = run(script, stdin_text);
  if (result.exit_code != 0) fail_by(result.exit_code, result.err, activity);
  return result;
}

std::optional<FileInfo> ShellFiles::stat(const RemotePath& path) {
  const CommandResult result = run("exec stat -c '%f %s' " + q(path));
  if (result.exit_code != 0) {
    if (has_started(result.exit_code) &&
        (contains(result.err, "No such file") || contains(result.err, "Not a directory")))
      return std::nullopt;
    fail_by(result.exit_code, result.err, "look at " + path.str());
  }
  const size_t space = result.out.find(' ');
  const auto mode = number(result.out.substr(0, space), 16);
  const auto size =
      space == std::string::npos ? std::nullopt : number(result.out.substr(space + 1));
  if (!mode || !size) fail_to_parse("look at " + path.str(), result.out);
  if (S_ISREG(*mode)) return FileInfo{FileInfo::Type::kRegular, *size};
  if (S_ISDIR(*mode)) return FileInfo{FileInfo::Type::kFolder, 0};
  return FileInfo{FileInfo::Type::kOther, 0};
}

size_t ShellFiles::read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) {
  constexpr size_t kBlockBytes = 8u << 20;  // run_script keeps 16 MiB
  size_t done = 0;
  while (done < out.size()) {
    const size_t wanted = std::min(kBlockBytes, out.size() - done);
    const CommandResult result =
        check("read " + path.str(), require_regular(path) + dd_read(path, offset + done, wanted));
    if (result.out.size() > wanted) fail_to_parse("read " + path.str(), result.out);
    std::memcpy(out.data() + done, result.out.data(), result.out.size());
    done += result.out.size();
    if (result.out.size() < wanted) break;
  }
  return done;
}

void ShellFiles::write(const RemotePath& path, uint64_t offset, std::span<const std::byte> bytes) {
  const std::string activity = "write " + path.str();
  const CommandResult result = check(activity, dd_write(path, offset),
                                     {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (dd_copied(result.err) != bytes.size()) fail_to_parse(activity, result.err);
}

void ShellFiles::sync(const RemotePath& path) {
  check("make durable " + path.str(), require_regular(path) + "exec sync " + q(path));
}

void ShellFiles::rename(const RemotePath& from, const RemotePath& to) {
  check("rename " + from.str() + " to " + to.str(),
        "mv -fT " + q(from) + " " + q(to) + " && sync " + q(to.parent()));
}

std::vector<std::string> ShellFiles::list(const RemotePath& folder) {
  // The patterns match all names but `.` and `..`; a pattern without a match stands for itself. The
  // shell hides that it cannot read a folder, and `ls` reports it.
  const CommandResult result = check(
      "list the folder " + folder.str(),
      "[ -e " + q(folder) + " ] || exit 90; cd -- " + q(folder) + " && ls -A >/dev/null || exit; " +
          "for name in * .[!.]* ..?*; do if [ -e \"$name\" ] || [ -h \"$name\" ]; then "
          "printf '%s\\0' \"$name\"; fi; done");
  std::vector<std::string> names;
  for (size_t at = 0; at < result.out.size();) {
    const size_t end = result.out.find('\0', at);
    if (end == std::string::npos || end == at || names.size() == kMaxListed)
      fail_to_parse("list the folder " + folder.str(), result.out);
    names.push_back(result.out.substr(at, end - at));
    at = end + 1;
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ShellFiles::make_dirs(const RemotePath& folder) {
  check("create the folder " + folder.str(), "exec mkdir -p " + q(folder));
}

void ShellFiles::remove_tree(const RemotePath& path, const std::stop_token& stop) {
  // A busy parallel file system may need longer for a folder than a command may run. timeout(1)
  // ends each `rm` in time, and the next `rm` continues. A stop request does not wait for `rm`.
  constexpr int kMaxRuns = 30, kTimedOut = 124;
  const auto seconds = connection_->timeouts().operation.count() * 2 / 3000;
  const std::string script =
      "exec timeout " + std::to_string(std::max<int64_t>(1, seconds)) + " rm -rf " + q(path);
  for (int i = 0; i < kMaxRuns; ++i) {
    const CommandResult result = run(script, {}, stop);
    if (result.exit_code == 0) return;
    if (result.exit_code == kNoSuchCommand) break;
    if (result.exit_code != kTimedOut)
      fail_by(result.exit_code, result.err, "remove " + path.str());
  }
  const CommandResult last = run("exec rm -rf " + q(path), {}, stop);
  if (last.exit_code != 0) fail_by(last.exit_code, last.err, "remove " + path.str());
}

std::optional<std::string> ShellFiles::sha256(const RemotePath& path, uint64_t offset,
                                              uint64_t length) {
  const std::string activity = "hash " + path.str();
  const CommandResult result = run(require_regular(path) + "[ $(stat -c %s " + q(path) + ") -ge " +
                                   std::to_string(offset + length) + " ] || exit 92; " +
                                   dd_read(path, offset, length) + " | sha256sum");
  if (result.exit_code == kTooShort || result.exit_code == kNoSuchCommand) return std::nullopt;
  if (result.exit_code != 0) fail_by(result.exit_code, result.err, activity);
  const std::string hash = result.out.substr(0, 64);
  if (!is_sha256_hex(hash)) fail_to_parse(activity, result.out);
  return hash;
}

std::optional<std::vector<std::string>> ShellFiles::block_hashes(const RemotePath& path,
                                                                 uint64_t offset, uint64_t length,
                                                                 uint64_t block_bytes) {
  const std::string activity = "hash " + path.str();
  const std::string end = std::to_string(offset + length);
  const CommandResult result =
      run(require_regular(path) + "[ $(stat -c %s " + q(path) + ") -ge " + end +
          " ] || exit 92; o=" + std::to_string(offset) + "; while [ $o -lt " + end + " ]; do n=" +
          std::to_string(block_bytes) + "; if [ $((o+n)) -gt " + end + " ]; then n=$((" + end +
          "-o)); fi; " + dd_read(path, "$o", "$n") + " | sha256sum || exit; o=$((o+n)); done");
  if (result.exit_code == kTooShort || result.exit_code == kNoSuchCommand) return std::nullopt;
  if (result.exit_code != 0) fail_by(result.exit_code, result.err, activity);
  std::vector<std::string> hashes;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    hashes.push_back(line.substr(0, 64));
    if (!is_sha256_hex(hashes.back())) fail_to_parse(activity, result.out);
  }
  if (hashes.size() != (length + block_bytes - 1) / block_bytes)
    fail_to_parse(activity, result.out);
  return hashes;
}

std::optional<uint64_t> ShellFiles::free_bytes(const RemotePath& folder) {
  const std::string activity = "query the free space of " + folder.str();
  const CommandResult result = check(activity, "exec stat -f -c '%a %S' " + q(folder));
  const size_t space = result.out.find(' ');
  const auto blocks = number(result.out.substr(0, space));
  const auto unit =
      space == std::string::npos ? std::nullopt : number(result.out.substr(space + 1));
  if (!blocks || !unit) fail_to_parse(activity, result.out);
  return *blocks * *unit;
}

std::vector<FileView> look_by_shell(const RunCommand& run, const RemotePath& folder,
                                    std::span<const FileQuery> files) {
  std::vector<std::string> argv = {"sh", "-c", kLook, "xffl", folder.str()};
  for (const FileQuery& file : files) {
    argv.push_back("./" + file.name);
    argv.push_back(std::to_string(file.max_bytes));
  }
  const CommandResult result = run(argv, "");
  if (result.exit_code != 0) fail("look at the files of", folder, result);
  if (result.out == "none\n") return std::vector<FileView>(files.size());
  Answer answer(result.out, folder);
  std::vector<FileView> views;
  for (const FileQuery& file : files) views.push_back(parse_view(answer, file.max_bytes));
  if (answer.line() != "end") answer.fail_incomplete();
  return views;
}

bool put_by_shell(const RunCommand& run, const RemotePath& folder, std::span<const NewFile> files) {
  std::vector<std::string> argv = {"sh", "-c", kPut, "xffl", folder.str()};
  std::string contents;
  for (const NewFile& file : files) {
    argv.push_back("./" + file.name);
    argv.push_back(std::to_string(file.bytes.size()));
    contents += file.bytes;
  }
  const CommandResult result = run(argv, contents);
  if (result.exit_code == 4) return false;
  if (result.exit_code != 0) fail("put files into", folder, result);
  if (result.out != "end\n") Answer(result.out, folder).fail_incomplete();
  return true;
}

}  // namespace xffl::remote
