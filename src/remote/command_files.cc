#include "command_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "framed_command.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/base/shell.h"

namespace xffl::remote {
namespace {

// Exit codes of the scripts in this file, distinct from the commands' codes.
constexpr int kNotThere = 90, kNotRegular = 91, kTooShort = 92;
constexpr int kNoSuchCommand = 127;
// The scripts' callers compare messages; only the user may read new files.
constexpr std::string_view kHead = "LC_ALL=C; export LC_ALL; umask 077; ";

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
  if (exit_code == kNoSuchCommand) fail(ErrorKind::kUnsupported, message);
  if (contains(err, "No such file or directory")) fail(ErrorKind::kNotFound, message);
  fail(ErrorKind::kIo, message + " (exit code " + std::to_string(exit_code) + ")");
  throw Error(ErrorKind::kInternal, "not reached");
}

CommandResult CommandFiles::run(const std::string& script, std::string_view stdin_text,
                                const std::stop_token& stop) {
  return run_script(connection_, std::string(kHead) + script, stdin_text,
                    connection_->timeouts().operation, stop);
}

CommandResult CommandFiles::check(const std::string& activity, const std::string& script,
                                  std::string_view stdin_text) {
  CommandResult result = run(script, stdin_text);
  if (result.exit_code != 0) fail_by(result.exit_code, result.err, activity);
  return result;
}

std::optional<FileInfo> CommandFiles::stat(const RemotePath& path) {
  const CommandResult result = run("exec stat -c '%f %s' " + q(path));
  if (result.exit_code != 0) {
    if (contains(result.err, "No such file") || contains(result.err, "Not a directory"))
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

size_t CommandFiles::read(const RemotePath& path, uint64_t offset, std::span<std::byte> out) {
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

void CommandFiles::write(const RemotePath& path, uint64_t offset,
                         std::span<const std::byte> bytes) {
  const std::string activity = "write " + path.str();
  const CommandResult result = check(activity, dd_write(path, offset),
                                     {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (dd_copied(result.err) != bytes.size()) fail_to_parse(activity, result.err);
}

void CommandFiles::sync(const RemotePath& path) {
  check("make durable " + path.str(), require_regular(path) + "exec sync " + q(path));
}

void CommandFiles::rename(const RemotePath& from, const RemotePath& to) {
  check("rename " + from.str() + " to " + to.str(),
        "mv -fT " + q(from) + " " + q(to) + " && sync " + q(to.parent()));
}

std::vector<std::string> CommandFiles::list(const RemotePath& folder) {
  const CommandResult result =
      check("list the folder " + folder.str(), "[ -e " + q(folder) + " ] || exit 90; exec find " +
                                                   quote_for_shell(folder.str() + "/") +
                                                   " -mindepth 1 -maxdepth 1 -printf '%f\\0'");
  std::vector<std::string> names;
  for (size_t at = 0; at < result.out.size();) {
    const size_t end = result.out.find('\0', at);
    if (end == std::string::npos) fail_to_parse("list the folder " + folder.str(), result.out);
    names.push_back(result.out.substr(at, end - at));
    at = end + 1;
  }
  std::sort(names.begin(), names.end());
  return names;
}

void CommandFiles::make_dirs(const RemotePath& folder) {
  check("create the folder " + folder.str(), "exec mkdir -p " + q(folder));
}

void CommandFiles::remove_tree(const RemotePath& path, const std::stop_token& stop) {
  // A busy parallel file system may need longer for a folder than a command may run. timeout(1)
  // ends each `rm` in time, and the next one continues. A stop request does not wait for `rm`.
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

std::optional<std::string> CommandFiles::sha256(const RemotePath& path, uint64_t offset,
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

std::optional<uint64_t> CommandFiles::free_bytes(const RemotePath& folder) {
  const std::string activity = "query the free space of " + folder.str();
  const CommandResult result = check(activity, "exec stat -f -c '%a %S' " + q(folder));
  const size_t space = result.out.find(' ');
  const auto blocks = number(result.out.substr(0, space));
  const auto unit =
      space == std::string::npos ? std::nullopt : number(result.out.substr(space + 1));
  if (!blocks || !unit) fail_to_parse(activity, result.out);
  return *blocks * *unit;
}

}  // namespace xffl::remote
