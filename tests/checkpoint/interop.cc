// The C++ side of interop.py: one command per call.
//
//   interop write FILE      writes the tensors that interop.py expects
//   interop dump FILE       prints "name dtype shape sha256" of each tensor, and the metadata
//   interop config FOLDER   reads FOLDER/config.json and prints it in xffl's format
//   interop model FOLDER    prints "name dtype shape sha256" of each tensor of a model folder
//   interop split FROM TO   rewrites a model folder in files of at most 20,000 bytes
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "xffl/base/error.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/model_folder.h"

namespace xffl::checkpoint {
namespace {

void print_tensor(const TensorSpec& spec, std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  std::cout << spec.name << " " << to_string(spec.dtype) << " " << format_shape(spec.shape) << " "
            << hash.hex() << "\n";
}

void write_sample(const std::string& path) {
  std::vector<float> values(60);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37f - 11.0f;
  SafetensorsWriter writer(path,
                           {{"f32", Dtype::kF32, {3, 4, 5}},
                            {"scalar", Dtype::kF32, {}},
                            {"empty", Dtype::kF16, {0, 3}},
                            {"f16", Dtype::kF16, {60}},
                            {"bf16", Dtype::kBF16, {60}},
                            {"odd", Dtype::kU8, {3}},
                            {"i64", Dtype::kI64, {1}}},
                           {{"format", "pt"}, {"by", "xffl"}});
  const auto write_as = [&](std::span<const float> floats, Dtype dtype) {
    std::vector<std::byte> bytes(floats.size() * size_bytes(dtype));
    from_float(floats, dtype, bytes);
    writer.write(bytes);
  };
  write_as(values, Dtype::kF32);
  write_as(std::span(values).last(1), Dtype::kF32);
  write_as(values, Dtype::kF16);
  write_as(values, Dtype::kBF16);
  writer.write(std::vector<std::byte>{std::byte{1}, std::byte{2}, std::byte{255}});
  const int64_t integer = -5;
  writer.write(std::as_bytes(std::span(&integer, 1)));
  writer.finish();
}

void dump(const SafetensorsFile& file) {
  for (const TensorSpec& spec : file.tensors()) print_tensor(spec, file.data(spec.name));
  for (const auto& [key, value] : file.metadata()) std::cout << "# " << key << "=" << value << "\n";
}

void dump(const ModelFolder& model) {
  for (const TensorSpec& spec : model.tensors()) print_tensor(spec, model.data(spec.name));
}

void split(const std::string& from, const std::string& to) {
  const ModelFolder model(from);
  ModelWriter writer(to, model.tensors(), 20'000);
  for (const TensorSpec& spec : model.tensors()) writer.write(model.data(spec.name));
  writer.finish();
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "write" && arguments.size() == 2) {
    write_sample(arguments[1]);
  } else if (command == "dump" && arguments.size() == 2) {
    dump(SafetensorsFile(arguments[1]));
  } else if (command == "config" && arguments.size() == 2) {
    std::cout << format_llama_config(read_llama_config(arguments[1]));
  } else if (command == "model" && arguments.size() == 2) {
    dump(ModelFolder(arguments[1]));
  } else if (command == "split" && arguments.size() == 3) {
    split(arguments[1], arguments[2]);
  } else {
    std::cerr << "usage: interop write|dump|config|model|split PATH [TO]\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace xffl::checkpoint

int main(int argc, char** argv) {
  try {
    return xffl::checkpoint::run({argv + 1, argv + argc});
  } catch (const xffl::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
