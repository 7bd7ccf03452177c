#pragma once
// Task 6.10's other half: the page at /, a chat with the model and a look at every step of the engine; and /docs.
//
//   GET /                the page: a static file in the binary (window/page/), nothing of it from elsewhere
//   GET /window/NAME     its style and scripts
//   GET /window/events   the trace of the engine as server-sent events, one record an event (trace/trace_json.h)
//   GET /docs            a page of the API
//
// The pages themselves tell nothing and need no key; what they ask for does.
#include <memory>

#include "step6_engine/engine_client.h"
#include "step6_engine/server/http/router.h"

namespace ladder {

struct WindowOptions {
  int max_watchers = 16;  // at the same time; more are answered 503
};

// The client must outlive the server whose router this is.
void add_window_routes(Router& router, EngineClient& client, WindowOptions options = {});

}  // namespace ladder
