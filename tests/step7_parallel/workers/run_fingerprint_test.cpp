// What must be the same in all processes is told apart where it differs.
#include "step7_parallel/workers/run_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "step1_layers/core/error.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr size_t kMiB = size_t{1} << 20;

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Of a folder with a configuration and 40 MiB of weights, after `change`.
RunFingerprint fingerprint_after(const std::function<void(const std::filesystem::path&)>& change) {
  const TemporaryFolder folder;
  write(folder / "config.json", "{}");
  write(folder / "model.safetensors", std::string(40 * kMiB, 'w'));
  change(folder.path());
  return run_fingerprint(folder.path());
}

TEST(RunFingerprint, SeesWhatIsDifferent) {
  const RunFingerprint same = fingerprint_after([](const auto&) {});
  EXPECT_EQ(fingerprint_after([](const auto&) {}).model, same.model);
  EXPECT_EQ(fingerprint_after([](const auto& folder) { write(folder / "notes.txt", "x"); }).model,
            same.model);
  const auto with_byte = [](size_t at) {
    return fingerprint_after([at](const auto& folder) {
      std::string weights(40 * kMiB, 'w');
      weights[at] = 'x';
      write(folder / "model.safetensors", weights);
    });
  };
  EXPECT_NE(with_byte(0).model, same.model);
  EXPECT_NE(with_byte(40 * kMiB / 16 * 15).model, same.model);  // the last sample
  EXPECT_NE(fingerprint_after([](const auto& folder) { write(folder / "config.json", "{ }"); }).model,
            same.model);
  EXPECT_NE(fingerprint_after([](const auto& folder) {
              write(folder / "model.safetensors", std::string(40 * kMiB + 1, 'w'));
            }).model,
            same.model);
  EXPECT_NE(fingerprint_after([](const auto& folder) {
              std::filesystem::rename(folder / "model.safetensors", folder / "other.safetensors");
            }).model,
            same.model);

  const TemporaryFolder folder;
  write(folder / "program", "a program");
  EXPECT_EQ(run_fingerprint(folder.path()).program, same.program);
  EXPECT_NE(run_fingerprint(folder.path(), folder / "program").program, same.program);
}

TEST(RunFingerprint, SaysWhatIsDifferent) {
  const auto error_of = [](const RunFingerprint& theirs) -> std::string {
    try {
      expect_same({1, 2}, theirs, "rank 0");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({1, 2}), "no error");
  EXPECT_THAT(error_of({9, 2}), HasSubstr("another build than that of rank 0"));
  EXPECT_THAT(error_of({1, 9}), HasSubstr("others than those that rank 0 sees"));
}

}  // namespace
}  // namespace ladder
