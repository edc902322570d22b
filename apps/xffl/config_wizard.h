// The questions of `xffl config`: from answers to the settings of an xffl.yaml.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "xffl/config/settings.h"

namespace xffl {

/// Asks on stdout and reads stdin, for what `settings` do not say yet, and adds the answers to
/// them. An answer is asked for again until it is a good one. Throws kCancelled where the input
/// ends.
class ConfigWizard {
 public:
  /// `settings` outlives it. Paths of this machine start at `project`.
  ConfigWizard(std::vector<config::Setting>& settings, std::filesystem::path project)
      : settings_(settings), project_(std::move(project)) {}

  void ask_all();
  /// True at Enter or a yes.
  bool confirm(const std::string& question);

 private:
  using Read = std::function<std::vector<config::Setting>(const std::string&)>;

  bool has(const std::string& path) const;
  std::string value(const std::string& path) const;
  bool accept(const std::vector<config::Setting>& added);
  void ask_until(const std::string& question, const std::string& otherwise, const Read& read);
  void ask(const std::string& path, const std::string& question, const std::string& otherwise);
  void ask_list(const std::string& path, const std::string& question, const std::string& otherwise);
  void ask_optional(const std::string& path, const std::string& question);
  std::vector<std::string> ask_facilities();
  void ask_facility(const std::string& name);
  void ask_access(const std::string& name);
  void ask_site(const std::string& path);
  void ask_data(const std::string& path, const std::string& otherwise);

  std::vector<config::Setting>& settings_;
  std::filesystem::path project_;
};

}  // namespace xffl
