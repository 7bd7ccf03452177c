// What a stream costs the server: memory while it is idle, and time per piece. The clients are another process, so that
// what is measured is the server's.
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/step6_engine/server/http_routes.h"
#include "tests/step6_engine/server/process_size.h"

namespace ladder::testing {
namespace {

struct CpuTime {
  double user = 0, system = 0;  // seconds
};
CpuTime cpu_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {seconds(usage.ru_utime), seconds(usage.ru_stime)};
}

// A process of clients that all ask for a stream and throw away what comes. It gets the port through a pipe, since it is
// forked before the server has threads.
class Clients {
 public:
  explicit Clients(int count) {
    if (pipe(pipe_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) run(count);
  }
  ~Clients() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }
  void start(uint16_t port) { EXPECT_EQ(::write(pipe_[1], &port, sizeof port), ssize_t{sizeof port}); }

 private:
  [[noreturn]] void run(int count) {
    uint16_t port = 0;
    if (::read(pipe_[0], &port, sizeof port) != sizeof port) _exit(1);
    const int poller = epoll_create1(0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    constexpr std::string_view kAsk = "GET /each HTTP/1.1\r\nHost: a\r\n\r\n";
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(1);
      if (::send(fd, kAsk.data(), kAsk.size(), 0) < 0) _exit(1);
      epoll_event event{EPOLLIN, {.fd = fd}};
      epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
    epoll_event events[256];
    char buffer[65536];
    while (true) {
      const int ready = epoll_wait(poller, events, 256, -1);
      for (int i = 0; i < ready; ++i)
        if (recv(events[i].data.fd, buffer, sizeof buffer, 0) <= 0) _exit(0);
    }
  }

  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

// Streams of pieces as long as a chunk of a chat; all of them are fed together, as a step does it.
struct Streams {
  std::mutex mutex;
  std::vector<std::function<void()>> wakes;
  std::atomic<int64_t> num_pieces{0};  // written
  std::atomic<int64_t> num_asked{0};   // how many each stream may have written
};

class PieceAnswer final : public HttpAnswer {
 public:
  explicit PieceAnswer(Streams& streams) : streams_(streams) {}
  void advance(HttpExchange& exchange) override {
    static const std::string kPiece = "data: " + std::string(200, 'x') + "\n\n";
    if (!began_) exchange.begin({.content_type = "text/event-stream"});
    began_ = true;
    for (; num_written_ < streams_.num_asked; ++num_written_, ++streams_.num_pieces) exchange.write(kPiece);
  }

 private:
  Streams& streams_;
  bool began_ = false;
  int64_t num_written_ = 0;
};

std::unique_ptr<HttpServer> serve(Streams& streams) {
  HttpServerOptions options = test_options();
  options.io_threads = 1;
  Router router;
  router.add({"GET", "/each", Access::anyone, RunsOn::connection,
              [&streams](std::shared_ptr<HttpExchange> exchange) {
                std::lock_guard lock(streams.mutex);
                streams.wakes.push_back(exchange->waker());
                exchange->hold(std::make_unique<PieceAnswer>(streams));
              }});
  return std::make_unique<HttpServer>(std::move(options), std::move(router));
}

bool all_hold(Streams& streams, int count) {
  return eventually([&] {
    std::lock_guard lock(streams.mutex);
    return std::ssize(streams.wakes) == count;
  });
}

TEST(Task6_6_Cost, AThousandIdleStreamsAreSmall) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (!kCanBeMeasured) GTEST_SKIP() << "a sanitizer's memory is not the program's";
  if (limit.rlim_max < 1200) GTEST_SKIP() << "too few descriptors";
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  Clients clients(1000);
  Streams streams;
  const auto server = serve(streams);
  const int64_t before = resident_bytes();
  clients.start(server->port());
  ASSERT_TRUE(all_hold(streams, 1000));
  streams.num_asked = 1;  // each has been used
  for (const auto& wake : streams.wakes) wake();
  ASSERT_TRUE(eventually([&] { return streams.num_pieces == 1000; }));
  const double each = static_cast<double>(resident_bytes() - before) / 1000 / 1024;
  std::printf("an idle stream: %.1f KiB of the server's memory\n", each);
  EXPECT_LT(each, 64);
}

TEST(Task6_6_Cost, AWakeAndAWriteAreCheap) {
  if (!kCanBeMeasured) GTEST_SKIP() << "a sanitizer's time is not the program's";
  constexpr int kStreams = 256, kSteps = 60;
  Clients clients(kStreams);
  Streams streams;
  const auto server = serve(streams);
  clients.start(server->port());
  ASSERT_TRUE(all_hold(streams, kStreams));
  usleep(50'000);
  const CpuTime begin = cpu_time();
  double in_wakes = 0;
  for (int step = 1; step <= kSteps; ++step) {
    streams.num_asked = step;
    const auto woken = std::chrono::steady_clock::now();
    for (const auto& wake : streams.wakes) wake();
    in_wakes += std::chrono::duration<double>(std::chrono::steady_clock::now() - woken).count();
    ASSERT_TRUE(eventually([&] { return streams.num_pieces == int64_t{step} * kStreams; }));
  }
  const double pieces = kStreams * kSteps;
  const CpuTime end = cpu_time();
  const double user = (end.user - begin.user) / pieces * 1e6,
               system = (end.system - begin.system) / pieces * 1e6;
  std::printf("a piece: %.2f us of processor time in the program, %.2f us in the system; a wake: %.2f us\n",
              user, system, in_wakes / pieces * 1e6);
  EXPECT_LT(user, 50) << "the aim is 3 us; a machine that others use is no place to test that";
}

}  // namespace
}  // namespace ladder::testing
