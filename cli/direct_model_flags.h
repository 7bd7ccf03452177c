#pragma once
// The flags of the commands that run a model themselves, without an engine: `eval` and `quantize`.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "step2_model/model.h"

namespace ladder {

class DirectModelFlags {
 public:
  // `with_dtype`: the user chooses the arithmetic.
  void add(CLI::App& app, bool with_dtype = true);
  // After parsing: the device, the threads of the operators, the forced kernels; valid as long as these flags. Error naming the flag.
  OpContext context() const;
  // --dtype, or what the checkpoint says.
  DType dtype(const DecoderSpec& spec) const;
  // The model in this folder, dense or quantized, with a bar for its weights.
  std::unique_ptr<Model> load(const OpContext& ctx, const std::string& folder, const DecoderSpec& spec,
                              KvCacheDType kv_cache_dtype = KvCacheDType::automatic) const;

 private:
  std::string dtype_ = "auto";
  std::string device_ = "cpu";
  int64_t threads_ = 0;
  std::vector<std::string> kernels_;
  mutable std::shared_ptr<void> device_owner_;  // of what context() points to
};

}  // namespace ladder
