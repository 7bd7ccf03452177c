#include "step8_advanced/quantization/quantizer/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

Tensor bytes(const Shape& shape, DType dtype) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  auto* raw = static_cast<uint8_t*>(tensor.raw());
  std::iota(raw, raw + tensor.nbytes(), static_cast<uint8_t>(tensor.nbytes()));
  return tensor;
}

void expect_equal(const Tensor& seen, const Tensor& expected) {
  EXPECT_EQ(seen.str(), expected.str());
  ASSERT_EQ(seen.nbytes(), expected.nbytes());
  EXPECT_EQ(std::memcmp(seen.raw(), expected.raw(), static_cast<size_t>(seen.nbytes())), 0);
}

std::vector<NamedTensor> one_of_each() {
  std::vector<NamedTensor> tensors;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                            DType::u8, DType::i8, DType::f8_e4m3})
    tensors.push_back({"model." + std::string(dtype_name(dtype)), bytes({3, 5}, dtype)});
  tensors.push_back({"none", Tensor::empty({0, 4}, DType::f32)});
  tensors.push_back({"number", bytes({1}, DType::f32)});
  return tensors;
}

TEST(Task8_5_Writer, EveryDtypeComesBack) {
  TemporaryFolder folder;
  const std::vector<NamedTensor> tensors = one_of_each();
  write_checkpoint(folder.path(), tensors);
  const Checkpoint checkpoint(folder.path());
  ASSERT_EQ(checkpoint.entries().size(), tensors.size());
  for (const NamedTensor& one : tensors) {
    ASSERT_NE(checkpoint.find(one.name), nullptr) << one.name;
    expect_equal(checkpoint.find(one.name)->tensor(), one.tensor);
  }
  EXPECT_THAT(read_text_file(folder / "model.safetensors"), HasSubstr(R"("__metadata__":{"format":"pt"})"));
}

TEST(Task8_5_Writer, ShardsAndTheirIndexComeBack) {
  TemporaryFolder folder;
  const std::vector<NamedTensor> tensors = one_of_each();
  write_checkpoint(folder.path(), tensors, 130);  // bytes: f64's 120 fill a shard
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "model-00001-of-00004.safetensors"));
  const Checkpoint checkpoint(folder.path());
  ASSERT_EQ(checkpoint.entries().size(), tensors.size());
  for (const NamedTensor& one : tensors) expect_equal(checkpoint.find(one.name)->tensor(), one.tensor);
  const Json index = load_json(folder / "model.safetensors.index.json");
  EXPECT_EQ(index.at("metadata").at("total_size"), checkpoint.nbytes());
}

TEST(Task8_5_Writer, TheSameNameTwiceIsRefused) {
  TemporaryFolder folder;
  const std::vector<NamedTensor> twice = {{"a", bytes({2}, DType::u8)}, {"a", bytes({3}, DType::u8)}};
  for (const int64_t shard : {100, 1}) try {
      write_checkpoint(folder.path(), twice, shard);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("called a"));
    }
}

// Files may have 64 KiB, and no signal says so: write() fails as it does where the disc is full.
class SmallFiles {
 public:
  SmallFiles() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit small{64 << 10, limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit limit_{};
};

TEST(Task8_5_Writer, AFullDiscLeavesNothingAndTheOldFileAsItWas) {
  TemporaryFolder folder;
  write_checkpoint(folder.path(), {{"old", bytes({7}, DType::u8)}});
  std::string message;
  {
    const SmallFiles limit;
    try {
      write_checkpoint(folder.path(), {{"new", bytes({100 << 10}, DType::u8)}});
    } catch (const Error& error) {
      message = error.what();
    }
  }
  EXPECT_THAT(message, HasSubstr("model.safetensors could not be written to its end"));
  EXPECT_NE(Checkpoint(folder.path()).find("old"), nullptr);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Task8_5_Writer, AFolderThatIsNotThereIsNamed) {
  TemporaryFolder folder;
  try {
    write_file_atomically(folder / "none" / "file", "text");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr((folder / "none" / "file").string()));
  }
}

}  // namespace
}  // namespace ladder
