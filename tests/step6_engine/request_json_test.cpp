// A request's fields from JSON.
#include "step6_engine/request_json.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Request parse(const std::string& line) {
  return parse_request_json(line, "file, line 3", SamplingParams{});
}

TEST(RequestJson, ALineOverridesTheFlagsForItself) {
  SamplingParams flags;
  flags.max_tokens = 5;
  flags.temperature = 0.0;
  flags.stop = {"x"};
  const Request request = parse_request_json(
      R"({"prompt":"Hi","max_tokens":9,"top_k":3,"top_p":0.5,"min_p":0.1,"repetition_penalty":1.5,)"
      R"("presence_penalty":0.25,"frequency_penalty":-0.5,"seed":18446744073709551615,"n":2,"stop":"end",)"
      R"("stop_token_ids":[4,5],"ignore_eos":true,"logprobs":3,"priority":-2,"cache_salt":"s"})",
      "here", flags);
  SamplingParams expected = flags;
  expected.max_tokens = 9;
  expected.top_k = 3;
  expected.top_p = 0.5;
  expected.min_p = 0.1;
  expected.repetition_penalty = 1.5;
  expected.presence_penalty = 0.25;
  expected.frequency_penalty = -0.5;
  expected.seed = 18446744073709551615u;
  expected.n = 2;
  expected.stop = {"end"};
  expected.stop_token_ids = {4, 5};
  expected.ignore_eos = true;
  expected.logprobs = 3;
  expected.priority = -2;
  expected.cache_salt = "s";
  EXPECT_EQ(request.prompt, "Hi");
  EXPECT_EQ(request.sampling, expected);
  EXPECT_EQ(parse_request_json(R"({"prompt_token_ids":[1,2]})", "here", flags).sampling, flags);
  EXPECT_EQ(parse_request_json(R"({"prompt_token_ids":[1,2]})", "here", flags).prompt_token_ids,
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(parse_request_json(R"({"prompt":"a","stop":["b","c"]})", "here", flags).sampling.stop,
            (std::vector<std::string>{"b", "c"}));
}

TEST(RequestJson, ABadLineIsOneLineThatNamesTheLineAndTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\": \"unfinished", "JSON"},
      {"[1, 2]", "object"},
      {"\"text\"", "object"},
      {"{}", "prompt"},
      {R"({"prompt":"a","prompt_token_ids":[1]})", "prompt_token_ids"},
      {R"({"prompt":""})", "empty"},
      {R"({"prompt_token_ids":[]})", "empty"},
      {R"({"prompt":5})", "prompt"},
      {R"({"prompt":null})", "prompt"},
      {R"({"prompt_token_ids":"1,2"})", "prompt_token_ids"},
      {R"({"prompt_token_ids":[1,2.5]})", "prompt_token_ids"},
      {R"({"prompt_token_ids":[-1]})", "prompt_token_ids"},
      {R"({"prompt_token_ids":[99999999999]})", "prompt_token_ids"},
      {R"({"prompt":"a","max_token":5})", "max_token"},
      {R"({"prompt":"a","temperature":"hot"})", "temperature"},
      {R"({"prompt":"a","temperature":NaN})", "JSON"},
      {R"({"prompt":"a","n":1.5})", "n"},
      {R"({"prompt":"a","seed":-1})", "seed"},
      {R"({"prompt":"a","stop":5})", "stop"},
      {R"({"prompt":"a","stop":["b",5]})", "stop"},
      {R"({"prompt":"a","ignore_eos":1})", "ignore_eos"},
      {R"({"prompt":"a","top_k":1,"top_k":2})", "top_k"},
      {"{\"prompt\":\"\xff\"}", "line 3"},
      {R"({"prompt":"a"} trailing)", "JSON"},
  };
  for (const auto& [line, word] : cases) {
    const std::string message = error_of([&] { parse(line); });
    EXPECT_TRUE(message.starts_with("file, line 3: ")) << line << " gave " << message;
    EXPECT_NE(message.find(word), std::string::npos) << line << " gave " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find("line 1"), std::string::npos) << message << ": it is line 3";
  }
}

}  // namespace
}  // namespace ladder
