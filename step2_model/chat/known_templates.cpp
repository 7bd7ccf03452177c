#include "step2_model/chat/known_templates.h"

#include <openssl/evp.h>

#include <array>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

constexpr std::string_view kTurnTokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr std::string_view kToolTokens[] = {"<|im_start|>", "<|im_end|>",      "<tool_call>",
                                            "</tool_call>", "<tool_response>", "</tool_response>"};
constexpr std::string_view kThinkTokens[] = {"<|im_start|>", "<|im_end|>",      "<tool_call>",
                                             "</tool_call>", "<tool_response>", "</tool_response>",
                                             "<think>",      "</think>"};
constexpr std::string_view kHeaderTokens[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
constexpr std::string_view kLlamaToolTokens[] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                                                 "<|eom_id|>", "<|python_tag|>"};

constexpr ChatFormat kFormats[] = {
    {.name = "chatml", .control_tokens = kTurnTokens},
    {.name = "qwen1.5", .default_system = "You are a helpful assistant", .control_tokens = kTurnTokens},
    {.name = "qwen2", .default_system = "You are a helpful assistant.", .control_tokens = kTurnTokens},
    {.name = "smollm2",
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .control_tokens = kTurnTokens},
    {.name = "qwen2.5",
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .control_tokens = kToolTokens},
    {.name = "qwen2.5-base", .default_system = "You are a helpful assistant.", .control_tokens = kToolTokens},
    {.name = "qwen2.5-math",
     .default_system = "Please reason step by step, and put your final answer within \\boxed{}.",
     .control_tokens = kToolTokens},
    {.name = "qwen3", .thinking = Thinking::optional, .control_tokens = kThinkTokens},
    {.name = "qwen3-instruct-2507", .control_tokens = kToolTokens},
    {.name = "qwen3-thinking-2507", .thinking = Thinking::always, .control_tokens = kThinkTokens},
    {.name = "llama3-2024-04",
     .style = TurnStyle::llama3,
     .always_prompts = true,
     .control_tokens = kHeaderTokens},
    {.name = "llama3", .style = TurnStyle::llama3, .control_tokens = kHeaderTokens},
    {.name = "llama3.1",
     .style = TurnStyle::llama3,
     .writes_dates = true,
     .control_tokens = kLlamaToolTokens},
    {.name = "llama3.2", .style = TurnStyle::llama3, .writes_dates = true, .control_tokens = kHeaderTokens},
};

// tools/goldens/make_chat_golden.py prints these rows from the templates' texts, and writes what transformers
// renders with them. Short templates were published in two spellings of a line break within a string.
struct KnownText {
  std::string_view sha256;
  std::string_view format;
};
constexpr KnownText kTexts[] = {
    {"6777f587c6c4cf4db7462cc65f70a21e91857ad5763df3d7ce89487a4ccf75ff", "chatml"},  // models/tinyworld
    {"153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3", "chatml"},
    {"fcf7a096fe99a48fd9ad2b250bf9237e96e8f48bffec1c7ea4d3f225176cd40e", "chatml"},  // \n escaped
    {"af9c0233881b083b52ff773580215222b5440ac3d0beeeca99b76329b048f8db", "qwen1.5"},
    {"7c0cc400db493cfc546224cbd626ef46495c4b19103042eb5518f06bf7f1e26d", "qwen1.5"},  // \n escaped
    {"793202280c0910ab26bc6eb57c8212c2417324c6d8c4efd0d10d59092ab3e3eb", "qwen2"},
    {"f0206845c9ebc3abb4735d44f286eb81ce99238ad2accc710c6fc60e6cb8ccc8", "qwen2"},  // \n escaped
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "smollm2"},
    {"de9cde7d1b0ca0cc87459a6673e0d12fb89c070bdb24e4a30b6e4d187b226221", "smollm2"},  // \n escaped
    {"55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a", "qwen2.5"},
    {"4039eed0f28b7aaa337e70c76cfedba3271ee32505835a095a8c92e536b3c355", "qwen2.5-base"},
    {"2976f7de3b9489e3237dc5ad2734060f756d026da00f24464c59c2e3bb40ee37", "qwen2.5-math"},
    {"87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5", "qwen3"},  // of April 2025
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", "qwen3"},  // of July 2025
    {"64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326", "qwen3-instruct-2507"},
    {"3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7", "qwen3-thinking-2507"},
    {"b48c47f6443892716176eb200bf4ef108f64e06ca26ed0fa8ebc0a4b3992fcb2", "llama3-2024-04"},
    {"b75e17085cfc511ead6d4fab84b86ab3c168ec7a332568a91d0889cdcba94394", "llama3-2024-04"},  // \n escaped
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", "llama3"},
    {"4f46ecd43418f216df8c26936c60e5d04bcc81db47db5d86fbe889f64212dd4c", "llama3"},  // \n escaped
    {"47d5a7b4840c2ff2dfa0828b2465a654bef3a6cdfe032e5e105f395e4ceee812",
     "llama3"},  // sets the prompt's default
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", "llama3.1"},  // 3.3 too
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", "llama3.2"},
};

// As Jinja reads the text.
std::string with_plain_line_breaks(std::string_view jinja) {
  std::string text;
  text.reserve(jinja.size());
  for (size_t i = 0; i < jinja.size(); ++i) {
    if (jinja[i] == '\r' && i + 1 < jinja.size() && jinja[i + 1] == '\n') continue;
    text.push_back(jinja[i] == '\r' ? '\n' : jinja[i]);
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

std::string chat_template_sha256(std::string_view jinja) {
  const std::string text = with_plain_line_breaks(jinja);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  LADDER_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
               "SHA-256 is not available in this OpenSSL");
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

const ChatFormat* find_chat_format(std::string_view sha256) {
  for (const KnownText& text : kTexts)
    if (text.sha256 == sha256) return &chat_format_named(text.format);
  return nullptr;
}

const ChatFormat& chat_format_named(std::string_view name) {
  for (const ChatFormat& format : kFormats)
    if (format.name == name) return format;
  fail("there is no chat template called \"{}\", expected one of {}", name, chat_format_names());
}

std::string chat_format_names() {
  std::string names;
  for (const ChatFormat& format : kFormats) names.append(names.empty() ? "" : ", ").append(format.name);
  return names;
}

}  // namespace ladder
