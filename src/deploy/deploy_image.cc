#include "xffl/deploy/deploy_image.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "placer.h"
#include "script.h"
#include "xffl/base/embedded_file.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/deploy/deploy.h"

namespace xffl::deploy {

std::span<const EmbeddedFile> deploy_scripts();  // generated

namespace {

constexpr size_t kDigits = 8;
constexpr std::string_view kStaging = ".xffl-staging";

// $1: the folder, $2: the link, $3: the image. Exit code 3: the link's name is taken by a file.
constexpr const char* kPromote = R"sh(
cd -- "$1" || exit 2
[ -h "$2" ] || [ ! -e "$2" ] || exit 3
ln -sfn -- "$3" ".xffl-link" && mv -fT -- ".xffl-link" "$2"
)sh";

// $1: the link. A file of another origin stays.
constexpr const char* kRemoveLink = R"sh([ ! -h "$1" ] || rm -f -- "$1")sh";

// "xffl.sif" -> {"xffl-", ".sif"}: an image's name has its hash between them.
std::pair<std::string, std::string> name_parts(const RemotePath& file) {
  const std::string name = file.filename();
  const size_t dot = name.rfind('.');
  const size_t end = dot == std::string::npos || dot == 0 ? name.size() : dot;
  return {name.substr(0, end) + "-", name.substr(end)};
}

bool is_sent(remote::Session& session, const ImageToDeploy& image) {
  const auto info = session.stat(image.file);
  return info && info->size_bytes == image.content().size_bytes;
}

void require_place(remote::Session& session, const ImagePlace& place, uint64_t bytes) {
  const RemotePath folder = place.file.parent();
  const Host host = ask_host(session, folder);
  if (host.free_kib && *host.free_kib * 1024 < bytes)
    throw Error(ErrorKind::kUnsupported,
                std::to_string(*host.free_kib * 1024 / 1'000'000) + " MB are free in " +
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

bool is_image_in_place(const Report& report) {
  return report.state == "intact" || report.state == "placed";
}

// Throws unless the image is in place.
void require_whole(remote::Session& session, const Report& report, const ImageToDeploy& image) {
  if (!report.missing.empty())
    throw Error(ErrorKind::kUnsupported, "the PATH of " + describe_node(report) + " lacks " +
                                             report.missing + ", which verifies the image");
  if (is_image_in_place(report)) return;
  const std::string sent = (image.staging / image.content().name).str();
  if (report.state != "broken")
    throw Error(ErrorKind::kIo,
                sent + " has disappeared: repeat the command, which sends it again");
  session.remove_tree(image.staging);
  throw Error(ErrorKind::kCorrupt, sent + " is damaged and was removed (" + report.problem +
                                       "): repeat the command, which sends it again");
}

// Fills in `started` or `why_not`. On a job's node, where the rounds start the image, its program
// has to be there.
void require_start(const Report& report, const ImageToDeploy& image, bool on_login_node,
                   DeployedImage& done) {
  const ImagePlace& place = image.place;
  if (place.trainer.empty()) {
    done.why_not = "the facility has a trainer of its own";
  } else if (!report.no_program.empty() && on_login_node) {
    done.why_not = place.program + " is not in the PATH of the log-in node";
  } else if (!report.no_program.empty()) {
    throw Error(ErrorKind::kFailed, place.program + " is not in the PATH of " +
                                        describe_node(report) +
                                        ": name the module that provides it in 'modules', or its "
                                        "path in image.program");
  } else if (!has_started(report, place.version)) {
    fail_script(ErrorKind::kFailed,
                place.program + " exec " + image.file.str() + " " + place.trainer +
                    " --version does not print 'xffl-train " + place.version + "' on " +
                    describe_node(report),
                {report.exit_code, report.started});
  } else {
    done.started = report.started;
  }
}

}  // namespace

ImageToDeploy read_image(const std::filesystem::path& image, const ImagePlace& place) {
  if (!std::filesystem::exists(image))
    throw Error(ErrorKind::kNotFound, image.string() + " does not exist");
  if (!std::filesystem::is_regular_file(image))
    throw Error(ErrorKind::kUsage,
                image.string() + " is no file: expected the file of an image, such as xffl.sif");
  const std::string name = image.filename().string();
  if (name.starts_with("xffl-trainer-") && name.ends_with(".tar.gz"))
    throw Error(ErrorKind::kUsage,
                log::printable(name, 120) +
                    " is a bundle, and the facility has an image: `scripts/package.sh image " +
                    log::printable(image.string(), 400) +
                    "` makes an image of it; or remove 'image' from the facility in xffl.yaml");
  const std::filesystem::path local = std::filesystem::absolute(image);
  ImageToDeploy read{
      .place = place, .folder = local.parent_path(), .manifest = {}, .file = {}, .staging = {}};
  read.manifest.files = {checkpoint::hash_file(local)};
  const auto [before, after] = name_parts(place.file);
  const std::string hash = read.content().sha256.substr(0, kDigits);
  read.file = place.file.parent() / (before + hash + after);
  read.staging = place.file.parent() / kStaging / hash;
  return read;
}

PlaceScript image_script(const ImageToDeploy& image) {
  return {deploy_scripts().back().text,
          {image.file.parent().str(), image.file.filename(),
           (image.staging / image.content().name).str(), image.content().sha256,
           image.place.program, image.place.trainer}};
}

DeployedImage deploy_image_with(Placer& placer, const transfer::Endpoint& facility,
                                const ImageToDeploy& image, const std::stop_token& stop,
                                const transfer::OnProgress& on_progress) {
  require_place(facility.control, image.place,
                is_sent(facility.control, image) ? 0 : image.content().size_bytes);
  DeployedImage done{.file = image.file, .started = {}, .why_not = {}};
  std::optional<Report> report = placer.earlier();
  const bool is_there = is_sent(facility.control, image);
  // The site may have purged the image since the earlier job.
  if (report && is_image_in_place(*report) && !is_there) report.reset();
  if (!report && is_there) report = placer.run();
  if (report && !report->damage.empty())
    log::warning("the deployed image is damaged and is replaced",
                 {{"image", image.file.str()}, {"problem", report->damage}});
  if (!report || report->state == "absent") {
    done.moved_bytes =
        transfer::push(facility, image.folder, image.manifest, image.staging, stop, on_progress)
            .moved_bytes;
    report = placer.run();
  }
  try {
    require_whole(facility.control, *report, image);
    require_start(*report, image, placer.on_login_node(), done);
  } catch (const Error&) {
    placer.close();
    throw;
  }
  done.was_there = report->state == "intact";
  const RemotePath& link = image.place.file;
  const Answer promoted =
      run_script(facility.control, kPromote,
                 {link.parent().str(), link.filename(), image.file.filename()}, kShortScript, stop);
  if (promoted.exit_code != 0)
    fail_script(ErrorKind::kIo, "cannot move the link " + link.str(), promoted);
  placer.close();
  return done;
}

DeployedImage deploy_image(const transfer::Endpoint& facility, const std::filesystem::path& image,
                           const ImagePlace& place, std::stop_token stop,
                           const transfer::OnProgress& on_progress) {
  const ImageToDeploy read = read_image(image, place);
  LoginNodePlacer placer(facility.control, image_script(read), stop);
  return deploy_image_with(placer, facility, read, stop, on_progress);
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
  if (!names.empty()) {  // the link first
    const Answer removed = run_script(session, kRemoveLink, {file.str()}, kShortScript, stop);
    if (removed.exit_code != 0)
      fail_script(ErrorKind::kIo, "cannot remove the link " + file.str(), removed);
  }
  for (const std::string& name : names) session.remove_tree(file.parent() / name, stop);
  session.remove_tree(file.parent() / kStaging, stop);
}

}  // namespace xffl::deploy
