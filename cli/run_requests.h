#pragma once
// What generate, score and demo share: load with a progress bar, check, run, hand out in input order.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cli/request_lines.h"
#include "step6_engine/load_engine.h"

namespace ladder {

// load_engine with a bar for the weights.
std::unique_ptr<Engine> load_engine_with_progress(EngineOptions options, const ModelFolder& folder);

// Everything about the requests that can be known before weights are loaded. Error, beginning with the line.
void check_requests(std::span<const RequestLine> lines, const ModelFolder& folder);

struct RunCallbacks {
  std::function<void(int64_t index, RequestOutput&)> on_output;  // in input order
  std::function<void(const StepResult&)> on_step;  // may be empty; request ids are the indices, written out
  std::string progress_label;                      // empty: no bar
};

// Adds all requests to a fresh engine (an Error begins with the line, and nothing has run then), and steps
// until all are done.
void run_requests(Engine& engine, std::span<const RequestLine> lines, const RunCallbacks& callbacks);

}  // namespace ladder
