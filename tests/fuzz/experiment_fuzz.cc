// xffl.yaml: the resolved configuration of an accepted file is read back as the same experiment.
#include "fuzz.h"
#include "xffl/config/load.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string yaml(fuzz::text_of(data, size));
  const auto parse = [](const std::string& text) {
    return config::parse_experiment(text, "xffl.yaml", "/project");
  };
  const auto experiment = fuzz::accepted([&] { return parse(yaml); });
  if (!experiment) return 0;
  fuzz::expect(!experiment->facilities.empty(), "an experiment has a facility");
  for (const config::Facility& facility : experiment->facilities) {
    fuzz::expect(facility.world_size >= 1, "a facility has a rank");
    fuzz::expect(!facility.workdir.empty(), "a facility has a folder");
    fuzz::expect(&experiment->facility(facility.name) == &facility, "facilities differ by name");
  }
  const std::string text = config::format_experiment(*experiment);
  const config::Experiment again = parse(text);
  fuzz::expect(again == *experiment, "a written experiment is read back", text);
  fuzz::expect(config::format_experiment(again) == text, "the text is a fixed point", text);
  fuzz::expect(
      config::format_training_identity(again) == config::format_training_identity(*experiment),
      "the identity stays", text);
  return 0;
}
