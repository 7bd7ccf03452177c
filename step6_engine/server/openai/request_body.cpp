#include "step6_engine/server/openai/request_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "step2_model/json_packed_ids.h"
#include "step6_engine/kv_transfer_json.h"
#include "step6_engine/sampling_json.h"
#include "step6_engine/server/openai/api_error.h"

namespace ladder {

namespace {

void check_content_type(const HttpRequest& request) {
  std::string type(request.header("content-type"));
  type.resize(std::min(type.find(';'), type.size()));
  std::erase_if(type, [](unsigned char c) { return std::isspace(c) != 0; });
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  if (type != "application/json") refuse({}, "Unsupported Media Type: Only 'application/json' is allowed");
}

// 32 random hexadecimal digits, as vLLM's.
std::string random_id() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{:016x}{:016x}", random(), random());
}

bool is_null_or(const Json& value, const Json& neutral) {
  return value.is_null() || value == neutral;
}

}  // namespace

RequestBody::RequestBody(const HttpRequest& request) {
  check_content_type(request);
  fields_ = parse_json_with_packed_ids(request.body, "the body");
  if (!fields_.is_object()) refuse({}, "the body: expected a JSON object, found " + json_brief(fields_));
}

RequestBody RequestBody::of_chat(const HttpRequest& request) {
  check_content_type(request);
  OrderedJson all = parse_ordered_json(request.body, "the body");
  if (!all.is_object()) refuse({}, "the body: expected a JSON object, found " + json_brief(Json(all)));
  RequestBody body;
  body.fields_ = Json::object();
  for (auto& [key, value] : all.get_ref<OrderedJson::object_t&>()) {
    if (key == "messages")
      body.messages = std::move(value);
    else if (key == "tools")
      body.tools = std::move(value);
    else if (key == "documents")
      body.documents = std::move(value);
    else if (key == "chat_template_kwargs")
      body.template_variables = std::move(value);
    else
      body.fields_[key] = Json(value);
  }
  return body;
}

namespace {

// The value's type is wrong: 400, with its key.
template <class Read>
auto read_field(const std::string& key, Read read) {
  try {
    return read();
  } catch (const Error& error) {
    refuse(key, error.what());
  }
}

}  // namespace

bool RequestBody::flag(const std::string& key, bool otherwise) const {
  const Json* value = find(key);
  return read_field(key, [&] { return value == nullptr ? otherwise : json_bool(*value, key); });
}

std::optional<int64_t> RequestBody::integer(const std::string& key) const {
  const Json* value = find(key);
  return read_field(key,
                    [&] { return value == nullptr ? std::nullopt : std::optional(json_int(*value, key)); });
}

std::optional<std::string> RequestBody::text(const std::string& key) const {
  const Json* value = find(key);
  return read_field(
      key, [&] { return value == nullptr ? std::nullopt : std::optional(json_string(*value, key)); });
}

void check_model_name(const RequestBody& body, const ServedModel& model) {
  const std::optional<std::string> name = body.text("model");
  if (name && !model.is_called(*name))
    throw ApiError(404, "model", fmt::format("The model {} does not exist.", json_brief(Json(*name))));
}

void refuse_unsupported(const RequestBody& body) {
  for (const char* field :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_whitespace_pattern", "guided_decoding_backend", "structural_tag", "logits_processors",
        "prompt_embeds", "chat_template", "mm_processor_kwargs", "audio", "functions", "repetition_detection",
        "thinking_token_budget"})
    if (body.find(field) != nullptr) refuse(field, fmt::format("{}: it is not supported", field));
  if (body.flag("use_beam_search", false)) refuse("use_beam_search", "use_beam_search: it is not supported");
  if (const Json* suffix = body.find("suffix"); suffix != nullptr && *suffix != "")
    refuse("suffix", "suffix: it is not supported");
  if (const Json* format = body.find("response_format")) {
    const Json* type = format->is_object() ? json_find(*format, "type", "response_format") : nullptr;
    if (type == nullptr || *type != "text")
      refuse("response_format", "response_format: only {\"type\": \"text\"} is supported");
  }
  if (const Json* modalities = body.find("modalities"))
    if (!is_null_or(*modalities, Json::array({"text"})))
      refuse("modalities", "modalities: only [\"text\"] is supported");
  if (const Json* call = body.find("function_call"); call != nullptr && *call != "none" && *call != "auto")
    refuse("function_call", "function_call: it is not supported; expected tools and tool_choice");
}

SamplingParams sampling_of(const RequestBody& body, const ServedModel& model,
                           std::initializer_list<std::string_view> skip) {
  SamplingParams sampling = model.default_sampling;
  sampling.max_tokens.reset();
  for (const auto& [key, value] : body.fields().items()) {
    if (std::find(skip.begin(), skip.end(), key) != skip.end()) continue;
    if (key == "seed" && value.is_number_integer() && !value.is_number_unsigned())
      sampling.seed = static_cast<uint64_t>(value.get<int64_t>());  // OpenAI's seeds are signed
    else
      set_sampling_field(sampling, key, value, key);
  }
  if (const Json* salt = body.find("cache_salt"); salt != nullptr && *salt == "")
    refuse("cache_salt", "cache_salt: expected a string that is not empty");
  const std::optional<int64_t> best_of = body.integer("best_of");
  if (best_of && *best_of != sampling.n)
    refuse("best_of",
           fmt::format("best_of: only n, which is {}, is supported, got {}", sampling.n, *best_of));
  validate_sampling_params(sampling, model.vocab_size);
  return sampling;
}

AnswerPlan answer_plan_of(const RequestBody& body, const HttpRequest& request, Api api,
                          std::shared_ptr<const ServedModel> model) {
  AnswerPlan plan;
  plan.api = api;
  plan.model = std::move(model);
  plan.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  std::string id = body.text("request_id").value_or(std::string(request.header("x-request-id")));
  if (std::ssize(id) > kMaxRequestIdBytes)
    refuse("request_id", fmt::format("request_id: at most {} bytes, got {}", kMaxRequestIdBytes, id.size()));
  if (id.empty()) id = random_id();
  plan.id = (api == Api::chat ? "chatcmpl-" : "cmpl-") + id;

  plan.stream = body.flag("stream", false);
  if (const Json* options = body.find("stream_options")) {
    if (!plan.stream)
      refuse("stream_options", "stream_options: they can only be given with \"stream\": true");
    if (!options->is_object())
      refuse("stream_options", "stream_options: expected an object, found " + json_brief(*options));
    const auto option = [options](const std::string& key) {
      const Json* value = json_find(*options, key, "stream_options");
      return value != nullptr && json_bool(*value, "stream_options." + key);
    };
    plan.include_usage = option("include_usage");
    plan.continuous_usage = plan.include_usage && option("continuous_usage_stats");
  }
  plan.echo = body.flag("echo", false);
  plan.return_token_ids = body.flag("return_token_ids", false);
  plan.return_tokens_as_token_ids = body.flag("return_tokens_as_token_ids", false);
  return plan;
}

void set_kv_transfer(GenerationPlan& plan, const RequestBody& body) {
  const Json* value = body.find("kv_transfer_params");
  if (value == nullptr) return;
  const KvTransferParams params =
      read_field("kv_transfer_params", [&] { return parse_kv_transfer(*value, "kv_transfer_params"); });
  if (plan.requests.size() != 1)
    refuse("kv_transfer_params",
           fmt::format("kv_transfer_params: they are those of one prompt, the body has {}",
                       plan.requests.size()));
  plan.requests[0].kv_transfer = params;
}

bool truncate_prompt(const RequestBody& body, const ServedModel& model, std::vector<int32_t>& token_ids) {
  const std::optional<int64_t> wanted = body.integer("truncate_prompt_tokens");
  if (!wanted) return false;
  if (*wanted != -1 && (*wanted < 1 || *wanted > model.max_model_len))
    refuse("truncate_prompt_tokens",
           fmt::format("truncate_prompt_tokens: expected 1 to {}, or -1 for that, got {}",
                       model.max_model_len, *wanted));
  const int64_t keep = *wanted == -1 ? model.max_model_len : *wanted;
  if (std::ssize(token_ids) <= keep) return false;
  token_ids.erase(token_ids.begin(), token_ids.end() - keep);
  return true;
}

void fit_context(int64_t num_prompt_tokens, const ServedModel& model, const std::string& prompt_field,
                 SamplingParams& sampling) {
  const int64_t room = model.max_model_len - num_prompt_tokens;
  if (num_prompt_tokens == 0) refuse(prompt_field, prompt_field + ": the prompt is empty");
  if (room < 1)
    throw ApiError(
        400, prompt_field,
        fmt::format("This model's maximum context length is {} tokens. However, your request has {} input "
                    "tokens, and an answer needs at least one. Please reduce the length of the input.",
                    model.max_model_len, num_prompt_tokens))
        .with_context(num_prompt_tokens, model.max_model_len);
  if (sampling.max_tokens && *sampling.max_tokens > room)
    throw ApiError(
        400, "max_tokens",
        fmt::format("'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context "
                    "length is {} tokens and your request has {} input tokens ({} > {} - {}).",
                    *sampling.max_tokens, model.max_model_len, num_prompt_tokens, *sampling.max_tokens,
                    model.max_model_len, num_prompt_tokens))
        .with_context(num_prompt_tokens, model.max_model_len);
  if (const std::optional<int64_t> most = model.default_sampling.max_tokens)
    sampling.max_tokens = std::min({sampling.max_tokens.value_or(*most), *most, room});
}

void name_requests(GenerationPlan& plan) {
  for (size_t i = 0; i < plan.requests.size(); ++i)
    plan.requests[i].request_id =
        plan.requests.size() == 1 ? plan.answer.id : fmt::format("{}-{}", plan.answer.id, i);
}

}  // namespace ladder
