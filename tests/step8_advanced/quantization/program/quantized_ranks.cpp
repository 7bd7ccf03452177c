// What the tests of quantized weights start as workers: PROGRAM MODEL --fd N.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "step6_engine/load_engine.h"
#include "step7_parallel/workers/worker_process.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"

int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  ladder::run_worker_process(std::atoi(argv[3]), [&] {
    ladder::EngineOptions options;
    options.model = argv[1];
    options.makers.model.linear_method = ladder::make_quantized_linear_methods();
    return ladder::executor_options(options, ladder::open_model_folder(options.model), {});
  });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
