// How requests end that do not end by themselves: taken back, or with the engine.
//
//   abort(id):   the scheduler drops the sequences; the output so far is a result
//   a load that fails (KvLoadFailurePolicy): the scheduler has dropped one of the sequences; the output is the error
//   die(error):  keep the error, give all KV blocks back, end every request with the error
#include <utility>

#include "step6_engine/engine.h"

namespace ladder {

namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception without a message";
  }
}

}  // namespace

void Engine::abort(const RequestId& id) {
  const auto position = requests_.find(id);
  if (position == requests_.end()) return;
  waits_for_kv_ = false;
  end_request(position->second, FinishReason::abort, {});
}

void Engine::end_failed_loads() {
  for (const FinishedKvLoad& load : scheduler_.take_failed_loads())
    if (const auto owner = owners_.find(load.id); owner != owners_.end())
      end_request(*owner->second.request, FinishReason::error,
                  "the keys and values of the prompt did not come: " + load.error);
}

// What had become certain of the text is out already; what was held back comes now.
void Engine::end_request(ActiveRequest& request, FinishReason reason, const std::string& error) {
  for (size_t i = 0; i < request.completions.size(); ++i) {
    CompletionOutput& output = request.output.completions[i];
    if (output.finish_reason != FinishReason::none) continue;
    const SequenceId id = request.completions[i].sequence;
    const Sequence* sequence = scheduler_.find(id);
    const int64_t num_preemptions = sequence == nullptr ? 0 : sequence->num_preemptions;
    if (!dead()) scheduler_.abort(id);
    owners_.erase(id);

    CompletionUpdate& news = results_.updates.emplace_back();
    news.request_id = request.output.request_id;
    news.completion = static_cast<int64_t>(i);
    news.text = request.completions[i].text.append({}, reason).text;
    news.finish_reason = reason;
    if (output.text) *output.text += news.text;
    output.finish_reason = reason;
    output.error = error;

    const bool last = request.num_unfinished == 1;
    end_completion(request, num_preemptions);
    if (last) return;  // the request is gone
  }
}

// An engine does not outlive an error of its executor: what lies in the KV cache is not known any more.
void Engine::die(std::exception_ptr error) {
  error_ = std::move(error);
  error_message_ = message_of(error_);
  in_flight_.clear();  // the executor is not asked again
  try {
    scheduler_
        .abandon();  // first: after an update that failed halfway it must not be asked for anything else
  } catch (const std::exception&) {
    // The books of the blocks are broken too. The first error stands, and everyone who waits is given it.
  }
  for (auto next = requests_.begin(); next != requests_.end();)  // which takes the request out of the map
    end_request((next++)->second, FinishReason::error, error_message_);
}

}  // namespace ladder
