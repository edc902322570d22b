// How it works: the caller fills blocks; one thread writes them and another thread hashes them
// while the caller fills the next blocks. A slow hash blocks neither the caller nor the writing.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "safetensors_header.h"
#include "trailing_hash.h"
#include "xffl/base/block_worker.h"
#include "xffl/base/error.h"

namespace xffl::checkpoint {
namespace {

constexpr size_t kBlockBytes = 1u << 19;
constexpr size_t kBlocksAhead = 2;  // blocks waiting for the disk

}  // namespace

struct SafetensorsWriter::State {
  std::filesystem::path path;
  std::filesystem::path temp_path;
  UniqueFd fd;
  uint64_t data_size = 0;
  uint64_t written = 0;
  BlockPool pool{kBlockBytes};
  Block block;  // not full yet
  // Declared last: their threads use the members above.
  std::optional<TrailingHash> hash;
  std::optional<BlockWorker> writing;

  void open() {
    fd = open_file(temp_path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW);
    hash.emplace(fd.get(), temp_path);
    writing.emplace(kBlocksAhead, [this](const Block& each) {
      write_at(fd.get(), each.offset, each.span(), temp_path);
      start_write_back(fd.get(), each.offset, each.size);
      hash->written(each.offset + each.size);
    });
  }

  ~State() {
    writing.reset();
    hash.reset();
    if (fd) ::unlink(temp_path.c_str());
  }

  // The free bytes of the current block, at least `width`.
  std::span<std::byte> space(size_t width) {
    if (block.bytes && kBlockBytes - block.size < width) submit_block();
    if (!block.bytes) block.bytes = pool.take();
    return {block.bytes.get() + block.size, kBlockBytes - block.size};
  }

  void append(uint64_t size, size_t width, const MakeBytes& make) {
    for (uint64_t offset = 0; offset < size;) {
      const std::span<std::byte> to = space(width);
      const size_t count = std::min<uint64_t>(to.size() / width * width, size - offset);
      make(offset, to.first(count));
      block.size += count;
      offset += count;
    }
  }

  void append(std::span<const std::byte> bytes) {
    append(bytes.size(), 1, [&](uint64_t offset, std::span<std::byte> to) {
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    });
  }

  void submit_block() {
    hash->put(block);
    writing->put(block);
    block = {block.offset + block.size, 0, nullptr};
  }

  ManifestFile finish() {
    if (block.size > 0) submit_block();
    writing->finish();
    if (::fsync(fd.get()) != 0) throw system_error("fsync " + temp_path.string(), errno);
    ManifestFile file = hash->finish(block.offset, path.filename().string());
    rename_durable(temp_path, path);
    fd = UniqueFd();
    return file;
  }

  void check_space(uint64_t size) const {
    if (size <= data_size - written) return;
    throw Error(ErrorKind::kInternal,
                "writing " + path.string() + ": expected " + std::to_string(data_size) +
                    " bytes of data, got at least " + std::to_string(written + size));
  }
};

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>()) {
  const std::string header = format_header(tensors, metadata, path.string());
  for (const TensorSpec& spec : tensors) state_->data_size += spec.num_bytes();
  state_->temp_path = path.string() + ".tmp";
  state_->path = std::move(path);
  state_->open();
  state_->append(std::as_bytes(std::span(header)));
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  state_->check_space(bytes.size());
  state_->append(bytes);
  state_->written += bytes.size();
}

void SafetensorsWriter::write(uint64_t size, size_t width, const MakeBytes& make) {
  state_->check_space(size);
  state_->append(size, width, make);
  state_->written += size;
}

ManifestFile SafetensorsWriter::finish() {
  if (state_->written != state_->data_size) {
    throw Error(ErrorKind::kInternal, "writing " + state_->path.string() + ": expected " +
                                          std::to_string(state_->data_size) +
                                          " bytes of data, got " + std::to_string(state_->written));
  }
  return state_->finish();
}

}  // namespace xffl::checkpoint
