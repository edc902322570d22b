// Copies to a GPU and back behind queued work keep every bit.
#include "host_copies.h"

#include <vector>

#include "gpu_test.h"

namespace xffl::train {
namespace {

class HostCopiesOnGpu : public GpuTest {
 protected:
  static constexpr int64_t kSize = 3 * HostWindow::kPieceElements + 12345;

  // A copy that does not wait for the queued work reads wrong values.
  static void keep_busy() {
    const at::Tensor factor = at::ones({8192, 8192}, at::dtype(at::kBFloat16).device(kGpu));
    for (int i = 0; i < 12; ++i) at::mm(factor, factor);
  }
};

TEST_F(HostCopiesOnGpu, UploadsAndReadsTheSameBits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    at::manual_seed(3);
    const at::Tensor values = at::randn({kSize}).to(dtype);
    const auto width = static_cast<int64_t>(values.element_size());
    const auto* const bytes = static_cast<const std::byte*>(values.const_data_ptr());
    const at::Tensor on_gpu = at::zeros({kSize}, at::dtype(at::kFloat).device(kGpu));
    DeviceUpload upload(kGpu);
    for (int round = 0; round < 2; ++round) {  // the second round reuses the buffers
      keep_busy();
      upload.run(
          kSize, dtype,
          [&](int64_t begin, std::span<std::byte> to) {
            std::copy_n(bytes + begin * width, to.size(), to.begin());
          },
          [&](int64_t begin, const at::Tensor& piece) {
            keep_busy();
            on_gpu.narrow(0, begin, piece.numel()).copy_(piece);
          });
    }
    HostWindow window(kGpu);
    keep_busy();
    const at::Tensor doubled = on_gpu * 2;  // result of queued work
    window.open(doubled, dtype);
    constexpr int64_t kPart = 1 << 20;
    std::vector<float> part(kPart);
    for (int64_t begin = 0; begin < kSize; begin += kPart) {
      const int64_t count = std::min(kPart, kSize - begin);
      window.prepare(begin, count);
      window.read(begin, std::span(part).first(static_cast<size_t>(count)));
      const at::Tensor want = values.narrow(0, begin, count).to(at::kFloat) * 2;
      ASSERT_TRUE(at::from_blob(part.data(), {count}).equal(want)) << dtype << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace xffl::train
