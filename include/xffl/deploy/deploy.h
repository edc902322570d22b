// Puts a bundle of scripts/package.sh, the facility's programs and their libraries, into place at a
// facility.
//
//   WORKDIR/xffl.programs/
//     xffl-trainer-0.1.0-x86_64-cpu-1a2b3c4d/   the bundle, unpacked and verified
//     current -> xffl-trainer-...               the newest bundle that has started
//     .staging/                                 an archive on its way
//
// A deployment checks the host first, then sends the archive with the resumption of a push, unpacks
// it beside its final place, compares each file with the bundle's MANIFEST, starts xffl-train, and
// moves the link `current` last. After an interruption at any point the next deployment continues;
// a job that runs keeps its files. Projects with the same work folder share the programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "xffl/base/names.h"
#include "xffl/remote/session.h"
#include "xffl/transfer/transfer.h"

namespace xffl::deploy {

/// The oldest glibc with which a bundle starts.
inline constexpr std::string_view kOldestGlibc = "2.28";

// An archive "xffl-trainer-<version>-<arch>-<flavour>-<hash>.tar.gz" on this machine.
struct Bundle {
  std::filesystem::path archive;
  std::string name;  // without ".tar.gz"
  std::string version, arch, flavour;
  std::string manifest_hash;  // the first 8 digits of the SHA-256 of its MANIFEST
  uint64_t archive_bytes = 0, unpacked_bytes = 0;
};
/// Reads the parts from the file's name, and the unpacked size from the archive's last bytes.
/// Throws kNotFound, kUsage (expected form, found), kIo.
Bundle read_bundle(const std::filesystem::path& archive);

// What a host says of itself; empty: it did not say.
struct Host {
  std::string machine;                 // "x86_64"
  std::string glibc;                   // "2.28"
  std::optional<uint64_t> free_kib;    // of the folder's file system
  std::optional<uint64_t> free_files;  // likewise
  bool starts_programs = true;         // false: mounted with noexec
  std::string missing;                 // programs that the deployment needs, by spaces
};
/// Asks the host of `session`; creates `folder`. Throws kRemote, kIo.
Host ask_host(remote::Session& session, const RemotePath& folder);
/// The reasons why the bundle cannot work there, each with its remedy; empty: none is known.
std::vector<std::string> problems(const Bundle& bundle, const Host& host, const RemotePath& folder);

struct Deployed {
  RemotePath program;      // WORKDIR/xffl.programs/current/bin/xffl-train, for xffl.yaml
  std::string started;     // the first line of `xffl-train --version`
  bool was_there = false;  // unpacked and intact before this deployment
  uint64_t moved_bytes = 0;
};
/// Deploys into `workdir`/xffl.programs. Throws kUnsupported with all problems of the host before
/// it sends a byte; kCorrupt when an unpacked file differs from MANIFEST; kFailed when xffl-train
/// does not start; kRemote, kIo, kCancelled. After an error `current` is unchanged.
Deployed deploy(const transfer::Endpoint& facility, const Bundle& bundle, const RemotePath& workdir,
                std::stop_token stop, const transfer::OnProgress& on_progress = {});

/// The unpacked bundles in `workdir`/xffl.programs, sorted; none when the folder does not exist.
std::vector<std::string> deployed(remote::Session& session, const RemotePath& workdir);
/// Removes `workdir`/xffl.programs with all bundles. Throws kRemote, kIo, kCancelled.
void remove(remote::Session& session, const RemotePath& workdir, std::stop_token stop);

}  // namespace xffl::deploy
