#include "step7_parallel/data/replica_head.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "step6_engine/remote/socket_engine_client.h"

namespace ladder {

namespace {

constexpr std::chrono::milliseconds kLook{100};  // for a stop, and for nodes that have gone

double in_seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

ReplicaHead::ReplicaHead(ReplicaHeadOptions options)
    : options_(std::move(options)),
      deadline_(Clock::now() + options_.place.arrival),
      listener_(options_.place.address, options_.place.secret, {.cut = options_.place.silence}) {
  for (int number = options_.num_local; number < options_.run.num_replicas; ++number)
    has_come_[number] = false;
  thread_ = std::thread([this] { listen(); });
}

ReplicaHead::~ReplicaHead() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  thread_.join();
  const bool have_served = std::ranges::all_of(has_come_, [](const auto& one) { return one.second; });
  for (Node& node : nodes_) node.watch->dismiss(have_served ? 0 : 2);
}

void ReplicaHead::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void ReplicaHead::listen() {
  while (true) {
    std::optional<HostConnection> connection = listener_.accept(kLook);
    {
      std::lock_guard lock(mutex_);
      if (closing_) return;
    }
    bury();
    if (!connection) continue;
    try {
      hear(std::move(*connection));
    } catch (const std::exception&) {  // it went away, or says what no node says
    }
  }
}

void ReplicaHead::bury() {
  std::list<Node> gone;
  {
    std::lock_guard lock(mutex_);
    for (auto node = nodes_.begin(); node != nodes_.end();) {
      const auto next = std::next(node);
      if (!node->gone.empty()) gone.splice(gone.end(), nodes_, node);
      node = next;
    }
  }
}

void ReplicaHead::hear(HostConnection connection) {
  const std::string host = connection.peer.host;
  set_read_timeout(connection.socket.number(), options_.place.silence);  // of a watch, and of an engine
  std::unique_ptr<MessageSocket> socket = message_socket(std::move(connection), kMeetingTimeout);
  const std::optional<Message> message = socket->read();
  if (!message) return;
  if (message->type == static_cast<uint32_t>(MeetingMessage::join))
    return take_in(std::move(socket), from_bytes<NodeJoin>(message->bytes), host);
  LADDER_CHECK(message->type == static_cast<uint32_t>(MeetingMessage::offer),
               "message: type {} is not one that a node begins with", message->type);
  const auto offer = from_bytes<EngineOffer>(message->bytes);
  std::lock_guard lock(mutex_);
  const bool known = std::ranges::any_of(nodes_, [&](const Node& node) {
    return node.name == offer.node && node.gone.empty() && node.has(offer.number);
  });
  if (!known) return;  // its node has gone, or comes back first
  offers_[offer.number] = {std::move(socket), offer.engine, host};
  changed_.notify_all();
}

std::string ReplicaHead::misfit(const NodeJoin& join) const {
  const ReplicaRun& mine = options_.run;
  if (join.run.num_replicas != mine.num_replicas)
    return fmt::format("--data-parallel-size {}: the head was started with {}, expected the same",
                       join.run.num_replicas, mine.num_replicas);
  if (join.first < 0 || join.num_local < 1 || join.first > mine.num_replicas - join.num_local)
    return fmt::format("{}: there are {} (--data-parallel-size)", replicas_text(join.first, join.num_local),
                       mine.num_replicas);
  if (join.first < options_.num_local)
    return fmt::format(
        "--data-parallel-start-rank {}: {} the head's own (its --data-parallel-size-local), expected {} or more",
        join.first, replicas_text(0, options_.num_local) + (options_.num_local == 1 ? " is" : " are"),
        options_.num_local);
  try {
    expect_same(join.run.files, mine.files, "the head");
  } catch (const Error& error) {
    return error.what();
  }
  if (join.run.settings != mine.settings)
    return fmt::format("{}: the head has {}, expected the same", join.run.settings, mine.settings);
  for (const Node& node : nodes_)
    for (int number = join.first; number < join.first + join.num_local; ++number)
      if (node.name != join.node && node.gone.empty() && node.has(number))
        return fmt::format(
            "--data-parallel-start-rank {}: replica {} is the one of another node, at {}, which has {}",
            join.first, number, node.host, replicas_text(node.first, node.num_local));
  return {};
}

void ReplicaHead::take_in(std::unique_ptr<MessageSocket> socket, const NodeJoin& join,
                          const std::string& host) {
  std::string problem;
  {
    std::lock_guard lock(mutex_);
    problem = misfit(join);
    for (Node& node : nodes_)  // it comes back before its loss was seen
      if (problem.empty() && node.name == join.node) node.gone = "it has come back";
  }
  const auto answer = problem.empty() ? MeetingMessage::welcome : MeetingMessage::refused;
  socket->write(static_cast<uint32_t>(answer), problem, kMeetingTimeout);
  const std::string who = fmt::format("the node of {} ({})", replicas_text(join.first, join.num_local), host);
  if (!problem.empty()) return options_.log(fmt::format("{} was sent away: {}", who, problem));
  bury();
  options_.log(who + " has come");
  std::lock_guard lock(mutex_);
  Node& node = nodes_.emplace_back(Node{join.node, host, join.first, join.num_local, {}, {}});
  std::vector<WatchedPeer> peers;
  peers.push_back({std::move(socket), "it"});
  node.watch = std::make_unique<HostWatch>(std::move(peers), options_.place.silence,
                                           [this, &node, who](const std::string& cause) {
                                             options_.log(fmt::format("{} has gone: {}", who, cause));
                                             std::lock_guard gone(mutex_);
                                             if (node.gone.empty()) node.gone = cause;
                                             changed_.notify_all();
                                           });
  changed_.notify_all();
}

bool ReplicaHead::has_node_of(int number) const {
  return std::ranges::any_of(nodes_, [&](const Node& node) { return node.gone.empty() && node.has(number); });
}

std::string ReplicaHead::missing() const {
  std::vector<int> numbers;
  for (const auto& [number, has_come] : has_come_)
    if (!has_come && !has_node_of(number)) numbers.push_back(number);
  const bool is_one = numbers.size() == 1;
  return fmt::format("{} {} of {} {} not come to {} within {} s (--node-arrival-timeout)",
                     is_one ? "replica" : "replicas", fmt::join(numbers, ", "), options_.run.num_replicas,
                     is_one ? "has" : "have", address().str(), in_seconds(options_.place.arrival));
}

StartedEngine ReplicaHead::start(int number, std::shared_ptr<const Tokenizer> tokenizer,
                                 EngineClientOptions options) {
  while (true) {
    Offer offer;
    {
      std::unique_lock lock(mutex_);
      while (!stopping_ && !offers_.contains(number)) {
        LADDER_CHECK(has_come_[number] || has_node_of(number) || Clock::now() < deadline_, "{}", missing());
        changed_.wait_for(lock, kLook);
      }
      LADDER_CHECK(!stopping_, "the head is stopping");
      offer = std::move(offers_.extract(number).mapped());
    }
    try {
      const std::optional<Message> ready = offer.socket->read();
      if (!ready || ready->type != static_cast<uint32_t>(EngineMessage::ready)) continue;
      auto config = from_bytes<SchedulerConfig>(ready->bytes);
      StartedEngine engine;
      engine.client =
          std::make_unique<SocketEngineClient>(std::move(offer.socket), config, tokenizer, options);
      engine.config = std::move(config);
      engine.name = offer.engine;
      std::lock_guard lock(mutex_);
      has_come_[number] = true;
      return engine;
    } catch (const Error&) {  // gone again
    }
  }
}

}  // namespace ladder
