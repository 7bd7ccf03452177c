#include "step7_parallel/workers/worker_channels.h"

#include <fcntl.h>

#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/process/child_process.h"

namespace ladder {

namespace {

StepRingShape ring_for(int num_readers) {
  return {.num_readers = num_readers};
}

// The i-th that this process has inherited.
FileDescriptor inherited(int i) {
  FileDescriptor descriptor(ChildProcess::kFirstInherited + i);
  LADDER_CHECK(::fcntl(descriptor.number(), F_SETFD, FD_CLOEXEC) == 0, "shared memory {} was not handed on",
               i);
  return descriptor;
}

}  // namespace

WorkerChannels::WorkerChannels(const RunnerConfig& config, std::vector<int> experts,
                               std::span<const size_t> kv_bytes, std::vector<int> layers)
    : config_(config),
      experts_(std::move(experts)),
      layers_(std::move(layers)),
      steps_(ring_for(num_ranks(config))),
      made_answers_(ring_for(1)),
      answers_(reader_of(made_answers_)) {
  LADDER_CHECK(config.expert_replicas == 1 || std::ssize(experts_) == num_ranks(config),
               "experts shared out over {} replicas: {} processes have {} groups", config.expert_replicas,
               num_ranks(config), experts_.size());
  const auto make_groups = [](std::vector<SharedMemoryGroup>& groups, int count, int size) {
    for (int i = 0; size > 1 && i < count; ++i) groups.push_back(SharedMemoryGroup::create({.size = size}));
  };
  const GridGroups count = num_groups(config);
  make_groups(tensor_groups_, count.tensor, config.tensor_parallel_size);
  make_groups(columns_, count.column, config.pipeline_parallel_size);
  make_groups(context_groups_, count.context, config.prefill_context_parallel_size);
  for (const size_t size : kv_bytes)
    kv_caches_.push_back(
        std::make_shared<SharedMemory>(SharedMemory::create("ladder keys and values", size)));
}

std::vector<int> WorkerChannels::descriptors_of(int rank) const {
  const GridGroups mine = groups_of(config_, place_of(config_, rank));
  std::vector<int> descriptors = {steps_.descriptor(), made_answers_.descriptor()};
  const auto hand_on = [&](const std::vector<SharedMemoryGroup>& groups, int number) {
    if (!groups.empty()) descriptors.push_back(groups[static_cast<size_t>(number)].descriptor());
  };
  hand_on(tensor_groups_, mine.tensor);
  hand_on(columns_, mine.column);
  hand_on(context_groups_, mine.context);
  if (!experts_.empty()) descriptors.push_back(experts_[static_cast<size_t>(rank)]);
  if (!kv_caches_.empty()) descriptors.push_back(kv_caches_of(rank)->descriptor());
  if (!layers_.empty()) descriptors.push_back(layers_[static_cast<size_t>(rank)]);
  return descriptors;
}

void WorkerChannels::close(const std::string& reason) {
  for (const auto* groups : {&tensor_groups_, &columns_, &context_groups_})
    for (const SharedMemoryGroup& group : *groups) group.close(reason);
  steps_.close();
  made_answers_.close();
}

std::string WorkerChannels::where() const {
  std::string text;
  for (const auto& [groups, kind] : {std::pair{&tensor_groups_, "tensor group"},
                                     {&columns_, "column"},
                                     {&context_groups_, "context group"}})
    for (size_t i = 0; i < groups->size(); ++i) {
      std::string lines = (*groups)[i].where();
      while (lines.ends_with('\n')) lines.pop_back();
      for (size_t end; (end = lines.find('\n')) != std::string::npos;) lines.replace(end, 1, ", ");
      text += fmt::format("{}{} {}: {}", text.empty() ? "" : "; ", kind, i, lines);
    }
  return text;
}

InheritedChannels::InheritedChannels(const RunnerConfig& config, int rank, bool has_kv_caches,
                                     bool tells_layers)
    : steps(inherited(0), rank), answers(inherited(1)) {
  const GridPlace place = place_of(config, rank);
  int next = 2;
  if (config.tensor_parallel_size > 1)
    tensor = groups.emplace_back(SharedMemoryGroup::open(inherited(next++))).join(place.tensor_rank);
  if (config.pipeline_parallel_size > 1)
    column = groups.emplace_back(SharedMemoryGroup::open(inherited(next++))).join(place.stage);
  if (config.prefill_context_parallel_size > 1)
    context = groups.emplace_back(SharedMemoryGroup::open(inherited(next++))).join(place.context_rank);
  if (config.expert_replicas > 1)
    experts = groups.emplace_back(SharedMemoryGroup::open(inherited(next++)))
                  .join(expert_rank(config, place.tensor_rank));
  if (has_kv_caches) kv_caches = std::make_shared<SharedMemory>(SharedMemory::open(inherited(next++)));
  if (tells_layers) layers.emplace(inherited(next++));
}

std::string InheritedChannels::closed_because() const {
  for (const SharedMemoryGroup& group : groups)
    if (const std::string reason = group.closed_because(); !reason.empty()) return reason;
  return {};
}

void InheritedChannels::close_groups(const std::string& reason) const {
  for (const SharedMemoryGroup& group : groups) group.close(reason);
}

}  // namespace ladder
