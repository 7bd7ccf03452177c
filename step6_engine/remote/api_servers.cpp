#include "step6_engine/remote/api_servers.h"

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/process/parent_socket.h"
#include "step6_engine/remote/engine_wire_forms.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

// For a program to begin.
constexpr std::chrono::seconds kHelloTimeout{30};
// A server that has lived that long has not failed because of how it was started.
constexpr std::chrono::minutes kStable{1};
// Beyond the time to drain: for the last bytes of answers, and for the process to end.
constexpr std::chrono::seconds kEndPatience{10};
// For a process whose connection has ended.
constexpr std::chrono::milliseconds kLeavePatience{500};

std::exception_ptr as_exception(const FailedMessage& failed) {
  try {
    throw_failure(failed);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

struct ApiServers::Place {
  int index = 0;
  // Under mutex_:
  std::shared_ptr<ChildProcess> child;
  bool serves = false;
  std::exception_ptr failure;
  std::thread thread;
};

ApiServers::ApiServers(EngineClient& client, TurnListeners* turns, const SchedulerConfig& config,
                       ApiServersOptions options)
    : client_(client), turns_(turns), config_(config), options_(std::move(options)) {
  LADDER_CHECK(options_.count >= 1, "--api-server-count {}: expected at least 1", options_.count);
  for (int i = 0; i < options_.count; ++i) {
    places_.push_back(std::make_unique<Place>());
    places_.back()->index = i;
  }
  for (const auto& place : places_) place->thread = std::thread([this, place = place.get()] { run(*place); });
  std::exception_ptr failure;
  {
    std::unique_lock lock(mutex_);
    const auto serves = [](const auto& place) { return place->serves; };
    const auto failed = [](const auto& place) { return place->failure != nullptr; };
    changed_.wait(lock, [&] {
      return std::all_of(places_.begin(), places_.end(), serves) ||
             std::any_of(places_.begin(), places_.end(), failed);
    });
    for (const auto& place : places_)
      if (place->failure && !failure) failure = place->failure;
    all_serve_ = failure == nullptr;
  }
  if (!failure) return;
  stop(std::chrono::milliseconds(0));
  std::rethrow_exception(failure);
}

ApiServers::~ApiServers() {
  stop(std::chrono::milliseconds(0));
}

void ApiServers::stop(std::chrono::milliseconds drain) {
  std::vector<std::future<void>> ends;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    options_.listening_socket.close();
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

void ApiServers::run(Place& place) {
  std::chrono::milliseconds pause = options_.first_pause;
  while (true) {
    const auto begin = Clock::now();
    std::exception_ptr failure;
    const std::string end = serve_once(place, failure);
    if (Clock::now() - begin > kStable) pause = options_.first_pause;

    std::unique_lock lock(mutex_);
    place.child = nullptr;
    if (stopping_) return;
    if (!all_serve_) {  // the first ones: nobody is served yet, so whoever starts the program should hear of it
      place.failure = failure ? failure : std::make_exception_ptr(Error(end + " before it served"));
      changed_.notify_all();
      return;
    }
    if (options_.log)
      options_.log(
          fmt::format("{}; it is started again in {} ms, others answer meanwhile", end, pause.count()));
    if (changed_.wait_for(lock, pause, [this] { return stopping_; })) return;
    pause = std::min(2 * pause, options_.max_pause);
  }
}

std::string ApiServers::serve_once(Place& place, std::exception_ptr& failure) {
  const std::string name = fmt::format("API server {}", place.index);
  std::shared_ptr<ChildProcess> child;
  int64_t number = 0;
  try {
    std::lock_guard lock(mutex_);
    if (stopping_) return {};
    child = std::make_shared<ChildProcess>(
        ChildOptions{name, options_.arguments, options_.program, {options_.listening_socket.number()}});
    place.child = child;
    number = num_started_++;
  } catch (const Error& error) {
    failure = std::current_exception();
    return error.what();
  }
  MessageSocket socket(child->take_socket());
  std::string why;
  try {
    socket.exchange_hello(kHelloTimeout);
    serve_engine(socket, client_,
                 {.config = config_,
                  .turns = turns_,
                  .id_prefix = fmt::format("{}:", number),
                  .on_serving =
                      [this, &place] {
                        std::lock_guard lock(mutex_);
                        place.serves = true;
                        changed_.notify_all();
                      },
                  .on_failed =
                      [&](const FailedMessage& failed) {
                        why = failed.text;
                        failure = as_exception(failed);
                      }});
  } catch (const std::exception& error) {
    why = error.what();
  }
  socket.shut_down();
  child->end(kLeavePatience);
  return why.empty() ? child->what_happened() : fmt::format("{}: {}", child->what_happened(), why);
}

// --- in the child ------------------------------------------------------------------------------------------

ApiServerConnection::ApiServerConnection(std::unique_ptr<MessageSocket> socket, SchedulerConfig config)
    : socket_(std::move(socket)), messages_(*socket_), config_(std::move(config)) {}

ApiServerConnection::~ApiServerConnection() = default;

EngineClient& ApiServerConnection::client(std::shared_ptr<const Tokenizer> tokenizer,
                                          EngineClientOptions options) {
  options.queue_is_shared = true;
  client_ = std::make_unique<SocketEngineClient>(std::move(socket_), config_, std::move(tokenizer),
                                                 std::move(options));
  return *client_;
}

void ApiServerConnection::tell_serving() {
  messages_.write(static_cast<uint32_t>(EngineMessage::serving), {});
}

void run_api_server(int descriptor, const std::function<void(ApiServerConnection&)>& serve) {
  auto socket =
      std::make_unique<MessageSocket>(take_parent_socket(descriptor, "`ladder serve --api-server-count`"));
  socket->exchange_hello(kHelloTimeout);
  const std::optional<Message> ready = socket->read();
  LADDER_CHECK(ready && ready->type == static_cast<uint32_t>(EngineMessage::ready),
               "the engine's side has not said what it is");
  ApiServerConnection connection(std::move(socket), from_bytes<SchedulerConfig>(ready->bytes));
  FailedMessage failed;
  try {
    return serve(connection);
  } catch (const Error& error) {
    failed = {true, error.what()};
  } catch (const std::exception& error) {
    failed = {false, error.what()};
  }
  try {
    connection.messages_.write(static_cast<uint32_t>(EngineMessage::failed), to_bytes(failed));
  } catch (const Error&) {  // the parent is gone, and with it whoever would want to know
  }
}

}  // namespace ladder
