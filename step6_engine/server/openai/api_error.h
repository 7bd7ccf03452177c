#pragma once
// What is wrong with a request, as its sender is told: vLLM's errors, which name the field.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step6_engine/server/http/exchange.h"

namespace ladder {

class ApiError : public Error {
 public:
  ApiError(int status, std::string param, const std::string& message)
      : Error(message), status_(status), param_(std::move(param)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // the field that is wrong; empty: none is
  // A prompt that does not fit, with both numbers (llama.cpp's names).
  ApiError& with_context(int64_t num_prompt_tokens, int64_t max_model_len) {
    num_prompt_tokens_ = num_prompt_tokens;
    max_model_len_ = max_model_len;
    return *this;
  }
  std::string body() const;  // {"error": {...}}

 private:
  int status_;
  std::string param_;
  std::optional<int64_t> num_prompt_tokens_, max_model_len_;
};

[[noreturn]] void refuse(std::string param, const std::string& message);  // 400

// The message with the folder's name taken out.
std::string without_folder(std::string message, std::string_view folder);

// Does `work`, whose errors become the exchange's answer: 400 with the field's name for what is wrong with the request,
// 429 with Retry-After where no more may wait, 503 where the engine is dead or stopping, 500 for a defect of ours. No
// message has `folder` in it.
void with_api_errors(HttpExchange& exchange, std::string_view folder, const std::function<void()>& work);

}  // namespace ladder
