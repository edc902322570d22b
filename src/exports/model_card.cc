#include "xffl/exports/model_card.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "xffl/base/copy_file.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/folder_path.h"
#include "xffl/base/json.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/manifest.h"

namespace xffl::exports {
namespace {

namespace fs = std::filesystem;
using report::RoundStory;
using report::RunStory;

constexpr fs::perms kForAll =
    fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read | fs::perms::others_read;

// A JSON string is a string of YAML, too.
std::string yaml_text(const std::string& text) {
  return Json(log::printable(text, 300)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string four_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4f", value);
  return text;
}

const RoundStory& published_round(const RunStory& story, int number) {
  const int wanted = number > 0 ? number : story.rounds_published;
  const auto found = story.rounds.find(wanted);
  if (found == story.rounds.end() || found->second.published_seq == 0)
    throw Error(ErrorKind::kNotFound, wanted == 0 ? "the run has not published a model yet"
                                                  : "round " + std::to_string(wanted) +
                                                        " is not published: the newest is " +
                                                        std::to_string(story.rounds_published));
  return found->second;
}

// The names of facilities in the card.
class Names {
 public:
  Names(const RunStory& story, bool real) {
    for (const FacilityName& name : story.facilities)
      names_[name] = real ? name.str() : "facility " + std::to_string(names_.size() + 1);
  }
  const std::string& of(const FacilityName& name) { return names_[name]; }

 private:
  std::map<FacilityName, std::string> names_;
};

std::string loss_table(const RunStory& story, int last_round, Names& names) {
  std::map<std::pair<FacilityName, std::string>, std::map<int, double>> sets;
  std::set<int> rounds;
  for (const status::GlobalLoss& loss : story.losses)
    if (loss.round <= last_round) {
      sets[{loss.facility, loss.set}][loss.round] = loss.nll;
      rounds.insert(loss.round);
    }
  if (sets.empty()) return "The validation losses of this model were not measured.\n";
  std::string head = "| round |", line = "|---|", text;
  for (const auto& [set, losses] : sets) {
    head += " " + names.of(set.first) + ": " + set.second + " |";
    line += "---|";
  }
  for (const int round : rounds) {
    text += "| " + std::to_string(round) + " |";
    for (const auto& [set, losses] : sets) {
      const auto found = losses.find(round);
      text += " " + (found == losses.end() ? "not measured" : four_digits(found->second)) + " |";
    }
    text += "\n";
  }
  return "Mean loss per predicted token in nats, on the validation sets of the facilities. Round 0 "
         "is the initial model.\n\n" +
         head + "\n" + line + "\n" + text;
}

std::string front_matter(const ModelCard& card, bool is_adapter) {
  std::string text = "---\nlicense: " + yaml_text(card.license) + "\n";
  if (!card.base_model.empty())
    text += "base_model: " + yaml_text(card.base_model) +
            "\nbase_model_relation: " + (is_adapter ? "adapter" : "finetune") + "\n";
  text += std::string("library_name: ") + (is_adapter ? "peft" : "transformers") + "\n";
  return text + "pipeline_tag: text-generation\ntags:\n- federated-learning\n- xffl\n---\n";
}

// The attempts whose updates are in the means up to `last_round`.
std::vector<const report::AttemptStory*> used_attempts(const RunStory& story, int last_round) {
  std::vector<const report::AttemptStory*> used;
  for (const report::AttemptStory& attempt : story.attempts)
    if (attempt.report && attempt.round <= last_round &&
        attempt.outcome == report::Outcome::kAccepted)
      used.push_back(&attempt);
  return used;
}

std::string participants_table(const RunStory& story, int last_round, Names& names) {
  std::map<FacilityName, std::pair<int, int64_t>> sums;  // updates, tokens
  for (const report::AttemptStory* attempt : used_attempts(story, last_round)) {
    ++sums[attempt->facility].first;
    sums[attempt->facility].second += attempt->report->tokens;
  }
  std::string text = "| participant | updates | trained tokens |\n|---|---|---|\n";
  for (const auto& [name, sum] : sums)
    text += "| " + names.of(name) + " | " + std::to_string(sum.first) + " | " +
            std::to_string(sum.second) + " |\n";
  return text;
}

void link_or_copy(const fs::path& from, const fs::path& to) {
  std::error_code refused;
  if (from.extension() == ".safetensors") fs::create_hard_link(from, to, refused);
  if (from.extension() != ".safetensors" || refused) copy_synced(from, to);
}

}  // namespace

std::string format_model_card(const RunStory& story, const ModelCard& card, bool is_adapter) {
  const RoundStory& round = published_round(story, card.round);
  Names names(story, card.names_facilities);
  const std::string number = std::to_string(round.number);
  std::string text = front_matter(card, is_adapter);
  text += "\n# " + log::printable(story.project, 100) + ", round " + number + "\n\n";
  text += std::string(is_adapter ? "A LoRA adapter" : "A model") +
          " of federated training with xffl " + story.version + ": " + number +
          " rounds, published at " + format_utc(*round.published) +
          ". The data of the participants never left them.\n\n";
  text += "## Training\n\n" + participants_table(story, round.number, names) + "\n";
  text += "## Losses\n\n" + loss_table(story, round.number, names) + "\n";
  text +=
      "## Limits\n\nThe participants reported their losses and numbers of tokens; nobody "
      "repeated their trainings. The model has the limits of its base model. It was not "
      "examined for harmful output or for memorized text of the participants' data.\n\n";
  text += "## Provenance\n\n- run " + story.run + ", configuration SHA-256 `" +
          story.config_sha256 + "`\n- model, root hash of `manifest.json`: `" + round.model_sha256 +
          "`\n";
  return text;
}

void export_model(const RunStory& story, const history::RunFolder& run, const ModelCard& card,
                  const fs::path& folder, const SigningKey* key) {
  const fs::path to = folder_path(folder);
  const RoundStory& round = published_round(story, card.round);
  const fs::path from = run.global(round.number);
  if (fs::exists(fs::symlink_status(to)))
    throw Error(ErrorKind::kUsage, to.string() + " exists: name a new folder");
  if (!fs::exists(from))
    throw Error(ErrorKind::kNotFound,
                from.string() + " is gone: policy.keep_models limits the models that stay");
  const checkpoint::Manifest manifest = checkpoint::read_manifest(from);
  if (manifest.root_sha256() != round.model_sha256)
    throw Error(ErrorKind::kRejected, from.string() + " has the root hash " +
                                          manifest.root_sha256() + ", the journal has " +
                                          round.model_sha256);
  const fs::path work = to.string() + ".part";
  fs::remove_all(work);
  make_dirs(work);
  bool is_adapter = false;
  for (const checkpoint::ManifestFile& file : manifest.files) {
    link_or_copy(from / file.name, work / file.name);
    is_adapter = is_adapter || file.name == "adapter_config.json";
  }
  checkpoint::verify_folder(work, manifest);
  copy_synced(from / checkpoint::kManifestName, work / checkpoint::kManifestName);
  // From here on each write syncs the folder's names.
  write_file_atomic(work / "README.md", format_model_card(story, card, is_adapter), 0644);
  if (key != nullptr) {
    write_file_atomic(work / kModelSignatureName,
                      sign_model_folder(work, to.filename().string(), *key), 0644);
  }
  // The run's files are its user's only; this folder is for others.
  for (const fs::directory_entry& file : fs::directory_iterator(work))
    fs::permissions(file.path(), kForAll);
  fs::permissions(work,
                  kForAll | fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec);
  rename_durable(work, to);
}

}  // namespace xffl::exports
