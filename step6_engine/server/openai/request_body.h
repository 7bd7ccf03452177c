#pragma once
// A POST's body, field by field: what both APIs have in common.
//
// As in vLLM a field that nobody knows is ignored, since clients send what other servers know, and null is as good as
// absent. What is known and not served is refused by name, so that nobody takes an answer for one that kept to it.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "step2_model/json.h"
#include "step6_engine/server/http/exchange.h"
#include "step6_engine/server/openai/answer_plan.h"

namespace ladder {

// Bounds of one body, beside those of SamplingParams.
inline constexpr int64_t kMaxRequestIdBytes = 256;

class RequestBody {
 public:
  // Error, which is a 400: the content type is not JSON, the body is no object, deeper than 64, not UTF-8, or has a key
  // twice.
  explicit RequestBody(const HttpRequest& request);
  // The same of a chat: messages, tools, documents and chat_template_kwargs keep the order of their members.
  static RequestBody of_chat(const HttpRequest& request);

  // Null: absent, or null.
  const Json* find(const std::string& key) const { return json_find(fields_, key, "the body"); }
  bool flag(const std::string& key, bool otherwise) const;
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  const Json& fields() const { return fields_; }

  // Of a chat; null where absent.
  OrderedJson messages, tools, documents, template_variables;

 private:
  RequestBody() = default;
  Json fields_;
};

// The model that the body names must be this one; one that names none means it. Error: 404.
void check_model_name(const RequestBody& body, const ServedModel& model);

// Refuses, by name, fields that ask for what is not served, by either API.
void refuse_unsupported(const RequestBody& body);

// Sampling parameters under their names, on top of the model's defaults; `skip` are fields that the API means something
// else by. The seed may be any int64.
SamplingParams sampling_of(const RequestBody& body, const ServedModel& model,
                           std::initializer_list<std::string_view> skip = {});

// id, stream and its options, and what the answer is to show.
AnswerPlan answer_plan_of(const RequestBody& body, const HttpRequest& request, Api api,
                          std::shared_ptr<const ServedModel> model);

// Cuts the prompt from the left as truncate_prompt_tokens says. Whether something was cut.
bool truncate_prompt(const RequestBody& body, const ServedModel& model, std::vector<int32_t>& token_ids);

// max_tokens within what the model's defaults allow; none stays none, which is all that there is room for. Error, with
// both numbers: prompt and answer do not fit max_model_len.
void fit_context(int64_t num_prompt_tokens, const ServedModel& model, const std::string& prompt_field,
                 SamplingParams& sampling);

// kv_transfer_params, of the plan's one request. Error, which is a 400: they are malformed, or there are several prompts.
void set_kv_transfer(GenerationPlan& plan, const RequestBody& body);

// The ids of the engine's requests, from that of the answer.
void name_requests(GenerationPlan& plan);

}  // namespace ladder
