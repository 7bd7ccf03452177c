#include "step7_parallel/data/lockstep_group.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/data/common_rows.h"

namespace ladder {

LockstepGroup::LockstepGroup(const RunnerConfig& config, RanksAre ranks)
    : ranks_per_stage_(config.tensor_parallel_size),
      batch_(config.batch),
      on_gpus_(!config.device.is_cpu()),
      ranks_are_(ranks),
      votes_(config.expert_replicas),
      waves_(static_cast<size_t>(config.expert_replicas)),
      wakes_(waves_.size()),
      leaving_(waves_.size()) {
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage)
    if (ranks_are_ == RanksAre::threads)
      stages_.push_back(std::make_unique<LocalGroup>(num_expert_ranks(config)));
    else
      shared_stages_.push_back(SharedMemoryGroup::create({.size = num_expert_ranks(config)}));
}

void LockstepGroup::expect_same_steps(const RunnerConfig& config) const {
  LADDER_CHECK(
      !on_gpus_ || config.batch.max_model_len == batch_.max_model_len,
      "replica {} has room for sequences of {} tokens and another one for {}, where replicas that share out "
      "experts take steps alike: expected a --max-model-len for which each has room",
      config.expert_replica, config.batch.max_model_len, batch_.max_model_len);
}

ExpertRanks LockstepGroup::ranks_of(int replica) {
  ExpertRanks ranks;
  for (const auto& stage : stages_)
    for (int rank = 0; rank < ranks_per_stage_; ++rank)
      ranks.groups.push_back(&stage->rank(replica * ranks_per_stage_ + rank));
  ranks.fail = [this, replica](const std::string& reason) { fail(replica, reason); };
  return ranks;
}

std::vector<int> LockstepGroup::shared_ranks() const {
  std::vector<int> descriptors;
  for (const SharedMemoryGroup& stage : shared_stages_)
    descriptors.insert(descriptors.end(), static_cast<size_t>(ranks_per_stage_), stage.descriptor());
  return descriptors;
}

bool LockstepGroup::is_awaited(int replica) const {
  std::lock_guard lock(mutex_);
  return waves_[static_cast<size_t>(replica)].running() || !failure_.empty();
}

void LockstepGroup::on_awaited(int replica, std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wakes_[static_cast<size_t>(replica)] = std::move(wake);
}

void LockstepGroup::wake_others(int replica) const {
  std::vector<std::function<void()>> wakes;
  {
    std::lock_guard lock(mutex_);
    wakes = wakes_;
  }
  for (int other = 0; other < size(); ++other)
    if (const auto& wake = wakes[static_cast<size_t>(other)]; other != replica && wake) wake();
}

void LockstepGroup::start_others(int replica, int64_t number) {
  {
    std::lock_guard lock(mutex_);
    for (int other = 0; other < size(); ++other)
      if (other != replica) waves_[static_cast<size_t>(other)].on_start(number);
    changed_.notify_all();
  }
  wake_others(replica);
}

LockstepGroup::Votes LockstepGroup::vote(int replica, std::optional<int64_t> rows) {
  const Tensor mine = Tensor::from<int64_t>(std::vector<int64_t>{rows ? 1 : 0, rows.value_or(0)}, {1, 2});
  const Tensor all = Tensor::empty({size(), 2}, DType::i64);
  try {
    votes_.rank(replica).all_gather({}, mine, all);
  } catch (const Error&) {
    check();
    throw;
  }
  Votes votes;
  for (int other = 0; other < size(); ++other) {
    votes.has_step.push_back(static_cast<int32_t>(all.at<int64_t>({other, 0})));
    votes.most_rows = std::max(votes.most_rows, all.at<int64_t>({other, 1}));
  }
  return votes;
}

int64_t LockstepGroup::rows_to_run(int64_t mine, int64_t most) const {
  return on_gpus_ ? common_rows(most, batch_) : mine;
}

// >>> task 7.9.wave: start the others, vote, and hear whether there is a step
std::optional<int64_t> LockstepGroup::next_step(int replica, std::optional<int64_t> rows) {
  check();
  Wave& wave = waves_[static_cast<size_t>(replica)];
  bool starts = false;
  int64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    starts = rows.has_value() && wave.begin();
    number = wave.number();
  }
  if (starts) start_others(replica, number);
  const Votes votes = vote(replica, rows);
  std::lock_guard lock(mutex_);
  if (!wave.on_votes(votes.has_step)) return {};
  return rows_to_run(rows.value_or(0), votes.most_rows);
}
// <<< task 7.9.wave

void LockstepGroup::fail(int replica, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failed_replica_ = replica;
    failure_ = fmt::format("replica {}, which has a share of the experts, failed: {}", replica, reason);
    changed_.notify_all();
  }
  votes_.fail_rank(replica, reason);
  for (const auto& stage : stages_)
    for (int rank = 0; rank < ranks_per_stage_; ++rank)
      stage->fail_rank(replica * ranks_per_stage_ + rank, reason);
  for (const SharedMemoryGroup& stage : shared_stages_) stage.close(reason);
  wake_others(replica);
}

std::string LockstepGroup::failure_of_another(int replica) const {
  std::lock_guard lock(mutex_);
  return failed_replica_ == replica ? std::string() : failure_;
}

void LockstepGroup::check() const {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(failure_.empty(), "{}", failure_);
}

bool LockstepGroup::all_leave() const {
  return std::ranges::all_of(leaving_, [](bool leaving) { return leaving; });
}

bool LockstepGroup::is_awaited_at_the_end(int replica) {
  const Wave& wave = waves_[static_cast<size_t>(replica)];
  std::unique_lock lock(mutex_);
  leaving_[static_cast<size_t>(replica)] = true;
  changed_.notify_all();
  changed_.wait_for(lock, kLeavePatience, [&] { return wave.running() || all_leave() || !failure_.empty(); });
  return wave.running() && !all_leave() && failure_.empty();
}

void LockstepGroup::leave(int replica) {
  std::unique_lock lock(mutex_);
  leaving_[static_cast<size_t>(replica)] = true;
  wakes_[static_cast<size_t>(replica)] = nullptr;
  const bool alone = !all_leave();
  lock.unlock();
  if (alone) fail(replica, "it was ended before the others");
  votes_.leave(replica);  // for one that waits in the last vote: nobody has a step any more
}

bool LockstepGroup::has_ended() const {
  std::lock_guard lock(mutex_);
  return !failure_.empty() || std::ranges::any_of(leaving_, [](bool leaving) { return leaving; });
}

StartedEngine LockstepGroups::start(int replica, const std::function<StartedEngine()>& load) {
  try {
    return load();
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    if (have_started_) throw;
    if (closed_.empty()) closed_ = fmt::format("replica {} did not start: {}", replica, error.what());
    if (group_ != nullptr) group_->fail(replica, error.what());
    throw;
  }
}

std::shared_ptr<LockstepGroup> LockstepGroups::join(const RunnerConfig& config, RanksAre ranks) {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(closed_.empty(), "{}", closed_);
  if (group_ == nullptr || group_->has_ended()) {
    group_ = std::make_shared<LockstepGroup>(config, ranks);
    num_starting_ = config.expert_replicas;
  }
  return group_;
}

void LockstepGroups::started(const LockstepGroup& group) {
  std::lock_guard lock(mutex_);
  if (&group == group_.get() && --num_starting_ == 0) have_started_ = true;
}

void LockstepGroups::close() {
  std::lock_guard lock(mutex_);
  if (closed_.empty()) closed_ = "the engine is stopping and starts no more replicas";
  if (group_ != nullptr && num_starting_ > 0)
    group_->fail(0, "the engine was stopped while replicas started");
}

}  // namespace ladder
