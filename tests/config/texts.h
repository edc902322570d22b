// Helpers of the tests of configuration texts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "xffl/base/error.h"
#include "xffl/config/load.h"

namespace xffl::config {

inline Experiment parse(const std::string& yaml) {
  return parse_experiment(yaml, "xffl.yaml", "/project");
}

/// All problems, one per line; "" when there is none.
inline std::string problems(const std::string& yaml) {
  try {
    parse(yaml);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
}

/// `yaml` with its first `from` replaced.
inline std::string with(std::string yaml, const std::string& from, const std::string& to) {
  const size_t at = yaml.find(from);
  if (at == std::string::npos) throw std::logic_error("the text does not hold " + from);
  return yaml.replace(at, from.size(), to);
}

/// A change to a text, and the expected message.
struct Wrong {
  const char* from;
  const char* to;
  const char* message;
};

}  // namespace xffl::config
