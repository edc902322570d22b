// `xffl prepare` with jobs of this machine: the shards equal those of xffl-tokenize encode.
#include "xffl/prepare/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "support/await.h"
#include "support/faulty_session.h"
#include "support/temp_dir.h"
#include "xffl/base/file.h"
#include "xffl/base/process.h"
#include "xffl/config/load.h"
#include "xffl/facility/prepared_text.h"
#include "xffl/facility/services.h"
#include "xffl/remote/session.h"
#include "xffl/tokens/prepared.h"

namespace xffl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kXffl = XFFL_BINARY_DIR "/bin/xffl";
constexpr const char* kTokenize = XFFL_BINARY_DIR "/bin/xffl-tokenize";

void must_run(const std::vector<std::string>& argv) {
  const ProcessResult done = run_process({.argv = argv});
  ASSERT_EQ(done.exit_code, 0) << done.err;
}

class Prepare : public testing::Test {
 protected:
  Prepare() {
    fs::create_directories(dir_ / "model");
    fs::create_directories(dir_ / "text/more");
    write_text("text/a.txt", 300);
    write_text("text/more/b.txt", 200);
    write_text("text/ignored.md", 10);
    train_tokenizer("320");
    write_config("template: 'Say: {text}', sequence_length: 64, validation_fraction: 0.2");
  }

  void train_tokenizer(const std::string& vocab_size) const {
    must_run({kTokenize, "train", "--input", (dir_ / "text/a.txt").string(), "--output",
              (dir_ / "model").string(), "--vocab-size", vocab_size});
  }
  void write_text(const std::string& name, int paragraphs) const {
    std::ofstream file(dir_ / name);
    for (int i = 0; i < paragraphs; ++i)
      file << "The " << i << "th paragraph of " << name << " has words " << i * 7919 % 1000 << ".\n"
           << "And a second line.\n\n";
  }
  void write_config(const std::string& options, const std::string& keys = "") const {
    write_file_atomic(dir_ / "xffl.yaml",
                      "project: p\nmodel: model\nrounds: 1\n"
                      "training: {steps_per_round: 1, batch_size: 2}\nfacilities:\n  alba:\n" +
                          keys + "    data: {text: [" + text_ + "], " + options + "}\n");
  }
  // The shard of `encode` with `options` is the one of `xffl prepare` with `keys`.
  void expect_same(const std::string& keys, std::vector<std::string> options) {
    write_config("sequence_length: 64, validation_fraction: 0, " + keys);
    const ProcessResult done = prepare();
    ASSERT_EQ(done.exit_code, 0) << keys << ": " << done.err;
    options.insert(options.begin(), {kTokenize, "encode", "--sequence-length", "64", "--input",
                                     dir_ / text_, "--output", dir_ / "t"});
    must_run(options);
    EXPECT_EQ(read_file(alba().prepared.str() + "/train.tokens", 1 << 24),
              read_file(dir_ / "t", 1 << 24))
        << keys;
    EXPECT_THAT(prepare().out, HasSubstr("before")) << keys;
  }
  config::Facility alba() const {
    return config::load_experiment(dir_.path()).facility(FacilityName("alba"));
  }
  ProcessResult prepare(std::vector<std::string> more = {}) const {
    std::vector<std::string> argv = {kXffl, "prepare", "alba", "-p", dir_.path().string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return run_process({.argv = argv});
  }
  fs::path hold() const { return dir_ / "hold"; }
  // Starts the command; its output is in the file `log`. The job waits for the end of hold().
  pid_t start_with_held_job() const {
    write_file_atomic(hold(), "");
    write_config("sequence_length: 64",
                 "    environment: ['while [ -e " + hold().string() + " ]; do sleep 0.1; done']\n");
    return start_detached({.argv = {kXffl, "prepare", "alba", "-p", dir_.path().string()}},
                          dir_ / "log");
  }
  // Starts the command as above, and kills it after the submission.
  void interrupt_with_held_job() const {
    const pid_t command = start_with_held_job();
    const fs::path id = fs::path(alba().prepared.str()) / "job1/job.id";
    ASSERT_TRUE(test::await([&] { return fs::exists(id); }));
    ASSERT_EQ(::kill(command, SIGKILL), 0);
    wait_for_exit(command);
  }
  tokens::Prepared prepared() const {
    const fs::path file = fs::path(alba().prepared.str()) / "prepared.json";
    return tokens::parse_prepared(read_file(file, 1 << 20), file.string());
  }

  std::string text_ = "text/*.txt, text/more/*, text/a.txt";
  test::TempDir dir_;
};

// Without the folder's files the job would end well with less text.
TEST_F(Prepare, AFolderThatCannotBeReadIsAnError) {
  fs::create_directories(dir_ / "text/shut");
  write_text("text/shut/c.txt", 100);
  text_ = "text/*/*.txt";
  write_config("sequence_length: 64");
  fs::permissions(dir_ / "text/shut", fs::perms::none);
  std::vector<std::string> argv = {kXffl, "prepare", "alba", "-p", dir_.path().string()};
  if (::geteuid() == 0)  // root reads every folder unless it gives the capabilities up
    argv.insert(argv.begin(), {"setpriv", "--bounding-set=-dac_override,-dac_read_search"});
  const ProcessResult done = run_process({.argv = argv});
  fs::permissions(dir_ / "text/shut", fs::perms::owner_all);
  EXPECT_NE(done.exit_code, 0);
  EXPECT_THAT(done.err, HasSubstr("a folder on the way cannot be read"));
  EXPECT_FALSE(fs::exists(fs::path(alba().prepared.str()) / "train.tokens"));
}

TEST_F(Prepare, MakesTheShardsOfEncode) {
  const ProcessResult done = prepare();
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const fs::path folder(alba().prepared.str());
  must_run({kTokenize, "encode", "--tokenizer", (dir_ / "model").string(), "--input",
            (dir_ / "text/a.txt").string(), (dir_ / "text/more/b.txt").string(), "--template",
            "Say: {text}", "--sequence-length", "64", "--output", (dir_ / "t").string(),
            "--validation-output", (dir_ / "v").string(), "--validation-fraction", "0.2"});
  EXPECT_EQ(read_file(folder / "train.tokens", 1 << 24), read_file(dir_ / "t", 1 << 24));
  EXPECT_EQ(read_file(folder / "validation.tokens", 1 << 24), read_file(dir_ / "v", 1 << 24));
  EXPECT_EQ(alba().train_data, std::vector{(folder / "train.tokens").string()});
  ASSERT_EQ(alba().validation.size(), 1u);
  EXPECT_EQ(alba().validation[0].name, "alba");
  EXPECT_EQ(prepared().files, 2u);
  EXPECT_THAT(done.out, HasSubstr("in 2 files are tokenized"));

  const ProcessResult again = prepare();
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("were tokenized before"));
  EXPECT_FALSE(fs::exists(folder / "job2"));
}

TEST_F(Prepare, TokenizesTheTextOfTheNamedFacility) {
  std::string yaml = read_file(dir_ / "xffl.yaml", 1 << 20);
  yaml.insert(yaml.find("  alba:\n"), "  aarau: {data: {text: [text/ignored.md]}}\n");
  write_file_atomic(dir_ / "xffl.yaml", yaml);
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_EQ(prepared().files, 2u);
}

// Tables: tests/tokenize/same_tables.py.
TEST_F(Prepare, EveryFormatGivesTheShardsOfEncode) {
  const std::string model = dir_ / "model";
  text_ = "chats.jsonl";
  std::ofstream(dir_ / text_) << R"({"turns": [{"role": "user", "content": "Che ore sono?"}, )"
                              << R"({"role": "assistant", "content": "Le sei."}]})"
                              << "\n";
  expect_same("format: chat, chat_template: llama-2, messages_field: turns, pack: false",
              {"--tokenizer", model, "--format", "chat", "--chat-template", "llama-2",
               "--messages-field", "turns", "--no-pack"});
  text_ = "lines";
  std::ofstream(dir_ / text_) << "[1, 300, 5]\n[7]\n";
  expect_same("format: ids, pack: false", {"--format", "ids", "--vocab-size", "320", "--no-pack"});
  text_ = "raw.bin";
  std::ofstream(dir_ / text_, std::ios::binary)
      << std::string_view("\1\0\0\0\2\0\0\0\4\1\0\0\2\0\0\0", 16);
  expect_same("format: bin, id_type: int32, end_id: 2, pack: false",
              {"--format", "bin", "--id-type", "int32", "--end-id", "2", "--vocab-size", "320",
               "--no-pack"});
  text_ = "rows.bin";  // without end_id, each document has the length of a sequence
  std::ofstream(dir_ / text_, std::ios::binary) << std::string(size_t{4} * 100, '\0');
  expect_same("format: bin, id_type: int32, pack: false",
              {"--format", "bin", "--id-type", "int32", "--vocab-size", "320", "--no-pack"});
  expect_same("format: bin, id_type: int32, end_id: 0, pack: false",
              {"--format", "bin", "--id-type", "int32", "--end-id", "0", "--vocab-size", "320",
               "--no-pack"});
  text_ = "questions.jsonl";
  std::ofstream(dir_ / text_) << R"({"q": "Che ore sono?", "a": " Le sei."})"
                              << "\n";
  expect_same("prompt_field: q, text_field: a, mask_prompt: true, pack: false",
              {"--tokenizer", model, "--prompt-field", "q", "--text-field", "a", "--mask-prompt",
               "--no-pack"});
  text_ = "text/a.txt";
  expect_same("format: text, document: line",
              {"--tokenizer", model, "--format", "text", "--document", "line"});

  text_ = "lines";
  std::ofstream(dir_ / text_) << "[1]\n[320]\n";
  write_config("format: ids, sequence_length: 64");
  const ProcessResult refused = prepare();
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, HasSubstr("lines:2: element 0 is 320, expected a token id 0 to 319"));
}

TEST_F(Prepare, OtherOptionsOrAnotherTokenizerMakeOtherShards) {
  ASSERT_EQ(prepare().exit_code, 0);
  const RemotePath before = alba().prepared;
  write_config("sequence_length: 32, validation_fraction: 0");
  EXPECT_NE(alba().prepared, before);
  EXPECT_TRUE(alba().validation.empty());
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_FALSE(prepared().validation);
  const std::string first = prepared().tokenizer_sha256;

  train_tokenizer("310");
  const ProcessResult other = prepare();
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("are tokenized"));
  EXPECT_NE(prepared().tokenizer_sha256, first);
}

// The folder's name has the key sequence_length only, and not its default.
TEST_F(Prepare, AModelWithShorterSequencesMakesOtherShards) {
  write_config("validation_fraction: 0");
  const auto length = [&] {
    EXPECT_EQ(prepare().exit_code, 0);
    return prepared().training.tokens / prepared().training.sequences;
  };
  EXPECT_EQ(length(), 2048u);
  write_file_atomic(dir_ / "model/config.json",
                    R"({"model_type": "llama", "max_position_embeddings": 128})");
  EXPECT_EQ(length(), 128u);
}

TEST_F(Prepare, ChangedTextIsTokenizedOnRequest) {
  ASSERT_EQ(prepare().exit_code, 0);
  const tokens::Prepared first = prepared();
  write_text("text/a.txt", 400);
  EXPECT_THAT(prepare().out, HasSubstr("--again"));
  ASSERT_EQ(prepare({"--again"}).exit_code, 0);
  EXPECT_NE(prepared().text_sha256, first.text_sha256);
  EXPECT_GT(prepared().training.documents, first.training.documents);
}

TEST_F(Prepare, PurgedShardsAreMadeAgain) {
  ASSERT_EQ(prepare().exit_code, 0);
  for (const char* name : {"train.tokens", "validation.tokens"}) {
    const fs::path shard = fs::path(alba().prepared.str()) / name;
    const std::string before = read_file(shard, 1 << 24);
    fs::remove(shard);
    ASSERT_EQ(prepare().exit_code, 0);
    ASSERT_TRUE(fs::exists(shard)) << name;
    EXPECT_EQ(read_file(shard, 1 << 24), before);
  }
}

// A full file system, or a site's repair, may leave a part of a shard.
TEST_F(Prepare, AShardThatWasCutShortIsMadeAgain) {
  ASSERT_EQ(prepare().exit_code, 0);
  const fs::path shard = fs::path(alba().prepared.str()) / "train.tokens";
  const std::string before = read_file(shard, 1 << 24);
  fs::resize_file(shard, before.size() - 1);
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_EQ(read_file(shard, 1 << 24), before);
}

TEST_F(Prepare, ADamagedDescriptionIsMadeAgain) {
  ASSERT_EQ(prepare().exit_code, 0);
  const tokens::Prepared before = prepared();
  write_file_atomic(fs::path(alba().prepared.str()) / "prepared.json", "{");
  const ProcessResult done = prepare();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("description is damaged"));
  EXPECT_EQ(prepared().training, before.training);
}

TEST_F(Prepare, AFailedJobShowsItsOutput) {
  write_config("sequence_length: 64");
  fs::remove(dir_ / "text/more/b.txt");
  const ProcessResult failed = prepare();
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.err, HasSubstr("text/more/* matches no file"));
  EXPECT_THAT(failed.err, HasSubstr("job1/job.out"));
  EXPECT_FALSE(fs::exists(alba().prepared.str() + "/train.tokens"));
  write_text("text/more/b.txt", 20);
  // As of a job that was killed.
  const fs::path half = alba().prepared.str() + "/job1/out/train.tokens.tmp-0a1b2c3d";
  write_file_atomic(half, "half a shard");
  EXPECT_EQ(prepare().exit_code, 0);
  EXPECT_FALSE(fs::exists(half));
  EXPECT_TRUE(fs::exists(alba().prepared.str() + "/job1/job.out"));
  EXPECT_TRUE(fs::exists(alba().prepared.str() + "/job2/out/report.json"));
}

TEST_F(Prepare, AMissingBundleIsNamedBeforeAJob) {
  write_config("sequence_length: 64", "    trainer: bundle\n");
  const ProcessResult done = prepare();
  EXPECT_EQ(done.exit_code, 4) << done.err;
  EXPECT_THAT(done.err, HasSubstr("xffl.programs/current/bin/xffl-tokenize"));
  EXPECT_THAT(done.err, HasSubstr("xffl deploy alba BUNDLE"));
  EXPECT_FALSE(fs::exists(alba().prepared.str()));
}

TEST_F(Prepare, TheProgramOfTheDeployedBundleIsStarted) {
  write_config("sequence_length: 64", "    trainer: bundle\n");
  const fs::path programs = fs::path(alba().workdir.str()) / "xffl.programs";
  const fs::path program = programs / "a bundle/bin/xffl-tokenize", trace = dir_ / "trace";
  fs::create_directories(program.parent_path());
  fs::create_directory_symlink("a bundle", programs / "current");
  write_file_atomic(program,
                    "#!/bin/sh\n: >'" + trace.string() + "'\nexec '" + kTokenize + "' \"$@\"\n");
  fs::permissions(program, fs::perms::owner_all);
  const ProcessResult done = prepare();
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(fs::exists(trace));
  EXPECT_EQ(prepared().files, 2u);
}

// The job fails after its first shard: a folder is in the place of the second one.
TEST_F(Prepare, ShardsThatAreHalfPublishedHaveNoDescription) {
  ASSERT_EQ(prepare().exit_code, 0);
  const fs::path folder(alba().prepared.str());
  fs::remove(folder / "validation.tokens");
  fs::create_directories(folder / "validation.tokens/in the way");
  EXPECT_NE(prepare({"--again"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder / "prepared.json"));
}

TEST_F(Prepare, AnInterruptedCommandFollowsItsJob) {
  interrupt_with_held_job();
  const fs::path folder(alba().prepared.str());
  fs::remove(hold());
  const ProcessResult second = prepare();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_FALSE(fs::exists(folder / "job2"));
  EXPECT_EQ(prepared().files, 2u);
}

TEST_F(Prepare, AJobThatIsUnderWayIsFollowedAlsoWithAgain) {
  interrupt_with_held_job();
  const pid_t again = start_detached(
      {.argv = {kXffl, "prepare", "alba", "-p", dir_.path().string(), "--again"}}, dir_ / "again");
  EXPECT_TRUE(test::await([&] {
    return read_file(dir_ / "again", 1 << 20).find("a job is under way and is followed") !=
           std::string::npos;
  })) << read_file(dir_ / "again", 1 << 20);
  fs::remove(hold());
  EXPECT_EQ(wait_for_exit(again), 0);
  EXPECT_FALSE(fs::exists(fs::path(alba().prepared.str()) / "job2"));
}

TEST_F(Prepare, AJobThatEndsBetweenTwoLooksIsFollowed) {
  interrupt_with_held_job();
  const config::Experiment experiment = config::load_experiment(dir_.path());
  const fs::path made = fs::path(alba().prepared.str()) / "prepared.json";
  SystemClock clock;
  facility::Services services = facility::make_services(clock, dir_.path());
  const auto local = remote::make_local_session();
  const auto link = std::make_shared<test::FaultySession>(*local);
  services.connect = [&](const config::Facility&) { return link; };
  services.programs.xffl = kXffl;
  bool has_ended = false;
  link->after_stat = [&](const RemotePath& path) {
    if (path.str() != made.string() || has_ended) return;
    fs::remove(hold());
    has_ended = test::await([&] { return fs::exists(made); });
  };
  prepare::prepare(experiment, alba(), services, false, {}, {});
  EXPECT_TRUE(has_ended);
  EXPECT_FALSE(fs::exists(made.parent_path() / "job2"));
}

TEST_F(Prepare, AJobWithAnEarlierTokenizerIsNotTaken) {
  interrupt_with_held_job();
  train_tokenizer("310");
  fs::remove(dir_ / "log");
  const pid_t second = start_with_held_job();
  EXPECT_TRUE(test::await([&] {
    return read_file(dir_ / "log", 1 << 20).find(" runs") != std::string::npos;
  })) << read_file(dir_ / "log", 1 << 20);
  fs::remove(hold());
  EXPECT_NE(wait_for_exit(second), 0);
  EXPECT_THAT(read_file(dir_ / "log", 1 << 20), HasSubstr("another tokenizer"));
  EXPECT_EQ(prepare().exit_code, 0);
  EXPECT_EQ(prepared().tokenizer_sha256, tokens::tokenizer_hash(dir_ / "model"));
}

TEST_F(Prepare, DamagedProgressDoesNotEndTheCommand) {
  const pid_t command = start_with_held_job();
  const fs::path job = fs::path(alba().prepared.str()) / "job1";
  ASSERT_TRUE(test::await([&] { return fs::exists(job / "out"); }));
  write_file_atomic(job / "out/progress.json", "{\"bytes_done\": -1}");
  EXPECT_TRUE(test::await([&] {
    return read_file(dir_ / "log", 1 << 20).find("progress is not readable") != std::string::npos;
  })) << read_file(dir_ / "log", 1 << 20);
  fs::remove(hold());
  EXPECT_EQ(wait_for_exit(command), 0) << read_file(dir_ / "log", 1 << 20);
  EXPECT_EQ(prepared().files, 2u);
}

TEST_F(Prepare, MissingShardsNameTheCommand) {
  const auto missing = config::find_missing(config::load_experiment(dir_.path()));
  EXPECT_THAT(missing, testing::Contains(HasSubstr("xffl prepare alba")));
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_THAT(config::find_missing(config::load_experiment(dir_.path())),
              testing::Not(testing::Contains(HasSubstr("data"))));
}

TEST_F(Prepare, ShardsOfAnotherTokenizerAreNotTrainedOn) {
  const auto session = remote::make_local_session();
  const auto problem = [&] {
    return facility::prepared_text_problem(*session, alba(), dir_ / "model");
  };
  EXPECT_THAT(problem(), HasSubstr("not tokenized yet: xffl prepare alba"));
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_EQ(problem(), "");
  train_tokenizer("310");
  EXPECT_THAT(problem(), HasSubstr("another tokenizer than the model's: xffl prepare alba"));
  ASSERT_EQ(prepare().exit_code, 0);
  EXPECT_EQ(problem(), "");
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) fs::remove(dir_ / "model" / name);
  EXPECT_EQ(problem(), "") << "nothing to compare with";
  fs::remove_all(dir_ / "model");
  EXPECT_EQ(problem(), "");
  const fs::path shards = (alba().prepared / tokens::kPreparedTraining).str();
  fs::rename(shards, dir_ / "purged");  // by the site
  EXPECT_THAT(problem(), HasSubstr("not tokenized yet"));
  fs::rename(dir_ / "purged", shards);
  fs::remove(alba().prepared.str() + "/prepared.json");
  EXPECT_THAT(problem(), HasSubstr("not tokenized yet"));
}

}  // namespace
}  // namespace xffl
