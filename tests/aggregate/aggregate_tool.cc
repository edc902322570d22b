// aggregate_tool average DTYPE OUT THREADS SHARD_BYTES (FOLDER WEIGHT)...
// aggregate_tool step|verified_step MASTER weights|deltas DTYPE OUT_MASTER OUT_MODEL (FOLDER
// WEIGHT)... Order keys are the folders' names. Prints seconds and the largest resident set in KiB.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/unchecked_writer.h"
#include "xffl/aggregate/aggregate.h"
#include "xffl/base/error.h"

namespace {

using xffl::aggregate::Input;

std::vector<Input> inputs_from(const std::vector<std::string>& arguments, size_t begin) {
  std::vector<Input> inputs;
  for (size_t i = begin; i + 1 < arguments.size(); i += 2)
    inputs.push_back({arguments[i], std::strtod(arguments[i + 1].c_str(), nullptr), arguments[i]});
  return inputs;
}

xffl::checkpoint::Dtype dtype_from(const std::string& name) {
  return xffl::checkpoint::parse_dtype(name).value();
}

xffl::checkpoint::Hashes hashes_of(const std::filesystem::path& folder) {
  const auto known = xffl::checkpoint::read_block_hashes(folder);
  if (known) return std::make_shared<const xffl::checkpoint::Manifest>(*known);
  return xffl::checkpoint::rehash(folder, xffl::checkpoint::make_manifest(folder).root_sha256(),
                                  xffl::test::write_unchecked);
}

// Returns the start of the step itself.
std::chrono::steady_clock::time_point run(const std::vector<std::string>& arguments) {
  auto begin = std::chrono::steady_clock::now();
  if (arguments.at(0) == "average") {
    xffl::aggregate::average_weights(inputs_from(arguments, 5), dtype_from(arguments.at(1)),
                                     arguments.at(2),
                                     {.num_threads = std::atoi(arguments.at(3).c_str()),
                                      .max_shard_bytes = std::stoull(arguments.at(4))});
  } else {
    std::vector<Input> inputs = inputs_from(arguments, 6);
    xffl::aggregate::Options options;
    if (arguments.at(0) == "verified_step") {
      options.hashes = hashes_of(arguments.at(1));
      for (Input& input : inputs) input.hashes = hashes_of(input.folder);
    }
    begin = std::chrono::steady_clock::now();
    xffl::aggregate::server_step(arguments.at(1), inputs, arguments.at(2) == "deltas",
                                 dtype_from(arguments.at(3)), arguments.at(4), arguments.at(5),
                                 options);
  }
  return begin;
}

}  // namespace

int main(int argc, char** argv) {
  std::chrono::steady_clock::time_point begin;
  try {
    begin = run({argv + 1, argv + argc});
  } catch (const xffl::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return xffl::exit_code(error.kind());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%.4f %ld\n", seconds.count(), usage.ru_maxrss);
  return 0;
}
