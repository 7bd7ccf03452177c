// A step of 256 sequences to N workers, from the scheduler's struct to every worker's: through one ring, and through a
// socket to each, which is the rung below. Workers are threads here; the memory and the system calls are the same.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include <thread>

#include "step6_engine/process/message_socket.h"
#include "step7_parallel/workers/step_ring.h"
#include "step7_parallel/workers/step_wire_forms.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 30s;

// Decode steps, of which every sixteenth sequence begins a block.
SchedulerOutput decode_step(int64_t num_sequences) {
  SchedulerOutput step;
  for (int64_t i = 0; i < num_sequences; ++i) {
    step.scheduled.push_back({.id = i, .num_tokens = 1, .draft_token_ids = {}});
    step.continued.push_back({.id = i, .new_block_ids = {}, .num_computed_tokens = 1000 + i});
    if (i % 16 == 0) step.continued.back().new_block_ids.push_back(static_cast<int32_t>(i));
  }
  step.total_num_tokens = num_sequences;
  return step;
}

// The workers' side: steps that each has understood.
struct alignas(64) Understood {
  std::atomic<int64_t> count{0};
};

// Into the struct of the step before, as workers do.
void understand(std::string_view bytes, SchedulerOutput& step, Understood& mine) {
  WireReader wire(bytes);
  wire(step);
  benchmark::DoNotOptimize(step.total_num_tokens);
  mine.count.fetch_add(1, std::memory_order_release);
}

void wait_for_all(const std::vector<Understood>& workers, int64_t count) {
  for (const Understood& worker : workers)
    while (worker.count.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

void BM_BroadcastStep_ring(benchmark::State& state) {
  const auto num_workers = static_cast<int>(state.range(0));
  const SchedulerOutput step = decode_step(256);
  StepRingWriter writer({.num_readers = num_workers});
  std::vector<Understood> understood(static_cast<size_t>(num_workers));
  std::vector<std::thread> workers;
  for (int i = 0; i < num_workers; ++i)
    workers.emplace_back([&, i] {
      StepRingReader reader(FileDescriptor(::dup(writer.descriptor())), i);
      SchedulerOutput mine;
      for (std::string bytes; reader.read(bytes, kPatience) == StepRingReader::Read::message;)
        understand(bytes, mine, understood[static_cast<size_t>(i)]);
    });
  int64_t count = 0;
  std::string bytes;
  for (auto _ : state) {
    bytes.clear();
    WireWriter{bytes}(step);
    writer.write(bytes, kPatience);
    wait_for_all(understood, ++count);
  }
  writer.close();
  for (std::thread& worker : workers) worker.join();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(to_bytes(step).size()));
}
BENCHMARK(BM_BroadcastStep_ring)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->UseRealTime();

void BM_BroadcastStep_sockets(benchmark::State& state) {
  const auto num_workers = static_cast<size_t>(state.range(0));
  const SchedulerOutput step = decode_step(256);
  std::vector<Understood> understood(num_workers);
  std::vector<std::unique_ptr<MessageSocket>> ours, theirs;
  std::vector<std::thread> workers;
  for (size_t i = 0; i < num_workers; ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return state.SkipWithError("no sockets");
    ours.push_back(std::make_unique<MessageSocket>(FileDescriptor(ends[0])));
    theirs.push_back(std::make_unique<MessageSocket>(FileDescriptor(ends[1])));
    workers.emplace_back([&, i] {
      SchedulerOutput mine;
      while (const auto message = theirs[i]->read()) understand(message->bytes, mine, understood[i]);
    });
  }
  int64_t count = 0;
  std::string bytes;
  for (auto _ : state) {
    bytes.clear();
    WireWriter{bytes}(step);
    for (const auto& socket : ours) socket->write(1, bytes);
    wait_for_all(understood, ++count);
  }
  for (const auto& socket : ours) socket->shut_down();
  for (std::thread& worker : workers) worker.join();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(to_bytes(step).size()));
}
BENCHMARK(BM_BroadcastStep_sockets)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->UseRealTime();

// Of that, what the struct's way into bytes and out of them takes on one core.
void BM_StepToBytes(benchmark::State& state) {
  const SchedulerOutput step = decode_step(256);
  std::string bytes;
  for (auto _ : state) {
    bytes.clear();
    WireWriter{bytes}(step);
    benchmark::DoNotOptimize(bytes.data());
  }
}
BENCHMARK(BM_StepToBytes);
void BM_StepFromBytes(benchmark::State& state) {
  const std::string bytes = to_bytes(decode_step(256));
  SchedulerOutput step;
  Understood ignored;
  for (auto _ : state) understand(bytes, step, ignored);
}
BENCHMARK(BM_StepFromBytes);

}  // namespace
}  // namespace ladder
