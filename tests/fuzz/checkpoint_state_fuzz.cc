// state.json of a checkpoint: the trainer's reads of an accepted file cannot fail.
#include <array>

#include "checkpoint_json.h"
#include "fuzz.h"
#include "xffl/job/job_report.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parse = [](std::string_view text) {
    return train::parse_checkpoint_json(text, "state.json");
  };
  const auto state = fuzz::accepted([&] { return parse(fuzz::text_of(data, size)); });
  if (!state) return 0;
  fuzz::expect(state->at("num_parts").get<int>() >= 1, "a checkpoint has a part");
  fuzz::expect(state->at("outer_steps").get<int64_t>() >= 0, "steps are counted");
  for (const auto& [name, file] : state->at("files").items()) {
    fuzz::expect(name.find('/') == std::string::npos && name.front() != '.',
                 "a part is a file of the folder", name);
    file.at("size").get<uint64_t>();
    fuzz::expect(file.at("sha256").get<std::string>().size() == 64, "a part has a hash");
  }
  for (const Json& group : state->at("counts")) group.get<std::array<double, train::kNumCounts>>();
  if (state->contains("of")) {
    state->at("of").at("version").get<int>();
    state->at("round").get<int>();
    state->at("name").get<std::string>();
  } else {
    state->at("steps_since_exchange").get<int64_t>();
    for (const char* key : {"best_validation", "best_amid"}) state->at(key).get<double>();
    for (const char* key : {"worse_validations", "measured_at", "best_steps"})
      state->at(key).get<int64_t>();
    for (const char* key : {"losses", "nll_before"}) state->at(key).get<std::vector<double>>();
    job::parse_job_report(state->at("report").get<std::string>(), "report");
  }
  const std::string text = state->dump(1) + "\n";
  fuzz::expect(parse(text) == *state, "a written state is read back", text);
  return 0;
}
