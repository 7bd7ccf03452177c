#include "step6_engine/server/openai/tokenize.h"

#include <fmt/format.h>

#include "step6_engine/sampling_json.h"
#include "step6_engine/server/openai/api_error.h"
#include "step6_engine/server/openai/chat_prompt.h"
#include "step6_engine/server/openai/choice_text.h"
#include "step6_engine/server/openai/json_text.h"

namespace ladder {

namespace {

void check_tokenizer(const ServedModel& model) {
  if (model.tokenizer == nullptr) refuse({}, "this model has no tokenizer");
}

}  // namespace

std::string tokenize_answer(const HttpRequest& request, const ServedModel& model) {
  RequestBody body = RequestBody::of_chat(request);
  check_model_name(body, model);
  check_tokenizer(model);
  std::vector<int32_t> ids;
  if (!body.messages.is_null()) {
    if (body.find("chat_template") != nullptr) refuse("chat_template", "chat_template: it is not supported");
    ids = chat_prompt(body, model).token_ids;
  } else {
    const std::optional<std::string> prompt = body.text("prompt");
    if (!prompt) refuse("prompt", "prompt: expected a text, or \"messages\"");
    ids = model.tokenizer->encode(*prompt, body.flag("add_special_tokens", true));
  }
  std::string out =
      fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":", ids.size(), model.max_model_len);
  append_ids(out, ids);
  out += ",\"token_strs\":";
  if (!body.flag("return_token_strs", false)) return out + "null}";
  out += '[';
  for (const int32_t id : ids) {
    if (out.back() != '[') out += ',';
    append_json_string(out, model.tokenizer->decode({&id, 1}));
  }
  return out + "]}";
}

std::string detokenize_answer(const HttpRequest& request, const ServedModel& model) {
  const RequestBody body(request);
  check_model_name(body, model);
  check_tokenizer(model);
  const Json* tokens = body.find("tokens");
  if (tokens == nullptr) refuse("tokens", "tokens: expected a list of token ids");
  const std::vector<int32_t> ids = json_token_ids(*tokens, "tokens");
  for (const int32_t id : ids)
    if (!model.tokenizer->has_token(id))
      refuse("tokens", fmt::format("tokens: {} is no token of this model", id));
  std::string out = "{\"prompt\":";
  append_json_string(out, model.tokenizer->decode(ids));
  return out + "}";
}

}  // namespace ladder
