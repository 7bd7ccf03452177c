// Every communicator of the table through every case, in groups of several sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/kinds.h"
#include "tests/step7_parallel/communicators/collective_cases.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::CollectiveCase;

constexpr auto kDeadline = 120s;  // of a hang; a sanitizer on a busy machine takes 25 s for the longest case

struct Setting {
  const CommunicatorKind* kind;
  const CollectiveCase* one;
};

std::string name_of(const ::testing::TestParamInfo<Setting>& setting) {
  return std::string(setting.param.kind->name) + "_" + std::string(setting.param.one->name);
}

std::vector<Setting> settings() {
  std::vector<Setting> settings;
  for (const CommunicatorKind& kind : communicator_kinds())
    for (const CollectiveCase& one : testing::collective_cases())
      if (kind.device == DeviceType::cpu && kind.run != nullptr) settings.push_back({&kind, &one});
  return settings;
}

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.kind->name << ", " << setting.one->name;
}

class EveryCommunicator : public ::testing::TestWithParam<Setting> {};

TEST_P(EveryCommunicator, DoesIt) {
  const auto& [kind, one] = GetParam();
  if (const std::string obstacle = kind->obstacle(2); !obstacle.empty()) GTEST_SKIP() << obstacle;
  for (const int size : {1, 2, 3, 4}) {
    const uint64_t seed = testing::fresh_seed();
    const auto errors = kind->run(size, kDeadline, [&](int, Communicator& group) { one->run(group, seed); });
    EXPECT_THAT(errors, ::testing::Each("")) << size << " ranks, LADDER_TEST_SEED=" << seed;
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, EveryCommunicator, ::testing::ValuesIn(settings()), name_of);

TEST(CommunicatorKinds, OneThatIsNotThereIsNamedWithThoseThatAre) {
  try {
    communicator_kind("pigeons");
    ADD_FAILURE() << "there is one";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("pigeons"), ::testing::HasSubstr("shared_memory")));
  }
}

}  // namespace
}  // namespace ladder
