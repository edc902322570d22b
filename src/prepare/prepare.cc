#include "xffl/prepare/prepare.h"

#include <algorithm>
#include <array>
#include <limits>

#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/facility/prepared_text.h"
#include "xffl/facility/side_job.h"

namespace xffl::prepare {
namespace {

using tokens::kMaxPreparedBytes;
using tokens::kPrepareJobFile;
using tokens::kPrepareProgress;
using tokens::kPrepareReport;
using tokens::kPrepareTokenizer;

constexpr int64_t kDefaultLength = 2048;
constexpr uint64_t kMaxTokenizerBytes = 28 << 20;  // put_files() takes 32 MiB together

std::vector<remote::NewFile> tokenizer_of(const std::filesystem::path& model) {
  std::vector<remote::NewFile> files;
  uint64_t bytes = 0;
  for (const std::string_view name : tokens::tokenizer_files()) {
    if (!std::filesystem::exists(model / name)) continue;
    bytes += std::filesystem::file_size(model / name);
    if (bytes > kMaxTokenizerBytes)
      throw Error(ErrorKind::kUnsupported, "the tokenizer in " + model.string() + " has over " +
                                               std::to_string(kMaxTokenizerBytes >> 20) + " MiB");
    files.push_back({std::string(kPrepareTokenizer) + "/" + std::string(name),
                     read_file(model / name, kMaxTokenizerBytes)});
  }
  return files;
}

// The longest sequence that the facility's trainer accepts. A trainer of the user's own and a model
// without a readable config.json have no known limit.
int64_t longest_sequence(const config::Experiment& experiment, const config::Facility& facility) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  if (!facility.trainer_command.empty()) return kNoLimit;
  try {
    return checkpoint::read_llama_config(experiment.model).max_position_embeddings;
  } catch (const Error&) {
    return kNoLimit;  // `xffl doctor` and `xffl run` name the problem
  }
}

int64_t sequence_length(const config::Experiment& experiment, const config::Facility& facility) {
  const int64_t longest = longest_sequence(experiment, facility);
  if (facility.sequence_length > longest)
    throw Error(ErrorKind::kConfig, "facilities." + facility.name.str() +
                                        ".data.sequence_length is " +
                                        std::to_string(facility.sequence_length) +
                                        ", and the config.json of " + experiment.model.string() +
                                        " has max_position_embeddings " + std::to_string(longest) +
                                        ": set the key to at most " + std::to_string(longest));
  return facility.sequence_length > 0 ? facility.sequence_length
                                      : std::min(kDefaultLength, longest);
}

// The folder above the first component with a wildcard.
std::string fixed_folder(const std::string& pattern) {
  const size_t wildcard = std::min(pattern.find_first_of("*?["), pattern.size());
  const size_t slash = pattern.rfind('/', wildcard);
  return slash == 0 || slash == std::string::npos ? "/" : pattern.substr(0, slash);
}

}  // namespace

config::Facility job_shape(const config::Facility& facility, const facility::Programs& programs) {
  config::Facility one = facility;
  const submit::QueueManager& manager = one.scheduler.manager();
  if (manager.one_task != nullptr) manager.one_task(one.scheduler);
  one.world_size = 1;
  one.trainer_command = {facility.on_compute_nodes(tokenize_program(facility, programs)),
                         "prepare"};
  one.validation.clear();
  one.train_data.clear();
  for (const std::string& pattern : facility.text.files)  // an image binds the parents
    one.train_data.push_back((RemotePath(fixed_folder(pattern)) / "text").str());
  return one;
}

namespace {

class Preparation {
 public:
  Preparation(const config::Experiment& experiment, const config::Facility& facility,
              facility::Services& services, std::stop_token stop, const Callbacks& callbacks)
      : experiment_(experiment),
        facility_(facility),
        services_(services),
        callbacks_(callbacks),
        job_(facility, experiment.poll_interval(facility), services, place(facility),
             std::move(stop), callbacks.on_state) {}

  Outcome run(bool again) {
    const PrepareJob options = prepare_job(experiment_, facility_);
    const bool is_under_way = job_.is_under_way();  // first: a job may end between the two looks
    if (!again)
      if (const auto found = find_readable(); found && has_length(*found, options))
        if (found->tokenizer_sha256 == options.tokenizer_sha256 && are_there(*found))
          return {*found, true};
    if (again && is_under_way && callbacks_.on_state)
      callbacks_.on_state(
          "a job is under way and is followed: if the text has changed since its start, repeat the "
          "command after its end");
    if (!is_under_way) submit(options);
    std::optional<Prepared> prepared;
    if (!job_.follow([&] { return (prepared = look(options)).has_value(); })) fail();
    remove_earlier_outputs();
    return {std::move(*prepared), false};
  }

 private:
  static facility::SidePlace place(const config::Facility& facility) {
    const std::string name = facility.prepared.filename();
    return {.parent = facility.prepared,
            .name = "xffl-prepare-" + name.substr(name.find('.') + 1),
            .report = std::string(kPrepareReport)};
  }

  // A job that was killed leaves half-written shards. Best effort: they cost space only.
  void remove_earlier_outputs() {
    try {
      for (int number = job_.number() - 1; number > 0; --number)
        job_.session().remove_tree(job_.folder().parent() / ("job" + std::to_string(number)) /
                                   "out");
    } catch (const Error& error) {
      log::debug("the output of an earlier job stays",
                 {{"facility", facility_.name.str()}, {"problem", error.what()}});
    }
  }

  std::optional<Prepared> find_readable() {
    try {
      return facility::find_prepared(job_.session(), facility_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kCorrupt) throw;
      log::warning("the shards' description is damaged; the text is tokenized again",
                   {{"facility", facility_.name.str()}, {"error", std::string(error.what())}});
      return std::nullopt;
    }
  }

  // The folder's name has the key sequence_length, whose default depends on the model. The
  // description of unpacked shards does not have their length.
  static bool has_length(const Prepared& prepared, const PrepareJob& options) {
    const tokens::PreparedShard& shard = prepared.training;
    return !options.pack ||
           shard.tokens == shard.sequences * static_cast<uint64_t>(options.sequence_length);
  }

  // False for shards that the site has purged.
  bool are_there(const Prepared& prepared) {
    const auto has_size = [&](std::string_view name, uint64_t bytes) {
      const auto info = job_.session().stat(facility_.prepared / name);
      return info && info->size_bytes == bytes;
    };
    return has_size(tokens::kPreparedTraining, prepared.training.bytes) &&
           (!prepared.validation ||
            has_size(tokens::kPreparedValidation, prepared.validation->bytes));
  }

  // A job would fail after its time in the queue, and name the program only.
  void require_bundle() {
    const RemotePath newest = facility_.workdir / config::kBundlesFolder / config::kNewestBundle;
    const std::string program = tokenize_program(facility_, services_.programs);
    if (!program.starts_with(newest.str() + "/") || job_.session().stat(RemotePath(program)))
      return;
    const std::string& name = facility_.name.str();
    throw Error(ErrorKind::kNotFound, name + " has no " + program +
                                          ", which 'trainer: bundle' names: deploy a bundle, "
                                          "xffl deploy " +
                                          name + " BUNDLE");
  }

  void submit(const PrepareJob& options) {
    require_bundle();
    std::vector<remote::NewFile> files = tokenizer_of(experiment_.model);
    files.insert(files.begin(), {std::string(kPrepareTokenizer) + "/", ""});
    files.push_back({"out/", ""});
    files.push_back({std::string(kPrepareJobFile), tokens::format_prepare_job(options)});
    job_.submit(job_shape(facility_, services_.programs), std::move(files));
  }

  std::optional<Prepared> look(const PrepareJob& options) {
    const std::array queries{
        remote::FileQuery{std::string(kPrepareReport), kMaxPreparedBytes},
        remote::FileQuery{std::string(kPrepareProgress), tokens::kMaxPrepareProgressBytes}};
    const std::vector<remote::FileView> views = job_.session().look(job_.folder(), queries);
    if (!views.at(0).bytes.empty()) {
      const Prepared prepared =
          tokens::parse_prepared(views[0].bytes, (job_.folder() / kPrepareReport).str());
      if (prepared.tokenizer_sha256 != options.tokenizer_sha256)
        throw Error(ErrorKind::kCorrupt, "job " + job_.id().str() +
                                             " has used another tokenizer than the model's: repeat "
                                             "the command");
      return prepared;
    }
    if (!views.at(1).bytes.empty()) show_progress(views[1].bytes);
    return std::nullopt;
  }

  // The shards do not depend on this file: damage in it costs one warning.
  void show_progress(const std::string& json) {
    if (!callbacks_.on_progress) return;
    try {
      callbacks_.on_progress(
          tokens::parse_prepare_progress(json, (job_.folder() / kPrepareProgress).str()));
    } catch (const Error& error) {
      if (!has_unreadable_progress_)
        log::warning("the job's progress is not readable; the job goes on",
                     {{"facility", facility_.name.str()}, {"error", std::string(error.what())}});
      has_unreadable_progress_ = true;
    }
  }

  [[noreturn]] void fail() {
    throw Error(ErrorKind::kFailed, "job " + job_.id().str() + " has ended without shards; " +
                                        (job_.folder() / submit::kJobOutput).str() +
                                        " ends with:" + job_.last_output());
  }

  const config::Experiment& experiment_;
  const config::Facility& facility_;
  facility::Services& services_;
  const Callbacks& callbacks_;
  facility::SideJob job_;
  bool has_unreadable_progress_ = false;
};

}  // namespace

PrepareJob prepare_job(const config::Experiment& experiment, const config::Facility& facility) {
  const config::TextData& text = facility.text;
  if (text.files.empty())
    throw Error(ErrorKind::kConfig, "facility " + facility.name.str() +
                                        " has shards of its own (data.train): only data.text is "
                                        "tokenized");
  std::vector<std::string> files;
  for (const std::string& file : text.files) files.push_back(facility.on_compute_nodes(file));
  return {.tokenizer_sha256 = tokens::tokenizer_hash(experiment.model),
          .files = files,
          .prompt = text.prompt,
          .text_field = text.text_field,
          .prompt_field = text.prompt_field,
          .document = std::string(to_string(text.document)),
          .mask_prompt = text.mask_prompt,
          .pack = text.pack,
          .validation_fraction = text.validation_fraction,
          .sequence_length = sequence_length(experiment, facility),
          .format = std::string(to_string(text.format)),
          .chat_template = text.chat_template,
          .messages_field = text.messages_field,
          .id_type = std::string(to_string(text.id_type)),
          .end_id = text.end_id};
}

std::string tokenize_program(const config::Facility& facility, const facility::Programs& programs) {
  if (!facility.trainer_program.empty())
    return (RemotePath(facility.trainer_program).parent() / "xffl-tokenize").str();
  const bool elsewhere =
      facility.access != config::AccessKind::kLocal || !facility.image.file.empty();
  return elsewhere ? "xffl-tokenize" : (programs.xffl.parent_path() / "xffl-tokenize").string();
}

Outcome prepare(const config::Experiment& experiment, const config::Facility& facility,
                facility::Services& services, bool again, std::stop_token stop,
                const Callbacks& callbacks) {
  prepare_job(experiment, facility);  // throws before it connects
  return Preparation(experiment, facility, services, std::move(stop), callbacks).run(again);
}

}  // namespace xffl::prepare
