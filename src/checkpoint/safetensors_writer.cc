// How it works: what is written is gathered in blocks, which a thread writes and another one hashes
// while the caller makes the next ones.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "safetensors_header.h"
#include "xffl/base/error.h"
#include "xffl/base/stage.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kBlockBytes = 1u << 19;
constexpr size_t kBlocksAhead = 2;  // in a stage: what disk and hash may lag behind the caller

}  // namespace

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::filesystem::path temp_path;
  UniqueFd fd;
  FileHash hash;
  uint64_t data_size = 0;
  uint64_t written = 0;
  Block block;  // not full yet
  // Last: their threads use what is above.
  Stage writing{kBlocksAhead, [this](const Block& each) {
                  write_at(fd.get(), each.offset, each.span(), temp_path);
                  start_write_back(fd.get(), each.offset, each.size);
                }};
  Stage hashing{kBlocksAhead, [this](const Block& each) { hash.update(each.span()); }};

  ~State() {
    if (fd) ::unlink(temp_path.c_str());
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (!block.bytes) block.bytes = std::make_shared_for_overwrite<std::byte[]>(kBlockBytes);
      const auto piece = bytes.first(std::min(kBlockBytes - block.size, bytes.size()));
      std::copy(piece.begin(), piece.end(), block.bytes.get() + block.size);
      block.size += piece.size();
      bytes = bytes.subspan(piece.size());
      if (block.size == kBlockBytes) pass_on();
    }
  }

  void pass_on() {
    writing.put(block);
    hashing.put(block);
    block = {block.offset + block.size, 0, nullptr};
  }

  void finish() {
    if (block.size > 0) pass_on();
    writing.finish();
    hashing.finish();
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
  state_->finish();
  if (::fsync(state_->fd.get()) != 0) {
    throw system_error("fsync " + state_->temp_path.string(), errno);
  }
  rename_durable(state_->temp_path, state_->path);
  state_->fd = UniqueFd();
  return state_->hash.finish(state_->path.filename().string());
}

}  // namespace xffl::checkpoint
