#include "step6_engine/remote/engine_process.h"

#include <chrono>
#include <stdexcept>
#include <utility>
#include <variant>

#include "step1_layers/core/error.h"
#include "step6_engine/process/parent_socket.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "step6_engine/remote/serve_engine.h"

namespace ladder {

namespace {

// For a program to begin. What takes long comes after the hello.
constexpr std::chrono::seconds kHelloTimeout{30};

template <class T>
void send(MessageSocket& socket, EngineMessage type, const T& message) {
  socket.write(static_cast<uint32_t>(type), to_bytes(message));
}

std::variant<SchedulerConfig, FailedMessage> wait_until_ready(MessageSocket& socket,
                                                              const LoadProgress& progress) {
  socket.exchange_hello(kHelloTimeout);
  while (const std::optional<Message> message = socket.read()) {
    switch (static_cast<EngineMessage>(message->type)) {
      case EngineMessage::progress: {
        const auto [done, total] = from_bytes<ProgressMessage>(message->bytes);
        if (progress) progress(done, total);
        break;
      }
      case EngineMessage::ready:
        return from_bytes<SchedulerConfig>(message->bytes);
      case EngineMessage::failed:
        return from_bytes<FailedMessage>(message->bytes);
      default:
        fail("message: type {} is not one that an engine sends before it is ready", message->type);
    }
  }
  fail("the connection has ended");
}

}  // namespace

std::unique_ptr<SocketEngineClient> start_engine_process(EngineProcessOptions options) {
  auto child = std::make_unique<ChildProcess>(ChildOptions{.name = "the engine's process",
                                                           .arguments = std::move(options.arguments),
                                                           .program = std::move(options.program),
                                                           .stop_patience = ChildProcess::kStopPatience});
  auto socket = std::make_unique<MessageSocket>(child->take_socket());
  std::variant<SchedulerConfig, FailedMessage> answer;
  try {
    answer = wait_until_ready(*socket, options.progress);
  } catch (const Error& error) {
    throw EngineUnavailable(
        fmt::format("{} before the engine was ready: {}", child->what_happened(), error.what()));
  }
  if (const auto* failed = std::get_if<FailedMessage>(&answer)) throw_failure(*failed);
  return std::make_unique<SocketEngineClient>(std::move(socket), std::get<SchedulerConfig>(std::move(answer)),
                                              std::move(options.tokenizer), std::move(options.client),
                                              std::move(child));
}

void run_engine_process(int descriptor, const std::function<std::unique_ptr<Engine>(LoadProgress)>& make) {
  MessageSocket socket(take_parent_socket(descriptor, "`ladder serve --engine-process`"));
  socket.exchange_hello(kHelloTimeout);
  std::unique_ptr<Engine> engine;
  try {
    engine = make([&socket](int64_t done, int64_t total) {
      send(socket, EngineMessage::progress, ProgressMessage{done, total});
    });
  } catch (const Error& error) {
    send(socket, EngineMessage::failed, FailedMessage{true, error.what()});
    return;
  } catch (const std::exception& error) {
    send(socket, EngineMessage::failed, FailedMessage{false, error.what()});
    return;
  }
  serve_engine(socket, std::move(engine));
}

}  // namespace ladder
