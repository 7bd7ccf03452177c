// Bodies from one process to another over every transport of the table, beside memcpy's rate: of_memcpy is the fraction of what
// one core copies of the same buffers, measured just before in the same run. The other process is a fork that receives into
// buffers of its own and answers each body, whose last bytes it has looked at, with an empty message.
//
// kv_ring: bodies of 16 MiB through the ring of shm:// alone, by its length.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "bench/support/bench_support.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"
#include "step8_advanced/disaggregation/transport/kv_ring.h"

namespace ladder::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Buffers = std::vector<std::vector<std::byte>>;

KvDeadline soon() {
  return Clock::now() + std::chrono::seconds(60);
}

// Of one size, so many that they do not stay in a cache, all of them touched.
Buffers buffers(size_t size) {
  const auto count = std::clamp<size_t>(static_cast<size_t>(rotation_bytes()) / 2 / size, 2, 1024);
  return Buffers(count, std::vector<std::byte>(size, std::byte{1}));
}

double memcpy_rate(const Buffers& from) {
  Buffers to(from.size(), std::vector<std::byte>(from[0].size(), std::byte{2}));
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < from.size(); ++i) {
      std::memcpy(to[i].data(), from[i].data(), from[i].size());
      benchmark::ClobberMemory();
    }
    const std::chrono::duration<double> took = Clock::now() - begin;
    best = std::max(best, static_cast<double>(from.size() * from[0].size()) / took.count());
  }
  return best;
}

// Until the channel ends.
[[noreturn]] void receive_all(const std::string& address, size_t size) try {
  Buffers to = buffers(size);  // first: whoever sends waits for the connection
  const auto channel = connect_for_kv(address, soon());
  for (size_t next = 0;; next = (next + 1) % to.size()) {
    channel->receive_head(soon());
    channel->receive_body(to[next], soon());
    benchmark::DoNotOptimize(to[next].back());
    channel->send({}, {}, soon());
  }
} catch (const Error&) {
  ::_exit(0);
}

void send_bodies(benchmark::State& state, const KvTransport& transport, const std::string& options) {
  const auto size = static_cast<size_t>(state.range(0));
  const Buffers from = buffers(size);
  const double memcpys = memcpy_rate(from);
  const std::string name = fmt::format("ladder_bench_{}", ::getpid());
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / name;
  const std::string place = transport.name == "file" ? folder.string() : transport.name == "shm" ? name : "0";
  const auto listener = listen_for_kv(fmt::format("{}://{}{}", transport.name, place, options));
  const pid_t child = ::fork();
  if (child == 0) receive_all(listener->address(), size);
  {
    const auto channel = listener->accept(soon());
    // Four under way, as one who sends a sequence's blocks has: the answers come while the next are sent.
    constexpr int kUnderWay = 4;
    int under_way = 0;
    size_t next = 0;
    const auto answer = [&] {
      channel->receive_head(soon());
      --under_way;
    };
    const auto begin = Clock::now();
    for (auto _ : state) {
      if (under_way == kUnderWay) answer();
      channel->send({}, from[next], soon());
      next = (next + 1) % from.size();
      ++under_way;
    }
    while (under_way > 0) answer();
    const std::chrono::duration<double> took = Clock::now() - begin;
    const double rate = static_cast<double>(state.iterations()) * static_cast<double>(size) / took.count();
    state.counters["bytes_per_second"] = rate;
    state.counters["of_memcpy"] = rate / memcpys;
    state.SetLabel(std::string(transport.idea));
  }
  ::waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
}

void through_a_ring(benchmark::State& state) {
  const size_t size = size_t{16} << 20;
  const Buffers from = buffers(size);
  const double memcpys = memcpy_rate(from);
  KvRing ring = KvRing::create(static_cast<size_t>(state.range(0))), answers = KvRing::create(8);
  const pid_t child = ::fork();
  if (child == 0) try {
      Buffers to = buffers(size);
      for (size_t next = 0;; next = (next + 1) % to.size()) {
        ring.read(to[next], soon());
        answers.write({&to[next].back(), 1}, soon());
      }
    } catch (const Error&) {  // it is closed
      ::_exit(0);
    }
  constexpr size_t kUnderWay = 2;
  std::byte answer;
  ring.write(from[0], soon());  // it has begun, and the ring's memory is made
  answers.read({&answer, 1}, soon());
  size_t next = 0;
  const auto begin = Clock::now();
  for (auto _ : state) {
    if (next >= kUnderWay) answers.read({&answer, 1}, soon());
    ring.write(from[next++ % from.size()], soon());
  }
  for (size_t left = std::min(next, kUnderWay); left > 0; --left) answers.read({&answer, 1}, soon());
  const std::chrono::duration<double> took = Clock::now() - begin;
  const double rate = static_cast<double>(state.iterations()) * static_cast<double>(size) / took.count();
  state.counters["bytes_per_second"] = rate;
  state.counters["of_memcpy"] = rate / memcpys;
  ring.close();
  ::waitpid(child, nullptr, 0);
}

void register_row(const KvTransport& transport, const std::string& options = "") {
  const std::string name = fmt::format("kv_transport/{}{}", transport.name, options);
  benchmark::RegisterBenchmark(
      name.c_str(),
      [&transport, options](benchmark::State& state) { send_bodies(state, transport, options); })
      ->RangeMultiplier(8)
      ->Range(64 << 10, 64 << 20)
      ->ArgName("bytes")
      ->UseRealTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMicrosecond);
}

const bool kRegistered = [] {
  benchmark::RegisterBenchmark("kv_ring", &through_a_ring)
      ->RangeMultiplier(2)
      ->Range(1 << 20, 16 << 20)
      ->ArgName("length")
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  for (const KvTransport& transport : kv_transports()) {
    if (transport.name == "cuda" || transport.name == "nccl")
      continue;  // bodies on GPUs: kv_handover_bench.cpp; those of the host go as with shm and tcp
    register_row(transport);
    if (transport.name == "tcp")
      for (const int num_streams : {2, 4}) register_row(transport, fmt::format("?streams={}", num_streams));
  }
  return true;
}();

}  // namespace
}  // namespace ladder::bench
