// The races of the course (lab/README.md, "Performance points"): a student's kernel beside the reference's.
//
//   course_race judge OP RUNG STUDENT REFERENCE [--repetitions N] [--without DEFENCE]...
//                              prints {"op": ..., "ratio": ..., "share": ..., "flags": [...]} or {..., "error": ...}
//   course_race work           the worker: course_race of the tree that is judged, and of the reference's
//   course_race once OP RUNG   a small problem on the GPU, without a judge: for compute-sanitizer
//
// STUDENT and REFERENCE are programs, each called with `work`. The judge is the pristine tree's; the seed of its inputs
// comes on its standard input.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "bench/course_race/gpu_side.h"
#include "bench/course_race/judge.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder::course {
namespace {

Size size_for(std::string_view rung) {
  return on_gpu(rung) ? Size::gpu : Size::core;
}

int once(const std::string& name, const std::string& rung) {
  const RaceOp* op = find_race_op(name, Size::small);
  LADDER_CHECK(op != nullptr && on_gpu(rung), "no race of '{}' on a GPU", name);
  std::vector<char> memory(static_cast<size_t>(bytes_of(*op)));
  const Tensors tensors = pieces_in(*op, memory.data());
  Random random(1);
  op->fill(random, tensors);
  GpuSide gpu(*op);
  gpu.load(tensors);
  gpu.run(rung);
  gpu.fetch(tensors);
  return 0;
}

int work() {
  set_num_threads(1);
  const RaceOp* op = nullptr;
  std::string rung;
  Tensors tensors;
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  std::optional<GpuSide> gpu;
  for (;;) {
    const json request = receive(gpu ? kGpuSpin : std::chrono::microseconds(0));
    try {
      const std::string what = request.at("do");
      double seconds = 0;
      if (what == "make") {
        rung = rung_here(request.at("rung").get<std::string>());
        op = find_race_op(request.at("op").get<std::string>(), size_for(rung));
        void* memory = ::mmap(nullptr, request.at("bytes").get<size_t>(), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_POPULATE, kWorkerMemory, 0);
        LADDER_CHECK(memory != MAP_FAILED, "no shared memory");
        tensors = pieces_in(*op, memory);
        if (on_gpu(rung)) gpu.emplace(*op);
      } else if (what == "load") {
        gpu.value().load(tensors);
      } else if (what == "fetch") {
        gpu.value().fetch(tensors);
      } else if (what == "run") {
        const ArenaScope scope(arena);
        const auto begin = std::chrono::steady_clock::now();
        if (gpu)
          gpu->run(rung);
        else
          op->run(ctx, rung, tensors);
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
      // Its own seconds are believed by nobody: they show what a clock in this process would be worth.
      reply(request, {{"seconds", seconds}});
    } catch (const std::exception& error) {
      reply_error(request, error.what());
    }
  }
}

int judge(const std::vector<std::string>& arguments) {
  ::prctl(PR_SET_DUMPABLE, 0);  // the workers may neither read nor trace this process
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const Size size = size_for(arguments[2]);
  const RaceOp* op = find_race_op(arguments[1], size);
  if (op == nullptr) {
    std::cerr << "course_race: no race of '" << arguments[1] << "'; there are";
    for (const std::string& name : race_op_names(size)) std::cerr << " " << name;
    std::cerr << "\n";
    return 2;
  }
  RaceOptions options;
  for (size_t i = 5; i + 1 < arguments.size(); i += 2) {
    if (arguments[i] == "--repetitions")
      options.repetitions = std::max(std::atoi(arguments[i + 1].c_str()), 1);
    if (arguments[i] == "--without") options.without.insert(arguments[i + 1]);
  }
  std::string line;
  std::getline(std::cin, line);
  std::seed_seq words(line.begin(), line.end());
  const uint64_t seed = Random(words)();
  json result = {{"op", op->name}, {"rung", rung_here(arguments[2])}};
  try {
    const RaceResult raced =
        race(*op, arguments[2], seed, {arguments[3], "work"}, {arguments[4], "work"}, options);
    result.update({{"ratio", raced.ratio},
                   {"low", raced.low},
                   {"high", raced.high},
                   {"repetitions", raced.repetitions},
                   {"wall_ratio", raced.wall_ratio},
                   {"seconds", raced.seconds},
                   {"reference_seconds", raced.reference_seconds},
                   {"share", raced.share},
                   {"flags", raced.flags}});
  } catch (const WorkerError& error) {
    result["error"] = error.what();
  } catch (const json::exception& error) {
    result["error"] = std::string("an answer that is none: ") + error.what();
  }
  std::cout << result.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
  return 0;
}

}  // namespace
}  // namespace ladder::course

int main(int count, char** values) try {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments == std::vector<std::string>{"work"}) return ladder::course::work();
  if (arguments.size() >= 5 && arguments[0] == "judge") return ladder::course::judge(arguments);
  if (arguments.size() == 3 && arguments[0] == "once")
    return ladder::course::once(arguments[1], arguments[2]);
  std::cerr
      << "course_race judge OP RUNG STUDENT REFERENCE [--repetitions N]      with the seed on standard input\n";
  return 2;
} catch (const std::exception& error) {  // no GPU, no such rung, what a kernel did to the GPU
  std::cerr << "course_race: " << error.what() << "\n";
  return 2;
}
