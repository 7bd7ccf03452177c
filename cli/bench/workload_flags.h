#pragma once
// The flags of `bench throughput` that say what is asked: independent requests, or sessions.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/bench/session_load.h"
#include "cli/bench/workload.h"

namespace ladder {

class WorkloadFlags {
 public:
  void add(CLI::App& app);

  bool has_sessions() const { return kind_ == "sessions"; }
  // Error naming the flag: it belongs to the other workload, or a range is empty.
  void check() const;
  // The independent requests. Of sessions: requests as long as a turn, to warm up with.
  Workload requests() const;
  SessionLoad sessions(int64_t vocab_size) const;
  // "64 of 8 turns, 16 at a time"
  std::string sessions_text() const;

 private:
  std::string kind_ = "independent";
  Workload workload_;
  SessionShape shape_{.think_seconds = 0};
  int64_t num_sessions_ = 64;
  int64_t max_concurrency_ = 0;
  std::vector<const CLI::Option*> of_requests_, of_sessions_;
  const CLI::Option *min_prompt_ = nullptr, *max_prompt_ = nullptr, *min_output_ = nullptr,
                    *max_output_ = nullptr;
};

}  // namespace ladder
