#pragma once
// The flags of an engine that keeps prefixes on disk.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "step6_engine/engine_makers.h"
#include "step8_advanced/disaggregation/store/store_config.h"

namespace ladder {

class KvStoreFlags {
 public:
  void add(CLI::App& app);
  // Error naming the flag: one that goes with --kv-store alone.
  bool wanted() const;
  // Error naming the flag: the folder is none that can be written to.
  std::function<MadeKvConnector(const ExecutorOptions&)> maker() const;

 private:
  KvStoreConfig config() const;

  std::string folder_, max_bytes_;
};

}  // namespace ladder
