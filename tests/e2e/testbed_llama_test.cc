// xffl-train at real facilities with two ranks on two nodes has the model of two local ranks.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "e2e/testbed_project.h"
#include "xffl/base/file.h"
#include "xffl/checkpoint/llama_config.h"
#include "xffl/checkpoint/manifest.h"
#include "xffl/history/store.h"
#include "xffl/tokens/token_shard.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;

constexpr int kVocabulary = 128;

void write_tokens(const fs::path& path, unsigned seed) {
  tokens::TokenShardWriter writer(path, kVocabulary, 32, true);
  std::mt19937 random(seed);
  for (int document = 0; document < 200; ++document) {
    std::vector<int32_t> ids(20 + random() % 60);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (kVocabulary / (1 + seed)));
    writer.add_document(ids);
  }
  writer.finish();
  fs::permissions(path, fs::perms::owner_all | fs::perms::others_read);
}

// Writes a tiny LLaMA and xffl.yaml; `data` is the path of a facility's data at the facility.
class Lab {
 public:
  Lab() {
    checkpoint::LlamaConfig config;
    config.vocab_size = kVocabulary;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 4;
    config.head_dim = 8;
    config.max_position_embeddings = 64;
    write_file_atomic(path() / "config.json", checkpoint::format_llama_config(config));
    must({XFFL_BINARY_DIR "/bin/xffl-train", "init", "--config", path() / "config.json", "--output",
          path() / "model"});
  }
  fs::path path() const { return dir_.path(); }

  std::string federate(const std::map<std::string, std::pair<std::string, std::string>>& places) {
    std::ostringstream yaml;
    yaml << "project: lab\nmodel: model\nrounds: 3\ntraining: {steps_per_round: 3, batch_size: 4, "
            "micro_batch_size: 2, learning_rate: 0.001, precision: fp32}\n"
            "policy: {poll_interval: 200ms}\nfacilities:\n";
    for (const auto& [name, place] : places)
      yaml << "  " << name << ":\n"
           << place.first << "    trainer: {command: ['" << XFFL_BINARY_DIR
           << "/bin/xffl-train', --threads, '1']}\n    data: {train: ['" << place.second << "']}\n";
    write_file_atomic(path() / "xffl.yaml", yaml.str());
    must({XFFL_BINARY_DIR "/bin/xffl", "run", "--new", "-p", path()});
    const std::string run = (++runs_, "000" + std::to_string(runs_));
    return checkpoint::make_manifest(fs::canonical(path() / "runs" / run / "CURRENT"))
        .root_sha256();
  }

 private:
  static void must(const std::vector<std::string>& argv) {
    const ProcessResult result = run_process({.argv = argv, .timeout = std::chrono::seconds(240)});
    if (result.exit_code != 0) throw std::runtime_error(result.err + result.out);
  }

  test::TempDir dir_;
  int runs_ = 0;
};

TEST(TestbedLlama, TwoNodesOfRealFacilitiesGiveTheModelOfThisMachine) {
  test::Testbed testbed({"alba", "brno"});
  if (!testbed.up()) GTEST_SKIP() << testbed.why_not();
  Lab lab;
  write_file_atomic(lab.path() / "known_hosts",
                    read_file(testbed.facility("alba").known_hosts, 1 << 20));
  std::map<std::string, std::pair<std::string, std::string>> here, there;
  for (const char* name : {"alba", "brno"}) {
    const test::Facility& facility = testbed.facility(name);
    const fs::path data = facility.folder / "scratch/train.tokens";
    write_tokens(data, name[0] == 'a' ? 0 : 1);
    here[name] = {"    world_size: 2\n", data};
    there[name] = {test::placement(facility, "    transfer: {pack: always}\n").yaml,
                   facility.scratch + "/train.tokens"};
  }
  const std::string expected = lab.federate(here);
  EXPECT_EQ(lab.federate(there), expected);
  int packed = 0;
  for (const history::StoredEvent& event :
       history::read_events(lab.path() / "runs/0002/journal.db"))
    packed += event.kind == "pushed" && event.payload.find("whole_bytes") != std::string::npos;
  EXPECT_EQ(packed, 4) << "two rounds of two facilities had a model to be packed against";
}

}  // namespace
}  // namespace xffl
