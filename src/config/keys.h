// The tables of fields (xffl/job/fields.h) of xffl.yaml, and their texts for messages and pages.
#pragma once

#include <span>
#include <string>

#include "xffl/config/experiment.h"
#include "xffl/job/fields.h"

namespace xffl::config {

using job::Field;
using job::FieldTable;
using job::Type;
using job::Value;

/// The whole file: its struct is Experiment.
const FieldTable& experiment_keys();
/// The keys of one facility: its struct is Facility.
const FieldTable& facility_keys();
/// The keys of the server step with these optimizers: its struct is Aggregation.
FieldTable aggregation_keys(std::span<const aggregate::ServerOptimizer> optimizers);

/// "an integer from 1 to 100": a key's valid values, for messages and the reference.
std::string expectation(const Field& key);

/// The text of a scalar key's value as in the file; empty without a value.
std::string value_text(const Field& key, const Value& value);

}  // namespace xffl::config
