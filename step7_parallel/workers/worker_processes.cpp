#include "step7_parallel/workers/worker_processes.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/process/process_failed.h"

namespace ladder {

namespace {

using namespace std::chrono_literals;

// For a program to begin. What takes long comes after the hello.
constexpr std::chrono::seconds kHelloTimeout{30};
// For the failure that another one follows from, which may be heard of a moment later.
constexpr std::chrono::milliseconds kCausePatience{1'000};
// For workers that were told to end.
constexpr std::chrono::seconds kEndPatience{5};

}  // namespace

WorkerProcesses::WorkerProcesses(const RunnerConfig& config, const RunFingerprint& fingerprint,
                                 const WorkerProgram& program, WorkerChannels& channels, Shown shown,
                                 SummedProgress::Progress progress)
    : config_(config),
      channels_(channels),
      progress_(num_ranks(config), std::move(progress)),
      workers_(static_cast<size_t>(num_ranks(config))) {
  try {
    for (int rank = 0; rank < num_ranks(config); ++rank) {
      Worker& worker = workers_[static_cast<size_t>(rank)];
      worker.child = std::make_unique<ChildProcess>(
          ChildOptions{.name = fmt::format("rank {} of {}", rank, num_ranks(config)),
                       .arguments = program.arguments,
                       .program = program.program,
                       .descriptors = channels.descriptors_of(rank),
                       .stop_patience = ChildProcess::kStopPatience});
      worker.socket = std::make_unique<MessageSocket>(worker.child->take_socket());
    }
    for (int rank = 0; rank < num_ranks(config); ++rank)
      workers_[static_cast<size_t>(rank)].listener =
          std::thread([this, setup = WorkerSetup{rank, config, fingerprint, shown.kv_caches, shown.layers}] {
            listen(setup.rank, setup);
          });
    watcher_ = std::thread([this] { watch(); });
  } catch (...) {
    abandon();
    throw;
  }
}

// They are killed before their connections close: one that finds its parent gone would say so.
void WorkerProcesses::abandon() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  for (const Worker& worker : workers_)
    if (worker.child) worker.child->kill();
  for (Worker& worker : workers_) {
    if (worker.child) worker.child->end(std::chrono::milliseconds(0));
    if (worker.listener.joinable()) worker.listener.join();
  }
}

WorkerProcesses::~WorkerProcesses() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  channels_.end_steps();
  for (Worker& worker : workers_) worker.child->end(kEndPatience);
  for (Worker& worker : workers_) worker.listener.join();
  watcher_.join();
}

void WorkerProcesses::listen(int rank, const WorkerSetup& setup) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  std::string broken;
  try {
    worker.socket->exchange_hello(kHelloTimeout);
    worker.socket->write(static_cast<uint32_t>(WorkerMessage::setup), to_bytes(setup));
    while (const std::optional<Message> message = worker.socket->read()) {
      hear(rank, *message);
      if (message->type == static_cast<uint32_t>(WorkerMessage::failed)) return;
    }
  } catch (const Error& error) {
    broken = fmt::format(": {}", error.what());
  }
  {
    std::lock_guard lock(mutex_);
    if (ending_ || failure_) return;
  }
  end_all({false, worker.child->what_happened() + broken});
}

void WorkerProcesses::hear(int rank, const Message& message) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  switch (static_cast<WorkerMessage>(message.type)) {
    case WorkerMessage::progress: {
      const auto now = from_bytes<ProgressMessage>(message.bytes);
      progress_.set(rank, now.done, now.total);
      return;
    }
    case WorkerMessage::ready: {
      std::lock_guard lock(mutex_);
      worker.ready = from_bytes<WorkerReady>(message.bytes);
      changed_.notify_all();
      return;
    }
    case WorkerMessage::failed: {
      const auto failed = from_bytes<WorkerFailed>(message.bytes);
      const Failure failure{failed.users_mistake,
                            fmt::format("rank {} of {}: {}", rank, num_ranks(config_), failed.text)};
      failed.follows_from_another ? end_all_later(failure) : end_all(failure);
      return;
    }
    default:
      fail("message: type {} is not one that a worker sends", message.type);
  }
}

void WorkerProcesses::watch() {
  std::unique_lock lock(mutex_);
  const auto is_over = [this] { return ending_ || failure_.has_value(); };
  changed_.wait(lock, [&] { return is_over() || derived_; });
  if (is_over() || changed_.wait_until(lock, derived_until_, is_over)) return;
  const Failure failure = *derived_;
  lock.unlock();
  end_all(failure);
}

void WorkerProcesses::end_all_later(const Failure& failure) {
  {
    std::lock_guard lock(mutex_);
    if (derived_) return;
    derived_ = failure;
    derived_until_ = std::chrono::steady_clock::now() + kCausePatience;
  }
  changed_.notify_all();
}

void WorkerProcesses::end_all(const Failure& failure) {
  {
    std::lock_guard lock(mutex_);
    if (failure_ || ending_) return;
    failure_ = failure;
  }
  channels_.close(failure.text);
  for (const Worker& worker : workers_) worker.child->kill();
  changed_.notify_all();
}

std::vector<WorkerReady> WorkerProcesses::wait_until_ready() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return failure_ || std::all_of(workers_.begin(), workers_.end(),
                                     [](const Worker& one) { return one.ready.has_value(); });
    });
  }
  check();
  std::vector<WorkerReady> ready;
  for (const Worker& worker : workers_) ready.push_back(*worker.ready);
  return ready;
}

void WorkerProcesses::check() const {
  std::lock_guard lock(mutex_);
  if (!failure_) return;
  if (failure_->users_mistake) throw Error(failure_->text);
  throw ProcessFailed(failure_->text);
}

std::vector<int> WorkerProcesses::pids() const {
  std::vector<int> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.child->pid());
  return pids;
}

}  // namespace ladder
