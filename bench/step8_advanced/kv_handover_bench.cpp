// A prompt of 4,096 tokens of Llama-3.1-8B (32 layers of 8 heads of 128, bf16: 537 MB, blocks of 16 in random order) from the
// caches on one GPU into those on another: packed, with checksums, over a transport, checked and unpacked, by the engine's own two
// loops (connector/part_stream.h), as fast as one follows the other. The reader is a thread of this process or another process
// (tests/step8_advanced/disaggregation/transport/program). of_peer is the share of what a copy of as many bytes in one piece between
// these GPUs makes in the same run; on one GPU that is a copy within its memory. Runs where there is a GPU.
//
// kv_copier: a message of 32 MiB of it on one GPU, packed with its checksums, unpacked behind a check of them, and checked alone. kv_copier_beside: while another
// thread of this process, or another process, fills that GPU's memory without a pause: with kernels of another process those of this
// one take turns, and that is how an engine copies beside its own ranks that are processes.
#if defined(LADDER_HAS_CUDA) && defined(KV_PEER)
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "step1_layers/core/device_cuda.h"
#include "step6_engine/process/child_process.h"
#include "step7_parallel/communicators/gpu/nccl_communicator.h"
#include "tests/step8_advanced/disaggregation/connector/busy_gpu.h"
#include "tests/step8_advanced/disaggregation/connector/played_handover.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;
using testing::HandoverEnd;

constexpr int64_t kTokens = 4096;

KvDeadline soon() {
  return Clock::now() + std::chrono::seconds(60);
}
Device gpu(int index) {
  return {DeviceType::cuda, index};
}
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Bytes per second, the best of some copies.
double peer_rate(int from, int to, int64_t bytes) {
  const auto source = device_allocate(gpu(from), bytes), target = device_allocate(gpu(to), bytes);
  LADDER_CUDA_CHECK(cudaSetDevice(to));
  if (from != to && cudaDeviceEnablePeerAccess(from, 0) == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  cudaStream_t stream = nullptr;
  LADDER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  double best = 1e9;
  for (int run = 0; run < 6; ++run) {
    const auto begin = Clock::now();
    LADDER_CUDA_CHECK(
        cudaMemcpyPeerAsync(target.get(), to, source.get(), from, static_cast<size_t>(bytes), stream));
    LADDER_CUDA_CHECK(cudaStreamSynchronize(stream));
    best = std::min(best, seconds_since(begin));
  }
  cudaStreamDestroy(stream);
  return static_cast<double>(bytes) / best;
}

void hand_over(benchmark::State& state, const std::string& transport, int to, bool other_process) {
  HandoverEnd giver(testing::llama_8b_layout(), kTokens, gpu(0));
  const std::string name = fmt::format("bench-{}", ::getpid());
  const bool has_port = transport == "tcp" || transport == "nccl";
  const auto listener = listen_for_kv(fmt::format("{}://{}", transport, has_port ? "0" : name));
  std::unique_ptr<ChildProcess> child;
  std::thread reader;
  if (other_process)
    child = std::make_unique<ChildProcess>(
        ChildOptions{.name = "the reader",
                     .arguments = {"parts", listener->address(), std::to_string(to), std::to_string(kTokens)},
                     .program = KV_PEER});
  else
    reader = std::thread([address = listener->address(), to] {
      try {
        const auto channel = connect_for_kv(address, soon());
        HandoverEnd taker(testing::llama_8b_layout(), kTokens, gpu(to));
        for (;;) taker.take(*channel, soon());
      } catch (const Error&) {  // it is over
      }
    });
  auto channel = listener->accept(soon());
  for (int i = 0; i < 2; ++i) giver.give(*channel, soon());  // memory is made, handles are opened
  const auto begin = Clock::now();
  for (auto _ : state) giver.give(*channel, soon());
  const double seconds = seconds_since(begin) / static_cast<double>(state.iterations());
  channel.reset();
  if (reader.joinable()) reader.join();
  child.reset();
  const double rate = static_cast<double>(giver.num_bytes()) / seconds;
  state.counters["GB/s"] = rate / 1e9;
  state.counters["ms"] = 1e3 * seconds;
  state.counters["of_peer"] = rate / peer_rate(0, to, giver.num_bytes());
}

void copy_message(benchmark::State& state, const std::string& what) {
  const KvLayout layout = testing::llama_8b_layout();
  HandoverEnd end(layout, 4 * kTokens, gpu(0));
  const KvPart part{0, 0, layout.num_kv_heads, 0, kTokens};
  const int64_t layers = (int64_t{32} << 20) / packed_size(layout, part),
                bytes = layers * packed_size(layout, part);
  const auto memory = device_allocate(gpu(0), bytes);
  const KvBody body(static_cast<std::byte*>(memory.get()), static_cast<size_t>(bytes), gpu(0));
  KvCopier copier;
  std::vector<uint32_t> checksums = copier.pack(layout, end.caches(), end.block_table(), part, layers, body);
  int64_t next = 0;  // other layers each time: what was copied last is in no cache
  const auto work = [&] {
    KvPart of = part;
    of.layer = next = (next + layers) % (layout.num_layers - layers);
    if (what == "pack") checksums = copier.pack(layout, end.caches(), end.block_table(), of, layers, body);
    if (what == "unpack")
      copier.unpack(layout, end.caches(), end.block_table(), of, layers, body, layout.dtype, checksums);
    if (what == "checksums") benchmark::DoNotOptimize(copier.checksums(body, layers));
  };
  for (int i = 0; i < 3; ++i) work();
  const auto begin = Clock::now();
  for (auto _ : state) work();
  const double seconds = seconds_since(begin) / static_cast<double>(state.iterations());
  state.counters["GB/s"] = static_cast<double>(bytes) / seconds / 1e9;
  state.counters["us"] = 1e6 * seconds;
}

// On GPU 0, for as long as this lives.
class BusyNeighbour {
 public:
  explicit BusyNeighbour(bool other_process) {
    if (!other_process) {
      thread_ = std::thread([this] {
        testing::keep_busy(gpu(0), [this] {
          begun_ = true;
          return ends_.load();
        });
      });
      while (!begun_) std::this_thread::yield();
      return;
    }
    listener_ = listen_for_kv(fmt::format("shm://bench-busy-{}", ::getpid()));
    child_ = std::make_unique<ChildProcess>(ChildOptions{
        .name = "the neighbour", .arguments = {"busy", listener_->address(), "0"}, .program = KV_PEER});
    channel_ = listener_->accept(soon());
    channel_->receive_head(soon());
  }
  ~BusyNeighbour() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> begun_ = false, ends_ = false;
  std::thread thread_;
  std::unique_ptr<KvListener> listener_;
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<KvChannel> channel_;
};

const bool kRegistered = [] {
  const int gpus = cuda_device_count();
  for (const char* what : {"pack", "unpack", "checksums"}) {
    if (gpus == 0) break;
    benchmark::RegisterBenchmark(fmt::format("kv_copier/{}", what).c_str(),
                                 [what](benchmark::State& state) { copy_message(state, what); })
        ->UseRealTime()
        ->MinTime(0.2)
        ->Unit(benchmark::kMicrosecond);
    for (const bool other_process : {false, true})
      benchmark::RegisterBenchmark(
          fmt::format("kv_copier_beside/{}/{}", other_process ? "process" : "thread", what).c_str(),
          [what, other_process](benchmark::State& state) {
            const BusyNeighbour neighbour(other_process);
            copy_message(state, what);
          })
          ->UseRealTime()
          ->MinTime(0.5)
          ->Unit(benchmark::kMicrosecond);
  }
  for (int to = 0; to < std::min(gpus, 2); ++to)
    for (const std::string transport : {"tcp", "shm", "nccl", "cuda"})
      for (const bool other_process : {false, true}) {
        if (transport == "nccl" && (to == 0 || !nccl_obstacle().empty())) continue;
        benchmark::RegisterBenchmark(
            fmt::format("kv_handover/0_to_{}/{}/{}", to, transport, other_process ? "processes" : "threads")
                .c_str(),
            [=](benchmark::State& state) { hand_over(state, transport, to, other_process); })
            ->UseRealTime()
            ->Iterations(transport == "cuda" || transport == "nccl" ? 200 : 8)
            ->Unit(benchmark::kMillisecond);
      }
  return true;
}();

}  // namespace
}  // namespace ladder::bench
#endif
