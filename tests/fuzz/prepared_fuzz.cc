// prepared.json, the job and the progress of `xffl prepare`: a written file is read back.
#include <cmath>

#include "fuzz.h"
#include "xffl/tokens/prepared.h"

using namespace xffl;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  if (const auto prepared = fuzz::accepted([&] { return tokens::parse_prepared(text, "file"); })) {
    fuzz::expect(std::isfinite(prepared->seconds), "the time is finite");
    fuzz::expect(prepared->training.sha256.size() == 64, "a shard has a hash");
    const std::string written = tokens::format_prepared(*prepared);
    fuzz::expect(tokens::parse_prepared(written, "file") == *prepared, "it is read back", written);
  }
  if (const auto job = fuzz::accepted([&] { return tokens::parse_prepare_job(text, "file"); })) {
    fuzz::expect(job->sequence_length >= 1, "a sequence has a token");
    const std::string written = tokens::format_prepare_job(*job);
    fuzz::expect(tokens::parse_prepare_job(written, "file") == *job, "it is read back", written);
  }
  fuzz::accepted([&] { return tokens::parse_prepare_progress(text, "file"); });
  return 0;
}
