#include "safetensors_header.h"
#include "xffl/base/error.h"
#include "xffl/base/log.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::checkpoint {

int64_t TensorSpec::num_elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) {
      throw Error(ErrorKind::kRejected,
                  "tensor '" + name + "': shape " + format_shape(shape) + " overflows 63 bits");
    }
  }
  return product;
}

uint64_t TensorSpec::num_bytes() const {
  uint64_t product = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(num_elements()), size_bytes(dtype), &product)) {
    throw Error(ErrorKind::kRejected,
                "tensor '" + name + "': shape " + format_shape(shape) + " overflows 64 bits");
  }
  return product;
}

std::string format_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  Header header = parse_header(file_.bytes(), path.string());
  data_begin_ = header.data_begin;
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (TensorEntry& entry : header.tensors) {
    entries_.emplace(entry.spec.name, Entry{tensors_.size(), entry.begin});
    tensors_.push_back(std::move(entry.spec));
  }
}

bool SafetensorsFile::contains(std::string_view name) const { return entries_.contains(name); }

const TensorSpec& SafetensorsFile::spec(std::string_view name) const {
  return tensors_[find(name).index];
}

std::span<const std::byte> SafetensorsFile::data(std::string_view name) const {
  const Entry& entry = find(name);
  return file_.bytes().subspan(data_begin_ + entry.begin, tensors_[entry.index].num_bytes());
}

const SafetensorsFile::Entry& SafetensorsFile::find(std::string_view name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    throw Error(ErrorKind::kNotFound,
                path().string() + ": no tensor '" + log::printable(name, 200) + "'");
  }
  return it->second;
}

}  // namespace xffl::checkpoint
