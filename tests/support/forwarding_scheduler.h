// A base for scheduler decorators: forwards every call; a test overrides single functions.
#pragma once

#include <memory>
#include <utility>

#include "xffl/submit/scheduler.h"

namespace xffl::test {

class ForwardingScheduler : public submit::Scheduler {
 public:
  explicit ForwardingScheduler(std::shared_ptr<submit::Scheduler> inner)
      : inner_(std::move(inner)) {}

  JobId submit(const submit::JobRequest& request, std::stop_token stop) override {
    return inner_->submit(request, stop);
  }
  std::vector<JobId> find(const submit::JobRequest& request, std::stop_token stop) override {
    return inner_->find(request, stop);
  }
  void release(const submit::KeptAllocation& kept, std::stop_token stop) override {
    inner_->release(kept, stop);
  }
  std::map<JobId, submit::JobStatus> query(std::span<const submit::SubmittedJob> jobs,
                                           std::stop_token stop) override {
    return inner_->query(jobs, stop);
  }
  void cancel(const submit::SubmittedJob& job, std::stop_token stop) override {
    inner_->cancel(job, stop);
  }
  std::chrono::milliseconds settle_time() const override { return inner_->settle_time(); }
  std::optional<submit::ClockOffset> clock_offset() const override {
    return inner_->clock_offset();
  }

 private:
  const std::shared_ptr<submit::Scheduler> inner_;
};

}  // namespace xffl::test
