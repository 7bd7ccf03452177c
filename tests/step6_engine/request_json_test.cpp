// A request's fields from JSON.
#include "step6_engine/request_json.h"

#include <gtest/gtest.h>

#include <limits>

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

TEST(RequestJson, TheFieldsOfSamplingOutputAndOfTheRequestItself) {
  const Request request =
      parse(R"({"prompt":"Hi","request_id":"mine","min_tokens":2,"logit_bias":{"7":-1.5,"0":100},"top_k":-1,)"
            R"("allowed_token_ids":[1,7],"bad_words":["no","never"],"include_stop_str_in_output":true,)"
            R"("skip_special_tokens":false,"logprobs":-1,"prompt_logprobs":2,"logprob_token_ids":[3,1]})");
  SamplingParams expected;
  expected.min_tokens = 2;
  expected.logit_bias = {{7, -1.5}, {0, 100.0}};
  expected.top_k = -1;
  expected.allowed_token_ids = {1, 7};
  expected.bad_words = {"no", "never"};
  expected.include_stop_str_in_output = true;
  expected.skip_special_tokens = false;
  expected.logprobs = -1;
  expected.prompt_logprobs = 2;
  expected.logprob_token_ids = {3, 1};
  EXPECT_EQ(request.request_id, "mine");
  EXPECT_EQ(request.sampling, expected);
}

TEST(RequestJson, NullIsOffWhereThereIsAnOffAndElseTheDefault) {
  SamplingParams defaults;
  defaults.max_tokens = 5;
  defaults.top_k = 20;
  defaults.seed = 3;
  defaults.stop = {"x"};
  defaults.logprobs = 1;
  defaults.prompt_logprobs = 1;
  defaults.temperature = 0.5;
  defaults.top_p = 0.5;
  defaults.n = 2;
  defaults.ignore_eos = true;
  const Request request = parse_request_json(
      R"({"prompt":"a","prompt_token_ids":null,"request_id":null,"max_tokens":null,"top_k":null,"seed":null,)"
      R"("stop":null,"logprobs":null,"prompt_logprobs":null,"temperature":null,"top_p":null,"n":null,)"
      R"("ignore_eos":null,"logit_bias":null,"bad_words":null,"stop_token_ids":null,"min_p":null})",
      "here", defaults);
  SamplingParams expected;
  expected.temperature = 0.5;
  expected.top_p = 0.5;
  expected.n = 2;
  expected.ignore_eos = true;
  EXPECT_EQ(request.sampling, expected);
  EXPECT_EQ(request.request_id, "");
}

// What a hostile client sends in every numeric field: read as what it says or refused by the field's name,
// by the parser or by validate_sampling_params, and never taken for another number.
TEST(RequestJson, NumbersAreReadAsTheyAreOrRefusedByName) {
  const std::vector<std::string> integers = {"max_tokens", "min_tokens", "top_k",          "n",
                                             "logprobs",   "priority",   "prompt_logprobs"};
  const std::vector<std::string> reals = {
      "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"};
  const std::vector<std::string> lists = {"stop_token_ids", "allowed_token_ids", "logprob_token_ids",
                                          "prompt_token_ids"};
  const auto error_with = [](const std::string& field, const std::string& value) {
    return error_of([&] {
      const Request request =
          parse((field == "prompt_token_ids" ? "{\"" : "{\"prompt\":\"a\",\"") + field + "\":" + value + "}");
      validate_sampling_params(request.sampling, 1000);
    });
  };
  const auto expect_refused = [&](const std::string& field, const std::string& value) {
    const std::string message = error_with(field, value);
    EXPECT_NE(message.find(field), std::string::npos) << field << " = " << value << " gave " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  for (const std::string& field : integers) {
    for (const char* value : {"9223372036854775808", "-9223372036854775809", "18446744073709551616", "1e308",
                              "1e2", "2.0", "1.5", "\"1\"", "true", "[1]", "{}", "-9007199254740993"})
      expect_refused(field, value);
    // These are cut to what there is: room for tokens, tokens in the vocabulary.
    if (field != "max_tokens" && field != "min_tokens" && field != "top_k")
      for (const char* value : {"2147483648", "9007199254740992", "9223372036854775807"})
        expect_refused(field, value);
  }
  EXPECT_EQ(parse(R"({"prompt":"a","max_tokens":9223372036854775807})").sampling.max_tokens,
            std::numeric_limits<int64_t>::max());
  expect_refused("max_tokens", "-1");
  expect_refused("n", "0");
  for (const std::string& field : reals)
    for (const char* value : {"1e999", "\"1\"", "true", "[1]", "{}", "-1e308"}) {
      const std::string message = error_with(field, value);
      EXPECT_NE(message, "no error") << field << " = " << value;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  for (const char* value : {"-1", "1.0", "1e3", "18446744073709551616", "\"1\"", "true"})
    expect_refused("seed", value);
  for (const std::string& field : lists)
    for (const char* value : {"5", "[-1]", "[2147483648]", "[9007199254740992]", "[9223372036854775808]",
                              "[18446744073709551616]", "[1e308]", "[1.5]", "[\"1\"]", "[null]", "{}"})
      expect_refused(field, value);
  for (const char* value :
       {"[]", "5", R"({"-1":1})", R"({"1.5":1})", R"({"x":1})", R"({"":1})", R"({"2147483648":1})",
        R"({"1000":1})", R"({"1":"a"})", R"({"1":null})", R"({"1":1e308})", R"({"1":1,"01":2})"})
    expect_refused("logit_bias", value);
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
