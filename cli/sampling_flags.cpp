#include "cli/sampling_flags.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <type_traits>

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
void add_bias(const std::string& text, SamplingParams& params) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::vector<int32_t> ids = parse_token_ids(text.substr(0, equals), "--logit-bias");
  double bias = 0.0;
  LADDER_CHECK(
      ids.size() == 1 && equals < text.size() && CLI::detail::lexical_cast(text.substr(equals + 1), bias),
      "--logit-bias: expected ID=BIAS like 5=-100, found \"{}\"", text);
  params.logit_bias[ids[0]] = bias;
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
  const char* group = "Sampling";
  const auto number = [&](const char* name, double SamplingParams::*field, const char* help) {
    const auto set = [this, field](const double& value) {
      given_.push_back([=](SamplingParams& params) { params.*field = value; });
    };
    app.add_option_function<double>(name, set, help)
        ->type_name("X")
        ->default_str(fmt::format("{}", defaults.*field))
        ->group(group);
  };
  // For int64_t, shown with its default, and for std::optional, whose help says what is done without it.
  const auto count = [&](const char* name, auto SamplingParams::*field, const std::string& help) {
    const auto set = [this, field](const int64_t& value) {
      given_.push_back([=](SamplingParams& params) { params.*field = value; });
    };
    CLI::Option* option = app.add_option_function<int64_t>(name, set, help)
                              ->check(whole_number())
                              ->type_name("N")
                              ->group(group);
    if constexpr (std::is_same_v<decltype(field), int64_t SamplingParams::*>)
      option->default_str(std::to_string(defaults.*field));
  };
  using Strings = std::vector<std::string>;
  // Lists: the flag may repeat. allow_extra_args(false) keeps CLI11 from reading "[a,b]" as a list of two.
  const auto strings = [&](const char* name, const char* type, const char* help, auto read) {
    const auto set = [this, read](const Strings& values) {
      given_.push_back([=](SamplingParams& params) { read(params, values); });
    };
    app.add_option_function<Strings>(name, set, help)
        ->type_name(type)
        ->expected(1, 4096)
        ->allow_extra_args(false)
        ->group(group);
  };
  const auto texts = [&](const char* name, Strings SamplingParams::*field, const char* help) {
    strings(name, "STR", help, [=](SamplingParams& params, const Strings& values) {
      for (const std::string& text : values) LADDER_CHECK(is_utf8(text), "{}: expected text in UTF-8", name);
      params.*field = values;
    });
  };
  // Ids may follow one another too: --stop-token-ids 1 2,3.
  const auto ids = [&](const char* name, std::vector<int32_t> SamplingParams::*field, const char* help) {
    const auto set = [this, name, field](const Strings& lists) {
      given_.push_back([=](SamplingParams& params) { params.*field = joined_ids(lists, name); });
    };
    app.add_option_function<Strings>(name, set, help)->type_name("IDS")->expected(1, 4096)->group(group);
  };
  const auto flag = [&](const char* name, bool SamplingParams::*field, bool value, const char* help) {
    const auto set = [this, field, value] {
      given_.push_back([=](SamplingParams& params) { params.*field = value; });
    };
    app.add_flag_callback(name, set, help)->group(group);
  };

  app.add_option(
         "--generation-config", generation_config_,
         "where the defaults come from: auto (the model's generation_config.json), vllm (none), or a folder "
         "that has one")
      ->type_name("SOURCE")
      ->capture_default_str()
      ->group(group);
  count("--max-tokens", &SamplingParams::max_tokens,
        fmt::format("tokens to generate [{}]", defaults.max_tokens ? std::to_string(*defaults.max_tokens)
                                                                   : "to the end of --max-model-len"));
  count("--min-tokens", &SamplingParams::min_tokens, "no end token and no stop id before so many tokens");
  number("--temperature", &SamplingParams::temperature, "0 is greedy");
  count("--top-k", &SamplingParams::top_k, "keep the N likeliest tokens; 0 or -1: all");
  number("--top-p", &SamplingParams::top_p, "keep the likeliest tokens that together reach X");
  number("--min-p", &SamplingParams::min_p, "keep tokens at least X times as likely as the likeliest");
  number("--repetition-penalty", &SamplingParams::repetition_penalty, "over prompt and output; 1: none");
  number("--presence-penalty", &SamplingParams::presence_penalty, "over output, -2 to 2; 0: none");
  number("--frequency-penalty", &SamplingParams::frequency_penalty, "over output, -2 to 2; 0: none");
  strings("--logit-bias", "ID=BIAS", "add to a token's logit, -100 to 100; may repeat",
          [](SamplingParams& params, const Strings& values) {
            for (const std::string& text : values) add_bias(text, params);
          });
  ids("--allowed-token-ids", &SamplingParams::allowed_token_ids,
      "sample only these, e.g. 1,2; may repeat [all]");
  texts("--bad-words", &SamplingParams::bad_words, "a text that the output never completes; may repeat");
  const auto seed = [this](const std::string& text) {
    given_.push_back([value = parse_seed(text)](SamplingParams& params) { params.seed = value; });
  };
  app.add_option_function<std::string>("--seed", seed,
                                       "the same seed gives the same tokens [a new one every time]")
      ->type_name("S")
      ->group(group);
  count("--n", &SamplingParams::n, "completions of every prompt");
  texts("--stop", &SamplingParams::stop, "end before this text; may repeat");
  ids("--stop-token-ids", &SamplingParams::stop_token_ids,
      "end after one of these tokens, e.g. 1,2; may repeat");
  flag("--include-stop-str-in-output", &SamplingParams::include_stop_str_in_output, true,
       "end after a stop string, not before it");
  flag("--ignore-eos", &SamplingParams::ignore_eos, true, "go on after an end token");
  flag("--no-skip-special-tokens", &SamplingParams::skip_special_tokens, false,
       "special tokens have their text in the output");
  count("--logprobs", &SamplingParams::logprobs,
        "log probabilities: of the chosen token and of the N likeliest; -1: of the whole vocabulary");
  ids("--logprob-token-ids", &SamplingParams::logprob_token_ids,
      "log probabilities of these too; may repeat");
}

SamplingParams SamplingFlags::params(SamplingParams defaults) const {
  for (const auto& set : given_) set(defaults);
  check_ranges(defaults);
  return defaults;
}

}  // namespace ladder
