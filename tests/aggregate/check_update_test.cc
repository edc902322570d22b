#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models.h"
#include "support/temp_dir.h"
#include "support/unchecked_writer.h"
#include "xffl/aggregate/aggregate.h"

namespace xffl::aggregate {
namespace {

using testing::HasSubstr;

class CheckUpdate : public testing::Test {
 protected:
  CheckUpdate() : base_(write_model(dir_ / "base", some_model(1, Dtype::kBF16))) {}

  Thrown check(const Tensors& update, bool delta) {
    const auto folder = dir_ / ("update" + std::to_string(count_++));
    write_model(folder, update);
    return thrown_by([&] { check_update(folder, base_, delta); });
  }
  void expect_rejected(const Thrown& thrown, const std::vector<std::string>& parts) {
    EXPECT_EQ(thrown.kind, ErrorKind::kRejected) << thrown.message;
    for (const std::string& part : parts) EXPECT_THAT(thrown.message, HasSubstr(part));
  }

  const test::TempDir dir_;
  const std::filesystem::path base_;
  int count_ = 0;
};

constexpr const char* kFine = "no error was thrown";

TEST_F(CheckUpdate, AcceptsATrainedModelOfAnyFloatType) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    EXPECT_EQ(check(some_model(2, dtype), false).message, kFine);
    EXPECT_EQ(check(some_model(2, dtype), true).message, kFine);
  }
}

TEST_F(CheckUpdate, AcceptsOneChangedElement) {
  Tensors update = some_model(1, Dtype::kBF16);
  update["out.weight"].values.back() += 1.0f;
  EXPECT_EQ(check(update, false).message, kFine);
  for (auto& [name, tensor] : update) tensor.values.assign(tensor.values.size(), 0.0f);
  update["out.weight"].values.back() = 1.0f;
  EXPECT_EQ(check(update, true).message, kFine);
}

TEST_F(CheckUpdate, RejectsTheInputModel) {
  expect_rejected(check(some_model(1, Dtype::kBF16), false), {"equals the input model"});
  Tensors widened = some_model(1, Dtype::kBF16);
  for (auto& [name, tensor] : widened) {
    tensor.values = read_tensor(base_, name);
    tensor.dtype = Dtype::kF32;
  }
  expect_rejected(check(widened, false), {"equals the input model"});
}

// In numpy: np.sqrt(sum(np.square(x))) over all tensors, in float64.
double norm_of(const Tensors& model) {
  double squares = 0;
  for (const auto& [name, tensor] : model)
    for (const float value : tensor.values)
      squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

TEST_F(CheckUpdate, ReturnsTheNormOfTheChange) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    Tensors update = some_model(2, dtype), twice = update;
    const auto folder = write_model(dir_ / ("measured" + std::to_string(count_++)), update);
    for (auto& [name, tensor] : update) tensor.values = read_tensor(folder, name);  // as rounded
    const double norm = norm_of(update);
    EXPECT_NEAR(l2_norm(folder), norm, norm * 1e-5);
    EXPECT_NEAR(check_update(folder, base_, true, {1e9}), norm, norm * 1e-5);
    Tensors difference = update;
    for (auto& [name, tensor] : difference) {
      const auto base = read_tensor(base_, name);
      for (size_t i = 0; i < base.size(); ++i) tensor.values[i] -= base[i];
    }
    const double moved = norm_of(difference);
    EXPECT_NEAR(check_update(folder, base_, false, {1e9}), moved, moved * 1e-5);
    EXPECT_EQ(check_update(folder, base_, true), 0) << "measured without need";
  }
}

// Each of the 500 tensors is a block: more blocks than threads.
Tensors scalars(float value) {
  Tensors model;
  for (int i = 0; i < 500; ++i) model["w" + std::to_string(i)] = {{1}, {value}};
  return model;
}

TEST_F(CheckUpdate, TheNormHasTheBlocksAfterTheFirstChange) {
  const auto base = write_model(dir_ / "zeros", scalars(0.0f)),
             update = write_model(dir_ / "ones", scalars(1.0f));
  EXPECT_DOUBLE_EQ(check_update(update, base, false, {1e9}), std::sqrt(500));
}

// A training may freeze all other tensors.
TEST_F(CheckUpdate, AChangeOfTheFirstTensorAloneIsATraining) {
  const auto base = write_model(dir_ / "zeros", scalars(0.0f));
  Tensors update = scalars(0.0f);
  update["w0"].values = {1.0f};
  const auto folder = write_model(dir_ / "first", update);
  for (const bool delta : {true, false}) {
    EXPECT_NO_THROW(check_update(folder, base, delta)) << delta;
    EXPECT_DOUBLE_EQ(check_update(folder, base, delta, {1e9}), 1) << delta;
  }
}

// A mean with such an update would end the run.
TEST_F(CheckUpdate, TheBlocksAfterTheFirstChangeMustBeFinite) {
  const auto base = write_model(dir_ / "zeros", scalars(0.0f));
  Tensors update = scalars(1.0f);
  update["w99"].values = {NAN};  // the last tensor
  const auto folder = write_model(dir_ / "diverged", update);
  for (const bool delta : {true, false})
    expect_rejected(thrown_by([&] { check_update(folder, base, delta); }),
                    {"w99", "element 0 is nan"});
}

TEST_F(CheckUpdate, TheRemainingPartIsOfTheWholeModel) {
  const auto base = write_model(dir_ / "ones", scalars(1.0f)),
             update = write_model(dir_ / "shrunk", scalars(0.0625f));
  const ChangeLimit limit{.norm = 1e9, .base_norm = l2_norm(base)};
  expect_rejected(thrown_by([&] { check_update(update, base, false, limit); }),
                  {"leaves 0.0625 of the input model"});
}

TEST_F(CheckUpdate, RejectsAChangeAboveTheMaximalNorm) {
  Tensors update = some_model(2, Dtype::kF32);
  const auto folder = write_model(dir_ / "far", update);
  const double norm = l2_norm(folder);
  EXPECT_NO_THROW(check_update(folder, base_, true, {norm * 1.001}));
  const Thrown thrown = thrown_by([&] { check_update(folder, base_, true, {norm * 0.999}); });
  expect_rejected(thrown, {"L2 norm of its change", "policy.max_change"});
  // Elements whose squares overflow float32 exceed any limit.
  update["out.weight"].values.back() = 3e38f;
  const auto huge = write_model(dir_ / "huge", update);
  expect_rejected(thrown_by([&] { check_update(huge, base_, true, {1e30}); }),
                  {"policy.max_change"});
  expect_rejected(thrown_by([&] { check_update(huge, base_, false, {1e30}); }),
                  {"policy.max_change"});
}

TEST_F(CheckUpdate, RejectsAnUpdateThatTakesTheModelAway) {
  const double base_norm = l2_norm(base_);
  const ChangeLimit limit{.norm = 10 * base_norm, .base_norm = base_norm};
  // `factor` times the model, plus a change in other directions with 1.5 times the model's norm.
  const auto written = [&](float factor, float other, bool delta) {
    Tensors update = some_model(7, Dtype::kF32);
    const double scale = 1.5 * base_norm / norm_of(update);
    for (auto& [name, tensor] : update) {
      const auto base = read_tensor(base_, name);
      for (size_t i = 0; i < base.size(); ++i)
        tensor.values[i] = (factor - (delta ? 1.0f : 0.0f)) * base[i] +
                           other * static_cast<float>(scale) * tensor.values[i];
    }
    return write_model(dir_ / ("turned" + std::to_string(count_++)), update);
  };
  for (const bool delta : {true, false}) {
    for (const float factor : {0.05f, 0.0f, -1.0f, -2.0f})
      for (const float other : {0.0f, 1.0f}) {
        const auto folder = written(factor, other, delta);
        expect_rejected(thrown_by([&] { check_update(folder, base_, delta, limit); }),
                        {"of the input model", "policy.max_change"});
      }
    for (const float factor : {0.5f, 1.0f, 3.0f})
      EXPECT_NO_THROW(check_update(written(factor, 1.0f, delta), base_, delta, limit)) << factor;
  }
}

// The largest numbers are 65504 in fp16 and 3.39e38 in bf16.
TEST_F(CheckUpdate, RejectsAnElementOutOfTheRangeOfTheModelsType) {
  const auto check_element = [&](Dtype dtype, float before, float value, bool delta,
                                 double max_norm = 0) {
    const std::string n = std::to_string(count_++);
    const auto base = write_model(dir_ / ("b" + n), {{"w", {{2}, {1, before}, dtype}}});
    const auto update = write_model(dir_ / ("u" + n), {{"w", {{2}, {0.5f, value}}}});
    const ChangeLimit limit{.norm = max_norm, .base_norm = l2_norm(base)};
    return thrown_by([&] { check_update(update, base, delta, limit); });
  };
  for (const double max_norm : {0.0, 1e9}) {
    expect_rejected(check_element(Dtype::kF16, 60'000, 8'000, true, max_norm),
                    {"tensor 'w' [2], element 1 becomes 68000", "F16 (up to 65504)"});
    expect_rejected(check_element(Dtype::kF16, 60'000, 70'000, false, max_norm), {"70000", "F16"});
    expect_rejected(check_element(Dtype::kF16, 2, 70'000, false, max_norm), {"70000", "F16"});
    EXPECT_EQ(check_element(Dtype::kF16, 60'000, 5'000, true, max_norm).message, kFine);
    EXPECT_EQ(check_element(Dtype::kF16, 60'000, 65'504, false, max_norm).message, kFine);
    EXPECT_EQ(check_element(Dtype::kBF16, 60'000, 8'000, true, max_norm).message, kFine);
    EXPECT_EQ(check_element(Dtype::kF16, 65'504, 0, true, max_norm).message, kFine) << "unchanged";
  }
  // The master may be 16 above 65472, and 65520 is no fp16 number.
  expect_rejected(check_element(Dtype::kF16, 65'472, 32, true), {"becomes 65504"});
  expect_rejected(check_element(Dtype::kBF16, -3e38f, -3e38f, true), {"becomes -inf", "BF16"});
  expect_rejected(check_element(Dtype::kBF16, 1, 3.4e38f, false), {"BF16"});
  // A limit without the model's norm bounds no element.
  const auto base = write_model(dir_ / "base_f16", {{"w", {{2}, {1, 60'000}, Dtype::kF16}}});
  const auto update = write_model(dir_ / "above", {{"w", {{2}, {0.5f, 8'000}}}});
  expect_rejected(thrown_by([&] { check_update(update, base, true, {1e9}); }), {"becomes 68000"});
  // By default, updates have the type of the published model.
  const auto alike = write_model(dir_ / "alike", {{"w", {{2}, {0.5f, 8'000}, Dtype::kF16}}});
  expect_rejected(thrown_by([&] { check_update(alike, base, true); }), {"becomes 68000"});
}

TEST_F(CheckUpdate, EachElementOfALargeTensorHasItsOwnRange) {
  constexpr size_t kCount = 140'000, kPiece = 2048;
  constexpr size_t kLarge = 135'000;  // in the second piece of the second block
  Tensor before{{static_cast<int64_t>(kCount)}, std::vector<float>(kCount, 1.0f), Dtype::kF16};
  before.values[kLarge] = 60'000.0f;
  const auto base = write_model(dir_ / "base_f16", {{"w", before}});
  const auto check_at = [&](size_t index) {
    Tensors update{{"w", before}};
    update["w"].dtype = Dtype::kF32;
    update["w"].values.assign(kCount, 0.5f);
    update["w"].values[index] = 8'000.0f;
    const auto folder = write_model(dir_ / ("large" + std::to_string(index)), update);
    return thrown_by([&] { check_update(folder, base, true); });
  };
  expect_rejected(check_at(kLarge), {"element 135000 becomes 68000"});
  EXPECT_EQ(check_at(kLarge - kPiece).message, kFine);
}

TEST_F(CheckUpdate, RejectsADeltaOfZeros) {
  Tensors zeros = some_model(1, Dtype::kBF16);
  for (auto& [name, tensor] : zeros)
    tensor.values.assign(tensor.values.size(), name == "out.weight" ? -0.0f : 0.0f);
  expect_rejected(check(zeros, true), {"zero"});
}

TEST_F(CheckUpdate, NamesTheFirstNonFiniteElement) {
  Tensors update = some_model(2, Dtype::kF16);
  update["norm.weight"].values[299] = NAN;
  expect_rejected(check(update, false), {"norm.weight", "element 299", "nan"});
  update["embed.weight"].values[262'145] = INFINITY;
  expect_rejected(check(update, true), {"embed.weight", "element 262145", "inf"});
}

TEST_F(CheckUpdate, RejectsAnotherSchema) {
  Tensors update = some_model(2);
  update["norm.weight"] = {{299}, some_values(299, 1)};
  expect_rejected(check(update, false), {"norm.weight", "[299]", "[300]"});
  update.erase("norm.weight");
  expect_rejected(check(update, false), {"norm.weight"});
  update = some_model(2);
  update["other.weight"] = {{1}, {1}};
  expect_rejected(check(update, false), {"other.weight"});
}

TEST_F(CheckUpdate, RejectsATruncatedFile) {
  const auto folder = dir_ / "truncated";
  write_model(folder, some_model(2));
  const auto file = folder / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_EQ(thrown_by([&] { check_update(folder, base_, false); }).kind, ErrorKind::kCorrupt);
}

// The changed element stays finite: only the hashes show the damage.
TEST_F(CheckUpdate, FindsDamageOfTheUpdateAndOfTheInputModel) {
  const auto update = write_model(dir_ / "update", some_model(2, Dtype::kBF16));
  const auto hashes_of = [](const std::filesystem::path& folder) {
    return checkpoint::rehash(folder, checkpoint::write_manifest(folder).root_sha256(),
                              test::write_unchecked);
  };
  const checkpoint::Hashes of_update = hashes_of(update), of_base = hashes_of(base_);
  const auto expect_damage = [](const std::filesystem::path& folder, const auto& body) {
    const auto path = folder / "model.safetensors";
    const std::string good = read_file(path, 1 << 30);
    std::string bad = good;
    bad.at(bad.size() - 2) ^= 1;
    write_file_atomic(path, bad);
    const Thrown thrown = thrown_by(body);
    write_file_atomic(path, good);
    EXPECT_EQ(thrown.kind, ErrorKind::kCorrupt) << thrown.message;
    EXPECT_THAT(thrown.message, HasSubstr(path.string() + " is damaged"));
  };
  const auto check_hashed = [&](bool delta, const ChangeLimit& limit) {
    check_update(update, base_, delta, limit, of_update, of_base);
  };
  const ChangeLimit far{.norm = 1e9}, turned{.norm = 1e9, .base_norm = 1e-9};
  EXPECT_NO_THROW(check_hashed(true, turned));
  for (const bool delta : {true, false}) expect_damage(update, [&] { check_hashed(delta, far); });
  expect_damage(base_, [&] { check_hashed(false, far); });
  expect_damage(base_, [&] { check_hashed(true, turned); });
  expect_damage(base_, [&] { l2_norm(base_, of_base); });
}

}  // namespace
}  // namespace xffl::aggregate
