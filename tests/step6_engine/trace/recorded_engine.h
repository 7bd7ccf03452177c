#pragma once
// What the tests of traces do with an engine without a model: record it, and know its table of blocks.
#include <map>
#include <memory>
#include <vector>

#include "step6_engine/trace/step_recorder.h"
#include "tests/step6_engine/fake_engine.h"

namespace ladder::testing {

inline std::vector<int32_t> prompt_of(int64_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(first + static_cast<int32_t>(i % 7));
  return ids;
}

// A viewer's books: what must hold in any row of records.
struct Recording {
  std::vector<TraceRecord> records;

  void record(Engine& engine) {
    engine.add_observer(
        std::make_shared<StepRecorder>(engine, [this](const TraceRecord& r) { records.push_back(r); }));
  }
};

inline void run(Engine& engine) {
  while (engine.has_unfinished()) engine.step();
}

// Notes the truth at the moments at which the recorder notes its own.
class Truth final : public EngineObserver {
 public:
  void on_submit(const Engine& engine, const SchedulerOutput& step) override {
    tables[step.step] = table(engine);
    running[step.step] = std::ssize(step.scheduled);
  }
  void on_results(const Engine& engine, const StepResult&) override { last = table(engine); }

  static std::vector<BlockState> table(const Engine& engine) {
    const BlockManager& blocks = engine.scheduler().blocks();
    std::vector<BlockState> states;
    for (int32_t id = 0; id < blocks.num_blocks(); ++id)
      states.push_back(blocks.ref_count(id) > 1    ? BlockState::shared
                       : blocks.ref_count(id) == 1 ? BlockState::held
                       : blocks.is_cached(id)      ? BlockState::cached
                                                   : BlockState::free);
    return states;
  }

  std::map<int64_t, std::vector<BlockState>> tables;
  std::map<int64_t, int64_t> running;
  std::vector<BlockState> last;
};

}  // namespace ladder::testing
