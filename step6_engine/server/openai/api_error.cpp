#include "step6_engine/server/openai/api_error.h"

#include "step6_engine/engine_client.h"
#include "step6_engine/sampling_json.h"
#include "step6_engine/server/http/errors.h"

namespace ladder {

namespace {

constexpr int kRetryAfterSeconds = 1;

std::string_view type_of(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 404:
      return "NotFoundError";
    case 429:
      return "RateLimitError";
    case 500:
      return "InternalServerError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return {};  // the status' phrase
  }
}

// Messages of the checks below the server begin with the field: "top_p must be ...", "stop: a string ...".
std::string param_of(std::string_view message) {
  const std::string_view first = message.substr(0, message.find_first_of(" :[."));
  for (const std::string_view field : {"prompt", "messages", "tokens", "request_id", "stream_options"})
    if (first == field) return std::string(first);
  return is_sampling_field(first) ? std::string(first) : std::string();
}

HttpResponse response_of(const ApiError& error) {
  HttpResponse response;
  response.status = error.status();
  response.body = error.body();
  if (response.status == 429)
    response.headers.emplace_back("Retry-After", std::to_string(kRetryAfterSeconds));
  return response;
}

}  // namespace

std::string ApiError::body() const {
  std::string body = error_body(status_, what(), type_of(status_), param_);
  if (num_prompt_tokens_)  // before the two braces that end it
    body.insert(body.size() - 2,
                fmt::format(",\"n_prompt_tokens\":{},\"n_ctx\":{}", *num_prompt_tokens_, *max_model_len_));
  return body;
}

std::string without_folder(std::string text, std::string_view folder) {
  if (folder.empty()) return text;
  for (size_t at = 0; (at = text.find(folder, at)) != std::string::npos;) {
    size_t length = folder.size();
    if (at + length < text.size() && text[at + length] == '/') ++length;
    text.erase(at, length);
  }
  return text;
}

void refuse(std::string param, const std::string& message) {
  throw ApiError(400, std::move(param), message);
}

void with_api_errors(HttpExchange& exchange, std::string_view folder, const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    exchange.respond(response_of(error));
  } catch (const QueueFull& error) {
    exchange.respond(response_of(ApiError(429, {}, error.what())));
  } catch (const EngineUnavailable&) {  // what it died of is for the server's log
    exchange.respond(
        response_of(ApiError(503, {}, "the engine takes no requests: it has failed or is stopping")));
  } catch (const Error& error) {
    exchange.respond(
        response_of(ApiError(400, param_of(error.what()), without_folder(error.what(), folder))));
  } catch (const std::exception&) {
    exchange.respond(response_of(ApiError(500, {}, "an internal error")));
  }
}

}  // namespace ladder
