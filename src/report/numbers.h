// Numbers for users, with their units.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace xffl::report {

std::string loss_text(double nll);                             // "4.5321"
std::string perplexity_text(double nll);                       // "92.97", "2.3e+05"
std::string accuracy_text(double share);                       // "0.4123"; "" for 0, not measured
std::string duration_text(std::chrono::nanoseconds duration);  // "3 d 4 h", "12 min", "35 s"
std::string bytes_text(double bytes);                          // "13.5 GB"
std::string percent_text(double share);                        // "12.5 %"
std::string fixed(double value, int digits);                   // "1.25"
std::string scientific(double value);                          // "1.3e-03"

}  // namespace xffl::report
