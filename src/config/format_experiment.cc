#include "keys.h"
#include "xffl/config/load.h"
#include "yaml.h"

namespace xffl::config {
namespace {

class Writer {
 public:
  explicit Writer(bool operational) : operational_(operational) {}

  void section(const FieldTable& section, void* object, size_t indent) {
    for (const Field& key : section.yaml) this->key(key, object, indent);
  }

  void facilities(const Field& key, std::vector<Facility>& facilities) {
    line(0, key.name, "");
    for (Facility& facility : facilities) {
      line(1, yaml_scalar(facility.name.str()), "");
      section(*key.table, &facility, 2);
      // With data.text an option of the shards, and otherwise only a bound of the reports.
      if (!operational_ && !facility.text.files.empty())
        line(2, "data.sequence_length", std::to_string(facility.sequence_length));
      // Without an early stop a validation only reports.
      if (const auto& training = facility.training;
          !operational_ && training.early_stop_patience > 0)
        line(2, "training.validation_samples", std::to_string(training.validation_samples));
    }
  }

  std::string take() { return std::move(text_); }

 private:
  void key(const Field& key, void* object, size_t indent) {
    if (key.operational && !operational_) return;
    if (key.applies != nullptr && !key.applies(object)) return;
    if (key.omit_default && !key.is_set(object)) return;
    if (key.type == Type::kTrainer)
      return line(indent, key.name, trainer(*static_cast<const Facility*>(object)));
    if (key.type == Type::kSection && key.inner) {
      line(indent, key.name, "");
      return section(*key.table, key.inner(object), indent + 1);
    }
    if (key.type == Type::kValidationSets) return validation(indent, key, object);
    if (!key.get) return;
    const Value value = key.get(object);
    if (const auto* items = std::get_if<std::vector<std::string>>(&value))
      return list(indent, key.name, *items);
    const std::string text = value_text(key, value);
    if (!text.empty())  // an empty path is a key that was not given
      line(indent, key.name, std::holds_alternative<std::string>(value) ? yaml_scalar(text) : text);
  }

  static std::string trainer(const Facility& facility) {
    if (!facility.trainer_command.empty())
      return "{command: " + yaml_flow_list(facility.trainer_command) + "}";
    if (facility.trainer_bundle) return "bundle";
    if (!facility.trainer_program.empty())
      return "{program: " + yaml_scalar(facility.trainer_program) + "}";
    return "builtin";
  }

  void list(size_t indent, std::string_view name, const std::vector<std::string>& items) {
    if (items.empty()) return line(indent, name, "[]");
    line(indent, name, "");
    for (const std::string& item : items)
      text_ += std::string(2 * indent + 2, ' ') + "- " + yaml_scalar(item) + "\n";
  }

  void validation(size_t indent, const Field& key, void* object) {
    std::vector<void*> sets = key.items(object);
    const RemotePath& prepared = static_cast<const Facility*>(object)->prepared;
    if (!prepared.empty())  // the set that follows from the text
      std::erase_if(sets, [own = (prepared / tokens::kPreparedValidation).str()](const void* set) {
        return static_cast<const job::ValidationSet*>(set)->path == own;
      });
    line(indent, key.name, sets.empty() ? "{}" : "");
    for (const void* item : sets) {
      const auto& set = *static_cast<const job::ValidationSet*>(item);
      line(indent + 1, yaml_scalar(set.name), yaml_scalar(set.path));
    }
  }

  void line(size_t indent, std::string_view name, const std::string& value) {
    text_.append(2 * indent, ' ').append(name).append(value.empty() ? ":" : ": ").append(value);
    text_ += '\n';
  }

  bool operational_;  // also writes the keys that may change during a run
  std::string text_;
};

std::string format(const Experiment& experiment, bool operational) {
  Experiment copy = experiment;  // Field::inner takes a mutable struct
  Writer writer(operational);
  writer.section(experiment_keys(), &copy, 0);
  writer.facilities(*experiment_keys().find("facilities"), copy.facilities);
  return writer.take();
}

}  // namespace

std::string format_experiment(const Experiment& experiment) { return format(experiment, true); }

std::string format_training_identity(const Experiment& experiment) {
  return format(experiment, false);
}

}  // namespace xffl::config
