// What the router makes of a request's and an answer's bytes.
#include "step8_advanced/disaggregation/router/split_request.h"

#include <gtest/gtest.h>

#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step8_advanced/disaggregation/router/answer_filter.h"
#include "step8_advanced/disaggregation/router/load_report.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

std::string filtered(std::string_view text, size_t cut) {
  AnswerFilter filter;
  std::string out;
  for (size_t at = 0; at < text.size(); at += cut) filter.feed(text.substr(at, cut), out);
  filter.finish(out);
  return out;
}

TEST(Router_JsonMembers, KeepsEveryValueAsItStands) {
  const std::string text = R"( { "a" : 1.50e+3 , "b":{"c":[1,"},{",{}]}, "d\"e":"\\\"", "f": [ ] } )";
  const auto members = json_members(text);
  ASSERT_TRUE(members);
  ASSERT_EQ(members->size(), 4u);
  EXPECT_EQ(json_member(*members, "a"), "1.50e+3");
  EXPECT_EQ(json_member(*members, "b"), R"({"c":[1,"},{",{}]})");
  EXPECT_EQ(json_member(*members, "d\"e"), R"("\\\"")");
  EXPECT_EQ(json_member(*members, "f"), "[ ]");
  EXPECT_EQ(json_object(*members, {"b", "f"}, "\"n\":1"), R"({"a" : 1.50e+3,"d\"e":"\\\"","n":1})");
  EXPECT_EQ(json_object(*members, {"a", "b", "d\"e", "f"}, {}), "{}");
}

TEST(Router_JsonMembers, OtherTextIsNoObject) {
  for (const char* text :
       {"", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1", "{\"a\":1}}", "{\"a\":\"}", "{a:1}", "{\"a\":1,}",
        "{\"a\":]}", "{\"a\":1} x", "{\"\\x\":1}", "\"", "{\"a\":\"\\"})
    EXPECT_FALSE(json_members(text)) << text;
}

// Whatever bytes come: it ends, and within the text.
TEST(Router_JsonMembers, AnyBytesAreRead) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::string letters = "{}[]\",:\\ 1au\n";
  for (int i = 0; i < 20000; ++i) {
    std::string text = "{\"a\":";
    for (int64_t size = random.integer(0, 20); size > 0; --size)
      text += letters[static_cast<size_t>(random.integer(0, std::ssize(letters) - 1))];
    const auto members = json_members(text);
    if (Json::accept(text) && Json::parse(text).is_object()) {
      EXPECT_TRUE(members) << text;
    }
  }
}

TEST(Router_SplitRequest, ThePrefillServerMakesOneToken) {
  const SplitRequest split(
      R"({"prompt":"Once","max_tokens":100,"max_completion_tokens":7,"min_tokens":5,"stream":true,)"
      R"("stream_options":{"include_usage":true},"n":3,"best_of":4,"temperature":0.70,"stop":["x"]})");
  EXPECT_EQ(split.unsplit_because(), "");
  const Json body = Json::parse(split.prefill_body("abc"));
  EXPECT_EQ(body,
            Json::parse(R"({"prompt":"Once","temperature":0.7,"stop":["x"],"max_tokens":1,)"
                        R"("max_completion_tokens":1,"stream":false,"n":1,"kv_transfer_params":)"
                        R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_request_id":"abc"}})"));
  EXPECT_NE(split.prefill_body("abc").find("0.70"), std::string::npos) << "numbers keep their digits";
}

TEST(Router_SplitRequest, TheDecodeServerGetsTheRequestAndTheTransfer) {
  const std::string text = R"({"prompt":[1,2],"max_tokens":100,"stream":true})";
  const SplitRequest split(text);
  EXPECT_EQ(split.decode_body({}), text);
  EXPECT_EQ(
      split.decode_body(R"({"do_remote_prefill":true})"),
      R"({"prompt":[1,2],"max_tokens":100,"stream":true,"kv_transfer_params":{"do_remote_prefill":true}})");
}

// It would name other clients' keys, or have a server connect to wherever the client likes.
TEST(Router_SplitRequest, WhatAClientSaysOfTransfersIsLeftOut) {
  const SplitRequest split(R"({"prompt":"a","kv_transfer_params":{"remote_address":"tcp://10.0.0.1:1"},)"
                           R"("kv_transfer\u005fparams":{"remote_address":"tcp://10.0.0.2:1"}})");
  EXPECT_EQ(split.decode_body({}), R"({"prompt":"a"})");
  EXPECT_EQ(split.prefill_body("i").find("10.0.0."), std::string::npos);
}

TEST(Router_SplitRequest, WhatOneServerMustAnswerIsSaid) {
  const auto reason = [](const char* body) { return SplitRequest(body).unsplit_because(); };
  EXPECT_EQ(reason(R"({"prompt":"a","echo":true})"), "echo");
  EXPECT_EQ(reason(R"({"prompt":"a","echo":false,"prompt_logprobs":null})"), "");
  EXPECT_EQ(reason(R"({"prompt":"a","prompt_logprobs":0})"), "prompt_logprobs");
  EXPECT_EQ(reason(R"({"prompt":["a","b"]})"), "several_prompts");
  EXPECT_EQ(reason(R"({"prompt":[[1],[2]]})"), "several_prompts");
  EXPECT_EQ(reason(R"({"prompt":[1.5]})"), "several_prompts");
  EXPECT_EQ(reason(R"({"prompt":[]})"), "several_prompts");
  EXPECT_EQ(reason(R"({"prompt":[99999999999]})"), "several_prompts");
  EXPECT_EQ(reason("{"), "malformed");
  EXPECT_EQ(SplitRequest("{").decode_body({}), "{") << "the server says what is wrong";
}

TEST(Router_SplitRequest, PromptsThatBeginAlikeAreAlikeToThePolicy) {
  using Units = std::vector<int32_t>;
  EXPECT_EQ(SplitRequest(R"({"prompt":[ 5, 6 ,7]})").prompt(), Units({5, 6, 7}));
  const Units text = SplitRequest(R"({"prompt":"The same beginning, one end"})").prompt();
  const Units other = SplitRequest(R"({"prompt":"The same beginning, another"})").prompt();
  EXPECT_EQ(text.size(), 8u) << "four bytes each";
  EXPECT_TRUE(std::equal(text.begin(), text.begin() + 5, other.begin()));
  EXPECT_NE(text, other);
  const Units turn = SplitRequest(R"({"messages":[{"role":"user","content":"Hello there"}]})").prompt();
  const Units next =
      SplitRequest(R"({"messages":[{"role":"user","content":"Hello there"},{"role":"user","content":"x"}]})")
          .prompt();
  ASSERT_LT(turn.size(), next.size());
  EXPECT_TRUE(std::equal(turn.begin(), turn.end() - 1, next.begin()));
}

TEST(Router_SplitRequest, EachTransferHasAnIdOfItsOwn) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(random_request_id());
  EXPECT_EQ(ids.size(), 100u);
  for (const std::string& id : ids) EXPECT_EQ(id.size(), 32u);
}

TEST(Router_TransferOfAnswer, IsTurnedRoundForTheReader) {
  EXPECT_EQ(
      Json::parse(transfer_of_answer(
          R"({"choices":[],"kv_transfer_params":{"do_remote_decode":true,"remote_engine_id":"e","x":[1]}})")),
      Json::parse(R"({"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"e","x":[1]})"));
  EXPECT_EQ(transfer_of_answer(R"({"choices":[]})"), "");
  EXPECT_EQ(transfer_of_answer(R"({"choices":[],"kv_transfer_params":null})"), "");
  EXPECT_EQ(transfer_of_answer(R"({"choices":[],"kv_transfer_params":{}})"), "");
  for (const char* wrong : {"", "<html>", "{}", R"({"choices":[],"kv_transfer_params":7})"})
    EXPECT_THROW(transfer_of_answer(wrong), Error) << wrong;
}

TEST(Router_SourceOfTransfer, IsWhatIsKnownBeforeThePromptIsComputed) {
  Json transfer = {{"do_remote_prefill", true},     {"do_remote_decode", false},
                   {"remote_engine_id", "6f0e"},    {"remote_request_id", "mine"},
                   {"remote_address", "tcp://a:1"}, {"remote_num_tokens", 513}};
  const auto source = source_of_transfer(transfer.dump(), "mine");
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(*source, (PromptSource{"6f0e", "tcp://a:1"}));
  EXPECT_EQ(source_of_transfer(transfer.dump(), "another's"), std::nullopt);
  for (const char* name : {"remote_engine_id", "remote_request_id", "remote_address"})
    for (const Json& wrong : {Json(""), Json(7), Json()}) {
      Json without = transfer;
      without[name] = wrong;
      EXPECT_EQ(source_of_transfer(without.dump(), "mine"), std::nullopt) << name << " " << wrong;
    }
  transfer["remote_block_ids"] = {1, 2};
  EXPECT_EQ(source_of_transfer(transfer.dump(), "mine"), std::nullopt) << "nobody could know these before";
  for (const char* none : {"", "{}", "[]", "null", "nonsense"})
    EXPECT_EQ(source_of_transfer(none, ""), std::nullopt) << none;

  const Json told = Json::parse(transfer_from({"6f0e", "tcp://a:1"}, "mine"));
  EXPECT_EQ(told, Json({{"do_remote_prefill", true},
                        {"do_remote_decode", false},
                        {"remote_engine_id", "6f0e"},
                        {"remote_request_id", "mine"},
                        {"remote_address", "tcp://a:1"}}))
      << "how many tokens there are is not known yet";
}

TEST(Router_AnswerFilter, TakesTheTransferOutAndNothingElse) {
  const std::string before =
      "data: {\"a\":1, \"text\":\"\\\"kv_transfer_params\\\":{}\"}\n\n: kv_transfer_params\n\n"
      "data: {\"choices\":[],\"kv_transfer_params\":{\"remote_address\":\"x\"}}\r\n\r\ndata: [DONE]\n\n";
  const std::string after =
      "data: {\"a\":1, \"text\":\"\\\"kv_transfer_params\\\":{}\"}\n\n: kv_transfer_params\n\n"
      "data: {\"choices\":[]}\r\n\r\ndata: [DONE]\n\n";
  for (const size_t cut : {size_t{1}, size_t{7}, before.size()})
    EXPECT_EQ(filtered(before, cut), after) << "cut every " << cut;
  EXPECT_EQ(filtered(R"({"choices":[],"kv_transfer_params":null})", 3), R"({"choices":[]})");
  EXPECT_EQ(filtered("not json", 3), "not json");
}

TEST(Router_LoadReport, ReadsBothPrefixesAndSumsEngines) {
  const LoadReport report = read_load_report(
      "# HELP ladder:num_requests_running x 5\n"
      "ladder:num_requests_running{model_name=\"a b\",engine=\"0\"} 3.0\n"
      "vllm:num_requests_running{engine=\"1\"} 4\n"
      "ladder:num_requests_waiting{engine=\"0\"} 2\n"
      "ladder:kv_cache_usage_perc{engine=\"0\"} 0.25\nladder:kv_cache_usage_perc{engine=\"1\"} 0.75\n"
      "ladder:num_requests_waiting{} NaN\nladder:num_requests_waiting{} -7\nnum_requests_waiting\n: 1\n \n"
      "ladder:num_requests_waiting{} 1e300");
  EXPECT_EQ(report.num_running, 7);
  EXPECT_EQ(report.num_waiting, 2);
  EXPECT_EQ(report.kv_usage, 0.75);
}

}  // namespace
}  // namespace ladder
