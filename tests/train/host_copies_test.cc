// On a CPU all values must arrive for any division into parts. tests/gpu runs the same code beside
// other work of a GPU.
#include "host_copies.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace xffl::train {
namespace {

constexpr int64_t kSize = 2 * HostWindow::kPieceElements + 12345;

at::Tensor counted(int64_t size) { return at::arange(size, at::kFloat).remainder_(8191); }

TEST(HostWindow, ReadsPartsAcrossPieces) {
  HostWindow window(at::kCPU);
  const at::Tensor values = counted(kSize);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kFloat}) {
    window.open(values, dtype);
    std::vector<float> found(kSize);
    for (int64_t begin = 0, count; begin < kSize; begin += count) {
      count = std::min<int64_t>(777'777, kSize - begin);
      window.prepare(begin, count);
      for (int64_t i = 0; i < count; i += 4096)
        window.read(begin + i, {found.data() + begin + i,
                                static_cast<size_t>(std::min<int64_t>(4096, count - i))});
    }
    const at::Tensor expected = values.to(dtype).to(at::kFloat);
    EXPECT_TRUE(at::from_blob(found.data(), {kSize}).equal(expected)) << dtype;
  }
}

TEST(HostWindow, OpensOtherValues) {
  HostWindow window(at::kCPU);
  for (const int64_t size : {int64_t{5}, kSize, int64_t{1}}) {
    const at::Tensor values = counted(size).add_(static_cast<double>(size));
    window.open(values, at::kFloat);
    window.prepare(0, std::min<int64_t>(size, 3));
    float first = 0;
    window.read(0, {&first, 1});
    EXPECT_EQ(first, values[0].item<float>());
  }
}

TEST(DeviceUpload, TakesAllValuesInOrder) {
  DeviceUpload upload(at::kCPU);
  const at::Tensor values = counted(kSize);
  const auto* const from = reinterpret_cast<const std::byte*>(values.const_data_ptr<float>());
  const at::Tensor found = at::zeros({kSize}, at::kFloat);
  int64_t next = 0;
  upload.run(
      kSize, at::kFloat,
      [&](int64_t begin, std::span<std::byte> to) {
        std::memcpy(to.data(), from + 4 * begin, to.size());
      },
      [&](int64_t begin, const at::Tensor& piece) {
        EXPECT_EQ(begin, next);
        next += piece.numel();
        found.narrow(0, begin, piece.numel()).copy_(piece);
      });
  EXPECT_TRUE(found.equal(values));
}

}  // namespace
}  // namespace xffl::train
