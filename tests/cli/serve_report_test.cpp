// The arithmetic of the load generator: the field's columns out of records that are known, and arrivals.
#ifdef LADDER_HAS_SERVER
#include "cli/bench/serve_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/bench/serve_plan.h"
#include "cli/bench/workload.h"
#include "step1_layers/core/error.h"

namespace ladder {
namespace {

// Sent at `sent`, the first token after `ttft`, then the gaps.
ServeRecord record_of(double sent, double ttft, std::vector<float> gaps, int64_t tokens = -1) {
  ServeRecord record;
  record.scheduled = sent - 0.25;
  record.sent = sent;
  record.first = record.last = sent + ttft;
  for (const float gap : gaps) record.last += gap;
  record.end = record.last + 0.5;
  record.num_output_tokens = tokens < 0 ? static_cast<int64_t>(gaps.size()) + 1 : tokens;
  record.num_prompt_tokens = 10;
  record.num_cached_tokens = 4;
  record.gaps = std::move(gaps);
  record.status = 200;
  return record;
}

LoadResult three_and_a_failure() {
  LoadResult result;
  result.records.push_back(record_of(1.0, 0.5, {0.125f, 0.375f}));  // TPOT 0.25, E2E 1
  result.records.push_back(record_of(1.5, 1.0, {1.0f, 1.0f}, 5));   // 5 tokens in 3 chunks: TPOT 0.5, E2E 3
  result.records.push_back(record_of(9.0, 0.25, {}));               // one token: no TPOT, E2E 0.25
  ServeRecord failed;
  failed.sent = failed.end = 9.0;
  failed.free = 8.5;
  failed.status = 429;
  failed.error = "HTTP 429";
  failed.num_output_tokens = 1000;
  result.records.push_back(failed);
  result.seconds = 10.0;
  result.cpu_seconds = {2.0, 1.0};
  return result;
}

TEST(Cli_ServeReport, ColumnsAreThoseOfTheField) {
  const ServeSummary s = summarise(three_and_a_failure(), {});
  EXPECT_EQ(s.completed, 3);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.errors, (std::map<std::string, int64_t>{{"HTTP 429", 1}}));
  EXPECT_EQ(s.num_prompt_tokens, 30);
  EXPECT_EQ(s.num_cached_tokens, 12);
  EXPECT_EQ(s.num_output_tokens, 9) << "those of a failed request do not count";
  EXPECT_EQ(s.num_chunks, 7);
  EXPECT_DOUBLE_EQ(s.per_second(s.num_output_tokens), 0.9);
  EXPECT_DOUBLE_EQ(s.ttft.mean, (0.5 + 1.0 + 0.25) / 3);
  EXPECT_DOUBLE_EQ(s.ttft.median, 0.5);
  EXPECT_DOUBLE_EQ(s.ttft.max, 1.0);
  EXPECT_DOUBLE_EQ(s.tpot.mean, (0.25 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(s.itl.mean, (0.125 + 0.375 + 1.0 + 1.0) / 4);
  EXPECT_DOUBLE_EQ(s.e2el.mean, (1.0 + 3.0 + 0.25) / 3) << "to the last token, not to the end of the answer";
  EXPECT_EQ(s.peak_in_flight, 2);
  EXPECT_DOUBLE_EQ(s.late.max, 0.5) << "since its stream was free, not since it was scheduled";
  EXPECT_DOUBLE_EQ(s.busiest_thread, 0.2);
  EXPECT_FALSE(s.good);
}

TEST(Cli_ServeReport, GoodputCountsWhatKeepsEveryBound) {
  const LoadResult result = three_and_a_failure();
  const auto good = [&](const std::vector<std::string>& bounds) {
    return summarise(result, parse_goodput(bounds)).good.value_or(-1);
  };
  EXPECT_EQ(good({}), -1);
  EXPECT_EQ(good({"ttft:1000"}), 3);
  EXPECT_EQ(good({"ttft:500"}), 2);
  EXPECT_EQ(good({"tpot:250"}), 2) << "a single token has no time between tokens";
  EXPECT_EQ(good({"ttft:500", "tpot:100"}), 1);
  EXPECT_EQ(good({"e2el:0.1"}), 0);
  for (const char* wrong : {"ttft", "ttft:", "ttft:x", "ttft:-1", "itl:5", "ttft:5ms", ""})
    EXPECT_THROW(parse_goodput({wrong}), Error) << wrong;
}

TEST(Cli_ServeReport, JsonHasEveryRequestsOwnFigures) {
  const LoadResult result = three_and_a_failure();
  const Json requests = requests_json(result, true);
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_DOUBLE_EQ(requests[1].at("tpot").get<double>(), 0.5);
  EXPECT_EQ(requests[1].at("itl").size(), 2u);
  EXPECT_FALSE(requests[2].contains("tpot"));
  EXPECT_EQ(requests[3].at("error"), "HTTP 429");
  EXPECT_FALSE(requests[3].contains("ttft"));
  EXPECT_FALSE(requests_json(result, false)[0].contains("itl"));
  EXPECT_EQ(summary_json(summarise(result, {})).at("errors").at("HTTP 429"), 1);
}

TEST(Cli_ServePlan, ArrivalsHaveTheRateAndTheBurstinessAskedFor) {
  EXPECT_TRUE(arrival_times(5, 0.0, 1.0, 0).empty());
  const std::vector<double> even = arrival_times(5, 10.0, 0.0, 7);
  for (size_t i = 0; i < even.size(); ++i) EXPECT_NEAR(even[i], 0.1 * static_cast<double>(i), 1e-12);
  EXPECT_EQ(arrival_times(100, 10.0, 1.0, 7), arrival_times(100, 10.0, 1.0, 7));
  EXPECT_NE(arrival_times(100, 10.0, 1.0, 7), arrival_times(100, 10.0, 1.0, 8));
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const int64_t count = 20000;
    const std::vector<double> times = arrival_times(count, 50.0, burstiness, 3);
    ASSERT_EQ(times.size(), 20000u);
    EXPECT_EQ(times[0], 0.0);
    double sum = 0.0, squares = 0.0;
    for (size_t i = 1; i < times.size(); ++i) {
      const double gap = times[i] - times[i - 1];
      ASSERT_GE(gap, 0.0);
      sum += gap;
      squares += gap * gap;
    }
    const double n = static_cast<double>(count - 1), mean = sum / n, variance = squares / n - mean * mean;
    EXPECT_NEAR(mean, 1.0 / 50.0, 1e-4);
    // Of a gamma distribution: variance / mean^2 = 1 / shape. Five standard errors of 20,000 draws.
    EXPECT_NEAR(variance / (mean * mean) * burstiness, 1.0,
                5.0 * std::sqrt((2.0 + 6.0 / burstiness) / n) + 0.01)
        << burstiness;
  }
}

TEST(Cli_ServePlan, MessageHoldsTheRequest) {
  MessageOptions options;
  options.address = parse_base_url("http://localhost:8123/llm/");
  options.model = "a \"model\"";
  options.api_key = "sk-1";
  options.extra_body = {{"top_k", 5}, {"temperature", 0.25}};
  Request request;
  request.prompt_token_ids = {7, 8, 9};
  request.sampling.max_tokens = 11;
  request.sampling.ignore_eos = true;
  const ServeRequest made = make_message(request, options);
  EXPECT_EQ(made.num_prompt_tokens, 3);
  EXPECT_EQ(made.max_tokens, 11);
  EXPECT_TRUE(made.exact);
  const size_t end = made.message.find("\r\n\r\n");
  ASSERT_NE(end, std::string::npos);
  const std::string head = made.message.substr(0, end + 2), body = made.message.substr(end + 4);
  EXPECT_TRUE(head.starts_with("POST /llm/v1/completions HTTP/1.1\r\nHost: localhost:8123\r\n")) << head;
  EXPECT_NE(head.find("\r\nAuthorization: Bearer sk-1\r\n"), std::string::npos);
  EXPECT_NE(head.find("\r\nContent-Length: " + std::to_string(body.size()) + "\r\n"), std::string::npos);
  const Json json = Json::parse(body);
  EXPECT_EQ(json.at("prompt"), Json({7, 8, 9}));
  EXPECT_EQ(json.at("model"), "a \"model\"");
  EXPECT_EQ(json.at("max_tokens"), 11);
  EXPECT_EQ(json.at("temperature"), 0.25) << "--extra-body has the last word";
  EXPECT_EQ(json.at("top_k"), 5);
  EXPECT_EQ(json.at("stream_options").at("include_usage"), true);

  options.chat = true;
  EXPECT_THROW(make_message(request, options), Error);
  std::vector<Request> words = {request};
  words_for_ids(words);
  const std::string chat = make_message(words[0], options).message;
  const Json chat_body = Json::parse(chat.substr(chat.find("\r\n\r\n") + 4));
  EXPECT_EQ(chat_body.at("messages").at(0).at("role"), "user");
  EXPECT_EQ(chat_body.at("max_completion_tokens"), 11);
}

TEST(Cli_ServePlan, BaseUrlIsReadWhole) {
  const HttpAddress plain = parse_base_url("http://example.org");
  EXPECT_EQ(plain.host, "example.org");
  EXPECT_EQ(plain.port, 80);
  EXPECT_EQ(plain.path, "");
  const HttpAddress ipv6 = parse_base_url("http://[::1]:8000/v");
  EXPECT_EQ(ipv6.host, "::1");
  EXPECT_EQ(ipv6.port, 8000);
  EXPECT_EQ(ipv6.path, "/v");
  EXPECT_EQ(ipv6.authority, "[::1]:8000");
  for (const char* wrong :
       {"https://a", "a:80", "http://", "http://a:", "http://a:0", "http://a:99999", "http://a:8x"})
    EXPECT_THROW(parse_base_url(wrong), Error) << wrong;
}

// `ladder bench throughput` makes its requests by the same function.
TEST(Cli_ServePlan, TheCommonWorkloadIsTheSameOnBothSides) {
  const std::vector<Request> requests = make_requests({}, 151936);
  ASSERT_EQ(requests.size(), 256u);
  int64_t prompt = 0, output = 0;
  for (const Request& request : requests) {
    prompt += std::ssize(request.prompt_token_ids);
    output += *request.sampling.max_tokens;
  }
  EXPECT_EQ(prompt, 140344);
  EXPECT_EQ(output, 140841);
}

}  // namespace
}  // namespace ladder
#endif
