// Lies in the manifest and in the files of an update. Except where a hash is the lie, the report
// and the manifest agree with the files.
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "hostile/cases.h"
#include "xffl/base/file.h"
#include "xffl/base/json.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/checkpoint/safetensors.h"

namespace xffl::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;

fs::path update_of(const fs::path& attempt) { return attempt / "out/update"; }
fs::path manifest_of(const fs::path& attempt) { return update_of(attempt) / "manifest.json"; }
fs::path model_of(const fs::path& attempt) { return update_of(attempt) / "model.safetensors"; }

void overwrite(const fs::path& file, const std::string& bytes) {
  fs::remove_all(file);
  std::ofstream(file, std::ios::binary) << bytes;
}

void set_reported_hash(const fs::path& attempt, const std::string& root) {
  Json report = parse_json(read_file(attempt / "out/report.json", 1 << 20), "report.json");
  report["update_sha256"] = root;
  write_file_atomic(attempt / "out/report.json", report.dump() + "\n");
}

// Makes manifest and report agree with the files.
void agree(const fs::path& attempt) {
  fs::remove(manifest_of(attempt));
  checkpoint::write_manifest(update_of(attempt));
  set_reported_hash(attempt, checkpoint::read_manifest(update_of(attempt)).root_sha256());
}

// A safetensors file: header and data.
struct Tensors {
  std::string header, data;
};
Tensors read_tensors(const fs::path& file) {
  const std::string bytes = read_file(file, 64u << 20);
  uint64_t size = 0;
  for (size_t i = 8; i-- > 0;) size = size << 8 | static_cast<uint8_t>(bytes[i]);
  return {bytes.substr(8, size), bytes.substr(8 + size)};
}
std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}
std::string file_of(const Tensors& tensors) {
  return length_bytes(tensors.header.size()) + tensors.header + tensors.data;
}

}  // namespace

std::vector<Case> update_cases() {
  std::vector<Case> cases;
  using Tamper = std::function<void(const fs::path&)>;
  const auto add = [&](const char* place, const char* fault, Outcome outcome,
                       const std::string& shown, const Tamper& tamper) {
    cases.push_back({place, fault, Access::kShell, outcome, shown,
                     [tamper](Front& front) { front.on_report(tamper); }});
  };
  const auto manifest_text = [&](const char* fault, const std::string& shown,
                                 const std::string& text) {
    add("Manifest", fault, Outcome::kRejected, shown,
        [text](const fs::path& attempt) { overwrite(manifest_of(attempt), text); });
  };
  manifest_text("IsEmpty", "manifest.json", "");
  manifest_text("IsNoJson", "manifest.json", kEscapes);
  manifest_text("IsNested", "manifest.json", std::string(1u << 20, '['));
  manifest_text("IsTooLarge", "larger than", std::string(5u << 20, ' '));
  manifest_text("HasNoFiles", "manifest.json", "{\"version\": 1}");
  manifest_text("HasFilesAsText", "files", "{\"version\": 1, \"files\": \"all\"}");
  manifest_text("HasAnUnknownVersion", "version", "{\"version\": 99, \"files\": []}");
  const auto entries = [&](const char* fault, const std::string& shown,
                           const std::function<void(Json & files)>& change) {
    add("Manifest", fault, Outcome::kRejected, shown, [change](const fs::path& attempt) {
      Json manifest = parse_json(read_file(manifest_of(attempt), 4u << 20), "manifest.json");
      change(manifest["files"]);
      // The root hash as the coordinator computes it: the lie is in the entries alone.
      Manifest lie;
      for (const Json& file : manifest["files"])
        if (file.contains("size_bytes") && file["size_bytes"].is_number_integer() &&
            file["size_bytes"] >= 0 && file.contains("sha256") && file["sha256"].is_string())
          lie.files.push_back({file["name"].get<std::string>(), file["size_bytes"].get<uint64_t>(),
                               file["sha256"].get<std::string>()});
      overwrite(manifest_of(attempt), manifest.dump());
      set_reported_hash(attempt, lie.root_sha256());
    });
  };
  const Json extra = {{"name", "zz"}, {"size_bytes", 3}, {"sha256", std::string(64, 'a')}};
  const auto named = [&](const char* fault, const std::string& name) {
    entries(fault, "manifest.json", [=](Json& files) {
      Json entry = extra;
      entry["name"] = name;
      files.push_back(entry);
    });
  };
  named("NamesAParent", "../../escape");
  named("NamesAnAbsolutePath", "/tmp/xffl-escape");
  named("NamesASubfolder", "zz/file");
  named("NamesItself", "manifest.json");
  named("NamesAHiddenFile", ".bashrc");
  named("NamesTheParentFolder", "..");
  named("NamesAnEmptyFile", "");
  named("NamesAFileWithZero", std::string("zz\0x", 4));
  named("NamesAFileWithEscapes", "zz\x1b[31m");
  named("NamesAFileWithANewline", "zz\nyy");
  named("NamesADrive", "zz:\\x");
  named("NamesAVeryLongFile", "z" + std::string(4000, 'z'));
  entries("NamesAFileTwice", "sorted and unique",
          [](Json& files) { files.push_back(files.back()); });
  entries("IsUnsorted", "sorted and unique", [](Json& files) { std::swap(files[0], files[1]); });
  entries("HasANegativeSize", "size_bytes",
          [=](Json& files) { files.push_back(extra), files.back()["size_bytes"] = -1; });
  entries("HasASizeAsText", "size_bytes",
          [=](Json& files) { files.push_back(extra), files.back()["size_bytes"] = "3"; });
  entries("HasAHugeFile", "the limit is", [=](Json& files) {
    files.push_back(extra), files.back()["size_bytes"] = uint64_t(1) << 37;
  });
  entries("HasAnOverflowingSize", "size_bytes",
          [=](Json& files) { files.push_back(extra), files.back()["size_bytes"] = ~uint64_t(0); });
  entries("HasAHashThatIsNone", "sha256",
          [=](Json& files) { files.push_back(extra), files.back()["sha256"] = "none"; });
  entries("HasAnUnknownKey", "manifest.json",
          [=](Json& files) { files.push_back(extra), files.back()["mode"] = 511; });
  entries("HasThousandsOfFiles", "files", [=](Json& files) {
    for (int i = 0; i < 15'000; ++i) {
      files.push_back(extra);
      files.back()["name"] = "zz" + std::to_string(100'000 + i);
    }
  });
  entries("ListsAMissingFile", "zz", [=](Json& files) { files.push_back(extra); });
  entries("ListsNothing", "", [](Json& files) { files = Json::array(); });
  entries("LeavesTheModelOut", "", [](Json& files) { files.erase(1); });
  const auto place = [&](const char* where, const char* fault, const std::string& shown,
                         const std::function<void(const fs::path& file)>& change) {
    const bool is_manifest = std::string(where) == "Manifest";
    add(where, fault, Outcome::kRejected, shown, [=](const fs::path& attempt) {
      const fs::path file = is_manifest ? manifest_of(attempt) : model_of(attempt);
      fs::rename(file, attempt / "hidden");
      change(file);
    });
  };
  for (const char* where : {"Manifest", "Model"}) {
    place(where, "IsALink", "regular file", [](const fs::path& file) {
      fs::create_symlink(file.parent_path().parent_path().parent_path() / "hidden", file);
    });
    place(where, "IsALinkToADevice", "regular file",
          [](const fs::path& file) { fs::create_symlink("/dev/zero", file); });
    place(where, "IsAFifo", "regular file",
          [](const fs::path& file) { ::mkfifo(file.c_str(), 0600); });
    place(where, "IsAFolder", "regular file",
          [](const fs::path& file) { fs::create_directory(file); });
    place(where, "IsMissing", "", [](const fs::path&) {});
  }

  // Files of the wrong bytes under honest hashes.
  const auto bytes = [&](const char* fault, const std::string& shown,
                         const std::function<std::string(std::string)>& change) {
    add("Model", fault, Outcome::kRejected, shown, [change](const fs::path& attempt) {
      overwrite(model_of(attempt), change(read_file(model_of(attempt), 64u << 20)));
    });
  };
  bytes("HasAFlippedBit", "differs", [](std::string all) {
    all.back() = static_cast<char>(all.back() ^ 1);
    return all;
  });
  bytes("IsTooShort", "bytes", [](std::string all) { return all.substr(0, all.size() - 1); });
  bytes("IsTooLong", "bytes", [](std::string all) { return all + "x"; });
  bytes("IsEmpty", "bytes", [](std::string) { return std::string(); });
  add("Model", "IsASparseTerabyte", Outcome::kRejected, "bytes",
      [](const fs::path& attempt) { fs::resize_file(model_of(attempt), 1ull << 40); });
  add("Config", "HasAFlippedBit", Outcome::kRejected, "config.json", [](const fs::path& attempt) {
    std::string text = read_file(update_of(attempt) / "config.json", 1 << 20);
    text[5] = static_cast<char>(text[5] ^ 1);
    overwrite(update_of(attempt) / "config.json", text);
  });
  add("Model", "IsTheOneOfAnotherRound", Outcome::kEither, "", [](const fs::path& attempt) {
    // In round 2 the update of round 1, with its manifest.
    const fs::path earlier = attempt.parent_path().parent_path() / "r0001/a1";
    if (earlier == attempt || !fs::exists(update_of(earlier))) return;
    fs::remove_all(update_of(attempt));
    fs::copy(update_of(earlier), update_of(attempt), fs::copy_options::recursive);
  });

  // Tensors that lie, under hashes that agree.
  const auto tensors = [&](const char* fault, const std::string& shown,
                           const std::function<void(Tensors&)>& change,
                           Outcome outcome = Outcome::kRejected) {
    add("Tensors", fault, outcome, shown, [change](const fs::path& attempt) {
      Tensors all = read_tensors(model_of(attempt));
      change(all);
      overwrite(model_of(attempt), file_of(all));
      agree(attempt);
    });
  };
  const auto header = [&](const char* fault, const std::string& shown,
                          const std::function<void(Json&)>& change) {
    tensors(fault, shown, [change](Tensors& all) {
      Json parsed = parse_json(all.header, "header");
      change(parsed);
      all.header = parsed.dump();
    });
  };
  const std::string norm = "model.norm.weight";
  const auto fill = [](Tensors& all, uint16_t value) {
    for (size_t i = 0; i + 1 < all.data.size(); i += 2) {
      all.data[i] = static_cast<char>(value);
      all.data[i + 1] = static_cast<char>(value >> 8);
    }
  };
  tensors("HaveNan", "model.", [](Tensors& all) {
    all.data[all.data.size() - 2] = '\xc0';
    all.data[all.data.size() - 1] = '\x7f';
  });
  tensors("HaveInfinity", "model.", [](Tensors& all) {
    all.data[all.data.size() - 2] = '\x80';
    all.data[all.data.size() - 1] = '\x7f';
  });
  tensors("AreAllZero", "zero", [=](Tensors& all) { fill(all, 0); });
  tensors("AreHuge", "max_change", [=](Tensors& all) { fill(all, 0x7f00); });
  header("HaveNoHeader", "", [](Json& all) { all = Json::object(); });
  header("HaveAnUnknownType", "",
         [=](Json& all) { all[norm]["dtype"] = "Q4" + std::string("\x1b[31m"); });
  header("HaveAnIntegerType", "", [=](Json& all) { all[norm]["dtype"] = "I16"; });
  header("HaveAnotherShape", "", [=](Json& all) { all[norm]["shape"] = {2, 4}; });
  header("HaveANegativeShape", "", [=](Json& all) { all[norm]["shape"] = {-8}; });
  header("HaveAnOverflowingShape", "", [=](Json& all) {
    all[norm]["shape"] = {int64_t(1) << 62, int64_t(1) << 62, 8};
  });
  header("HaveAShapeOfManyAxes", "",
         [=](Json& all) { all[norm]["shape"] = std::vector<int>(5000, 1); });
  header("MissATensor", "", [=](Json& all) { all.erase(norm); });
  header("HaveAnotherName", "", [=](Json& all) {
    const Json tensor = all[norm];
    all.erase(norm);
    all["model.norm.Weight"] = tensor;
  });
  header("HaveANameWithEscapes", "", [=](Json& all) {
    const Json tensor = all[norm];
    all.erase(norm);
    all["\x1b[31m\x1b]0;x\a"] = tensor;
  });
  header("Overlap", "", [=](Json& all) { all[norm]["data_offsets"] = {0, 16}; });
  header("AreOutOfRange", "", [=](Json& all) {
    all[norm]["data_offsets"] = {uint64_t(1) << 40, (uint64_t(1) << 40) + 16};
  });
  header("EndBeforeTheyBegin", "", [=](Json& all) { all[norm]["data_offsets"] = {16, 0}; });
  header("HaveNoOffsets", "", [=](Json& all) { all[norm].erase("data_offsets"); });
  header("HaveAnUnknownKey", "", [=](Json& all) { all[norm]["device"] = "cuda"; });
  header("HaveMetadataThatNests", "", [](Json& all) {
    all["__metadata__"] = {{"format", {{"deep", {1, 2}}}}};
  });
  header("AreTooMany", "", [](Json& all) {
    for (int i = 0; i < 30'000; ++i)
      all["t" + std::to_string(i)] = {{"dtype", "BF16"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  });
  tensors("HaveATensorTwice", "", [=](Tensors& all) {
    const Json parsed = parse_json(all.header, "header");
    all.header = "{\"" + norm + "\": " + parsed[norm].dump() + ", " + all.header.substr(1);
  });
  tensors("HaveAGap", "", [](Tensors& all) { all.data.insert(0, 16, '\0'); });
  tensors("HaveMoreDataThanTensors", "", [](Tensors& all) { all.data += std::string(64, '\0'); });
  tensors("HaveLessDataThanTensors", "",
          [](Tensors& all) { all.data.resize(all.data.size() - 2); });
  tensors("HaveAHeaderThatNests", "", [](Tensors& all) { all.header = std::string(500'000, '['); });
  tensors(
      "HaveAHugeHeader", "",
      [](Tensors& all) {
        all.header.pop_back();
        all.header += std::string(4'000'000, ' ') + "}";
      },
      Outcome::kEither);
  const auto file = [&](const char* fault, const std::string& shown, const std::string& text) {
    add("Tensors", fault, Outcome::kRejected, shown, [text](const fs::path& attempt) {
      overwrite(model_of(attempt), text);
      agree(attempt);
    });
  };
  file("HaveAHeaderBeyondTheFile", "", length_bytes(1 << 20) + "{}");
  file("HaveAHeaderBeyondAllFiles", "", length_bytes(~uint64_t(0)) + "{}");
  file("AreAPickle", "", "\x80\x02}q\x01(X\x01");
  file("AreAnArchive", "", std::string("PK\x03\x04", 4) + std::string(200, '\0'));
  file("AreAScript", "", "#!/bin/sh\ntouch victim\n");
  const auto beside = [&](const char* fault, const std::string& shown, const std::string& name,
                          const std::string& text, Outcome outcome) {
    add("Update", fault, outcome, shown, [name, text](const fs::path& attempt) {
      overwrite(update_of(attempt) / name, text);
      agree(attempt);
    });
  };
  beside("HasAPickleBeside", "", "pytorch_model.bin", "\x80\x02}q\x01.", Outcome::kEither);
  beside("HasAnIndexBeside", "", "model.safetensors.index.json",
         "{\"weight_map\": {\"model.norm.weight\": \"../../victim\"}}", Outcome::kEither);
  beside("HasALargeFileBeside", "the limit is", "zz.bin", std::string(70u << 20, 'x'),
         Outcome::kRejected);
  beside("HasAnotherConfig", "", "config.json", "{\"architectures\": [\"\x1b[31m\"]}",
         Outcome::kEither);
  beside("HasAnEmptyFileBeside", "", "zz", "", Outcome::kEither);
  add("Update", "IsALinkToAFolder", Outcome::kEither, "", [](const fs::path& attempt) {
    fs::rename(update_of(attempt), attempt / "elsewhere");
    fs::create_directory_symlink(attempt / "elsewhere", update_of(attempt));
  });
  add("Update", "IsMissing", Outcome::kRejected, "",
      [](const fs::path& attempt) { fs::remove_all(update_of(attempt)); });
  add("Update", "IsUnreadable", Outcome::kEither, "",
      [](const fs::path& attempt) { fs::permissions(update_of(attempt), fs::perms::none); });
  return cases;
}

}  // namespace xffl::test
