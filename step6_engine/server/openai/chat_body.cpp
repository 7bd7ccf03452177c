// POST /v1/chat/completions.
#include <fmt/format.h>

#include <utility>

#include "step6_engine/server/openai/api_error.h"
#include "step6_engine/server/openai/chat_prompt.h"
#include "step6_engine/server/openai/generation_bodies.h"

namespace ladder {

namespace {

// auto, which is also what is meant where there are tools and no choice, and none: what finds calls in the answer, or
// nothing. required and a named tool need an answer that is held to a grammar.
ToolCallParserMaker tool_call_parser_for(const RequestBody& body, bool has_tools, const ServedModel& model) {
  const bool in_parallel = body.flag("parallel_tool_calls", true);
  const Json* choice = body.find("tool_choice");
  if (choice == nullptr ? !has_tools : *choice == "none") return {};
  if (choice != nullptr && *choice != "auto")
    refuse("tool_choice",
           "tool_choice: only \"none\" and \"auto\" are supported, found " + json_brief(*choice));
  if (!has_tools) refuse("tool_choice", "tool_choice: it needs tools");
  if (!model.tool_call_parser)
    refuse("tool_choice",
           "tool_choice: \"auto\" tool choice, which tools without a choice mean too, requires "
           "--enable-auto-tool-choice and --tool-call-parser to be set");
  return in_parallel ? model.tool_call_parser : first_call_only(model.tool_call_parser);
}

}  // namespace

GenerationPlan chat_plan(const HttpRequest& request, std::shared_ptr<const ServedModel> model) {
  RequestBody body = RequestBody::of_chat(request);
  check_model_name(body, *model);
  refuse_unsupported(body);
  GenerationPlan plan;
  plan.answer = answer_plan_of(body, request, Api::chat, model);
  AnswerPlan& answer = plan.answer;

  SamplingParams sampling = sampling_of(body, *model, {"logprobs", "max_tokens", "min_tokens"});
  const std::optional<int64_t> max_tokens = body.integer("max_tokens");  // the older name, read in any case
  const std::optional<int64_t> max_completion_tokens = body.integer("max_completion_tokens");
  sampling.max_tokens = max_completion_tokens ? max_completion_tokens : max_tokens;
  sampling.min_tokens = body.integer("min_tokens").value_or(0);
  answer.n = sampling.n;
  answer.logprobs = body.flag("logprobs", false);
  answer.num_top_logprobs = body.integer("top_logprobs").value_or(0);
  if (answer.num_top_logprobs != 0 && !answer.logprobs)
    refuse("top_logprobs", "top_logprobs: they need \"logprobs\": true");
  if (answer.logprobs) sampling.logprobs = answer.num_top_logprobs;
  answer.prompt_logprobs = sampling.prompt_logprobs.has_value();
  if (answer.stream && answer.prompt_logprobs)
    refuse("prompt_logprobs", "prompt_logprobs: they cannot be had with \"stream\": true");
  if (!sampling.ignore_eos)
    for (const int32_t id : model->turn_end_token_ids) sampling.stop_token_ids.push_back(id);

  ChatPrompt prompt = chat_prompt(body, *model);
  answer.tool_call_parser = tool_call_parser_for(body, prompt.has_tools, *model);
  if (answer.tool_call_parser)
    sampling.skip_special_tokens = false;  // some models' marks of a call are special
  truncate_prompt(body, *model, prompt.token_ids);
  fit_context(std::ssize(prompt.token_ids), *model, "messages", sampling);
  AnswerPlan::Prompt& shown = answer.prompts.emplace_back();
  shown.num_tokens = std::ssize(prompt.token_ids);
  if (answer.echo) shown.echo = std::move(prompt.last_assistant_text);
  if (answer.stream && answer.return_token_ids) shown.token_ids = prompt.token_ids;
  Request& one = plan.requests.emplace_back();
  one.prompt_token_ids = std::move(prompt.token_ids);
  one.sampling = std::move(sampling);
  set_kv_transfer(plan, body);
  name_requests(plan);
  return plan;
}

}  // namespace ladder
