// generate(): requests in, outputs out, in one call.
//
//   for each request: own.add(add_request(request))
//   while an output is missing:
//     result = step()
//     on_step(result)
//     the outputs of `own` are kept
//   return outputs
//
// The rest sees to it that requests which were added before lose nothing, and that a call which ends early
// ends its own requests.
#include <exception>
#include <iterator>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/engine.h"

namespace ladder {

namespace {

template <class T>
void append(std::vector<T>& list, std::vector<T>& more) {
  list.insert(list.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<RequestOutput> Engine::generate(const std::vector<Request>& requests,
                                            const std::function<void(const StepResult&)>& on_step) {
  std::map<RequestId, size_t> own;  // and where in `outputs` each belongs
  std::vector<RequestOutput> outputs(requests.size());
  size_t num_missing = requests.size();
  StepResult others;  // what the steps brought for requests that were here before
  const auto sort_out = [&](StepResult result) {
    for (CompletionUpdate& update : result.updates)
      if (!own.contains(update.request_id)) others.updates.push_back(std::move(update));
    for (RequestOutput& output : result.finished) {
      if (const auto position = own.find(output.request_id); position != own.end()) {
        outputs[position->second] = std::move(output);
        --num_missing;
      } else {
        others.finished.push_back(std::move(output));
      }
    }
  };

  std::exception_ptr thrown;
  try {
    for (size_t i = 0; i < requests.size(); ++i) own.emplace(add_request(requests[i]), i);
    while (num_missing > 0 && !thrown) {
      LADDER_CHECK(has_unfinished(), "generate: on_step has taken results away, it must not call step()");
      StepResult result = step();
      try {
        if (on_step) on_step(result);
      } catch (...) {
        thrown = std::current_exception();
      }
      sort_out(std::move(result));
    }
  } catch (...) {
    thrown = std::current_exception();
  }

  if (thrown) {
    for (const auto& [id, index] : own) abort(id);
    sort_out(take_results());  // their outputs are not returned: the exception is
  }
  try {  // The steps that ran ahead of the last token: their blocks come back.
    while (!dead() && requests_.empty() && !in_flight_.empty()) sort_out(collect_step());
  } catch (...) {
    // The engine died of it, and says so when it is asked for the next step.
  }
  append(others.updates, results_.updates);
  append(others.finished, results_.finished);
  results_.updates = std::move(others.updates);
  results_.finished = std::move(others.finished);
  if (thrown) std::rethrow_exception(thrown);
  return outputs;
}

}  // namespace ladder
