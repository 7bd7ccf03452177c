#pragma once
// One rank of an engine, ready to run steps: what each thread of LocalExecutor starts, and each worker process of step 7.
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "step4_runner/executor_options.h"
#include "step4_runner/model_runner.h"

namespace ladder {

// Makes one rank's model; ctx.parallel says which rank. Called where the rank runs.
using ModelFactory = std::function<std::unique_ptr<Model>(const OpContext& ctx)>;

// The loading of several ranks as one. From any thread; `progress`, which may be empty, is called by one at a time.
class SummedProgress {
 public:
  using Progress = std::function<void(int64_t done, int64_t total)>;  // bytes of weights

  SummedProgress(int num_ranks, Progress progress)
      : progress_(std::move(progress)), ranks_(static_cast<size_t>(num_ranks)) {}
  void set(int rank, int64_t done, int64_t total);

 private:
  struct Bytes {
    int64_t done = 0, total = 0;
  };
  std::mutex mutex_;
  Progress progress_;
  std::vector<Bytes> ranks_;
};

// That of the folder (step2_model/model.h): this rank's shard of its stage's layers, of the parts that the makers make.
// `config` is resolved. `progress` hears the loading of all ranks that call this one factory.
ModelFactory model_factory(const ExecutorOptions& options, const RunnerConfig& config);

// The context of a device; `owner` keeps what it points to. Error: this build has no such device.
OpContext make_rank_context(Device device, std::shared_ptr<void>& owner);

// What the configuration says of how operators run.
void apply_config(const RunnerConfig& config, OpContext& ctx);

// Loads, allocates, warms up: the ranks of a grid do this together, as they take part in each other's collectives.
// `ctx` has the device and the groups. The rank that samples does so, after the warm-up, with `processor` unless that is
// null.
std::unique_ptr<ModelRunner> start_rank(OpContext ctx, const RunnerConfig& config,
                                        const ModelFactory& make_model,
                                        const std::shared_ptr<LogitsProcessor>& processor);

}  // namespace ladder
