// POST /v1/completions.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "step6_engine/sampling_json.h"
#include "step6_engine/server/openai/api_error.h"
#include "step6_engine/server/openai/generation_bodies.h"
#include "step6_engine/server/openai/request_body.h"

namespace ladder {

namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's, where the body does not say it

struct Prompt {
  std::optional<std::string> text;  // none: it came as ids
  std::vector<int32_t> token_ids;
};

// A text, ids, a list of texts, or a list of lists of ids.
std::vector<Prompt> prompts_of(const RequestBody& body, const ServedModel& model) {
  const Json* value = body.find("prompt");
  if (value == nullptr) refuse("prompt", "prompt: expected a text, token ids, or a list of either");
  const bool with_special = body.flag("add_special_tokens", true);
  const auto prompt_of = [&](const Json& one, const std::string& what) {
    if (!one.is_string()) return Prompt{{}, json_token_ids(one, what)};
    if (model.tokenizer == nullptr)
      refuse("prompt", "prompt: a text needs a tokenizer, which this model has none of; expected token ids");
    const std::string& text = one.get_ref<const std::string&>();
    return Prompt{text, model.tokenizer->encode(text, with_special)};
  };
  const bool is_list = value->is_array() && !value->empty() && !value->front().is_number();
  if (!is_list) return {prompt_of(*value, "prompt")};
  if (std::ssize(*value) > kMaxSequencesOfBody)
    refuse("prompt", fmt::format("prompt: at most {} prompts, got {}", kMaxSequencesOfBody, value->size()));
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value->size(); ++i)
    prompts.push_back(prompt_of((*value)[i], fmt::format("prompt[{}]", i)));
  return prompts;
}

}  // namespace

GenerationPlan completion_plan(const HttpRequest& request, std::shared_ptr<const ServedModel> model) {
  const RequestBody body(request);
  check_model_name(body, *model);
  refuse_unsupported(body);
  GenerationPlan plan;
  plan.answer = answer_plan_of(body, request, Api::completions, model);
  AnswerPlan& answer = plan.answer;

  // An echo alone: OpenAI allows max_tokens 0 with it. The engine's least answer is one token, which is left out.
  answer.only_echo = answer.echo && body.integer("max_tokens") == 0;
  SamplingParams sampling =
      answer.only_echo ? sampling_of(body, *model, {"max_tokens", "min_tokens"}) : sampling_of(body, *model);
  if (answer.only_echo) sampling.max_tokens = 1;
  const bool says_how_long = answer.only_echo || body.fields().contains("max_tokens");  // null: to the end
  answer.n = sampling.n;
  answer.logprobs = sampling.logprobs.has_value();
  answer.num_top_logprobs = sampling.logprobs.value_or(0);
  answer.prompt_logprobs = sampling.prompt_logprobs.has_value();
  if (answer.stream && answer.prompt_logprobs)
    refuse("prompt_logprobs", "prompt_logprobs: they cannot be had with \"stream\": true");
  if (answer.stream && answer.echo && answer.logprobs)
    refuse("logprobs", "logprobs: of an echoed prompt they cannot be had with \"stream\": true");
  if (answer.echo && answer.logprobs && !sampling.prompt_logprobs)
    sampling.prompt_logprobs = sampling.logprobs;

  std::vector<Prompt> prompts = prompts_of(body, *model);
  if (std::ssize(prompts) * answer.n > kMaxSequencesOfBody)
    refuse("n", fmt::format("n: at most {} choices in one answer, asked for are {} prompts with {} each",
                            kMaxSequencesOfBody, prompts.size(), answer.n));
  for (Prompt& prompt : prompts) {
    if (truncate_prompt(body, *model, prompt.token_ids)) prompt.text.reset();
    Request& one = plan.requests.emplace_back();
    one.sampling = sampling;
    if (!says_how_long) {
      const int64_t room = model->max_model_len - std::ssize(prompt.token_ids);
      one.sampling.max_tokens =
          std::max<int64_t>(1, std::min(room, std::max(kDefaultMaxTokens, sampling.min_tokens)));
    }
    fit_context(std::ssize(prompt.token_ids), *model, "prompt", one.sampling);
    AnswerPlan::Prompt& shown = answer.prompts.emplace_back();
    shown.num_tokens = std::ssize(prompt.token_ids);
    if (answer.echo && prompt.text)
      shown.echo = std::move(*prompt.text);
    else if (answer.echo && model->tokenizer != nullptr)
      shown.echo = model->tokenizer->decode(prompt.token_ids);
    if (answer.stream && answer.return_token_ids) shown.token_ids = prompt.token_ids;
    one.prompt_token_ids = std::move(prompt.token_ids);
  }
  set_kv_transfer(plan, body);
  name_requests(plan);
  return plan;
}

}  // namespace ladder
