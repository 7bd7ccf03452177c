#include "step7_parallel/workers/worker_process.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "step1_layers/core/error.h"
#include "step4_runner/telling_ranks.h"
#include "step6_engine/process/message_socket.h"
#include "step6_engine/process/parent_socket.h"
#include "step7_parallel/workers/process_rank.h"
#include "step7_parallel/workers/shared_kv_caches.h"
#include "step7_parallel/workers/told_layers.h"
#include "step7_parallel/workers/worker_channels.h"
#include "step7_parallel/workers/worker_messages.h"

#ifdef LADDER_HAS_CUDA
#include "step7_parallel/workers/gpu_kv_caches.h"
#endif

namespace ladder {

namespace {

constexpr std::chrono::seconds kHelloTimeout{30};
// A wait for steps has no end of its own: it is cut into pieces of this.
constexpr std::chrono::seconds kLook{1};
constexpr std::chrono::seconds kAnswerTimeout{30};
constexpr std::chrono::milliseconds kGroupLook{100};

// The answers to steps, in their order. On a GPU a step is launched long before it is done: a thread waits for that while
// the worker's own launches the next one. On the CPU a launched step is done, and its answer needs no other thread.
class Answers {
 public:
  using Launched = std::shared_ptr<const LaunchedStep>;

  Answers(StepRingWriter& ring, bool computes_later, std::function<void(std::exception_ptr)> failed)
      : ring_(ring), failed_(std::move(failed)) {
    if (computes_later) thread_ = std::thread([this] { answer_all(); });
  }
  ~Answers() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void add(Launched step) {
    if (!thread_.joinable()) return answer(*step);
    {
      std::lock_guard lock(mutex_);
      launched_.push_back(std::move(step));
    }
    changed_.notify_one();
  }

 private:
  void answer(const LaunchedStep& step) { ring_.write(to_bytes(step.collect()), kAnswerTimeout); }
  void answer_all() try {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !launched_.empty(); });
      if (ending_) return;
      const Launched step = std::move(launched_.front());
      launched_.pop_front();
      lock.unlock();
      answer(*step);
      lock.lock();
    }
  } catch (...) {
    failed_(std::current_exception());
  }

  StepRingWriter& ring_;
  const std::function<void(std::exception_ptr)> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Launched> launched_;
  bool ending_ = false;
  std::thread thread_;
};

// A kernel that waits for a GPU of another replica, whose process is gone, waits for ever, and this process with it: a closed
// group, by which the host's calls end, means nothing to it. So a thread looks at the groups, and says when one was closed.
class GroupWatch {
 public:
  GroupWatch(const InheritedChannels& channels, std::function<void(const std::string& reason)> closed)
      : thread_([this, &channels, closed = std::move(closed)] {
          std::unique_lock lock(mutex_);
          while (!ended_.wait_for(lock, kGroupLook, [this] { return ending_; }))
            if (const std::string reason = channels.closed_because(); !reason.empty()) return closed(reason);
        }) {}
  ~GroupWatch() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread thread_;
};

WorkerFailed in_words(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return {true, false, error.what()};
  } catch (const std::bad_alloc&) {
    return {true, false, "out of memory"};
  } catch (const std::exception& error) {
    return {false, false, error.what()};
  } catch (...) {
    return {false, false, "an exception that is none of std::exception"};
  }
}

WorkerSetup read_setup(MessageSocket& socket) {
  const std::optional<Message> message = socket.read();
  LADDER_CHECK(message && message->type == static_cast<uint32_t>(WorkerMessage::setup),
               "the engine's process sent no setup");
  return from_bytes<WorkerSetup>(message->bytes);
}

template <class T>
void send(MessageSocket& socket, WorkerMessage type, const T& message) {
  socket.write(static_cast<uint32_t>(type), to_bytes(message));
}

class Worker {
 public:
  Worker(MessageSocket& socket, const WorkerSetup& setup)
      : socket_(socket),
        number_(setup.rank),
        config_(setup.config),
        shows_kv_caches_(setup.shows_kv_caches),
        channels_(config_, number_, shows_kv_caches_ && config_.device.is_cpu(), setup.tells_layers) {
    if (channels_.layers) layers_.emplace(*channels_.layers);
  }

  void run(const RunFingerprint& theirs, const std::function<ExecutorOptions()>& make_options) try {
    ExecutorOptions options = make_options();
    expect_same(run_fingerprint(options.model), theirs, "the engine's process");
    options.progress = [this](int64_t done, int64_t total) {
      send(socket_, WorkerMessage::progress, ProgressMessage{done, total});
    };
    if (layers_) options.model_makers = TellingRanks(*layers_).around(options.model_makers);
    std::optional<GroupWatch> watch;
    if (channels_.experts != nullptr && !config_.device.is_cpu())
      watch.emplace(channels_, [this](const std::string& reason) {
        say(std::make_exception_ptr(Error(reason)));
        ::_exit(1);
      });
    ProcessRank rank(
        config_, number_, number_,
        {channels_.tensor.get(), channels_.column.get(), channels_.context.get(), channels_.experts.get()});
    WorkerReady ready;
    rank.start(options, [&](std::unique_ptr<Model>& model) {
      if (shows_kv_caches_) ready.kv_caches = model->kv_cache_specs();
      if (channels_.kv_caches == nullptr) return;
      model = with_kv_caches(std::move(model), kv_caches_in(channels_.kv_caches, ready.kv_caches, config_));
    });
    ready.batch = rank.runner().config().batch;
    ready.memory = rank.runner().memory();
#ifdef LADDER_HAS_CUDA
    if (shows_kv_caches_ && !config_.device.is_cpu())
      ready.gpu_memory = show_gpu_kv_caches(rank.runner().kv_caches());
#endif
    send(socket_, WorkerMessage::ready, ready);
    run_steps(rank);
  } catch (...) {
    say(std::current_exception());
  }

 private:
  void run_steps(ProcessRank& rank) {
    // What fails on the thread of the answers ends the process from there: this one may be waiting for anything.
    Answers answered(channels_.answers, !config_.device.is_cpu(), [this](std::exception_ptr exception) {
      say(exception);
      ::_exit(1);
    });
    std::string bytes;
    SchedulerOutput step;
    std::vector<KnownTokens> known;
    for (;;) {
      const auto read = channels_.steps.read(bytes, kLook);
      if (read == StepRingReader::Read::closed) return;
      if (read == StepRingReader::Read::nothing_yet) continue;
      WireReader wire(bytes);
      wire(step, known);
      wire.expect_end();
      if (layers_) layers_->begin_step(step);
      auto launched = rank.launch(step, known);
      if (rank.answers()) answered.add(std::move(launched));
    }
  }

  // First to the engine, then to the peers: so that it hears the cause before what follows from it, as well as that goes.
  void say(std::exception_ptr exception) {
    WorkerFailed failed = in_words(exception);
    failed.follows_from_another = !channels_.closed_because().empty();
    try {
      send(socket_, WorkerMessage::failed, failed);
    } catch (const Error&) {  // the engine is gone, and with it whoever would want to know
    }
    channels_.close_groups(fmt::format("rank {} failed: {}", number_, failed.text));
  }

  MessageSocket& socket_;
  const int number_;
  const RunnerConfig config_;
  const bool shows_kv_caches_;
  // Outlive run(): what that throws is told before the peers see that it has left.
  InheritedChannels channels_;
  std::optional<LayersOfWorker> layers_;
};

}  // namespace

void run_worker_process(int descriptor, const std::function<ExecutorOptions()>& make_options) {
  MessageSocket socket(take_parent_socket(descriptor, "an engine with several worker processes"));
  socket.exchange_hello(kHelloTimeout);
  const WorkerSetup setup = read_setup(socket);
  Worker(socket, setup).run(setup.fingerprint, make_options);
}

}  // namespace ladder
