// What is wrong with a body is a 400 that names the field, and the next request succeeds.
#include <chrono>

#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

const std::string kCompletions = "/v1/completions", kChat = "/v1/chat/completions";

class OpenAiErrors : public testing::OpenAi {
 protected:
  void TearDown() override {
    const Json body = answer(kCompletions, R"({"prompt":"One day","max_tokens":2,"temperature":0})");
    EXPECT_EQ(body["usage"]["completion_tokens"], 2) << "the request after the refused ones";
    EXPECT_EQ(client().stats().num_requests, 0);
  }
  // A body of either path with one more field.
  static std::string with(const std::string& path, const std::string& field, const std::string& value) {
    const std::string base = path == kChat
                                 ? R"({"messages":[{"role":"user","content":"Hi"}],"max_completion_tokens":2)"
                                 : R"({"prompt":"One day")";
    return base + (path == kCompletions && field != "max_tokens" ? ",\"max_tokens\":2" : "") + ",\"" + field +
           "\":" + value + "}";
  }
};

TEST_F(OpenAiErrors, KeysOfAnotherEngineAreReadAsTheyAreOrRefusedByName) {
  const std::string field = "kv_transfer_params";
  for (const std::string& path : {kCompletions, kChat}) {
    for (const std::string value :
         {"5", "[]", "\"x\"", "{}", R"({"do_remote_decode":1})", R"({"do_remote_prefill":"true"})",
          R"({"do_remote_prefill":false,"do_remote_decode":null})",
          R"({"do_remote_prefill":true,"remote_num_tokens":-1})",
          R"({"do_remote_prefill":true,"remote_num_tokens":1.5})",
          R"({"do_remote_prefill":true,"remote_num_tokens":18446744073709551616})",
          R"({"do_remote_prefill":true,"remote_address":["tcp://a:1"]})",
          R"({"do_remote_prefill":true,"remote_request_id":7})",
          R"({"do_remote_prefill":true,"remote_engine_id":{}})",
          R"({"do_remote_prefill":true,"remote_port":5})"}) {
      const Json error = refusal(path, with(path, field, value));
      EXPECT_EQ(error["type"], "BadRequestError") << value;
      EXPECT_EQ(error["param"], field) << value << ": " << error["message"];
    }
    EXPECT_EQ(post(path, with(path, field, "null"))->head.status, 200);
    const Json alone = refusal(path, with(path, field, R"({"do_remote_decode":true})"));
    EXPECT_NE(alone.value("message", "").find("connected with no other engine"), std::string::npos);
  }
  const Json several = refusal(
      kCompletions, R"({"prompt":["a","b"],"max_tokens":2,"kv_transfer_params":{"do_remote_decode":true}})");
  EXPECT_EQ(several["param"], field);
  EXPECT_NE(several.value("message", "").find("one prompt"), std::string::npos);
}

TEST_F(OpenAiErrors, EveryNumberIsReadAsItIsOrRefusedByName) {
  const std::vector<std::string> nonsense = {
      "NaN", "Infinity", "-Infinity", "\"1\"", "[1]", "{}", "true", "-9223372036854775809", "1e400"};
  const std::vector<std::string> integers = {
      "max_tokens",     "min_tokens", "n", "top_k", "seed", "priority", "best_of", "truncate_prompt_tokens",
      "prompt_logprobs"};
  const std::vector<std::string> reals = {
      "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"};
  const auto expect_refused = [&](const std::string& path, const std::string& field,
                                  const std::string& value) {
    const Json error = refusal(path, with(path, field, value));
    EXPECT_EQ(error["type"], "BadRequestError");
    const std::string message = error.value("message", "");
    if (value == "NaN" || value.find("Infinity") != std::string::npos || value == "1e400") {
      EXPECT_NE(message.find("JSON"), std::string::npos) << field << "=" << value << ": " << message;
    } else {
      EXPECT_EQ(error["param"], field) << value << ": " << message;
    }
  };
  for (const std::string& path : {kCompletions, kChat}) {
    for (const std::string& field : integers) {
      for (const std::string& value : nonsense) expect_refused(path, field, value);
      for (const std::string value : {"1.5", "1e2", "9223372036854775808", "18446744073709551616"})
        if (field != "seed" || value.find('.') != std::string::npos) expect_refused(path, field, value);
    }
    for (const std::string& field : reals) {
      for (const std::string& value : nonsense) expect_refused(path, field, value);
      expect_refused(path, field, "-1e308");
    }
    for (const std::string value : {"2147483648", "1000000000", "-1", "0", "257"})
      expect_refused(path, "n", value);
    for (const std::string value : {"-2", "65", "2147483648", "9007199254740992"})
      expect_refused(path, "prompt_logprobs", value);
  }
  for (const std::string value : {"-2", "21", "2147483648", "1.5", "\"1\"", "true"})
    expect_refused(kCompletions, "logprobs", value);
  for (const std::string value : {"-2", "2147483648"})
    refusal(kChat, with(kChat, "logprobs\":true,\"top_logprobs", value));
  refusal(kChat, with(kChat, "logprobs", "1"));
  EXPECT_EQ(refusal(kChat, with(kChat, "top_logprobs", "2"))["param"], "top_logprobs");
  for (const std::string value : {"0", "-1"}) expect_refused(kCompletions, "max_tokens", value);
}

TEST_F(OpenAiErrors, EveryIdIsInTheVocabularyOrRefused) {
  const int64_t vocab = model().vocab_size;
  for (const std::string& id :
       {std::string("-1"), std::to_string(vocab), std::string("2147483648"),
        std::string("9223372036854775808"), std::string("1.5"), std::string("\"7\"")}) {
    for (const std::string& path : {kCompletions, kChat}) {
      for (const std::string field : {"stop_token_ids", "allowed_token_ids", "logprob_token_ids"})
        EXPECT_EQ(refusal(path, with(path, field, "[" + id + "]"))["param"], field) << id;
      if (id[0] != '"') {
        EXPECT_EQ(refusal(path, with(path, "logit_bias", "{\"" + id + "\":1}"))["param"], "logit_bias") << id;
      }
    }
    if (id[0] != '"') refusal(kCompletions, "{\"prompt\":[" + id + "]}");  // else it is a list of texts
    refusal(kCompletions, "{\"prompt\":[[1],[" + id + "]]}");
    refusal("/detokenize", "{\"tokens\":[" + id + "]}");
  }
  answer(kCompletions, with(kCompletions, "stop_token_ids", fmt::format("[{}]", vocab - 1)));
}

TEST_F(OpenAiErrors, WhatIsNotServedIsRefusedByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"response_format", R"({"type":"json_object"})"},
      {"response_format", R"({"type":"json_schema","json_schema":{"name":"a","schema":{}}})"},
      {"response_format", "\"json\""},
      {"structured_outputs", R"({"regex":"a"})"},
      {"guided_json", "{}"},
      {"guided_regex", "\"a\""},
      {"guided_choice", "[\"a\"]"},
      {"guided_grammar", "\"a\""},
      {"logits_processors", "[\"a\"]"},
      {"prompt_embeds", "\"AAAA\""},
      {"chat_template", "\"{{ 1 }}\""},
      {"use_beam_search", "true"},
      {"suffix", "\"end\""},
      {"best_of", "2"},
      {"cache_salt", "\"\""},
  };
  for (const std::string& path : {kCompletions, kChat})
    for (const auto& [field, value] : fields)
      EXPECT_EQ(refusal(path, with(path, field, value))["param"], field);
  for (const std::string value :
       {"\"required\"", R"({"type":"function","function":{"name":"f"}})", "5", "\"auto\""})
    EXPECT_EQ(refusal(kChat, with(kChat, "tool_choice", value))["param"], "tool_choice");
  EXPECT_EQ(refusal(kChat, with(kChat, "tools", R"([{"type":"function","function":{"name":"f"}}])"))["param"],
            "tools");
  for (const std::string part :
       {R"({"type":"image_url","image_url":{"url":"x"}})",
        R"({"type":"input_audio","input_audio":{"data":"x"}})", R"({"type":"video_url"})"}) {
    const Json error = refusal(kChat, R"({"messages":[{"role":"user","content":[)" + part + "]}]}");
    EXPECT_EQ(error["param"], "messages");
    EXPECT_NE(error["message"].get<std::string>().find("messages[0].content[0]"), std::string::npos) << error;
  }
  EXPECT_EQ(refusal(kCompletions, with(kCompletions, "stream_options", "{}"))["param"], "stream_options");
}

TEST_F(OpenAiErrors, NeutralValuesAndUnknownFieldsAreFine) {
  for (const std::string& path : {kCompletions, kChat})
    answer(
        path,
        with(
            path, "best_of",
            R"(1,"response_format":{"type":"text"},"use_beam_search":false,"suffix":null,"user":"me","n":1,)"
            R"("structured_outputs":null,"guided_json":null,"tools":null,"tool_choice":null,"logprobs":null,)"
            R"("stop":null,"seed":null,"stream":null,"stream_options":null,"logit_bias":null,"model":null,)"
            R"("temperature":null,"top_p":null,"presence_penalty":null,"echo":null,"top_logprobs":null,)"
            R"("metadata":{"a":[1]},"what_nobody_knows":{"deep":[[[]]]},"priority":null,"request_id":null)"));
}

TEST_F(OpenAiErrors, APromptThatDoesNotFitIsToldBothNumbers) {
  std::string ids = "[1";
  for (int64_t i = 1; i < testing::kServedLength; ++i) ids += ",1";
  const Json whole = refusal(kCompletions, "{\"prompt\":" + ids + "]}");
  EXPECT_EQ(whole["param"], "prompt");
  EXPECT_EQ(whole["n_prompt_tokens"], testing::kServedLength);
  EXPECT_EQ(whole["n_ctx"], testing::kServedLength);
  const Json answer_too_long = refusal(kCompletions, R"({"prompt":[1,2,3],"max_tokens":254})");
  EXPECT_EQ(answer_too_long["param"], "max_tokens");
  EXPECT_EQ(answer_too_long["n_prompt_tokens"], 3);
  const std::string message = answer_too_long["message"];
  EXPECT_NE(message.find("254"), std::string::npos) << message;
  EXPECT_NE(message.find("256"), std::string::npos) << message;
  answer(kCompletions, R"({"prompt":[1,2,3],"max_tokens":253,"stop_token_ids":[0],"temperature":0})");
  EXPECT_EQ(refusal(kCompletions, R"({"prompt":[]})")["param"], "prompt");
  EXPECT_EQ(refusal(kCompletions, R"({"prompt":""})")["param"], "prompt");
  EXPECT_EQ(refusal(kCompletions, R"({"max_tokens":2})")["param"], "prompt");
  EXPECT_EQ(refusal(kCompletions, R"({"prompt":5})")["param"], "prompt");
}

TEST_F(OpenAiErrors, ABodyThatIsNoJsonObjectIsRefused) {
  for (const std::string& path :
       {kCompletions, kChat, std::string("/tokenize"), std::string("/detokenize")}) {
    for (const std::string body : {"", "nonsense", "[]", "5", "\"a\"", "null", "{\"prompt\":\"a\"",
                                   "{\"prompt\":\"\xff\"}", "{\"n\":1,\"n\":2}", "{\"a\":NaN}", "{} {}"})
      refusal(path, body);
    for (const size_t depth : {65u, 13'000u, 1'000'000u}) {
      const std::string deep =
          "{\"prompt\":\"a\",\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
      refusal(path, deep);
    }
    const auto plain = testing::FakeExchange::ask(
        router(),
        std::make_shared<testing::FakeExchange>(HttpRequest{
            .method = "POST", .path = path, .headers = {{"Content-Type", "text/plain"}}, .body = "{}"}));
    EXPECT_EQ(plain->head.status, 400);
  }
}

TEST_F(OpenAiErrors, ManyStopStringsAreRefusedInLinearTime) {
  const auto seconds_for = [&](size_t bytes) {
    std::string stops = "[\"x\"";
    while (stops.size() < bytes) stops += ",\"abcdefgh\"";
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(refusal(kCompletions, with(kCompletions, "stop", stops + "]"))["param"], "stop");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double small = seconds_for(1 << 20), large = seconds_for(10 << 20);
  EXPECT_LT(large, 100 * small + 1.0) << small;  // quadratic would be far above that
  const std::string one = "\"" + std::string(10 << 20, 'x') + "\"";
  EXPECT_EQ(refusal(kCompletions, with(kCompletions, "stop", one))["param"], "stop");
}

TEST_F(OpenAiErrors, NoMessageNamesAFileOrAnAddress) {
  const std::string folder = testing::tiny_model().string();
  for (const std::string body :
       {R"({"messages":[]})", R"({"messages":[{"content":"a"}]})",
        R"({"messages":[{"role":"user","content":5}]})",
        R"({"messages":[{"role":"user"}],"chat_template_kwargs":{"messages":[]}})",
        R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"tokenize":true}})",
        R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":5})",
        R"({"messages":[{"role":"user","content":"a"}],"model":"../../etc/passwd"})"}) {
    const auto exchange = post(kChat, body);
    EXPECT_TRUE(exchange->head.status == 400 || exchange->head.status == 404) << body << exchange->body();
    EXPECT_EQ(exchange->body().find(folder), std::string::npos) << exchange->body();
    EXPECT_EQ(exchange->body().find("0x"), std::string::npos) << exchange->body();
  }
  EXPECT_EQ(
      refusal(kChat,
              R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"tokenize":true}})")
          ["param"],
      "chat_template_kwargs");
  EXPECT_EQ(refusal(kCompletions, R"({"prompt":"a","model":"none"})", 404)["type"], "NotFoundError");
}

}  // namespace
}  // namespace ladder
