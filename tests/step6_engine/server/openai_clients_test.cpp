// Bodies as the field's clients send them, and what each needs of the answer.
#include <algorithm>

#include "tests/step6_engine/server/openai_fixture.h"

namespace ladder {
namespace {

using Task6_7_Clients = testing::OpenAi;

const std::string kCompletions = "/v1/completions", kChat = "/v1/chat/completions";

// vLLM 0.24, vllm/benchmarks/lib/endpoint_request_func.py: a chunk with choices is a token, one without has the usage.
int64_t tokens_as_vllm_bench_counts(const std::vector<Json>& chunks) {
  int64_t from_usage = -1;
  for (const Json& chunk : chunks)
    if (chunk["choices"].empty()) from_usage = chunk["usage"]["completion_tokens"];
  return from_usage;
}

TEST_F(Task6_7_Clients, VllmBenchServe) {
  const std::vector<Json> chunks = stream(
      kCompletions,
      R"({"model":"tiny","prompt":"One day","repetition_penalty":1.0,"max_tokens":12,"logprobs":null,"stream":true,)"
      R"("stream_options":{"include_usage":true},"ignore_eos":true,"temperature":0.0})");
  EXPECT_EQ(tokens_as_vllm_bench_counts(chunks), 12);
  EXPECT_TRUE(std::all_of(chunks.begin(), chunks.end() - 1,
                          [](const Json& chunk) { return chunk["choices"][0]["text"].is_string(); }));
  const std::vector<Json> chat = stream(
      kChat,
      R"({"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"One day"}]}],)"
      R"("max_completion_tokens":12,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,)"
      R"("temperature":0.0})");
  EXPECT_EQ(tokens_as_vllm_bench_counts(chat), 12);
}

// guidellm reads the usage of every chunk, and fails a request without text and tokens.
TEST_F(Task6_7_Clients, Guidellm) {
  const std::vector<Json> chunks =
      stream(kCompletions,
             R"({"prompt":"One day","model":"tiny","stream":true,"stream_options":{"include_usage":true,)"
             R"("continuous_usage_stats":true},"max_tokens":6,"stop":null,"ignore_eos":true})");
  for (const Json& chunk : chunks) {
    EXPECT_TRUE(chunk["usage"]["prompt_tokens"].is_number_integer()) << chunk;
    EXPECT_TRUE(chunk["usage"]["completion_tokens"].is_number_integer()) << chunk;
  }
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 6);
  EXPECT_EQ(Json::parse(get("/v1/models")->body())["data"][0]["id"], "tiny");
}

// aiperf: every object has "object", messages carry a name.
TEST_F(Task6_7_Clients, Aiperf) {
  const auto exchange = post(
      kChat,
      R"({"messages":[{"role":"user","name":"user_0","content":"One day"}],"model":"tiny","stream":true,)"
      R"("max_completion_tokens":8,"min_tokens":8,"ignore_eos":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(exchange->head.content_type, "text/event-stream");
  const std::vector<Json> chunks = events(*exchange);
  for (const Json& chunk : chunks) EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 8);
}

// What openai-python sends, with a field of each kind; it reads the ids, the choices and the usage.
TEST_F(Task6_7_Clients, OpenaiPython) {
  const Json body = answer(
      kChat,
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"One day"}],)"
      R"("model":"tiny","frequency_penalty":0.1,"max_tokens":6,"n":2,"presence_penalty":0.1,"seed":-7,)"
      R"("stop":["xyz"],"temperature":0.5,"top_p":0.9,"user":"someone","logit_bias":{"5":-1},)"
      R"("parallel_tool_calls":true,"stream":false,"store":false,"metadata":{}})");
  ASSERT_EQ(body["choices"].size(), 2u);
  EXPECT_EQ(body["choices"][1]["index"], 1);
  for (const char* member : {"id", "object", "created", "model", "choices", "usage"})
    EXPECT_TRUE(body.contains(member));
  const Json again =
      answer(kChat, R"({"messages":[{"role":"user","content":"One day"}],"seed":-7,"max_tokens":6})");
  const Json same =
      answer(kChat, R"({"messages":[{"role":"user","content":"One day"}],"seed":-7,"max_tokens":6})");
  EXPECT_EQ(again["choices"], same["choices"]);
}

// lm-eval's local-completions: loglikelihood of a continuation, as lm_eval/models/openai_completions.py parses it.
TEST_F(Task6_7_Clients, LmEvalLoglikelihood) {
  const std::vector<std::vector<int32_t>> prompts = {model().tokenizer->encode("One day the old dog", false),
                                                     model().tokenizer->encode("The", false)};
  for (const int64_t max_tokens : {1, 0}) {
    const Json body = answer(kCompletions, Json({{"model", "tiny"},
                                                 {"prompt", prompts},
                                                 {"temperature", 0},
                                                 {"max_tokens", max_tokens},
                                                 {"logprobs", 1},
                                                 {"seed", 1234},
                                                 {"echo", true}})
                                               .dump());
    ASSERT_EQ(body["choices"].size(), prompts.size());
    for (size_t p = 0; p < prompts.size(); ++p) {
      Request request;
      request.prompt_token_ids = prompts[p];
      request.sampling.max_tokens = 1;
      request.sampling.temperature = 0.0;
      request.sampling.prompt_logprobs = 1;
      const RequestOutput expected = generated(request);
      const Json& logprobs = body["choices"][p]["logprobs"];
      const Json& values = logprobs["token_logprobs"];
      const Json& top = logprobs["top_logprobs"];
      const size_t length = prompts[p].size() + static_cast<size_t>(max_tokens);
      ASSERT_EQ(values.size(), length);
      ASSERT_EQ(top.size(), length);
      ASSERT_EQ(logprobs["tokens"].size(), length);
      ASSERT_EQ(logprobs["text_offset"].size(), length);
      EXPECT_TRUE(values[0].is_null());
      EXPECT_TRUE(top[0].is_null());
      for (size_t i = 1; i < prompts[p].size(); ++i) {
        const PositionLogprobs& position = expected.prompt_logprobs[i - 1];
        EXPECT_FLOAT_EQ(values[i], position.chosen.logprob);
        const std::string token = logprobs["tokens"][i];
        ASSERT_TRUE(top[i].contains(token)) << top[i];
        EXPECT_EQ(top[i][token], values[i]);
        double best = -1e9;
        for (const Json& value : top[i]) best = std::max(best, value.get<double>());
        EXPECT_EQ(best == values[i].get<double>(), position.top[0].logprob == position.chosen.logprob)
            << "greedy or not";
      }
      EXPECT_EQ(body["choices"][p]["text"].get<std::string>().substr(0, 3), p == 0 ? "One" : "The");
      if (max_tokens == 0) {
        EXPECT_EQ(body["choices"][p]["text"], model().tokenizer->decode(prompts[p]));
      }
    }
    EXPECT_EQ(body["usage"]["completion_tokens"], 2 * max_tokens);
  }
}

// lm-eval's generate_until, with its stop strings.
TEST_F(Task6_7_Clients, LmEvalGenerateUntil) {
  const Json body =
      answer(kCompletions, R"({"prompt":["One day","The"],"model":"tiny","max_tokens":20,"temperature":0,)"
                           R"("stop":[".","<|im_end|>"],"seed":1234})");
  for (const Json& choice : body["choices"])
    EXPECT_EQ(choice["text"].get<std::string>().find('.'), std::string::npos);
  EXPECT_EQ(
      answer(
          kCompletions,
          R"({"prompt":"One day","max_tokens":40,"temperature":0,"stop":"."})")["choices"][0]["stop_reason"],
      ".");
}

}  // namespace
}  // namespace ladder
