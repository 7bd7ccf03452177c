// Bodies of POSTs. The first byte says of which path: p completions, c chat, t tokenize, d detokenize. Whatever the
// body is, the answer is a plan that fits the model, or an Error.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "step1_layers/core/error.h"
#include "step6_engine/server/openai/generation_bodies.h"
#include "step6_engine/server/openai/tokenize.h"
#include "tests/support/source_folder.h"

namespace {

const std::shared_ptr<const ladder::ServedModel>& model() {
  static const auto model = [] {
    const auto path = ladder::testing::source_folder() / "models" / "tinyworld";
    return std::make_shared<const ladder::ServedModel>(
        ladder::make_served_model(path, ladder::open_model_folder(path), 256, {"tiny"}));
  }();
  return model;
}

void check(const ladder::GenerationPlan& plan) {
  const ladder::ServedModel& served = *model();
  if (plan.requests.empty() || plan.requests.size() != plan.answer.prompts.size()) std::abort();
  if (std::ssize(plan.requests) * plan.answer.n > ladder::kMaxSequencesOfBody) std::abort();
  for (const ladder::Request& request : plan.requests) {
    const int64_t num_prompt = std::ssize(request.prompt_token_ids);
    if (num_prompt < 1 || num_prompt >= served.max_model_len) std::abort();
    if (request.sampling.max_tokens && num_prompt + *request.sampling.max_tokens > served.max_model_len)
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  ladder::HttpRequest request;
  request.headers = {{"Content-Type", "application/json"}};
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0]) {
      case 'p':
        check(ladder::completion_plan(request, model()));
        break;
      case 'c':
        check(ladder::chat_plan(request, model()));
        break;
      case 't':
        ladder::tokenize_answer(request, *model());
        break;
      default:
        ladder::detokenize_answer(request, *model());
    }
  } catch (const ladder::Error&) {
  }
  return 0;
}
