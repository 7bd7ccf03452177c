// What an EngineClient adds to a step: the engine in a thread of this process, and the same one behind a socket. One
// reader takes all streams, as a server's I/O thread does. Nothing is computed, so all time is the way of the tokens.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/step6_engine/instant_executor.h"
#include "step6_engine/remote/serve_engine.h"
#include "step6_engine/remote/socket_engine_client.h"
#include "step6_engine/thread_engine_client.h"

namespace ladder {
namespace {

std::unique_ptr<Engine> instant_engine(int64_t num_sequences) {
  SchedulerConfig config;
  config.batch.max_num_seqs = num_sequences;
  config.batch.max_num_batched_tokens = 64 * num_sequences;
  config.batch.max_model_len = 4096;
  config.vocab_size = 1000;
  config.batch.num_kv_blocks = 256 * num_sequences;
  config.enable_prefix_caching = false;
  return std::make_unique<Engine>(std::make_unique<InstantExecutor>(), config, nullptr);
}

// Which streams have something, for the one thread that reads all.
class Ready {
 public:
  void add(size_t stream) {
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
    changed_.notify_one();
  }
  void take(std::vector<size_t>& streams) {
    streams.clear();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !streams_.empty(); });
    streams.swap(streams_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> streams_;
};

void run_requests(benchmark::State& state, EngineClient& client) {
  constexpr int64_t kTokens = 512;
  const auto num_streams = static_cast<size_t>(state.range(0));
  const int64_t steps_before = client.stats().metrics.num_steps;
  for (auto _ : state) {
    Ready ready;
    std::vector<RequestStream> streams;
    for (size_t i = 0; i < num_streams; ++i) {
      Request request;
      request.prompt_token_ids.assign(32, static_cast<int32_t>(i));
      request.sampling.max_tokens = kTokens;
      request.sampling.temperature = 0.0;
      streams.push_back(client.submit(request, [&ready, i] { ready.add(i); }));
    }
    std::vector<size_t> taken;
    for (size_t num_ended = 0; num_ended < num_streams;) {
      ready.take(taken);
      for (const size_t i : taken)
        while (const auto update = streams[i].next(std::chrono::nanoseconds(0)))
          num_ended += update->output.has_value();
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(num_streams) * kTokens);
  state.counters["steps"] = static_cast<double>(client.stats().metrics.num_steps - steps_before);
}

void BM_ClientInAThread(benchmark::State& state) {
  ThreadEngineClient client(instant_engine(state.range(0)));
  run_requests(state, client);
}
BENCHMARK(BM_ClientInAThread)->Arg(1)->Arg(32)->Arg(256)->UseRealTime()->Unit(benchmark::kMillisecond);

void BM_ClientOverASocket(benchmark::State& state) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  std::unique_ptr<Engine> engine = instant_engine(state.range(0));
  const SchedulerConfig config = engine->scheduler().config();
  auto socket = std::make_unique<MessageSocket>(FileDescriptor(ends[0]));
  std::thread server([&engine, end = std::make_shared<MessageSocket>(FileDescriptor(ends[1]))] {
    serve_engine(*end, std::move(engine));
  });
  socket->read();  // ready
  {
    SocketEngineClient client(std::move(socket), config, nullptr);
    run_requests(state, client);
  }
  server.join();
}
BENCHMARK(BM_ClientOverASocket)->Arg(1)->Arg(32)->Arg(256)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ladder
