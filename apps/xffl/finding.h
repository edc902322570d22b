// What `xffl doctor` found, and what to do about it.
#pragma once

#include <string>

namespace xffl {

struct Finding {
  enum class Grade { kGood, kWarning, kBad };
  Grade grade = Grade::kGood;
  std::string what;  // "certificate"
  std::string said;  // what was found
  std::string fix;   // what to do; empty when good
};

}  // namespace xffl
