#include "step8_advanced/disaggregation/router/split_request.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step7_parallel/hosts/host_secret.h"

namespace ladder {

namespace {

constexpr const char* kTransfer = "kv_transfer_params";

// Four bytes to a number; of the last ones, fewer.
std::vector<int32_t> units_of_text(std::string_view text) {
  std::vector<int32_t> units;
  units.reserve(text.size() / 4 + 1);
  for (size_t at = 0; at < text.size(); at += 4) {
    uint32_t unit = 0;
    for (const char c : text.substr(at, 4)) unit = unit << 8 | static_cast<unsigned char>(c);
    units.push_back(static_cast<int32_t>(unit));
  }
  return units;
}

// Of "[1, 2, 3]"; none: it is another list.
std::optional<std::vector<int32_t>> token_ids(std::string_view list) {
  std::vector<int32_t> ids;
  const char *at = list.data() + 1, *end = list.data() + list.size() - 1;
  const auto skip_space = [&] {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) ++at;
  };
  while (true) {
    int32_t id = 0;
    skip_space();
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc()) return std::nullopt;
    ids.push_back(id);
    at = rest;
    skip_space();
    if (at == end) return ids;
    if (*at++ != ',') return std::nullopt;
  }
}

}  // namespace

SplitRequest::SplitRequest(std::string body) : body_(std::move(body)), members_(json_members(body_)) {
  if (!members_) {
    unsplit_because_ = "malformed";
    return;
  }
  for (const char* flag : {"echo", "use_beam_search"})
    if (json_member(*members_, flag) == "true") unsplit_because_ = flag;
  const std::string_view logprobs = json_member(*members_, "prompt_logprobs");
  if (!logprobs.empty() && logprobs != "null") unsplit_because_ = "prompt_logprobs";
  read_prompt();
}

void SplitRequest::read_prompt() {
  std::string_view prompt = json_member(*members_, "prompt");
  // The conversation as it stands: the next turn's begins with it, but for the bracket.
  if (prompt.empty()) prompt = json_member(*members_, "messages");
  if (!prompt.starts_with('[') || json_member(*members_, "prompt").empty()) {
    prompt_ = units_of_text(prompt);
    return;
  }
  if (std::optional<std::vector<int32_t>> ids = token_ids(prompt)) {
    prompt_ = std::move(*ids);
  } else {
    unsplit_because_ = "several_prompts";
  }
}

std::string SplitRequest::prefill_body(std::string_view request_id) const {
  // One token, whatever the limit is called; and nothing that asks for more than it, or for a stream.
  std::string added = "\"max_tokens\":1,\"stream\":false,\"n\":1";
  if (!json_member(*members_, "max_completion_tokens").empty()) added += ",\"max_completion_tokens\":1";
  added += fmt::format(
      ",\"{}\":{{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_request_id\":\"{}\"}}",
      kTransfer, request_id);
  return json_object(*members_,
                     {"max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "n",
                      "best_of", kTransfer},
                     added);
}

std::string SplitRequest::decode_body(std::string_view transfer) const {
  if (!members_) return body_;
  return json_object(*members_, {kTransfer},
                     transfer.empty() ? std::string() : fmt::format("\"{}\":{}", kTransfer, transfer));
}

std::string random_request_id() {
  std::string id;
  const Nonce bytes = draw_nonce();
  for (size_t i = 0; i < 16; ++i) id += fmt::format("{:02x}", bytes[i]);
  return id;
}

std::string transfer_of_answer(std::string_view answer) {
  const std::optional<std::vector<JsonMember>> members = json_members(answer);
  LADDER_CHECK(members && !json_member(*members, "choices").empty(),
               "the prefill server's answer is no completion");
  const std::string_view text = json_member(*members, kTransfer);
  if (text.empty() || text == "null") return {};
  Json transfer = parse_json(text, "kv_transfer_params of the prefill server's answer");
  LADDER_CHECK(transfer.is_object(), "{} of the prefill server's answer is no object", kTransfer);
  if (transfer.empty()) return {};
  transfer["do_remote_prefill"] = true;
  transfer["do_remote_decode"] = false;
  return transfer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<PromptSource> source_of_transfer(std::string_view transfer, std::string_view request_id) {
  const Json fields = Json::parse(transfer, nullptr, false);
  if (!fields.is_object()) return std::nullopt;
  for (const auto& [name, value] : fields.items())
    if (name != "do_remote_prefill" && name != "do_remote_decode" && name != "remote_engine_id" &&
        name != "remote_request_id" && name != "remote_address" && name != "remote_num_tokens")
      return std::nullopt;
  const auto text = [&](const char* name) {
    const auto field = fields.find(name);
    return field != fields.end() && field->is_string() ? field->get<std::string>() : std::string();
  };
  PromptSource source{text("remote_engine_id"), text("remote_address")};
  if (source.engine_id.empty() || source.address.empty() || text("remote_request_id") != request_id)
    return std::nullopt;
  return source;
}

std::string transfer_from(const PromptSource& source, std::string_view request_id) {
  return Json{{"do_remote_prefill", true},
              {"do_remote_decode", false},
              {"remote_engine_id", source.engine_id},
              {"remote_request_id", request_id},
              {"remote_address", source.address}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ladder
