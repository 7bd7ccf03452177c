// POST /v1/chat/completions, and what it shares with /tokenize.
#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

using Task6_7_Chat = testing::OpenAi;

const std::string kPath = "/v1/chat/completions";

Request chat_request(const std::vector<ChatMessage>& messages) {
  Request request;
  const ChatTemplate chat_template = load_chat_template(testing::tiny_model());
  const Tokenizer tokenizer = Tokenizer::load(testing::tiny_model());
  request.prompt_token_ids = encode_chat(chat_template, tokenizer, messages);
  request.sampling.max_tokens = 16;
  request.sampling.temperature = 0.8;
  request.sampling.seed = 5;
  return request;
}

TEST_F(Task6_7_Chat, AnAnswerIsWhatTheEngineGeneratesForTheTemplatesText) {
  const RequestOutput expected = generated(chat_request({{"system", "Be brief."}, {"user", "One\nday"}}));
  for (const std::string content :
       {R"("One\nday")", R"([{"type":"text","text":"One"},{"type":"text","text":"day"}])"}) {
    const std::string body =
        R"({"model":"other/name","messages":[{"role":"system","content":"Be brief.","name":"s"},)"
        R"({"role":"user","content":)" +
        content + R"(}],"max_completion_tokens":16,"temperature":0.8,"seed":5)";
    const Json whole = answer(kPath, body + "}");
    EXPECT_EQ(whole["object"], "chat.completion");
    EXPECT_TRUE(whole["id"].get<std::string>().starts_with("chatcmpl-"));
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_EQ(choice["message"]["content"], *expected.completions[0].text);
    EXPECT_EQ(choice["finish_reason"], finish_reason_name(expected.completions[0].finish_reason));
    EXPECT_EQ(whole["usage"]["prompt_tokens"], expected.prompt_token_ids.size());
    EXPECT_EQ(whole["usage"]["completion_tokens"], expected.completions[0].token_ids.size());

    std::string text;
    const std::vector<Json> chunks =
        stream(kPath, body + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    EXPECT_EQ(chunks[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
      EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
      EXPECT_EQ(chunks[i]["choices"][0]["delta"].contains("role"), i == 0);
      text += chunks[i]["choices"][0]["delta"]["content"].get<std::string>();
    }
    EXPECT_EQ(text, *expected.completions[0].text);
    EXPECT_EQ(chunks.back()["choices"], Json::array());
    EXPECT_EQ(chunks.back()["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
  }
}

TEST_F(Task6_7_Chat, TokenizeIsThePromptThatTheChatHas) {
  const std::string messages = R"("messages":[{"role":"user","content":"One day"}])";
  const Json tokens = answer("/tokenize", "{" + messages + R"(,"return_token_strs":true})");
  const Json whole = answer(kPath, "{" + messages + R"(,"max_tokens":1,"return_token_ids":true})");
  EXPECT_EQ(tokens["tokens"], whole["prompt_token_ids"]);
  EXPECT_EQ(tokens["count"], whole["usage"]["prompt_tokens"]);
  EXPECT_EQ(tokens["max_model_len"], testing::kServedLength);
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  const Json back = answer("/detokenize", Json({{"tokens", tokens["tokens"]}}).dump());
  EXPECT_EQ(back["prompt"], "<|im_start|>user\nOne day<|im_end|>\n<|im_start|>assistant\n");
  const Json text = answer("/tokenize", R"({"model":"tiny","prompt":"One day"})");
  EXPECT_EQ(answer("/detokenize", Json({{"tokens", text["tokens"]}}).dump())["prompt"], "One day");
}

TEST_F(Task6_7_Chat, AMessageIsContinuedWhereItEnds) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"One day "}],)"
      R"("continue_final_message":true,"add_generation_prompt":false,"max_tokens":4,)"
      R"("temperature":0,"echo":true)";
  const Json tokens = answer("/tokenize", body + "}");
  EXPECT_EQ(answer("/detokenize", Json({{"tokens", tokens["tokens"]}}).dump())["prompt"],
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOne day ");
  const std::string whole = answer(kPath, body + "}")["choices"][0]["message"]["content"];
  EXPECT_TRUE(whole.starts_with("One day ")) << whole;
  std::string streamed;
  for (const Json& chunk : stream(kPath, body + R"(,"stream":true})"))
    streamed += chunk["choices"][0]["delta"]["content"].get<std::string>();
  EXPECT_EQ(streamed, whole);
  EXPECT_EQ(refusal(kPath, R"({"messages":[{"role":"user","content":"a"}],"continue_final_message":true,)"
                           R"("add_generation_prompt":true})")["param"],
            "continue_final_message");
}

TEST_F(Task6_7_Chat, LogprobsHaveTheTokensTheirBytesAndTheLikeliest) {
  Request request = chat_request({{"user", "One day"}});
  request.sampling.logprobs = 3;
  const RequestOutput expected = generated(request);
  const std::string body =
      R"({"messages":[{"role":"user","content":"One day"}],"max_tokens":16,"temperature":0.8,)"
      R"("seed":5,"logprobs":true,"top_logprobs":3)";
  Json streamed = Json::array();
  for (const Json& chunk : stream(kPath, body + R"(,"stream":true})"))
    if (!chunk["choices"][0]["logprobs"].is_null())
      for (const Json& token : chunk["choices"][0]["logprobs"]["content"]) streamed.push_back(token);
  const Json content = answer(kPath, body + "}")["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content, streamed);
  ASSERT_EQ(content.size(), expected.completions[0].token_ids.size());
  for (size_t i = 0; i < content.size(); ++i) {
    EXPECT_FLOAT_EQ(content[i]["logprob"], expected.completions[0].logprobs[i].chosen.logprob);
    EXPECT_EQ(content[i]["top_logprobs"].size(), 3u);
    std::string bytes;
    for (const Json& byte : content[i]["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_EQ(bytes, model().tokenizer->token_bytes(expected.completions[0].token_ids[i]));
  }
}

// The template's end of a turn ends the answer; ignore_eos goes on.
TEST_F(Task6_7_Chat, TheEndOfATurnEndsTheAnswer) {
  const int32_t end = *model().tokenizer->token_to_id("<|im_end|>");
  EXPECT_EQ(model().turn_end_token_ids, (std::vector<int32_t>{end}));
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],"max_tokens":5,"temperature":0,)"
                  R"("logit_bias":{{"{}":100}})",
                  end);
  const Json ended = answer(kPath, body + "}");
  EXPECT_EQ(ended["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(ended["choices"][0]["message"]["content"], "");
  EXPECT_EQ(ended["usage"]["completion_tokens"], 1);
  EXPECT_EQ(answer(kPath, body + R"(,"ignore_eos":true})")["usage"]["completion_tokens"], 5);
}

TEST_F(Task6_7_Chat, TheModelsAreListed) {
  const Json models = Json::parse(get("/v1/models")->body());
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["max_model_len"], testing::kServedLength);
  EXPECT_EQ(Json::parse(get("/v1/models/other/name")->body())["id"], "other/name");
  const Json info = Json::parse(get("/tokenizer_info")->body());
  EXPECT_EQ(info["eos_token"], "<|im_end|>");
  EXPECT_TRUE(info.contains("chat_template"));
}

}  // namespace
}  // namespace ladder
