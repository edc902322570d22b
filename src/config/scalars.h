// Scalars of xffl.yaml from and to text, stricter than YAML: one way to write each value.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace xffl::config {

/// Decimal digits, perhaps after '-'; no leading zero, no '+', '_' or other base.
std::optional<int64_t> parse_integer(std::string_view text);

/// An integer, decimal fraction or 8e-4; finite.
std::optional<double> parse_number(std::string_view text);

/// "true" or "false" only.
std::optional<bool> parse_boolean(std::string_view text);

/// "500ms", "30s", "5m", "24h", "7d", or a bare 0.
std::optional<std::chrono::milliseconds> parse_duration(std::string_view text);

/// Bytes: "512MB" (10^6), "1GiB" (2^30), "100B", or a bare 0.
std::optional<int64_t> parse_size(std::string_view text);

/// The correction of `text`, which is not an integer: "write 10 without the leading zero"; empty
/// without a correction.
std::string integer_hint(std::string_view text);

/// The shortest text that parse_number reads back to the same number.
std::string format_number(double value);

/// The value in the largest unit that divides it without a remainder.
std::string format_duration(std::chrono::milliseconds value);
std::string format_size(int64_t bytes);

}  // namespace xffl::config
