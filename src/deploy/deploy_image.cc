#include "xffl/deploy/deploy_image.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "script.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/deploy/deploy.h"

namespace xffl::deploy {
namespace {

constexpr size_t kDigits = 8;
constexpr std::string_view kStaging = ".xffl-staging";

// $1: the file, $2: its SHA-256. Exit code 3: another one.
constexpr const char* kCompare = R"sh(
LC_ALL=C; export LC_ALL
found=$(sha256sum -- "$1") || exit 2
[ "${found%% *}" = "$2" ] || { echo "its SHA-256 is ${found%% *}, expected $2"; exit 3; }
)sh";

// $1: the image's file, $2: the folder, $3: its final name.
constexpr const char* kPlace = R"sh(
cd -- "$2" && touch -- "$1" && mv -f -- "$1" "$3" && rm -rf -- .xffl-staging
)sh";

// $1: the folder, $2: the link, $3: the image. Exit code 3: the link's name is taken by a file.
constexpr const char* kPromote = R"sh(
cd -- "$1" || exit 2
[ -h "$2" ] || [ ! -e "$2" ] || exit 3
ln -sfn -- "$3" ".xffl-link" && mv -fT -- ".xffl-link" "$2"
)sh";

// "xffl.sif" -> {"xffl-", ".sif"}: an image's name has its hash between them.
std::pair<std::string, std::string> name_parts(const RemotePath& file) {
  const std::string name = file.filename();
  const size_t dot = name.rfind('.');
  const size_t end = dot == std::string::npos || dot == 0 ? name.size() : dot;
  return {name.substr(0, end) + "-", name.substr(end)};
}

bool is_whole(remote::Session& session, const RemotePath& file,
              const checkpoint::ManifestFile& expected, const std::stop_token& stop) {
  const auto info = session.stat(file);
  if (!info || info->size_bytes != expected.size_bytes) return false;
  const Answer answer =
      run_script(session, kCompare, {file.str(), expected.sha256}, kLongScript, stop);
  if (answer.exit_code != 0)
    log::warning("the deployed image is damaged and is replaced",
                 {{"image", file.str()}, {"problem", answer.text}});
  return answer.exit_code == 0;
}

void require_place(remote::Session& session, const ImagePlace& place, uint64_t bytes) {
  const RemotePath folder = place.file.parent();
  const Host host = ask_host(session, folder);
  if (host.free_kib > 0 && host.free_kib * 1024 < bytes)
    throw Error(ErrorKind::kUnsupported,
                std::to_string(host.free_kib * 1024 / 1'000'000) + " MB are free in " +
                    folder.str() + ", and the image has " + std::to_string(bytes / 1'000'000) +
                    " MB: remove files, or choose another place for image.file");
  const remote::CommandResult taken =
      session.run({"sh", "-c", "[ -e \"$1\" ] && [ ! -h \"$1\" ]", "sh", place.file.str()}, "",
                  kShortScript, {});
  if (taken.exit_code == 0)
    throw Error(ErrorKind::kUnsupported, place.file.str() +
                                             " is no link that xffl made: move it away, or name "
                                             "another file in image.file");
}

// Fills in `started` or `why_not`.
void start(remote::Session& session, const ImagePlace& place, DeployedImage& done,
           const std::stop_token& stop) {
  if (place.trainer.empty()) {
    done.why_not = "the facility has a trainer of its own";
    return;
  }
  const remote::CommandResult found = session.run(
      {"sh", "-c", "command -v -- \"$1\"", "sh", place.program}, "", kShortScript, stop);
  if (found.exit_code != 0) {
    done.why_not = place.program + " is not in the PATH of the log-in node";
    return;
  }
  const remote::CommandResult started = session.run(
      {place.program, "exec", done.file.str(), place.trainer, "--version"}, "", kLongScript, stop);
  const std::string line = log::printable(started.out.substr(0, started.out.find('\n')), 100);
  const std::string expected = "xffl-train " + place.version;
  if (started.exit_code != 0 || (line != expected && !line.starts_with(expected + " ")))
    fail_script(ErrorKind::kFailed,
                place.program + " exec " + done.file.str() + " " + place.trainer +
                    " --version does not print '" + expected + "'",
                {started.exit_code, log::printable(started.out + started.err, 600)});
  done.started = line;
}

}  // namespace

DeployedImage deploy_image(const transfer::Endpoint& facility, const std::filesystem::path& image,
                           const ImagePlace& place, std::stop_token stop,
                           const transfer::OnProgress& on_progress) {
  if (!std::filesystem::exists(image))
    throw Error(ErrorKind::kNotFound, image.string() + " does not exist");
  if (!std::filesystem::is_regular_file(image))
    throw Error(ErrorKind::kUsage,
                image.string() + " is no file: expected the file of an image, such as xffl.sif");
  const std::filesystem::path local = std::filesystem::absolute(image);
  require_place(facility.control, place, std::filesystem::file_size(local));

  checkpoint::Manifest manifest;
  manifest.files = {checkpoint::hash_file(local)};
  const checkpoint::ManifestFile& file = manifest.files.front();
  const auto [before, after] = name_parts(place.file);
  const std::string hash = file.sha256.substr(0, kDigits), name = before + hash + after;
  const RemotePath folder = place.file.parent();
  DeployedImage done{.file = folder / name, .started = {}, .why_not = {}};
  done.was_there = is_whole(facility.control, done.file, file, stop);
  if (!done.was_there) {
    const RemotePath staging = folder / kStaging / hash;
    done.moved_bytes =
        transfer::push(facility, local.parent_path(), manifest, staging, stop, on_progress)
            .moved_bytes;
    const std::string sent = (staging / local.filename().string()).str();
    const Answer same =
        run_script(facility.control, kCompare, {sent, file.sha256}, kLongScript, stop);
    if (same.exit_code != 0) {
      facility.control.remove_tree(staging);
      fail_script(ErrorKind::kCorrupt, sent + " is damaged and was removed", same);
    }
    const Answer placed =
        run_script(facility.control, kPlace, {sent, folder.str(), name}, kShortScript, stop);
    if (placed.exit_code != 0)
      fail_script(ErrorKind::kIo, "cannot move the image to " + done.file.str(), placed);
  }
  start(facility.control, place, done, stop);
  const Answer promoted = run_script(
      facility.control, kPromote, {folder.str(), place.file.filename(), name}, kShortScript, stop);
  if (promoted.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot move the link " + place.file.str(), promoted);
  return done;
}

std::vector<std::string> deployed_images(remote::Session& session, const RemotePath& file) {
  std::vector<std::string> names;
  try {
    names = session.list(file.parent());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
  const auto [before, after] = name_parts(file);
  std::erase_if(names, [&, &before = before, &after = after](const std::string& name) {
    return name.size() != before.size() + kDigits + after.size() || !name.starts_with(before) ||
           !name.ends_with(after) ||
           name.substr(before.size(), kDigits).find_first_not_of("0123456789abcdef") !=
               std::string::npos;
  });
  return names;
}

void remove_images(remote::Session& session, const RemotePath& file, std::stop_token stop) {
  const std::vector<std::string> names = deployed_images(session, file);
  if (!names.empty()) session.remove_tree(file, stop);  // the link first
  for (const std::string& name : names) session.remove_tree(file.parent() / name, stop);
  session.remove_tree(file.parent() / kStaging, stop);
}

}  // namespace xffl::deploy
