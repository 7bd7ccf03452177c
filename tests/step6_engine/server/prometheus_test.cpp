// Task 6.5: GET /metrics as a whole, read by a parser of the format that takes nothing for granted.
#include "step6_engine/server/metrics/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>

#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/server/fake_exchange.h"

namespace ladder::testing {
namespace {

using Labels = std::map<std::string, std::string>;

struct Sample {
  std::string name;
  Labels labels;
  double value = 0;
};
struct Family {
  std::string type;
  std::vector<Sample> samples;
};

// Failure, naming the line: it is none of the format; a family is announced twice, or its samples do not follow it.
std::map<std::string, Family> parse(const std::string& text) {
  static const std::regex help(R"re(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+))re");
  static const std::regex type(R"re(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))re");
  static const std::regex sample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+))re");
  static const std::regex label(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(,(?=.)|$))re");
  std::map<std::string, Family> families;
  std::string announced, current;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    SCOPED_TRACE(line);
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      announced = match[1];
      EXPECT_FALSE(families.contains(announced)) << "announced twice";
    } else if (std::regex_match(line, match, type)) {
      current = match[1];
      EXPECT_EQ(current, announced) << "TYPE follows HELP";
      EXPECT_TRUE(families.emplace(current, Family{match[2], {}}).second);
    } else if (std::regex_match(line, match, sample)) {
      Sample one;
      one.name = match[1];
      const std::string labels = match[2];
      auto at = labels.cbegin();
      for (std::smatch part; at != labels.cend(); at = part[0].second) {
        if (!std::regex_search(at, labels.cend(), part, label, std::regex_constants::match_continuous)) {
          ADD_FAILURE() << "labels";
          break;
        }
        EXPECT_TRUE(one.labels.emplace(part[1], part[2]).second) << "a label twice";
      }
      const std::string number = match[3];
      char* end = nullptr;
      one.value = std::strtod(number.c_str(), &end);
      EXPECT_EQ(*end, '\0') << "not a number";
      const bool histogram = families[current].type == "histogram";
      EXPECT_TRUE(histogram ? one.name == current + "_bucket" || one.name == current + "_sum" ||
                                  one.name == current + "_count"
                            : one.name == current)
          << "a sample of another family than " << current;
      families[current].samples.push_back(std::move(one));
    } else {
      ADD_FAILURE() << "no line of the format";
    }
  }
  return families;
}

PrometheusOptions options_of(std::string prefix) {
  return {.prefix = std::move(prefix), .model_name = "tiny", .batch = fake_config().batch};
}

// A few requests served by an engine without a model.
EngineStats served_stats() {
  ThreadEngineClient client(std::unique_ptr<Engine>(new Engine(make_engine())));
  std::vector<RequestStream> streams;
  for (int32_t i = 0; i < 5; ++i)
    streams.push_back(client.submit(token_request({i, 2, 3, 4, 5, 6, 7, 8, 9}, 4 + i)));
  Request two = token_request({1, 2, 3}, 5);
  two.sampling.n = 2;
  streams.push_back(client.submit(two));
  for (RequestStream& stream : streams) stream.output();
  client.stop();
  return client.stats();
}

double value_of(const std::map<std::string, Family>& families, const std::string& name,
                const Labels& labels = {}) {
  for (const Sample& sample : families.at(name).samples)
    if (std::includes(sample.labels.begin(), sample.labels.end(), labels.begin(), labels.end()))
      return sample.value;
  ADD_FAILURE() << name << " has no such sample";
  return NAN;
}

// The names that Grafana boards ask for, vLLM's, and their types.
const std::map<std::string, std::string> kNames = {
    {"num_requests_running", "gauge"},
    {"num_requests_waiting", "gauge"},
    {"num_requests_waiting_for_kv", "gauge"},
    {"num_held_kv_blocks", "gauge"},
    {"kv_cache_usage_perc", "gauge"},
    {"external_prefix_cache_queries_total", "counter"},
    {"external_prefix_cache_hits_total", "counter"},
    {"kv_transfer_loads_total", "counter"},
    {"kv_transfer_failed_loads_total", "counter"},
    {"kv_transfer_load_seconds_total", "counter"},
    {"kv_transfer_received_bytes_total", "counter"},
    {"kv_transfer_sent_bytes_total", "counter"},
    {"kv_transfer_uncompressed_bytes_total", "counter"},
    {"kv_transfer_compressed_bytes_total", "counter"},
    {"kv_transfer_compress_seconds_total", "counter"},
    {"kv_transfer_expired_requests_total", "counter"},
    {"kv_store_blocks_total", "counter"},
    {"kv_store_written_bytes_total", "counter"},
    {"kv_store_dropped_blocks_total", "counter"},
    {"kv_store_bytes", "gauge"},
    {"prompt_tokens_total", "counter"},
    {"generation_tokens_total", "counter"},
    {"request_success_total", "counter"},
    {"prefix_cache_queries_total", "counter"},
    {"prefix_cache_hits_total", "counter"},
    {"num_preemptions_total", "counter"},
    {"time_to_first_token_seconds", "histogram"},
    {"inter_token_latency_seconds", "histogram"},
    {"request_time_per_output_token_seconds", "histogram"},
    {"e2e_request_latency_seconds", "histogram"},
    {"request_queue_time_seconds", "histogram"},
    {"request_prefill_time_seconds", "histogram"},
    {"request_decode_time_seconds", "histogram"},
    {"request_inference_time_seconds", "histogram"},
    {"request_prompt_tokens", "histogram"},
    {"request_generation_tokens", "histogram"},
    {"request_params_n", "histogram"},
    {"request_params_max_tokens", "histogram"},
    {"request_max_num_generation_tokens", "histogram"},
    {"iteration_tokens_total", "histogram"},
    {"engine_alive", "gauge"},
    {"cache_config_info", "gauge"},
};

std::string text_of(const EngineStats& stats, const PrometheusOptions& options) {
  return prometheus_text({&stats, 1}, options);
}

TEST(Task6_5_Prometheus, NamesAndTypesAreTheListsUnderEitherPrefix) {
  for (const std::string prefix : {"ladder:", "vllm:", ""}) {
    const auto families = parse(text_of({}, options_of(prefix)));
    std::map<std::string, std::string> expected;
    for (const auto& [name, type] : kNames) expected[prefix + name] = type;
    if (prefix == "vllm:") {  // what vLLM had before 0.9 and 0.11
      expected["vllm:gpu_cache_usage_perc"] = "gauge";
      expected["vllm:time_per_output_token_seconds"] = "histogram";
    }
    std::map<std::string, std::string> seen;
    for (const auto& [name, family] : families) seen[name] = family.type;
    EXPECT_EQ(seen, expected) << prefix;
  }
}

TEST(Task6_5_Prometheus, EverySampleTellsTheModelAndTheEngine) {
  for (const auto& [name, family] : parse(text_of(served_stats(), options_of("vllm:"))))
    for (const Sample& sample : family.samples) {
      EXPECT_EQ(sample.labels.at("model_name"), "tiny") << name;
      EXPECT_EQ(sample.labels.at("engine"), "0") << name;
    }
}

TEST(Task6_5_Prometheus, BucketsRiseToTheirCount) {
  int num_histograms = 0;
  for (const auto& [name, family] : parse(text_of(served_stats(), options_of("ladder:")))) {
    if (family.type != "histogram") continue;
    ++num_histograms;
    SCOPED_TRACE(name);
    double last_bound = -1, last_count = 0, sum = NAN, count = NAN;
    for (const Sample& sample : family.samples) {
      if (sample.name == name + "_sum") sum = sample.value;
      if (sample.name == name + "_count") count = sample.value;
      if (sample.name != name + "_bucket") continue;
      const double bound = std::strtod(sample.labels.at("le").c_str(), nullptr);
      EXPECT_GT(bound, last_bound);
      EXPECT_GE(sample.value, last_count);
      last_bound = bound;
      last_count = sample.value;
    }
    EXPECT_TRUE(std::isinf(last_bound));
    EXPECT_EQ(count, last_count);
    EXPECT_GT(count, 0) << "the requests served are in every one of them";
    EXPECT_GE(sum, 0);
  }
  EXPECT_EQ(num_histograms, 14);
}

TEST(Task6_5_Prometheus, CountsAreThoseOfTheRequests) {
  const auto families = parse(text_of(served_stats(), options_of("")));
  EXPECT_EQ(value_of(families, "prompt_tokens_total"), 5 * 9 + 3);
  EXPECT_EQ(value_of(families, "generation_tokens_total"), 4 + 5 + 6 + 7 + 8 + 2 * 5);
  EXPECT_EQ(value_of(families, "request_success_total", {{"finished_reason", "length"}}), 7);
  EXPECT_EQ(value_of(families, "request_success_total", {{"finished_reason", "stop"}}), 0);
  EXPECT_EQ(value_of(families, "request_success_total", {{"finished_reason", "abort"}}), 0);
  EXPECT_EQ(value_of(families, "request_success_total", {{"finished_reason", "error"}}), 0);
  EXPECT_EQ(value_of(families, "num_requests_running"), 0);
  EXPECT_EQ(value_of(families, "cache_config_info", {{"block_size", "4"}, {"num_gpu_blocks", "64"}}), 1);
}

TEST(Task6_5_Prometheus, KvUseIsAShare) {
  EngineStats stats;
  stats.scheduler.num_blocks = 64;
  stats.scheduler.num_used_blocks = 16;
  stats.scheduler.num_running = 3;
  stats.scheduler.num_waiting = 2;
  const auto families = parse(text_of(stats, options_of("")));
  EXPECT_EQ(value_of(families, "kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(value_of(families, "num_requests_running"), 3);
  EXPECT_EQ(value_of(families, "num_requests_waiting"), 2);
}

TEST(Prometheus, WhatGoesToAndComesFromOtherEnginesIsCounted) {
  EngineStats stats;
  stats.scheduler.num_waiting_for_kv = 3;
  stats.scheduler.num_held_blocks = 7;
  stats.scheduler.num_external_tokens = 40;
  stats.scheduler.kv_transfer = {.num_loads = 5,
                                 .num_failed_loads = 2,
                                 .num_loaded_tokens = 41,
                                 .num_missed_tokens = 9,
                                 .num_loaded_bytes = int64_t{1} << 33,
                                 .load_seconds = 0.75,
                                 .num_sent_bytes = 17,
                                 .num_lapsed = 4,
                                 .num_uncompressed_bytes = 300,
                                 .num_compressed_bytes = 211,
                                 .compress_seconds = 0.25,
                                 .num_stored_blocks = 11,
                                 .num_stored_bytes = 1100,
                                 .num_unstored_blocks = 6,
                                 .num_store_bytes = 900};
  const auto families = parse(text_of(stats, options_of("")));
  EXPECT_EQ(value_of(families, "num_requests_waiting_for_kv"), 3);
  EXPECT_EQ(value_of(families, "num_held_kv_blocks"), 7);
  EXPECT_EQ(value_of(families, "external_prefix_cache_queries_total"), 50);
  EXPECT_EQ(value_of(families, "external_prefix_cache_hits_total"), 40);
  EXPECT_EQ(value_of(families, "kv_transfer_loads_total"), 5);
  EXPECT_EQ(value_of(families, "kv_transfer_failed_loads_total"), 2);
  EXPECT_EQ(value_of(families, "kv_transfer_load_seconds_total"), 0.75);
  EXPECT_EQ(value_of(families, "kv_transfer_received_bytes_total"), 8589934592.0);
  EXPECT_EQ(value_of(families, "kv_transfer_sent_bytes_total"), 17);
  EXPECT_EQ(value_of(families, "kv_transfer_expired_requests_total"), 4);
  EXPECT_EQ(value_of(families, "kv_transfer_uncompressed_bytes_total"), 300);
  EXPECT_EQ(value_of(families, "kv_transfer_compressed_bytes_total"), 211);
  EXPECT_EQ(value_of(families, "kv_transfer_compress_seconds_total"), 0.25);
  EXPECT_EQ(value_of(families, "kv_store_blocks_total"), 11);
  EXPECT_EQ(value_of(families, "kv_store_written_bytes_total"), 1100);
  EXPECT_EQ(value_of(families, "kv_store_dropped_blocks_total"), 6);
  EXPECT_EQ(value_of(families, "kv_store_bytes"), 900);
}

TEST(Task6_5_Prometheus, EachOfSeveralEnginesHasItsSamples) {
  std::array<EngineStats, 3> engines;
  for (size_t i = 0; i < engines.size(); ++i) {
    engines[i].scheduler.num_running = static_cast<int64_t>(10 + i);
    engines[i].metrics.serving.time_to_first_token.observe(0.5, static_cast<int64_t>(i));
  }
  engines[1].error = "gone";
  PrometheusOptions options = options_of("");
  options.first_engine = 4;
  const auto families = parse(prometheus_text(engines, options));
  for (size_t i = 0; i < engines.size(); ++i) {
    const std::string label = std::to_string(4 + i);
    EXPECT_EQ(value_of(families, "num_requests_running", {{"engine", label}}), static_cast<double>(10 + i));
    EXPECT_EQ(value_of(families, "time_to_first_token_seconds", {{"engine", label}, {"le", "+Inf"}}),
              static_cast<double>(i));
    EXPECT_EQ(value_of(families, "engine_alive", {{"engine", label}}), i == 1 ? 0 : 1);
  }
}

std::vector<std::string> bounds_of(const std::string& text, const std::string& name) {
  std::vector<std::string> bounds;
  const auto families = parse(text);
  for (const Sample& sample : families.at(name).samples)
    if (sample.name == name + "_bucket") bounds.push_back(sample.labels.at("le"));
  return bounds;
}

// As vLLM's server writes them.
TEST(Task6_5_Prometheus, BoundsAreVllms) {
  using ::testing::ElementsAre;
  PrometheusOptions options = options_of("");
  options.batch.max_model_len = 2048;
  const std::string text = text_of({}, options);
  EXPECT_THAT(bounds_of(text, "time_to_first_token_seconds"),
              ElementsAre("0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5",
                          "0.75", "1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0",
                          "640.0", "2560.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "inter_token_latency_seconds"),
              ElementsAre("0.01", "0.025", "0.05", "0.075", "0.1", "0.15", "0.2", "0.3", "0.4", "0.5", "0.75",
                          "1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "+Inf"));
  EXPECT_THAT(
      bounds_of(text, "e2e_request_latency_seconds"),
      ElementsAre("0.3", "0.5", "0.8", "1.0", "1.5", "2.0", "2.5", "5.0", "10.0", "15.0", "20.0", "30.0",
                  "40.0", "50.0", "60.0", "120.0", "240.0", "480.0", "960.0", "1920.0", "7680.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "request_prompt_tokens"),
              ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "1000.0",
                          "2000.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "iteration_tokens_total"),
              ElementsAre("1.0", "8.0", "16.0", "32.0", "64.0", "128.0", "256.0", "512.0", "1024.0", "2048.0",
                          "4096.0", "8192.0", "16384.0", "+Inf"));
  EXPECT_THAT(bounds_of(text, "request_params_n"), ElementsAre("1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"));
}

// Every name in the expressions of vLLM's own board, examples/online_serving/prometheus_grafana/grafana.json at commit
// 004f771f3a6b49597546b05c7d83686d1e121fa0 (41,260 bytes), and the two that newer ones ask for in place of the last two.
TEST(Task6_5_Prometheus, ABoardMadeForVllmFindsItsNames) {
  std::set<std::string> samples;
  for (const auto& [name, family] : parse(text_of({}, options_of("vllm:"))))
    for (const Sample& sample : family.samples) samples.insert(sample.name);
  for (const char* name : {"vllm:e2e_request_latency_seconds_bucket",
                           "vllm:e2e_request_latency_seconds_sum",
                           "vllm:e2e_request_latency_seconds_count",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:time_to_first_token_seconds_bucket",
                           "vllm:time_to_first_token_seconds_sum",
                           "vllm:time_to_first_token_seconds_count",
                           "vllm:request_prompt_tokens_bucket",
                           "vllm:request_generation_tokens_bucket",
                           "vllm:request_success_total",
                           "vllm:request_queue_time_seconds_sum",
                           "vllm:request_prefill_time_seconds_sum",
                           "vllm:request_decode_time_seconds_sum",
                           "vllm:request_max_num_generation_tokens_sum",
                           "vllm:gpu_cache_usage_perc",
                           "vllm:time_per_output_token_seconds_bucket",
                           "vllm:time_per_output_token_seconds_sum",
                           "vllm:time_per_output_token_seconds_count",
                           "vllm:kv_cache_usage_perc",
                           "vllm:inter_token_latency_seconds_bucket"})
    EXPECT_TRUE(samples.contains(name)) << name;
}

TEST(Task6_5_Prometheus, TheRouteAnswersBehindTheKey) {
  ThreadEngineClient client(std::unique_ptr<Engine>(new Engine(make_engine())));
  Router router;
  add_metrics_route(router, client, options_of("ladder:"));
  ASSERT_EQ(router.routes().size(), 1u);
  EXPECT_EQ(router.routes()[0].access, Access::with_key);
  const auto exchange = FakeExchange::ask(router, FakeExchange::get("/metrics"));
  EXPECT_EQ(exchange->head.status, 200);
  EXPECT_EQ(exchange->head.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_TRUE(parse(exchange->body()).contains("ladder:num_requests_running"));
}

TEST(Prometheus, APrefixIsThatOfAName) {
  for (const char* good : {"", "vllm:", "a_1:"}) EXPECT_NO_THROW(check_metrics_prefix(good)) << good;
  for (const char* bad : {"1a", "a-b", "a b", "\xc3\xa9", "a\n", "{"})
    EXPECT_THROW(check_metrics_prefix(bad), Error) << bad;
}

TEST(Task6_5_Prometheus, TheProcessTellsOfItself) {
  const auto families = parse(process_metrics_text());
  EXPECT_GT(value_of(families, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value_of(families, "process_virtual_memory_bytes"),
            value_of(families, "process_resident_memory_bytes"));
  EXPECT_GE(value_of(families, "process_open_fds"), 3);
  EXPECT_GE(value_of(families, "process_max_fds"), value_of(families, "process_open_fds"));
  EXPECT_GE(value_of(families, "process_cpu_seconds_total"), 0);
  const double age = static_cast<double>(time(nullptr)) - value_of(families, "process_start_time_seconds");
  EXPECT_GE(age, -5);
  EXPECT_LT(age, 3600);
}

}  // namespace
}  // namespace ladder::testing
