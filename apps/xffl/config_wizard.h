// The questions of `xffl config`: from answers to the settings of an xffl.yaml.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "xffl/config/settings.h"

namespace xffl {

/// Asks on stdout for each setting that `settings` lacks, reads stdin and adds the answers. Repeats
/// a question until its answer is valid. Throws kCancelled at the end of the input.
class ConfigWizard {
 public:
  /// `settings` outlives the wizard. Relative paths of this machine start at `project`.
  ConfigWizard(std::vector<config::Setting>& settings, std::filesystem::path project)
      : settings_(settings), project_(std::move(project)) {}

  void ask_all();
  /// True for Enter, "y" or "yes".
  bool confirm(const std::string& question);

 private:
  using Read = std::function<std::vector<config::Setting>(const std::string&)>;

  bool has(const std::string& path) const;
  std::string value(const std::string& path) const;
  bool accept(const std::vector<config::Setting>& added);
  void ask_until(const std::string& question, const std::string& default_answer, const Read& read);
  void ask(const std::string& path, const std::string& question, const std::string& default_answer);
  void ask_list(const std::string& path, const std::string& question,
                const std::string& default_answer);
  void ask_optional(const std::string& path, const std::string& question);
  std::vector<std::string> ask_facilities();
  void ask_facility(const std::string& name);
  void ask_access(const std::string& name);
  void ask_site(const std::string& path);
  void ask_data(const std::string& path, const std::string& default_answer);

  std::vector<config::Setting>& settings_;
  std::filesystem::path project_;
};

}  // namespace xffl
