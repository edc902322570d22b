// A cheap name for a model's content, to order models by what they are and not by where they are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace xffl {

/// One key per (folder, weight), unique, such that the sequence of the inputs sorted by key is the
/// same whatever order they are given in.
///
/// Keys come from samples of the weights' files. Only models that the samples do not tell apart are
/// read whole; models that are equal then get numbers, and which gets which does not matter.
std::vector<std::string> content_order_keys(const std::vector<std::filesystem::path>& folders,
                                            const std::vector<double>& weights);

}  // namespace xffl
