// Tools in a chat: what goes in through the template, which choices are served, and that a streamed answer is the whole one
// wherever the engine's updates cut its text. The texts are given: the tiny model calls nothing.
#include "step6_engine/server/openai/api_error.h"
#include "step6_engine/server/openai/chunk_writer.h"
#include "step6_engine/server/openai/generation_bodies.h"
#include "step6_engine/server/openai/tools/tool_call_parsers.h"
#include "step6_engine/server/openai/whole_answer.h"
#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

// As Hermes' template, in short.
constexpr const char* kTemplate =
    R"({% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '</tools><|im_end|>\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

const std::string kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}])";
const std::string kHi = R"("messages":[{"role":"user","content":"Hi"}])";

std::shared_ptr<const ServedModel> model_with(const std::string& parser) {
  ServedModel model =
      make_served_model(testing::tiny_model(), open_model_folder(testing::tiny_model()), 256, {"tiny"});
  model.chat_template =
      std::make_shared<const ChatTemplate>(ChatTemplate::parse(kTemplate, {}, "the test's template"));
  if (!parser.empty()) model.tool_call_parser = tool_call_parser_of(parser);
  return std::make_shared<const ServedModel>(std::move(model));
}

GenerationPlan plan_of(const std::shared_ptr<const ServedModel>& model, const std::string& members) {
  return chat_plan(testing::FakeExchange::post("/v1/chat/completions", "{" + members + "}")->request(),
                   model);
}

// The choice of a whole answer with this text.
Json whole_choice(const AnswerPlan& plan, const std::string& text, FinishReason reason = FinishReason::stop) {
  RequestOutput output;
  CompletionOutput& completion = output.completions.emplace_back();
  completion.text = text;
  completion.finish_reason = reason;
  return Json::parse(whole_answer(plan, {output}))["choices"][0];
}

// What a client puts together from the chunks of the same text, which came in these pieces.
Json streamed_choice(const AnswerPlan& plan, const std::vector<std::string>& pieces) {
  ChunkWriter writer(plan);
  Json message = {{"content", ""}, {"tool_calls", Json::array()}}, finish_reason;
  for (size_t i = 0; i < pieces.size(); ++i) {
    CompletionUpdate update;
    update.token_ids = {1};
    update.text = pieces[i];
    if (i + 1 == pieces.size()) update.finish_reason = FinishReason::stop;
    std::string out;
    writer.write(out, 0, update);
    for (size_t begin = 0; begin < out.size(); begin = out.find("\n\n", begin) + 2) {
      const Json choice =
          Json::parse(out.substr(begin + 6, out.find("\n\n", begin) - begin - 6))["choices"][0];
      const Json& delta = choice["delta"];
      EXPECT_TRUE(finish_reason.is_null()) << "a chunk behind the end";
      finish_reason = choice["finish_reason"];
      message["content"] = message["content"].get<std::string>() + delta.value("content", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        EXPECT_EQ(call["index"], message["tool_calls"].size());
        EXPECT_EQ(call["type"], "function");
        EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
        message["tool_calls"].push_back(call["function"]);
      }
    }
  }
  return {{"message", message}, {"finish_reason", finish_reason}};
}

TEST(OpenAiTools, AStreamIsTheWholeAnswerAtEveryCut) {
  const std::map<std::string, std::string> texts = {
      {"hermes",
       "Söon:\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"ä</tool_call>\"}}</tool_call>\n<tool_call>"
       "{\"name\": \"g\", \"arguments\": {}}</tool_call>"},
      {"llama3_json",
       R"({"name": "f", "parameters": {"a": "ä</tool_call>"}}; {"name": "g", "parameters": {}})"}};
  for (const auto& [parser, text] : texts) {
    const GenerationPlan plan = plan_of(model_with(parser), kHi + "," + kTools + R"(,"stream":true)");
    const Json whole = whole_choice(plan.answer, text);
    EXPECT_EQ(whole["finish_reason"], "tool_calls");
    const Json& message = whole["message"];
    EXPECT_EQ(message["content"], parser == "hermes" ? Json("Söon:\n") : Json());
    ASSERT_EQ(message["tool_calls"].size(), 2u);
    EXPECT_EQ(message["tool_calls"][0]["type"], "function");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a": "ä</tool_call>"})")
        << "as a string";
    EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
    Json expected = {
        {"finish_reason", "tool_calls"},
        {"message", {{"content", parser == "hermes" ? "Söon:\n" : ""}, {"tool_calls", Json::array()}}}};
    for (const Json& call : message["tool_calls"])
      expected["message"]["tool_calls"].push_back(call["function"]);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      if (cut < text.size() && (text[cut] & 0xC0) == 0x80) continue;  // the engine's texts split no character
      ASSERT_EQ(streamed_choice(plan.answer, {text.substr(0, cut), text.substr(cut)}), expected) << cut;
    }
    EXPECT_EQ(whole_choice(plan.answer, text, FinishReason::length)["finish_reason"], "length");
  }
}

TEST(OpenAiTools, WhatIsNoCallIsTheAnswersText) {
  const GenerationPlan plan = plan_of(model_with("hermes"), kHi + "," + kTools);
  EXPECT_FALSE(plan.requests[0].sampling.skip_special_tokens) << "some models' marks are special tokens";
  for (const std::string text :
       {"Hello.", "", "<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\""}) {
    const Json choice = whole_choice(plan.answer, text);
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["message"]["content"], text);
    EXPECT_EQ(choice["message"]["tool_calls"], Json::array());
  }
}

TEST(OpenAiTools, NoneLooksForNoCalls) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  for (const std::string parser : {"hermes", ""})
    for (const std::string& members : {kTools + R"(,"tool_choice":"none")", std::string(R"("tools":[])"),
                                       std::string(R"("tools":null,"tool_choice":null)")}) {
      const GenerationPlan plan = plan_of(model_with(parser), kHi + "," + members);
      EXPECT_TRUE(plan.requests[0].sampling.skip_special_tokens);
      EXPECT_EQ(whole_choice(plan.answer, call)["message"]["content"], call) << members;
      EXPECT_EQ(whole_choice(plan.answer, call)["finish_reason"], "stop");
    }
}

TEST(OpenAiTools, WhatCannotBeServedIsRefusedByName) {
  const auto param_of = [](const std::string& parser, const std::string& members) {
    try {
      plan_of(model_with(parser), kHi + "," + members);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      return error.param() + ": " + error.what();
    }
    return std::string("served");
  };
  for (const std::string choice :
       {R"("required")", R"({"type":"function","function":{"name":"weather"}})", "5"})
    EXPECT_TRUE(param_of("hermes", kTools + R"(,"tool_choice":)" + choice).starts_with("tool_choice: "))
        << choice;
  for (const std::string choice : {"", R"(,"tool_choice":"auto")", R"(,"tool_choice":null)"})
    EXPECT_NE(param_of("", kTools + choice).find("--enable-auto-tool-choice"), std::string::npos) << choice;
  EXPECT_TRUE(param_of("hermes", R"("tool_choice":"auto")").starts_with("tool_choice: "));
  EXPECT_TRUE(
      param_of("hermes", kTools + R"(,"parallel_tool_calls":"no")").starts_with("parallel_tool_calls: "));
}

TEST(OpenAiTools, WithoutParallelCallsThereIsOne) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  for (const auto& [value, count] : {std::pair("false", 1), {"true", 2}, {"null", 2}}) {
    const GenerationPlan plan =
        plan_of(model_with("hermes"), kHi + "," + kTools + R"(,"parallel_tool_calls":)" + value);
    EXPECT_EQ(whole_choice(plan.answer, call + call)["message"]["tool_calls"].size(), count);
    EXPECT_EQ(streamed_choice(plan.answer, {call, call})["message"]["tool_calls"].size(), count);
  }
}

TEST(OpenAiTools, ToolsCallsAndResultsGoInThroughTheTemplate) {
  const auto model = model_with("hermes");
  const GenerationPlan plan = plan_of(
      model,
      R"("messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1",)"
      R"("type":"function","function":{"name":"weather","arguments":"{\"town\": \"Ulm\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"sunny"}]}],)" +
          kTools);
  EXPECT_EQ(
      model->tokenizer->decode(plan.requests[0].prompt_token_ids, false),
      "<|im_start|>system\n<tools>{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
      "{\"type\": \"object\"}}}</tools><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<tool_call>"
      "{\"name\": \"weather\", \"arguments\": {\"town\": \"Ulm\"}}</tool_call><|im_end|>\n<|im_start|>tool\nsunny"
      "<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace ladder
