#pragma once
// What generate, score and demo share: load with a progress bar, check, run, hand out in input order.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cli/request_lines.h"
#include "step6_engine/engine_client.h"
#include "step6_engine/load_engine.h"

namespace ladder {

// load_engine with a bar for the weights.
std::unique_ptr<Engine> load_engine_with_progress(EngineOptions options, const ModelFolder& folder);

// Everything about the requests that can be known before weights are loaded. Error, beginning with the line.
void check_requests(std::span<const RequestLine> lines, const ModelFolder& folder,
                    const EngineOptions& options);

struct RunCallbacks {
  std::function<void(int64_t index, RequestOutput&)> on_output;  // in input order
  // What has come for a request, each as soon as it is there; may be empty. The last one precedes on_output.
  std::function<void(int64_t index, const StreamUpdate&)> on_update;
  std::string progress_label;  // empty: no bar
};

// Submits all requests to an idle engine (an Error begins with the line, and nothing has run then), and waits
// until all are done. Throws what the engine dies of.
void run_requests(EngineClient& client, std::span<const RequestLine> lines, const RunCallbacks& callbacks);

// Throws what the engine died of, if that is what ended the request.
void check_engine_lives(const EngineClient& client, const RequestOutput& output);

}  // namespace ladder
