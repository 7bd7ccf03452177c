#include "step7_parallel/data/replica_node.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/remote/serve_engine.h"

namespace ladder {

namespace {

constexpr std::chrono::milliseconds kLook{50};
constexpr std::chrono::milliseconds kAttempt{1'000};  // of a connection: a stop is not held up for longer
constexpr std::chrono::seconds kSilence{3};           // before a node says that it waits for its head
// Between a link that was lost, or an offer that came to nothing, and the next one; doubled up to the second.
constexpr std::chrono::milliseconds kFirstPause{100}, kMaxPause{5'000};
constexpr std::chrono::seconds kLastWords{5};  // until the head has taken what its requests ended with

double in_seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string draw_name() {
  std::string name;
  for (const unsigned char byte : draw_nonce()) name += fmt::format("{:02x}", byte);
  return name;
}

}  // namespace

ReplicaNode::ReplicaNode(ReplicaNodeOptions options) : options_(std::move(options)), name_(draw_name()) {
  for (int local = 0; local < options_.num_local; ++local) served_.push_back(std::make_unique<Served>());
  thread_ = std::thread([this] { run(); });
}

ReplicaNode::~ReplicaNode() {
  stop(std::chrono::milliseconds(0));
  thread_.join();
  for (const auto& served : served_)
    if (served->thread.joinable()) served->thread.join();
}

std::optional<ReplicaNode::End> ReplicaNode::wait_for_end(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return end_.has_value(); });
  return end_;
}

void ReplicaNode::end(End end) {
  std::lock_guard lock(mutex_);
  if (!end_) end_ = std::move(end);
  changed_.notify_all();
}

bool ReplicaNode::sleep(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, time, [this] { return leaving_; });
}

// The head sees that the engines have stopped, takes what is still to come, and closes their connections.
void ReplicaNode::stop(std::chrono::milliseconds drain) {
  std::vector<std::thread> stopping;
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
    for (const auto& served : served_)
      if (served->replica != nullptr)
        stopping.emplace_back([replica = served->replica.get(), drain] { replica->stop(drain); });
  }
  for (std::thread& thread : stopping) thread.join();
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLastWords, [this] {
      return !is_linked_ ||
             std::ranges::all_of(served_, [](const auto& served) { return served->socket == nullptr; });
    });
    stopping_ = true;
    changed_.notify_all();
  }
  cut_engines();
}

void ReplicaNode::cut_engines() {
  std::lock_guard lock(mutex_);
  is_linked_ = false;
  for (const auto& served : served_)
    if (served->socket != nullptr) served->socket->shut_down();
}

void ReplicaNode::run() {
  bool have_started = false;
  std::chrono::milliseconds pause = kFirstPause;
  try {
    while (std::unique_ptr<MessageSocket> socket = join()) {
      const auto begin = Clock::now();
      std::vector<WatchedPeer> peers;
      peers.push_back({std::move(socket), "it"});
      {
        std::lock_guard lock(mutex_);
        lost_.reset();
        is_linked_ = true;
        ++num_links_;
        changed_.notify_all();
      }
      HostWatch watch(std::move(peers), options_.head.silence, [this](const std::string& cause) {
        std::lock_guard lock(mutex_);
        lost_ = cause;
        changed_.notify_all();
      });
      try {
        if (!std::exchange(have_started, true)) start_replicas();
      } catch (const std::exception& error) {
        watch.fail(error.what());
        throw;
      }
      const std::optional<std::string> why = wait_for_loss(watch);
      cut_engines();
      if (!why) return;
      options_.log(
          fmt::format("the head at {} is lost: {}; it is looked for until {} s have passed "
                      "(--node-arrival-timeout)",
                      options_.head.address.str(), *why, in_seconds(options_.head.arrival)));
      if (Clock::now() - begin >= kMaxPause) pause = kFirstPause;
      if (!sleep(pause)) return;
      pause = std::min(2 * pause, kMaxPause);
    }
  } catch (const std::exception& error) {
    cut_engines();
    end({2, error.what()});
  }
}

std::unique_ptr<MessageSocket> ReplicaNode::join() {
  const auto first = Clock::now(), deadline = first + options_.head.arrival;
  std::string why;
  bool has_said = false;
  while (sleep(std::chrono::milliseconds(0))) {
    const auto begin = Clock::now();
    LADDER_CHECK(begin < deadline, "no head at {} within {} s (--node-arrival-timeout): {}",
                 options_.head.address.str(), in_seconds(options_.head.arrival), why);
    if (begin - first >= kSilence && !std::exchange(has_said, true))
      options_.log(
          fmt::format("waiting for the head at {}, until {} s have passed (--node-arrival-timeout): {}",
                      options_.head.address.str(), in_seconds(options_.head.arrival), why));
    const auto until = std::min(deadline, begin + kAttempt);
    std::optional<HostConnection> connection;
    try {
      connection = connect_to_host(options_.head.address, options_.head.secret,
                                   std::chrono::ceil<std::chrono::milliseconds>(until - begin),
                                   {.cut = options_.head.silence});
    } catch (const Error& error) {
      if (Clock::now() < until) throw;  // it will never be one
      why = error.what();
      continue;
    }
    std::optional<Message> answer;
    std::unique_ptr<MessageSocket> socket;
    try {
      set_read_timeout(connection->socket.number(), options_.head.silence);
      socket = message_socket(std::move(*connection), kMeetingTimeout);
      socket->write(static_cast<uint32_t>(MeetingMessage::join),
                    to_bytes(NodeJoin{name_, options_.run, options_.first, options_.num_local}),
                    kMeetingTimeout);
      answer = socket->read();
    } catch (const Error& error) {
      why = error.what();
    }
    if (!answer) {
      if (why.empty()) why = "it has closed the connection";
      if (!sleep(kFirstPause)) break;
      continue;
    }
    LADDER_CHECK(answer->type != static_cast<uint32_t>(MeetingMessage::refused), "the head at {}: {}",
                 options_.head.address.str(), answer->bytes);
    LADDER_CHECK(answer->type == static_cast<uint32_t>(MeetingMessage::welcome), "{} is no head of replicas",
                 options_.head.address.str());
    return socket;
  }
  return nullptr;
}

std::optional<std::string> ReplicaNode::wait_for_loss(HostWatch& watch) {
  while (true) {
    const std::optional<int> code = watch.wait_for_dismissal(kLook);
    if (code) {
      end({*code, fmt::format("the head at {} has ended{}", options_.head.address.str(),
                              *code == 0 ? "" : " with an error, which it says itself")});
      return {};
    }
    std::unique_lock lock(mutex_);
    if (lost_) return lost_;
    if (!stopping_) continue;
    lock.unlock();
    watch.fail("it was stopped");
    return {};
  }
}

void ReplicaNode::start_replicas() {
  for (int local = 0; local < options_.num_local; ++local) {
    Served& served = *served_[static_cast<size_t>(local)];
    ReplicaOptions replica;
    replica.number = options_.first + local;
    replica.start = [this, &served, number = replica.number] { return options_.start(number, served.turns); };
    replica.stuck_after = options_.stuck_after;
    replica.log = options_.log;
    std::lock_guard lock(mutex_);
    served.replica = std::make_unique<Replica>(std::move(replica));
  }
  for (int local = 0; local < options_.num_local; ++local) {
    Served& served = *served_[static_cast<size_t>(local)];
    served.config = served.replica->wait_until_started();
    served.thread = std::thread([this, &served, number = options_.first + local] { serve(number, served); });
  }
}

void ReplicaNode::serve(int number, Served& served) {
  std::weak_ptr<EngineClient> last;
  int num_engines = 0;
  std::chrono::milliseconds pause = kFirstPause;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return leaving_ || is_linked_; });
      if (leaving_) return;
    }
    std::shared_ptr<EngineClient> client = served.replica->client();
    if (client != nullptr) {
      if (last.lock() != client) ++num_engines;
      last = client;
      const auto begin = Clock::now();
      try {
        offer(number, served, *client, fmt::format("{} {}", name_, num_engines));
      } catch (const std::exception&) {  // who has gone says why: the engine, or the link
      }
      client = nullptr;
      if (Clock::now() - begin >= kMaxPause) pause = kFirstPause;
    }
    if (!sleep(pause)) return;
    pause = std::min(2 * pause, kMaxPause);
  }
}

void ReplicaNode::offer(int number, Served& served, EngineClient& client, const std::string& engine) {
  const auto link = [this] {
    std::lock_guard lock(mutex_);
    return is_linked_ ? num_links_ : 0;
  };
  const int of_link = link();
  client.resume();  // what another head has left paused
  HostConnection connection =
      connect_to_host(options_.head.address, options_.head.secret, kAttempt, {.cut = options_.head.silence});
  const std::unique_ptr<MessageSocket> socket = message_socket(std::move(connection), kMeetingTimeout);
  socket->write(static_cast<uint32_t>(MeetingMessage::offer), to_bytes(EngineOffer{name_, number, engine}),
                kMeetingTimeout);
  bool all_offered = false;
  {
    std::lock_guard lock(mutex_);
    if (leaving_ || !is_linked_ || num_links_ != of_link) return;
    served.socket = socket.get();
    if (!std::exchange(served.was_offered, true))
      all_offered = std::ranges::all_of(served_, [](const auto& one) { return one->was_offered; });
  }
  if (all_offered && options_.on_serving) options_.on_serving();
  try {
    // A prefix of its own each time: what was under way for the connection before may not have ended yet.
    serve_engine(*socket, client,
                 {.config = served.config,
                  .turns = &served.turns,
                  .id_prefix = fmt::format("{}-", served.num_offers++)});
  } catch (const std::exception&) {  // the head has gone in the middle of a message
  }
  std::lock_guard lock(mutex_);
  served.socket = nullptr;
  changed_.notify_all();
}

}  // namespace ladder
