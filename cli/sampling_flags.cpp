#include "cli/sampling_flags.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "cli/flag_values.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

std::vector<int32_t> joined_ids(const std::vector<std::string>& lists, std::string_view flag) {
  std::vector<int32_t> ids;
  for (const std::string& list : lists) {
    const std::vector<int32_t> more = parse_token_ids(list, flag);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

uint64_t parse_seed(const std::string& text) {
  uint64_t seed = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  LADDER_CHECK(error == std::errc() && rest == text.data() + text.size(),
               "--seed: expected an integer in [0, 2^64), found \"{}\"", text);
  return seed;
}

// "5=-100"
std::pair<int32_t, double> parse_bias(const std::string& text) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::vector<int32_t> ids = parse_token_ids(text.substr(0, equals), "--logit-bias");
  double bias = 0.0;
  LADDER_CHECK(ids.size() == 1 && equals < text.size() && CLI::detail::lexical_cast(text.substr(equals + 1), bias),
               "--logit-bias: expected ID=BIAS like 5=-100, found \"{}\"", text);
  return {ids[0], bias};
}

// The ranges stand in validate_sampling_params(), whose messages begin with the field: "top_p must be ...".
void check_ranges(const SamplingParams& params) {
  try {
    validate_sampling_params(params, std::numeric_limits<int32_t>::max());
  } catch (const Error& error) {
    const std::string message = error.what();
    const size_t end = std::min(message.find_first_of(" :"), message.size());
    std::string flag = message.substr(0, end);
    std::replace(flag.begin(), flag.end(), '_', '-');
    fail("--{}{}", flag, message.substr(end));
  }
}

}  // namespace

void SamplingFlags::add(CLI::App& app, const SamplingParams& defaults) {
  params_ = defaults;
  const auto number = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->type_name("X")->capture_default_str()->group("Sampling");
  };
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_number())
        ->type_name("N")
        ->capture_default_str()
        ->group("Sampling");
  };
  // "[...]" says what happens where the flag is absent.
  const auto optional_count = [&](const char* name, std::optional<int64_t>& value, const std::string& help) {
    app.add_option(name, value, help)->check(whole_number())->type_name("N")->group("Sampling");
  };
  // allow_extra_args(false) keeps CLI11 from reading "[a,b]" as a list of two.
  const auto texts = [&](const char* name, std::vector<std::string>& values, const char* type, const char* help) {
    app.add_option(name, values, help)
        ->type_name(type)
        ->expected(1, 4096)
        ->allow_extra_args(false)
        ->group("Sampling");
  };
  const auto ids = [&](const char* name, std::vector<std::string>& lists, const char* help) {
    app.add_option(name, lists, help)->type_name("IDS")->expected(1, 4096)->group("Sampling");
  };

  optional_count("--max-tokens", params_.max_tokens,
                 fmt::format("tokens to generate [{}]", defaults.max_tokens ? std::to_string(*defaults.max_tokens)
                                                                            : "to the end of --max-model-len"));
  count("--min-tokens", params_.min_tokens, "no end token and no stop id before so many tokens");
  number("--temperature", params_.temperature, "0 is greedy");
  count("--top-k", params_.top_k, "keep the K likeliest tokens; 0 or -1: all");
  number("--top-p", params_.top_p, "keep the likeliest tokens that together reach P");
  number("--min-p", params_.min_p, "keep tokens at least P times as likely as the likeliest");
  number("--repetition-penalty", params_.repetition_penalty, "over prompt and output; 1: none");
  number("--presence-penalty", params_.presence_penalty, "over output, -2 to 2; 0: none");
  number("--frequency-penalty", params_.frequency_penalty, "over output, -2 to 2; 0: none");
  texts("--logit-bias", logit_bias_, "ID=BIAS", "add to a token's logit, -100 to 100; may repeat");
  ids("--allowed-token-ids", allowed_token_ids_, "sample these tokens only, e.g. 1,2; may repeat [all]");
  texts("--bad-words", params_.bad_words, "STR", "a text that the output never completes; may repeat");
  app.add_option("--seed", seed_, "the same seed gives the same tokens [a new one every time]")
      ->type_name("S")
      ->group("Sampling");
  count("--n", params_.n, "completions of every prompt");
  texts("--stop", params_.stop, "STR", "end before this text; may repeat");
  ids("--stop-token-ids", stop_token_ids_, "end after one of these tokens, e.g. 1,2; may repeat");
  app.add_flag("--include-stop-str-in-output", params_.include_stop_str_in_output, "end after a stop string, not before it")
      ->group("Sampling");
  app.add_flag("--ignore-eos", params_.ignore_eos, "go on after an end token")->group("Sampling");
  app.add_flag_callback("--no-skip-special-tokens", [this] { params_.skip_special_tokens = false; },
                        "special tokens have their text in the output")
      ->group("Sampling");
  optional_count("--logprobs", params_.logprobs,
                 "log probabilities: of the chosen token and of the K likeliest; -1: of the whole vocabulary");
  ids("--logprob-token-ids", logprob_token_ids_, "log probabilities of these tokens too; may repeat");
}

SamplingParams SamplingFlags::params() const {
  SamplingParams params = params_;
  if (!seed_.empty()) params.seed = parse_seed(seed_);
  params.stop_token_ids = joined_ids(stop_token_ids_, "--stop-token-ids");
  params.allowed_token_ids = joined_ids(allowed_token_ids_, "--allowed-token-ids");
  params.logprob_token_ids = joined_ids(logprob_token_ids_, "--logprob-token-ids");
  for (const std::string& text : logit_bias_) {
    const auto [id, bias] = parse_bias(text);
    params.logit_bias[id] = bias;
  }
  for (const auto* texts : {&params.stop, &params.bad_words})
    for (const std::string& text : *texts)
      LADDER_CHECK(is_utf8(text), "--{}: expected text in UTF-8", texts == &params.stop ? "stop" : "bad-words");
  check_ranges(params);
  return params;
}

}  // namespace ladder
