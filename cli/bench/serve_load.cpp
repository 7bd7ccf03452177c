#include "cli/bench/serve_load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
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

std::vector<tcp::endpoint> resolve(const ServeAddress& address) {
  asio::io_context context;
  boost::system::error_code failure;
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry :
       tcp::resolver(context).resolve(address.host, std::to_string(address.port), failure))
    endpoints.push_back(entry.endpoint());
  LADDER_CHECK(!failure && !endpoints.empty(), "the host {}: {}", address.host,
               failure ? failure.message() : "has no address");
  return endpoints;
}

}  // namespace

ServeAddress parse_base_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  LADDER_CHECK(url.starts_with(kScheme), "{}: expected a URL like http://127.0.0.1:8000", url);
  ServeAddress address;
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  const std::string authority = url.substr(kScheme.size(), slash - kScheme.size());
  address.path = url.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  const size_t bracket = authority.rfind(']');  // [::1]:8000
  const size_t colon = authority.find(':', bracket == std::string::npos ? 0 : bracket);
  address.host = authority.substr(0, colon);
  if (bracket != std::string::npos && address.host.size() >= 2)
    address.host = address.host.substr(1, address.host.size() - 2);
  address.port = 80;
  if (colon != std::string::npos) {
    const char *begin = authority.data() + colon + 1, *end = authority.data() + authority.size();
    const auto [rest, error] = std::from_chars(begin, end, address.port);
    LADDER_CHECK(error == std::errc() && rest == end && address.port > 0,
                 "{}: expected a port behind the colon", url);
  }
  LADDER_CHECK(!address.host.empty(), "{}: expected a host", url);
  address.authority = authority;
  return address;
}

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

HttpReply http_get(const ServeAddress& address, const std::string& path, const std::string& headers,
                   double timeout) {
  asio::io_context context;
  tcp::socket socket(context);
  const std::vector<tcp::endpoint> endpoints = resolve(address);
  const std::string message = fmt::format("GET {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\r\n",
                                          address.path, path, address.authority, headers);
  HttpReply reply;
  std::function<void(std::string_view)> on_body = [&](std::string_view bytes) { reply.body += bytes; };
  ResponseReader response(&on_body);
  std::vector<char> buffer(64 * 1024);
  size_t filled = 0;
  boost::system::error_code outcome = asio::error::would_block;

  std::function<void()> read = [&] {
    socket.async_read_some(asio::buffer(buffer.data() + filled, buffer.size() - filled),
                           [&](const boost::system::error_code& failure, size_t count) {
                             outcome = failure;
                             filled += count;
                             boost::beast::error_code bad;
                             while (filled > 0 && !bad && !response.is_done()) {
                               const size_t used = response.put(asio::buffer(buffer.data(), filled), bad);
                               filled -= used;
                               std::copy_n(buffer.data() + used, filled, buffer.data());
                               if (used == 0) break;
                             }
                             if (failure == asio::error::eof) response.put_eof(bad);
                             if (!failure && !response.is_done() && filled < buffer.size()) read();
                           });
  };
  asio::async_connect(socket, endpoints, [&](const boost::system::error_code& failure, const tcp::endpoint&) {
    outcome = failure;
    if (failure) return;
    asio::async_write(socket, asio::buffer(message), [&](const boost::system::error_code& error, size_t) {
      outcome = error;
      if (!error) read();
    });
  });
  context.run_for(std::chrono::milliseconds(static_cast<int64_t>(1000 * timeout)));
  LADDER_CHECK(response.is_done(), "http://{}:{}{}{}: no answer ({})", address.host, address.port,
               address.path, path, outcome == asio::error::would_block ? "timed out" : outcome.message());
  reply.status = response.status;
  return reply;
}

}  // namespace ladder
