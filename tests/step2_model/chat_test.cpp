// Tasks 2.6.*: chat templates.
#include "step2_model/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "step1_layers/core/error.h"
#include "tests/step2_model/chat_templates.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::own_template;
using testing::parsed;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";
const std::filesystem::path kQwen3 = testing::source_folder() / "../shared/data/qwen3-tokenizer";

// As Qwen2-Instruct and Meta-Llama-3-Instruct were published with.
const std::string kQwen2Template =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const std::string kLlama3Template =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

std::string tinyworld_template() {
  return load_json(testing::source_folder() / "models/tinyworld/tokenizer_config.json")["chat_template"];
}

// What an Error says, or nothing where there is none.
template <class Function>
std::string error_of(const Function& function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> messages;
  for (const Json& message : list) messages.push_back({message["role"], message["content"]});
  return messages;
}

ChatOptions options_of(const Json& expected) {
  ChatOptions options;
  options.add_generation_prompt = expected["add_generation_prompt"];
  if (expected.contains("enable_thinking")) options.enable_thinking = expected["enable_thinking"].get<bool>();
  return options;
}

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part;
  return at == std::string::npos ? text : text.replace(at, part.size(), by);
}

TEST(Task2_6_ChatTemplate, TheFamiliesRenderAsInTransformers) {
  std::istringstream lines(read_text_file(kGoldens / "chat_templates.jsonl"));
  std::string line;
  std::getline(lines, line);
  const Json header = parse_json(line, "header");
  int families = 0;
  while (std::getline(lines, line)) {
    const Json golden = parse_json(line, "template");
    const std::string name = golden["name"];
    SCOPED_TRACE(name);
    ++families;
    const ChatTemplate chat_template = parsed(own_template(name), header["bos_token"].get<std::string>());
    EXPECT_GE(golden["cases"].size(), 16u);
    for (const Json& expected : golden["cases"]) {
      const std::vector<ChatMessage> messages = messages_of(expected["messages"]);
      ChatOptions options = options_of(expected);
      EXPECT_EQ(chat_template.render(messages, options), expected["text"].get<std::string>());
      if (!chat_template.has_date()) continue;
      options.date = header["date"];
      EXPECT_EQ(chat_template.render(messages, options), expected["text"].get<std::string>());
    }
  }
  EXPECT_EQ(families, 14);
}

TEST(Task2_6_ChatTemplate, LineEndingsOfTheFileDoNotMatter) {
  const ChatMessage user[] = {{"user", "Hi"}};
  const std::string tinyworld = tinyworld_template();
  const std::string expected = parsed(tinyworld).render(user);
  EXPECT_EQ(expected, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  std::string windows, mac;
  for (const char c : tinyworld) {
    windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
    mac += c == '\n' ? '\r' : c;
  }
  for (const std::string& text : {tinyworld + "\n", windows, windows + "\r\n", mac + "\r"})
    EXPECT_EQ(parsed(text).render(user), expected);
}

// What differs from a published template by one token is rendered as it is written.
TEST(Task2_6_ChatTemplate, WhatOnlyLooksLikeAPublishedTemplateRendersAsItIs) {
  const ChatMessage user[] = {{"user", "Hi"}};
  const std::string turn = "<|im_start|>user\nHi<|im_end|>\n", prompt = "<|im_start|>assistant\n";
  const std::string system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
  EXPECT_EQ(parsed(kQwen2Template).render(user), system + turn + prompt);
  EXPECT_EQ(parsed("{{ bos_token }}" + kQwen2Template, "<B>").render(user), "<B>" + system + turn + prompt);
  EXPECT_EQ(parsed(replaced(kQwen2Template, "helpful", "harmful")).render(user),
            replaced(system, "helpful", "harmful") + turn + prompt);
  EXPECT_EQ(parsed(replaced(kQwen2Template, "message['content']", "message['content'] | upper")).render(user),
            system + replaced(turn, "Hi", "HI") + prompt);
  EXPECT_EQ(parsed(replaced(kQwen2Template, "{% endfor %}", "{% endfor %}Answer:")).render(user),
            system + turn + "Answer:" + prompt);
  EXPECT_EQ(parsed("[INST] {{ messages[0].content }} [/INST]").render(user), "[INST] Hi [/INST]");
  EXPECT_EQ(parsed("").render(user), "");
}

TEST(Task2_6_ChatTemplate, WhatIsNoTemplateIsRefusedWhenItIsRead) {
  const std::map<std::string, std::string> wrong = {{"a\n{% if x %}", "line 2"},
                                                    {"{{ 1 | turn_around }}", "turn_around"},
                                                    {"{% import 'x' as y %}", "import"},
                                                    {"{% for x in y recursive %}", "recursive"},
                                                    {"\n\n{{ 'a }}", "line 3"},
                                                    {"{{ (1 }}", "line 1"},
                                                    {"{% endif %}", "endif"},
                                                    {"{# open", "line 1"},
                                                    {"{{ 1 is strange }}", "strange"},
                                                    {"{% break %}", "break"},
                                                    {"{{ f(*x) }}", "*"},
                                                    {"\xff", "UTF-8"}};
  for (const auto& [text, named] : wrong) {
    const std::string error = error_of([&] { parsed(text); });
    EXPECT_THAT(error, HasSubstr("the-file")) << text;
    EXPECT_THAT(error, HasSubstr(named)) << text;
  }
}

TEST(Task2_6_ChatTemplate, CarriesWhatARequestBrings) {
  const ChatTemplate chat_template = parsed(
      "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.reasoning_content }}"
      "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }};{% endfor %}{{ style }}");
  ChatRequest request;
  request.messages = parse_ordered_json(
      R"([{"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
          {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "1"}])",
      "messages");
  request.tools = parse_ordered_json(R"([{"name": "f", "b": 1, "a": {}}])", "tools");
  request.variables = parse_ordered_json(R"({"style": "s"})", "variables");
  EXPECT_EQ(
      chat_template.render(request),
      R"({"name": "f", "b": 1, "a": {}}assistant:None:rf{"z": 1, "a": 2};tool:[{'type': 'text', 'text': 'x'}]:1;s)");
  EXPECT_TRUE(chat_template.has_tools());
  request.variables = parse_ordered_json(R"({"messages": []})", "variables");
  EXPECT_THAT(error_of([&] { chat_template.render(request); }), HasSubstr("messages"));
  request.variables = parse_ordered_json("{}", "variables");
  for (const char* messages : {"[]", "{}", "[1]", R"([{"content": "x"}])", R"([{"role": 1}])"}) {
    request.messages = parse_ordered_json(messages, "messages");
    EXPECT_THROW(chat_template.render(request), Error) << messages;
  }
}

TEST(Task2_6_ChatTemplate, AToolsAnswerIsNoQuestion) {
  const ChatTemplate qwen3 = parsed(own_template("qwen3"));
  const auto rendered = [&](const char* last) {
    const ChatMessage messages[] = {
        {"user", "q"}, {"assistant", "<think>\nt\n</think>\n\na"}, {"user", last}};
    return qwen3.render(messages);
  };
  // Thoughts are kept after the last question, and dropped before it.
  EXPECT_THAT(rendered("<tool_response>\nx\n</tool_response>"), HasSubstr("<think>\nt\n</think>\n\na"));
  EXPECT_THAT(rendered("more"), ::testing::Not(HasSubstr("<think>")));
}

TEST(Task2_6_ChatTemplate, Qwen3EqualsTheSharedConversations) {
  if (!std::filesystem::exists(kQwen3))
    GTEST_SKIP() << "no ../shared/data/qwen3-tokenizer beside the checkout";
  const Tokenizer tokenizer = Tokenizer::load(kQwen3);
  const ChatTemplate chat_template = load_chat_template(kQwen3);
  EXPECT_TRUE(chat_template.has_thinking_switch());
  int compared = 0;
  const OrderedJson conversations =
      parse_ordered_json(read_text_file(kQwen3 / "golden_chat.json"), "golden_chat.json");
  for (const OrderedJson& expected : conversations) {
    ChatRequest request;
    request.messages = expected["messages"];
    if (expected.contains("tools")) request.tools = expected["tools"];
    request.options = options_of(Json::parse(expected.dump()));
    EXPECT_EQ(chat_template.render(request), expected["text"].get<std::string>());
    EXPECT_EQ(encode_chat(chat_template, tokenizer, request), expected["ids"].get<std::vector<int32_t>>());
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

TEST(Task2_6_ChatTemplate, OptionsThatATemplateDoesNotReadAreErrors) {
  EXPECT_THAT(error_of([] { parsed(kLlama3Template); }),
              ::testing::AllOf(HasSubstr("the-file"), HasSubstr("bos_token")));
  const ChatTemplate qwen2 = parsed(own_template("qwen2"));
  const ChatMessage user[] = {{"user", "Hi"}};
  EXPECT_THROW(qwen2.render(std::span<const ChatMessage>{}), Error);
  EXPECT_FALSE(qwen2.has_thinking_switch());
  EXPECT_THAT(error_of([&] { qwen2.render(user, {.enable_thinking = false}); }),
              HasSubstr("enable_thinking"));
  EXPECT_FALSE(qwen2.has_date());
  EXPECT_THAT(error_of([&] { qwen2.render(user, {.date = "today"}); }), HasSubstr("date"));
  EXPECT_FALSE(qwen2.has_tools());
  EXPECT_THAT(error_of([&] { parsed("\n{{ raise_exception('odd turns') }}").render(user); }),
              ::testing::AllOf(HasSubstr("the-file"), HasSubstr("line 2"), HasSubstr("odd turns")));
}

TEST(Task2_6_ChatTemplate, WritesTheDateThatIsGiven) {
  const ChatMessage user[] = {{"user", "Hi"}};
  const ChatTemplate llama = parsed(own_template("llama3.2"), "<B>");
  EXPECT_THAT(llama.render(user, {.date = "01 Jan 2026"}),
              HasSubstr("Today Date: 01 Jan 2026\n\n<|eot_id|><|start_header_id|>user"));
  EXPECT_TRUE(llama.has_clock());
  const auto noon = std::chrono::system_clock::time_point(std::chrono::hours(24 * 20000 + 12));
  EXPECT_THAT(llama.render(user, {.now = noon}), HasSubstr("Today Date: 04 Oct 2024\n"));
}

TEST(Task2_6_ChatTemplate, IsFoundInTheCheckpointFolder) {
  const testing::TemporaryFolder temporary;
  const std::filesystem::path& folder = temporary.path();
  const auto write = [&](const char* name, const std::string& text) {
    testing::write_file(folder / name, text);
  };
  const auto error = [&] { return error_of([&] { load_chat_template(folder); }); };
  EXPECT_THAT(error(), HasSubstr("chat_template.jinja"));
  write("tokenizer_config.json", "{}");
  EXPECT_THAT(error(), HasSubstr("chat_template"));
  write("tokenizer_config.json", Json{{"chat_template", 5}}.dump());
  EXPECT_THAT(error(), HasSubstr("chat_template"));
  write("tokenizer_config.json", Json{{"chat_template", kQwen2Template}}.dump());
  EXPECT_THAT(load_chat_template(folder).render(std::vector<ChatMessage>{{"user", "Hi"}}),
              HasSubstr("helpful"));
  const Json named = {{{"name", "tool_use"}, {"template", "x"}},
                      {{"name", "default"}, {"template", kLlama3Template}}};
  write("tokenizer_config.json", Json{{"chat_template", named}, {"bos_token", {{"content", "<B>"}}}}.dump());
  const ChatMessage user[] = {{"user", "Hi"}};
  EXPECT_THAT(load_chat_template(folder).render(user), ::testing::StartsWith("<B><|start_header_id|>user"));
  write("chat_template.jinja", tinyworld_template() + "\n");
  EXPECT_EQ(load_chat_template(folder).render(user),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  // The begin token of the other file that may name it.
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", Json{{"bos_token", "<M>"}}.dump());
  write("chat_template.jinja", kLlama3Template);
  EXPECT_THAT(load_chat_template(folder).render(user), ::testing::StartsWith("<M><|start_header_id|>user"));
  write("chat_template.jinja", "{{ nothing known }}");
  EXPECT_THAT(error(), HasSubstr("chat_template.jinja"));
}

}  // namespace
}  // namespace ladder
