#include "cli/bench/workload_flags.h"

#include <fmt/format.h>

#include <limits>

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"

namespace ladder {

namespace {

constexpr double kMaxLength = 1 << 24;

}  // namespace

void WorkloadFlags::add(CLI::App& app) {
  const auto add = [&](const char* name, int64_t& value, const std::string& help) {
    return app.add_option(name, value, help)
        ->check(whole_in_range(1, kMaxLength))
        ->type_name("N")
        ->capture_default_str();
  };
  app.add_option("--workload", kind_, "independent requests, or sessions, whose prompts grow turn by turn")
      ->check(CLI::IsMember({"independent", "sessions"}))
      ->type_name("NAME")
      ->capture_default_str();
  of_requests_.push_back(add("--num-requests", workload_.num_requests, "requests, all there from the start"));
  min_prompt_ =
      add("--min-prompt-len", workload_.min_prompt_len,
          fmt::format("prompt lengths are uniform from this ... (of sessions: what a turn adds, {})",
                      shape_.min_new_tokens));
  max_prompt_ = add("--max-prompt-len", workload_.max_prompt_len,
                    fmt::format("... to this (of sessions: {})", shape_.max_new_tokens));
  min_output_ =
      add("--min-output-len", workload_.min_output_len,
          fmt::format("output lengths are uniform from this ... (of sessions: {})", shape_.min_output));
  max_output_ = add("--max-output-len", workload_.max_output_len,
                    fmt::format("... to this (end tokens are ignored; of sessions: {})", shape_.max_output));
  of_sessions_.push_back(
      add("--sessions", num_sessions_, "sessions; each turn is sent after the one before it"));
  of_sessions_.push_back(add("--turns", shape_.num_turns, "turns of a session"));
  of_sessions_.push_back(app.add_option("--think-time", shape_.think_seconds,
                                        "seconds before a session's next turn, exponential with this mean")
                             ->check(in_range(0, 3600))
                             ->type_name("SECONDS")
                             ->capture_default_str());
  of_sessions_.push_back(app.add_option("--max-concurrency", max_concurrency_,
                                        "sessions that are under way; the next begins when one ends [all]")
                             ->check(whole_in_range(1, kMaxLength))
                             ->type_name("N"));
  app.add_option("--temperature", workload_.temperature, "0 is greedy")
      ->check(in_range(0, 100))
      ->type_name("T")
      ->capture_default_str();
  app.add_option("--seed", workload_.seed, "of lengths, ids and sampling")
      ->check(whole_in_range(0, std::numeric_limits<int64_t>::max()))
      ->type_name("S")
      ->capture_default_str();
}

void WorkloadFlags::check() const {
  for (const CLI::Option* option : has_sessions() ? of_requests_ : of_sessions_)
    LADDER_CHECK(option->count() == 0, "{}: expected with --workload {}, not with {}", option->get_name(),
                 has_sessions() ? "independent" : "sessions", kind_);
  check_lengths(requests());
}

Workload WorkloadFlags::requests() const {
  Workload made = workload_;
  if (!has_sessions()) return made;
  const auto take = [](int64_t& length, const CLI::Option* given, int64_t of_session) {
    if (given->count() == 0) length = of_session;
  };
  take(made.min_prompt_len, min_prompt_, shape_.min_new_tokens);
  take(made.max_prompt_len, max_prompt_, shape_.max_new_tokens);
  take(made.min_output_len, min_output_, shape_.min_output);
  take(made.max_output_len, max_output_, shape_.max_output);
  return made;
}

SessionLoad WorkloadFlags::sessions(int64_t vocab_size) const {
  const Workload lengths = requests();
  SessionShape shape = shape_;
  shape.min_new_tokens = lengths.min_prompt_len;
  shape.max_new_tokens = lengths.max_prompt_len;
  shape.min_output = lengths.min_output_len;
  shape.max_output = lengths.max_output_len;
  return {.sessions = make_growing_sessions(num_sessions_, workload_.seed, shape),
          .max_concurrency = max_concurrency_,
          .vocab_size = vocab_size,
          .temperature = workload_.temperature,
          .seed = workload_.seed};
}

std::string WorkloadFlags::sessions_text() const {
  return fmt::format(
      "{} of {} turns, {} at a time", num_sessions_, shape_.num_turns,
      max_concurrency_ > 0 && max_concurrency_ < num_sessions_ ? std::to_string(max_concurrency_) : "all");
}

}  // namespace ladder
