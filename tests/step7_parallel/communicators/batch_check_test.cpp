// The comparison of the ranks' batches (step4_runner/batch_check.h) by every way in which ranks of a CPU talk.
#include "step4_runner/batch_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/communicators/kinds.h"

namespace ladder {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(BatchCheck, HoldsOverEveryCommunicator) {
  const BatchChecksums same{.step = 41, .sequences = 1, .tokens = 2, .block_tables = 3, .sampling = 4};
  BatchChecksums other = same;
  other.block_tables = 5;
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.device != DeviceType::cpu || kind.run == nullptr) continue;
    SCOPED_TRACE(std::string(kind.name));
    // Rank 2 has another one from the third step on.
    const auto errors = [&](bool stages) {
      return kind.run(3, std::chrono::seconds(60), [&](int rank, Communicator& group) {
        ParallelContext parallel;
        (stages ? parallel.pp : parallel.tp) = &group;
        OpContext ctx;
        ctx.parallel = &parallel;
        for (int step = 0; step < 3; ++step) compare_batches(ctx, step == 2 && rank == 2 ? other : same);
      });
    };
    EXPECT_THAT(errors(false),
                Each(HasSubstr("step 41: tensor ranks 0 and 2 of stage 0 do not compute the same batch: "
                               "the block tables differ")));
    EXPECT_THAT(errors(true)[2],
                HasSubstr("step 41: stages 1 and 2 do not compute the same batch (tensor rank 0): "
                          "the block tables differ"));
  }
}

}  // namespace
}  // namespace ladder
