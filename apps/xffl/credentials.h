// Certificates of a run's facilities that expire soon.
#pragma once

#include <map>

#include "xffl/config/experiment.h"
#include "xffl/status/status.h"

namespace xffl {

/// The certificates that have expired or expire within two hours. Reads files and the agent, not
/// the network; a certificate that cannot be read is absent.
std::map<FacilityName, status::EndingCredential> ending_credentials(
    const config::Experiment& experiment);

}  // namespace xffl
