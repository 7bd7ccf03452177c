#pragma once
// The flags of an engine that hands keys and values to others, or takes them.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
  // Of engines that this program starts, so many of them producers and the others consumers: they have their roles from it.
  // Error naming the flag: --kv-role itself, or a place to listen at that cannot be listened at, or by several.
  void expect_for_instances(int num_producers) const;
  // `words` are an engine's arguments: what of them an engine of this role is to be given, and its role.
  std::vector<std::string> with_role(std::vector<std::string> words, KvTransferRole role) const;
  // Of an engine that has its ranks on this machine. Says on standard error where readers reach it, and at the end how much
  // shorter what it sent has become.
  std::function<MadeKvConnector(const ExecutorOptions&)> maker() const;

 private:
  struct Flag {
    const CLI::Option* option;
    bool of_producers, of_consumers;
    bool fits(KvTransferRole role) const;
  };
  KvTransferConfig values(KvTransferRole role) const;

  std::string role_, listen_, compression_, max_held_, load_failure_policy_;
  double lease_ = 30, load_timeout_ = 60;
  int64_t recompute_threshold_ = 0;
  int num_loaders_ = KvTransferConfig().num_loaders;
  bool layer_by_layer_ = false;
  std::vector<Flag> flags_;  // all but --kv-role; by add()
};

// Whether each listener at this address (step8_advanced/disaggregation/transport/kv_channel.h) gets a place of its own.
bool is_a_free_port(std::string_view address);

}  // namespace ladder
