#pragma once
// The flags of an engine that hands keys and values to others, or takes them.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "step6_engine/engine_makers.h"
#include "step8_advanced/disaggregation/connector/transfer_config.h"

namespace ladder {

class KvTransferFlags {
 public:
  void add(CLI::App& app);
  bool wanted() const { return !role_.empty(); }
  bool layer_by_layer() const { return layer_by_layer_; }
  // Error naming the flag: it goes with another role, or with --kv-role alone.
  KvTransferConfig config() const;
  // Of an engine that has its ranks on this machine. Says on standard error where readers reach it, and at the end how much
  // shorter what it sent has become.
  std::function<MadeKvConnector(const ExecutorOptions&)> maker() const;

 private:
  std::string role_, listen_, compression_, max_held_, load_failure_policy_;
  double lease_ = 30, load_timeout_ = 60;
  int64_t recompute_threshold_ = 0;
  bool layer_by_layer_ = false;
  const CLI::Option *lease_option_ = nullptr, *load_timeout_option_ = nullptr, *recompute_option_ = nullptr;
};

}  // namespace ladder
