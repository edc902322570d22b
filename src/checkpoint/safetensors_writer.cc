#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "safetensors_header.h"
#include "xffl/base/error.h"

namespace xffl::checkpoint {

// Small pieces (norms, biases) are gathered before they go to the system.
constexpr size_t kBufferBytes = 1u << 18;

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::filesystem::path temp_path;
  UniqueFd fd;
  FileHash hash;
  std::vector<std::byte> buffer;
  uint64_t data_size = 0;
  uint64_t written = 0;

  ~State() {
    if (fd) ::unlink(temp_path.c_str());
  }

  void append(std::span<const std::byte> bytes) {
    hash.update(bytes);
    if (buffer.size() + bytes.size() <= kBufferBytes) {
      buffer.insert(buffer.end(), bytes.begin(), bytes.end());
      return;
    }
    flush();
    if (bytes.size() < kBufferBytes) {
      buffer.assign(bytes.begin(), bytes.end());
    } else {
      write_all(fd.get(), bytes, temp_path);
    }
  }

  void flush() {
    write_all(fd.get(), buffer, temp_path);
    buffer.clear();
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>()) {
  const std::string header = format_header(tensors, metadata, path.string());
  for (const TensorSpec& spec : tensors) state_->data_size += spec.num_bytes();
  state_->temp_path = path.string() + ".tmp";
  state_->path = std::move(path);
  state_->fd = open_file(state_->temp_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  state_->buffer.reserve(kBufferBytes);
  state_->append(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > state_->data_size - state_->written) {
    throw Error(ErrorKind::kInternal, "writing " + state_->path.string() + ": expected " +
                                          std::to_string(state_->data_size) +
                                          " bytes of data, got at least " +
                                          std::to_string(state_->written + bytes.size()));
  }
  state_->append(bytes);
  state_->written += bytes.size();
}

ManifestFile SafetensorsWriter::finish() {
  if (state_->written != state_->data_size) {
    throw Error(ErrorKind::kInternal, "writing " + state_->path.string() + ": expected " +
                                          std::to_string(state_->data_size) +
                                          " bytes of data, got " + std::to_string(state_->written));
  }
  state_->flush();
  if (::fsync(state_->fd.get()) != 0) {
    throw system_error("fsync " + state_->temp_path.string(), errno);
  }
  rename_durable(state_->temp_path, state_->path);
  state_->fd = UniqueFd();
  return state_->hash.finish(state_->path.filename().string());
}

}  // namespace xffl::checkpoint
