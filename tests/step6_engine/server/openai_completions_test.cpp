// POST /v1/completions: answers equal Engine::generate, whole and streamed.
#include <numeric>

#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

using Task6_7_Completions = testing::OpenAi;

const std::string kPath = "/v1/completions";

Request sampled_request(const std::string& prompt) {
  Request request;
  request.prompt = prompt;
  request.sampling.max_tokens = 24;
  request.sampling.temperature = 0.8;
  request.sampling.seed = 11;
  return request;
}

TEST_F(Task6_7_Completions, AnAnswerIsWhatTheEngineGenerates) {
  const RequestOutput expected = generated(sampled_request("One day"));
  const Json body =
      answer(kPath, R"({"model":"tiny","prompt":"One day","max_tokens":24,"temperature":0.8,"seed":11})");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-")) << body;
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_GT(body["created"].get<int64_t>(), 1'600'000'000);
  ASSERT_EQ(body["choices"].size(), 1u);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["text"], *expected.completions[0].text);
  EXPECT_EQ(choice["finish_reason"], finish_reason_name(expected.completions[0].finish_reason));
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], expected.prompt_token_ids.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], expected.completions[0].token_ids.size());
  EXPECT_EQ(body["usage"]["total_tokens"],
            expected.prompt_token_ids.size() + expected.completions[0].token_ids.size());
  EXPECT_TRUE(body["usage"]["prompt_tokens_details"]["cached_tokens"].is_number_integer());
}

TEST_F(Task6_7_Completions, AStreamIsTheSameAnswerInChunks) {
  const RequestOutput expected = generated(sampled_request("One day"));
  const std::vector<Json> chunks = stream(
      kPath,
      R"({"prompt":"One day","max_tokens":24,"temperature":0.8,"seed":11,"stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_GT(chunks.size(), 2u);
  std::string text;
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["object"], "text_completion");
    EXPECT_EQ(chunks[i]["id"], chunks[0]["id"]);
    ASSERT_EQ(chunks[i]["choices"].size(), 1u);
    text += chunks[i]["choices"][0]["text"].get<std::string>();
    const bool last = i + 2 == chunks.size();
    EXPECT_EQ(chunks[i]["choices"][0]["finish_reason"].is_null(), !last) << chunks[i];
    EXPECT_TRUE(chunks[i]["usage"].is_null());
  }
  EXPECT_EQ(text, *expected.completions[0].text);
  EXPECT_EQ(chunks[chunks.size() - 2]["choices"][0]["finish_reason"],
            finish_reason_name(expected.completions[0].finish_reason));
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], expected.completions[0].token_ids.size());
  EXPECT_EQ(chunks.back()["usage"]["prompt_tokens"], expected.prompt_token_ids.size());
}

TEST_F(Task6_7_Completions, ContinuousUsageCountsWithEveryChunk) {
  const std::vector<Json> chunks =
      stream(kPath, R"({"prompt":"One day","max_tokens":9,"temperature":0,"ignore_eos":true,"stream":true,)"
                    R"("stream_options":{"include_usage":true,"continuous_usage_stats":true}})");
  int64_t before = 0;
  for (const Json& chunk : chunks) {
    const int64_t now = chunk["usage"]["completion_tokens"];
    EXPECT_GE(now, before);
    EXPECT_EQ(chunk["usage"]["total_tokens"], chunk["usage"]["prompt_tokens"].get<int64_t>() + now);
    if (!chunk["choices"].empty()) {
      EXPECT_GT(now, before) << "a chunk without a token";
    }
    before = now;
  }
  EXPECT_EQ(before, 9);
}

TEST_F(Task6_7_Completions, PromptsMayBeTextsOrIdsOrListsOfThem) {
  const std::vector<int32_t> a = model().tokenizer->encode("One day", true),
                             b = model().tokenizer->encode("The", true);
  const auto texts = [&](const Json& prompt) {
    const Json body =
        answer(kPath, Json({{"prompt", prompt}, {"max_tokens", 5}, {"temperature", 0}, {"seed", 1}}).dump());
    std::vector<std::string> found;
    for (size_t i = 0; i < body["choices"].size(); ++i) {
      EXPECT_EQ(body["choices"][i]["index"], i);
      found.push_back(body["choices"][i]["text"]);
    }
    return found;
  };
  const std::string first = texts("One day").at(0), second = texts("The").at(0);
  ASSERT_NE(first, second);
  EXPECT_EQ(texts(a), (std::vector<std::string>{first}));
  EXPECT_EQ(texts(Json::array({"One day", "The"})), (std::vector<std::string>{first, second}));
  EXPECT_EQ(texts(Json::array({a, b})), (std::vector<std::string>{first, second}));
  EXPECT_EQ(texts(Json::array({b})), (std::vector<std::string>{second}));
}

// Lists of hundreds of ids are read in another way than short ones (json_packed_ids.h).
TEST_F(Task6_7_Completions, ALongListOfIdsIsReadAsAShortOne) {
  const auto list = [](int begin, int end) {
    std::string ids;
    for (int i = begin; i < end; ++i) ids += (i > begin ? "," : "") + std::to_string(20 + i);
    return "[" + ids + "]";
  };
  std::vector<int32_t> ids(400);
  std::iota(ids.begin(), ids.end(), 20);
  EXPECT_EQ(answer("/detokenize", "{\"tokens\":" + list(0, 400) + "}")["prompt"],
            model().tokenizer->decode(ids));
  const auto prompt = [&](const std::string& ids, const std::string& more) {
    return answer(kPath,
                  "{\"prompt\":" + ids + R"(,"max_tokens":4,"temperature":0,"echo":true)" + more + "}");
  };
  const Json cut = prompt(list(0, 400), R"(,"truncate_prompt_tokens":9)");
  EXPECT_EQ(cut["choices"][0]["text"], prompt(list(391, 400), "")["choices"][0]["text"]);
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(prompt("[[7]," + list(0, 400) + "]", R"(,"truncate_prompt_tokens":9)")["choices"][1]["text"],
            cut["choices"][0]["text"]);
  for (const std::string field : {"stop", "temperature", "stream_options", "bad_words"})
    EXPECT_EQ(
        refusal(kPath, R"({"prompt":[1],"stream":true,")" + field + "\":" + list(0, 300) + "}")["param"],
        field);
}

TEST_F(Task6_7_Completions, ChoicesAreNumberedPromptByPrompt) {
  Request request = sampled_request("One day");
  request.sampling.n = 3;
  const RequestOutput one = generated(request);
  request.prompt = "The";
  const RequestOutput two = generated(request);
  const std::string body =
      R"({"prompt":["One day","The"],"n":3,"best_of":3,"max_tokens":24,"temperature":0.8,"seed":11)";
  const Json whole = answer(kPath, body + "}");
  std::vector<std::string> streamed(6);
  std::vector<std::string> reasons(6);
  for (const Json& chunk : stream(kPath, body + R"(,"stream":true})")) {
    const size_t index = chunk["choices"][0]["index"];
    streamed.at(index) += chunk["choices"][0]["text"].get<std::string>();
    if (!chunk["choices"][0]["finish_reason"].is_null())
      reasons[index] = chunk["choices"][0]["finish_reason"];
  }
  ASSERT_EQ(whole["choices"].size(), 6u);
  size_t num_tokens = 0;
  for (size_t i = 0; i < 6; ++i) {
    const CompletionOutput& expected = (i < 3 ? one : two).completions[i % 3];
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], *expected.text);
    EXPECT_EQ(streamed[i], *expected.text);
    EXPECT_EQ(reasons[i], finish_reason_name(expected.finish_reason));
    num_tokens += expected.token_ids.size();
  }
  EXPECT_EQ(whole["usage"]["completion_tokens"], num_tokens);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], one.prompt_token_ids.size() + two.prompt_token_ids.size());
}

}  // namespace
}  // namespace ladder
