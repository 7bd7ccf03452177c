#pragma once
// Task 6.9: an engine for a user at the other end of a socket: the only one that it has, or one of several.
//
//   socket --> input: this thread     submit, abort, call ------> EngineClient: the engine's thread
//   socket <-- output: a thread  <-- which requests have news, and once per turn: "a turn is over" <--+
//
// The output thread is woken once per turn of the engine's loop, and a few times a second, and takes what all streams have
// into one message. It makes the next message only when this one has left: what comes meanwhile is merged in the streams'
// buffers. So a user that does not read holds up nobody and fills no memory. vLLM: vllm/v1/engine/core.py (EngineCoreProc).
#include <functional>
#include <memory>
#include <string>

#include "step5_scheduler/scheduler.h"
#include "step6_engine/engine.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/process/message_socket.h"
#include "step6_engine/remote/engine_messages.h"
#include "step6_engine/remote/turn_listeners.h"

namespace ladder {

struct ServeEngineOptions {
  SchedulerConfig config;  // what the user is told, to check requests by
  // What the client's EngineClientOptions::on_turn tells. Null: the client tells no turns, and news leaves as it comes.
  TurnListeners* turns = nullptr;
  // Before each request's id: what several users of one engine call by the same id are different requests.
  std::string id_prefix = {};
  // Has the client count queued tokens, where it does not bound them itself.
  std::function<void()> count_queued_tokens = {};
  // Of an API server: EngineMessage::serving, and EngineMessage::failed, which ends the call.
  std::function<void()> on_serving = {};
  std::function<void(FailedMessage)> on_failed = {};
};

// Returns when the user has closed the connection; its requests that were left are aborted, and its streams are dropped.
// The client and the listeners outlive the call, and may have other users at the same time: a user's stop() ends its own
// requests and nobody else's. The hello must have been exchanged. Error: the user has sent what is no message.
void serve_engine(MessageSocket& socket, EngineClient& client, ServeEngineOptions options);

// The same for an engine that nobody else uses: it ends with the connection.
void serve_engine(MessageSocket& socket, std::unique_ptr<Engine> engine);

}  // namespace ladder
