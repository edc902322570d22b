#include "xffl/config/experiment.h"

#include "xffl/base/error.h"

namespace xffl::config {

const Facility& Experiment::facility(const FacilityName& name) const {
  std::string known;
  for (const Facility& facility : facilities) {
    if (facility.name == name) return facility;
    known += (known.empty() ? "" : ", ") + facility.name.str();
  }
  throw Error(ErrorKind::kNotFound, "the project '" + project.str() + "' has no facility '" +
                                        name.str() + "'; there are: " + known);
}

}  // namespace xffl::config
