// Sample folders, locally and at a facility, and their contents.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "support/fake_session.h"
#include "support/faulty_session.h"
#include "support/temp_dir.h"
#include "support/thrown.h"
#include "xffl/base/error.h"
#include "xffl/base/file.h"
#include "xffl/base/sha256.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/transfer/transfer.h"

namespace xffl::transfer {

namespace fs = std::filesystem;
using test::error_of;
using Files = std::map<std::string, std::string>;

/// Pseudo-random bytes, so that a wrong offset changes the content.
inline std::string noise(size_t size, uint64_t seed) {
  std::string text(size, '\0');
  uint64_t state = seed * 2654435761u + 1;
  for (char& c : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

/// A file of more than two blocks, a small file and an empty file.
inline Files sample_files() {
  return {{"config.json", "{}\n"}, {"empty", ""}, {"model.safetensors", noise(9'000'001, 7)}};
}

inline checkpoint::Manifest manifest_of(const Files& files,
                                        uint64_t chunk_bytes = checkpoint::kChunkBytes) {
  checkpoint::Manifest manifest{{}, chunk_bytes};
  for (const auto& [name, bytes] : files) {
    checkpoint::FileHash hash(chunk_bytes);
    hash.update(std::as_bytes(std::span(bytes)));
    manifest.files.push_back(hash.finish(name));
  }
  return manifest;
}

inline uint64_t total(const Files& files) { return manifest_of(files).total_bytes(); }

/// Creates a complete folder at the facility.
inline void put_remote(test::FakeSession& facility, const std::string& folder, const Files& files,
                       uint64_t chunk_bytes = checkpoint::kChunkBytes) {
  for (const auto& [name, bytes] : files) facility.put(folder + "/" + name, bytes);
  facility.put(folder + "/manifest.json",
               checkpoint::format_manifest(manifest_of(files, chunk_bytes)));
}

inline void put_local(const fs::path& folder, const Files& files) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : files) write_file_atomic(folder / name, bytes);
}

inline Files local_files(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::directory_iterator(folder))
    files[entry.path().filename().string()] = read_file(entry.path(), 1u << 30);
  return files;
}

inline Files remote_files(test::FakeSession& facility, const std::string& folder) {
  Files files;
  for (const std::string& name : facility.list(RemotePath(folder)))
    files[name] = facility.content(folder + "/" + name);
  return files;
}

inline Files with_manifest(Files files, uint64_t chunk_bytes = checkpoint::kChunkBytes) {
  const std::string manifest = checkpoint::format_manifest(manifest_of(files, chunk_bytes));
  files["manifest.json"] = manifest;
  return files;
}

}  // namespace xffl::transfer
