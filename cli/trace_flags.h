#pragma once
// --trace FILE: what the engine does, step by step, into a file.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/trace/trace_file.h"

namespace ladder {

class TraceFlags {
 public:
  void add(CLI::App& app);
  // Null: no --trace. Makes the file, so call it before a model is loaded. Error naming the flag.
  std::shared_ptr<TraceWriter> open() const;
  // The same flags, for another process.
  std::vector<std::string> arguments() const;

 private:
  std::string file_;
  std::string limit_ = "1GiB";
};

// Nothing without a writer.
void record_if_wanted(Engine& engine, const std::shared_ptr<TraceWriter>& writer);

}  // namespace ladder
