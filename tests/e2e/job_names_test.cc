// The names of batch jobs: a job is searched, queried and cancelled by the name on record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <regex>
#include <set>

#include "e2e/in_process.h"
#include "xffl/base/file.h"

namespace xffl::test {
namespace {

using testing::ElementsAre;

// Notes the names of the jobs in each call of `operation`. After its first submission it calls
// `after_submit`, which may throw.
class NamesScheduler final : public ForwardingScheduler {
 public:
  using Note = std::function<void(const std::string& operation, const std::string& name)>;
  NamesScheduler(std::shared_ptr<submit::Scheduler> inner, Note note)
      : ForwardingScheduler(std::move(inner)), note_(std::move(note)) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    JobId job = ForwardingScheduler::submit(request, stop);
    note_("submit", request.name);
    return job;
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    note_("find", request.name);
    return ForwardingScheduler::find(request, stop);
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    for (const submit::SubmittedJob& job : jobs) note_("query", job.name);
    return ForwardingScheduler::query(jobs, stop);
  }

 private:
  const Note note_;
};

// Writes the journal of the run again, with `change` applied to each event.
void rewrite_journal(const history::RunFolder& folder,
                     const std::function<void(history::StoredEvent&)>& change) {
  std::vector<history::StoredEvent> events = history::read_events(folder.journal());
  for (const char* suffix : {"journal.db", "journal.db-wal", "journal.db-shm", "journal.jsonl"})
    std::filesystem::remove(folder.path() / suffix);
  const auto store = history::Store::open(folder.journal());
  for (history::StoredEvent& event : events) {
    change(event);
    store->append(event);
  }
}

// An earlier release submitted a job under the name without the run's identity, and was killed
// before the answer was on record.
TEST_F(InProcessFederation, ARunOfAnEarlierReleaseKeepsItsJobNames) {
  project_.set_hold();
  project_.write_config();
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> names;
  bool is_killed = false;
  brno_scheduler_ = [&](Scheduler inner) {
    return std::make_shared<NamesScheduler>(
        std::move(inner), [&](const std::string& operation, const std::string& name) {
          const std::lock_guard lock(mutex);
          names[operation].insert(name);
          if (operation == "query") project_.release("brno");
          if (operation == "submit" && !is_killed) {
            is_killed = true;
            stop_.request_stop();
            throw Error(ErrorKind::kCancelled, "killed before the answer");
          }
        });
  };
  EXPECT_THROW(run(), Error);
  ASSERT_EQ(names["submit"].size(), 1u);
  const std::string unique = *names["submit"].begin();
  ASSERT_TRUE(std::regex_match(unique, std::regex("xffl-test-0001-[0-9a-f]{8}-r0001-brno-a1")))
      << unique;

  const history::RunFolder folder(project_.path() / "runs", RunName("0001"));
  rewrite_journal(folder, [](history::StoredEvent& event) {
    if (event.kind == "submit_intended")
      event.payload = R"({"job_name":"xffl-test-0001-r0001-)" + event.facility +
                      R"(-a1","script_sha256":"00"})";
  });
  names.clear();
  stop_ = std::stop_source();
  project_.release("alba");
  EXPECT_EQ(run().rounds_published, 3);
  EXPECT_EQ(project_.trainings(), kOnceEach);
  EXPECT_THAT(names["find"], ElementsAre("xffl-test-0001-r0001-brno-a1"));
  EXPECT_EQ(names["query"].count("xffl-test-0001-r0001-brno-a1"), 1u);
  EXPECT_EQ(names["query"].count(unique), 0u);
  EXPECT_EQ(names["submit"].size(), 2u) << "rounds 2 and 3";
  for (const std::string& name : names["submit"])
    EXPECT_TRUE(std::regex_match(name, std::regex("xffl-test-0001-[0-9a-f]{8}-r000[23]-brno-a1")))
        << name;
}

}  // namespace
}  // namespace xffl::test
