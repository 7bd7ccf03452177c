#include "step8_advanced/disaggregation/router/server/local_servers.h"

#include <algorithm>
#include <future>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

// Until a server that has ended is started again; doubled each time up to the second, and as at first for one that has
// served for a minute.
constexpr std::chrono::milliseconds kFirstPause{100}, kMaxPause{10'000};
constexpr std::chrono::minutes kStable{1};
// Beyond the time to drain: for the last bytes of answers, and for the process to end.
constexpr std::chrono::seconds kEndPatience{10};
constexpr std::chrono::hours kLong{24};

}  // namespace

struct LocalServers::Place {
  LocalServer server;
  std::shared_ptr<ChildProcess> child;  // under mutex_
  std::thread thread;
};

LocalServers::LocalServers(std::vector<LocalServer> servers, std::function<void(std::string_view line)> log)
    : log_(std::move(log)) {
  for (LocalServer& server : servers) {
    places_.push_back(std::make_unique<Place>());
    places_.back()->server = std::move(server);
  }
  for (const auto& place : places_) place->thread = std::thread([this, place = place.get()] { run(*place); });
}

LocalServers::~LocalServers() {
  stop(std::chrono::milliseconds(0));
}

void LocalServers::expect_all_alive() const {
  std::lock_guard lock(mutex_);
  LADDER_CHECK(failure_.empty(), "{}", failure_);
}

void LocalServers::serving() {
  std::lock_guard lock(mutex_);
  serving_ = true;
}

void LocalServers::stop(std::chrono::milliseconds drain) {
  std::vector<std::future<void>> ends;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& place : places_)
      if (place->child != nullptr)
        ends.push_back(std::async(std::launch::async, [child = place->child, drain] {
          child->end(std::chrono::milliseconds(0), drain + kEndPatience);
        }));
  }
  changed_.notify_all();
  ends.clear();  // waits
  for (const auto& place : places_)
    if (place->thread.joinable()) place->thread.join();
}

void LocalServers::run(Place& place) {
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    const auto begin = Clock::now();
    std::string end;
    try {
      std::shared_ptr<ChildProcess> child;
      {
        std::lock_guard lock(mutex_);
        if (stopping_) return;
        place.child = child = std::make_shared<ChildProcess>(
            ChildOptions{.name = place.server.name,
                         .arguments = place.server.arguments,
                         .descriptors = {place.server.listening_socket.number()}});
      }
      while (!child->wait(kLong)) {
      }
      end = child->what_happened();
    } catch (const Error& error) {
      end = error.what();
    }
    if (Clock::now() - begin > kStable) pause = kFirstPause;

    std::unique_lock lock(mutex_);
    place.child = nullptr;
    if (stopping_) return;
    if (!serving_) {
      failure_ = end + " before it served";
      return;
    }
    log_(fmt::format("{}; it is started again in {} ms", end, pause.count()));
    if (changed_.wait_for(lock, pause, [this] { return stopping_; })) return;
    pause = std::min(2 * pause, kMaxPause);
  }
}

}  // namespace ladder
