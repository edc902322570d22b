#include "keys.h"
#include "xffl/config/load.h"
#include "yaml_text.h"

namespace xffl::config {
namespace {

class Writer {
 public:
  explicit Writer(bool operational) : operational_(operational) {}

  void section(const Section& section, void* object, size_t indent) {
    for (const Key& key : section.keys) this->key(key, object, indent);
  }

  void facilities(const Key& key, std::vector<Facility>& facilities) {
    line(0, key.name, "");
    for (Facility& facility : facilities) {
      line(1, yaml_scalar(facility.name.str()), "");
      section(*key.section, &facility, 2);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  void key(const Key& key, void* object, size_t indent) {
    if (key.operational && !operational_) return;
    if (key.applies != nullptr && !key.applies(object)) return;
    if (key.given != nullptr && !key.given(object)) return;
    if (key.type == Type::kTrainer)
      return line(indent, key.name, trainer(*static_cast<const Facility*>(object)));
    if (key.type == Type::kSection && key.binding.inner != nullptr) {
      line(indent, key.name, "");
      return section(*key.section, key.binding.inner(object), indent + 1);
    }
    if (key.binding.get == nullptr) return;
    const Value value = key.binding.get(object);
    if (const auto* items = std::get_if<std::vector<std::string>>(&value))
      return list(indent, key.name, *items);
    if (const auto* sets = std::get_if<std::vector<job::ValidationSet>>(&value))
      return validation(indent, key.name, *sets);
    const std::string text = value_text(key, value);
    if (!text.empty())  // an empty path is a key that was not given
      line(indent, key.name, std::holds_alternative<std::string>(value) ? yaml_scalar(text) : text);
  }

  static std::string trainer(const Facility& facility) {
    if (!facility.trainer_command.empty())
      return "{command: " + yaml_flow_list(facility.trainer_command) + "}";
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

  void validation(size_t indent, std::string_view name,
                  const std::vector<job::ValidationSet>& sets) {
    line(indent, name, sets.empty() ? "{}" : "");
    for (const job::ValidationSet& set : sets)
      line(indent + 1, yaml_scalar(set.name), yaml_scalar(set.path));
  }

  void line(size_t indent, std::string_view name, const std::string& value) {
    text_.append(2 * indent, ' ').append(name).append(value.empty() ? ":" : ": ").append(value);
    text_ += '\n';
  }

  bool operational_;  // also the keys that may change while a run goes on
  std::string text_;
};

std::string format(const Experiment& experiment, bool operational) {
  Experiment copy = experiment;  // the table's bindings are for reading and writing
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
