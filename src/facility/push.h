// Brings to a facility what its job begins with: the model and job.json.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "site.h"

namespace xffl::facility {

class ModelPush {
 public:
  explicit ModelPush(Site& site) : site_(site) {}

  Event push(int attempt, std::stop_token stop);
  /// Sends the model of a waiting job again when the site's purge has taken files of it.
  void look_after_model(int attempt, std::stop_token stop);
  /// Why the attempt's job could not begin with its model; empty: it did not say so, or has to bear
  /// it itself.
  std::string given_model_problem(int attempt);
  /// Warns, ahead of the attempt's submission, when the facility lacks space for what its job will
  /// write beside the model that was sent. A failed check is only logged.
  void check_space(int attempt);

 private:
  /// The model that the attempt begins with, as differences where `packs`, which it names in
  /// `spec`; with `doubts` what lies at the facility is compared.
  history::Pushed push_base(int attempt, job::JobSpec& spec, bool packs, bool doubts,
                            std::stop_token stop);
  std::optional<history::Pushed> push_packed(int attempt, job::JobSpec& spec, std::stop_token stop);
  std::string model_hashes(const job::JobSpec& told) const;
  std::vector<int> complaints_before(int attempt, std::string_view name);
  struct Moved {
    uint64_t bytes = 0;
    double seconds = 0;
  };
  Moved push_model(const std::filesystem::path& model, const RemotePath& to, bool doubts,
                   std::stop_token stop);

  Site& site_;
  int space_checked_for_ = 0;                       // this attempt
  std::optional<Clock::MonotonicTime> model_seen_;  // whole at the facility
};

}  // namespace xffl::facility
