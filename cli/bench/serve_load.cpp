#include "cli/bench/serve_load.h"

#include <sys/resource.h>

#include <memory>
#include <thread>

#include "cli/bench/serve_stream.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

double cpu_seconds_of_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

LoadResult run_load(const std::vector<ServeRequest>& requests, const LoadOptions& options) {
  LoadResult result;
  const auto count = static_cast<int64_t>(requests.size());
  result.records.resize(requests.size());
  const std::vector<tcp::endpoint> endpoints = resolve(options.address);
  const int64_t num_streams = options.max_concurrency > 0 ? std::min(options.max_concurrency, count) : count;
  const int num_threads =
      static_cast<int>(std::clamp<int64_t>(options.num_threads, 1, std::max<int64_t>(num_streams, 1)));

  std::vector<std::unique_ptr<asio::io_context>> contexts;
  for (int i = 0; i < num_threads; ++i) contexts.push_back(std::make_unique<asio::io_context>(1));
  LoadState load{requests, options, endpoints, result.records, {}};
  std::vector<std::vector<std::unique_ptr<LoadStream>>> streams(static_cast<size_t>(num_threads));
  for (int64_t i = 0; i < num_streams; ++i) {
    const auto thread = static_cast<size_t>(i % num_threads);
    streams[thread].push_back(std::make_unique<LoadStream>(*contexts[thread], load));
  }

  result.cpu_seconds.resize(static_cast<size_t>(num_threads));
  load.begin = result.begin = std::chrono::steady_clock::now();
  std::atomic<int> running{num_threads};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < contexts.size(); ++i)
    threads.emplace_back([&, i] {
      for (const auto& stream : streams[i]) stream->start();
      contexts[i]->run();
      result.cpu_seconds[i] = cpu_seconds_of_this_thread();
      --running;
    });
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(running > 0 && load.now() > 2.0 ? 50 : 2));
    if (options.on_progress) options.on_progress(load.done);
  }
  for (std::thread& thread : threads) thread.join();
  for (const ServeRecord& record : result.records) result.seconds = std::max(result.seconds, record.end);
  return result;
}

}  // namespace ladder
