#pragma once
// Task 6.9: an engine for one user at the other end of a socket.
//
//   socket --> input: this thread     submit, abort, call ------> ThreadEngineClient: the engine's thread
//   socket <-- output: a thread  <-- which requests have news, and once per turn: "a turn is over" <--+
//
// The output thread is woken once per turn of the engine's loop and takes what all streams have into one message. It
// makes the next message only when this one has left: what comes meanwhile is merged in the streams' buffers. So a user
// that does not read holds up nobody and fills no memory. vLLM: vllm/v1/engine/core.py (EngineCoreProc).
#include <memory>

#include "step6_engine/engine.h"
#include "step6_engine/process/message_socket.h"

namespace ladder {

// Returns when the user has closed the connection; requests that were left are aborted. The hello must have been
// exchanged. Error: the user has sent what is no message.
void serve_engine(MessageSocket& socket, std::unique_ptr<Engine> engine);

}  // namespace ladder
