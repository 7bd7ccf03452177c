#include "cli/direct_model_flags.h"

#include "cli/device_flag.h"
#include "cli/flag_values.h"
#include "cli/kernels.h"
#include "cli/model_flag_values.h"
#include "cli/say_quantization.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step3_sequence/batch_config.h"
#include "step4_runner/rank_start.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"

namespace ladder {

void DirectModelFlags::add(CLI::App& app, bool with_dtype) {
  const char* group = "How the model is run, without an engine";
  if (with_dtype)
    app.add_option("--dtype", dtype_, "arithmetic: auto (as config.json says), f32, bf16 or f16")
        ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}))
        ->type_name("TYPE")
        ->capture_default_str()
        ->group(group);
  app.add_option("--device", device_, "cpu, cuda or cuda:N, or auto: a GPU where there is one")
      ->check(device_name_check())
      ->type_name("DEVICE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", threads_, "threads [one per core]")
      ->check(whole_in_range(kThreadsRange))
      ->type_name("N")
      ->group(group);
  app.add_option("--kernel", kernels_, "force the kernel of an operator, e.g. matmul=loop; may repeat")
      ->type_name("OP=NAME")
      ->allow_extra_args(false)
      ->group(group);
}

OpContext DirectModelFlags::context() const {
  OpContext ctx = make_rank_context(find_device(device_), device_owner_);
  ctx.kernels = forced_kernels(kernels_);
  check_forced_kernels(ctx.kernels, ctx.device);
  if (threads_ > 0) set_num_threads(static_cast<int>(threads_));
  return ctx;
}

DType DirectModelFlags::dtype(const DecoderSpec& spec) const {
  return dtype_ == "auto" ? spec.checkpoint_dtype : parse_dtype(dtype_);
}

std::unique_ptr<Model> DirectModelFlags::load(const OpContext& ctx, const std::string& folder,
                                              const DecoderSpec& spec, KvCacheDType kv_cache_dtype) const {
  say_quantization(spec, kv_cache_dtype, ctx.device);
  ProgressBar bar("loading", 0, "bytes");
  ModelOptions options;
  options.dtype = dtype(spec);
  options.makers.linear_method = make_quantized_linear_methods();
  options.makers.kv_cache_dtype = kv_cache_dtype;
  options.progress = [&bar](int64_t done, int64_t total) {
    bar.set_total(total);
    bar.set(done);
  };
  return load_model(ctx, folder, spec, options);
}

}  // namespace ladder
