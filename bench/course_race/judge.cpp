// The student's code runs in a worker that owns neither the clock nor the expected answer.
//
//   repetition:  the judge makes a problem and the answer in memory of its own
//                for the student's worker and the reference's, in random order:
//                  has it computed since it was last asked?               it must sleep
//                  poison in the outputs, the problem into its memory
//                  t0; "run"; "done"; t1                                  its CPU clock, read from here
//                  some outputs at once, then all                         later writes are found
//                the answers are compared
//
// The clock is the CPU time of the worker's process, all threads together, which the kernel counts and the judge reads: on
// a machine that others use too it says what the code costs, where the wall clock says how long others kept it waiting.
// Sending and waking are in it, so an empty call is measured beside each, and taken off.
//
// On a GPU the worker copies the problem there, and the outputs back, when it is told to, by this program's own code; "run"
// ends when the GPU has nothing left to do. There the clock is the judge's on the wall: the GPU is nobody else's meanwhile.
#include "bench/course_race/judge.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>
#include <tuple>

#include "bench/course_race/gpu_side.h"
#include "bench/course_race/roofline.h"
#include "step1_layers/core/error.h"

namespace ladder::course {
namespace {

constexpr double kFullRatio = 1.2;   // full points up to here, lab/README.md
constexpr double kTolerance = 5e-5;  // of a tensor's norm, as tests/support/numerics.h has it for long sums
constexpr int kEmptyCalls = 5;
constexpr int kEarly = 64;  // values that are looked at as soon as the worker is done

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class T>
double median(std::vector<T> values, double at = 0.5) {
  const auto place = values.begin() + static_cast<int64_t>(at * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

class SharedMemory {
 public:
  explicit SharedMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    file_ = ::memfd_create("race", MFD_CLOEXEC);
    if (file_ < 0 || ::ftruncate(file_, bytes) != 0) throw std::runtime_error("no shared memory");
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, 0);
    if (memory_ == MAP_FAILED) throw std::runtime_error("no shared memory");
  }
  ~SharedMemory() {
    ::munmap(memory_, bytes_);
    ::close(file_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  void* data() const { return memory_; }
  int file() const { return file_; }

 private:
  size_t bytes_;
  int file_ = -1;
  void* memory_ = nullptr;
};

bool is_written(const Piece& piece) {
  return piece.use != Piece::Use::input;
}

struct Taken {
  double cpu = 0, wall = 0;  // on a GPU both are the wall's
};

// One build's worker, its memory, and what it gave in the last repetition.
class Racer {
 public:
  Racer(const RaceOp& op, const std::string& rung, const std::vector<std::string>& command,
        const RaceOptions& options)
      : op_(op),
        options_(options),
        shared_(bytes_of(op) * (options.without.contains("hidden") ? 2 : 1)),
        outputs_(static_cast<size_t>(bytes_of(op))),
        worker_(command, shared_.file(), std::chrono::seconds(20)),
        tensors_(pieces_in(op, shared_.data())),
        copies_(pieces_in(op, outputs_.data())) {
    if (::clock_getcpuclockid(worker_.pid(), &clock_) != 0)
      throw std::runtime_error("the worker has no CPU clock");
    on_gpu_ = on_gpu(rung);
    if (on_gpu_) worker_.spin(kGpuSpin);
    const int64_t bytes = bytes_of(op) * (options.without.contains("hidden") ? 2 : 1);
    worker_.ask({{"do", "make"}, {"op", op.name}, {"rung", rung}, {"bytes", bytes}});
    idle_since_ = seconds_of(clock_);
  }

  // `inputs`: the problem; `expected`: only where the defence "hidden" is left out.
  Taken run(const Tensors& inputs, const Tensors& expected, Random& random) {
    bring(inputs, expected);
    if (on_gpu_) worker_.ask({{"do", "load"}});
    const double cpu = seconds_of(clock_);
    idle_ += on_gpu_ ? 0 : cpu - idle_since_;
    const double wall = seconds_of(CLOCK_MONOTONIC);
    worker_.send({{"do", "run"}});
    const json answer = worker_.answer();
    const Taken taken{seconds_of(clock_) - cpu, seconds_of(CLOCK_MONOTONIC) - wall};
    idle_since_ = cpu + taken.cpu;
    busy_ += taken.cpu;
    if (on_gpu_) worker_.ask({{"do", "fetch"}});
    look_early(random);
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (is_written(op_.pieces[i])) std::memcpy(copies_[i].raw(), tensors_[i].raw(), copies_[i].nbytes());
    if (options_.without.contains("outside")) return {answer.at("seconds"), answer.at("seconds")};
    return taken;
  }

  // What it costs to be asked and to answer. On a GPU a worker that was just asked to load answers at once, as run() found
  // it; since then it may have gone to sleep, so it is woken first, and of some calls the middle one counts: a single
  // one is as long as a fast kernel.
  Taken empty_call() {
    if (on_gpu_) {
      worker_.ask({{"do", "nothing"}});
      std::vector<double> walls;
      for (int i = 0; i < kEmptyCalls; ++i) walls.push_back(timed_empty_call().wall);
      return {median(walls), median(walls)};
    }
    return timed_empty_call();
  }

  // Error: what was there when it said that it was done is not what is there now.
  void check_late() {
    if (options_.without.contains("late")) return;
    if (on_gpu_) worker_.ask({{"do", "fetch"}});
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (is_written(op_.pieces[i]) &&
          std::memcmp(copies_[i].raw(), tensors_[i].raw(), copies_[i].nbytes()) != 0)
        throw WorkerError("it wrote its output after it had said that it was done");
    for (const auto& [piece, at, value] : early_)
      if (std::memcmp(static_cast<const char*>(copies_[piece].raw()) + at, &value, sizeof value) != 0)
        throw WorkerError("its output was not complete when it said that it was done");
  }

  void check_idle() const {
    if (!options_.without.contains("idle") && idle_ > 0.05 * busy_ + 2e-3)
      throw WorkerError("it computed while it was not asked: " + std::to_string(1e3 * idle_) + " ms beside " +
                        std::to_string(1e3 * busy_) + " ms");
  }

  const Tensors& copies() const { return copies_; }

 private:
  struct Early {
    size_t piece;
    int64_t at;
    uint32_t value;
  };

  Taken timed_empty_call() {
    const double idle = seconds_of(clock_);
    idle_ += on_gpu_ ? 0 : idle - idle_since_;
    const double wall = seconds_of(CLOCK_MONOTONIC);
    worker_.send({{"do", "nothing"}});
    worker_.answer();
    const Taken taken{seconds_of(clock_) - idle, seconds_of(CLOCK_MONOTONIC) - wall};
    idle_since_ = idle + taken.cpu;
    return options_.without.contains("outside") ? Taken{} : taken;
  }

  void bring(const Tensors& inputs, const Tensors& expected) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (op_.pieces[i].use != Piece::Use::output)
        std::memcpy(tensors_[i].raw(), inputs[i].raw(), tensors_[i].nbytes());
      else if (!options_.without.contains("poison"))
        tensors_[i].fill_bytes(0xff);
      if (options_.without.contains("hidden") && is_written(op_.pieces[i])) {
        std::memcpy(static_cast<char*>(tensors_[i].raw()) + bytes_of(op_), expected[i].raw(),
                    tensors_[i].nbytes());
      }
    }
  }

  void look_early(Random& random) {
    early_.clear();
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (is_written(op_.pieces[i]))
        for (int n = 0; n < kEarly; ++n) {
          const auto at =
              static_cast<int64_t>(random() % static_cast<uint64_t>(tensors_[i].nbytes() / 4)) * 4;
          uint32_t value = 0;
          std::memcpy(&value, static_cast<const char*>(tensors_[i].raw()) + at, sizeof value);
          early_.push_back({i, at, value});
        }
  }

  const RaceOp& op_;
  const RaceOptions& options_;
  SharedMemory shared_;
  std::vector<char> outputs_;
  Worker worker_;
  Tensors tensors_, copies_;  // in the shared memory; the judge's copy of the outputs
  clockid_t clock_ = 0;
  bool on_gpu_ = false;
  double idle_since_ = 0, idle_ = 0, busy_ = 0;
  std::vector<Early> early_;
};

// The tokens that both workers gave in all repetitions together.
struct Tokens {
  int64_t seen = 0, wrong = 0;
};

// Error: not the judge's answer.
void check_outputs(const RaceOp& op, const Tensors& outputs, const Tensors& expected, Tokens& tokens) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!is_written(op.pieces[i])) continue;
    if (expected[i].dtype() == DType::i32) {  // tokens: rounding decides between two that are equally likely
      int64_t wrong = 0;
      for (int64_t j = 0; j < expected[i].numel(); ++j)
        wrong += outputs[i].data<int32_t>()[j] != expected[i].data<int32_t>()[j];
      if (8 * wrong > expected[i].numel()) throw WorkerError("its output is wrong");
      tokens.seen += expected[i].numel();
      tokens.wrong += wrong;
      continue;
    }
    double error = 0, norm = 0;
    int64_t cut = 0;  // values that are infinite on one side only: a mask's border
    const float *seen = outputs[i].data<float>(), *right = expected[i].data<float>();
    for (int64_t j = 0; j < expected[i].numel(); ++j) {
      if (std::isnan(seen[j]))
        throw WorkerError("its output holds values that were not written, or are no numbers");
      if (std::isinf(seen[j]) || std::isinf(right[j])) {
        cut += seen[j] != right[j];
        continue;
      }
      error += (static_cast<double>(seen[j]) - right[j]) * (static_cast<double>(seen[j]) - right[j]);
      norm += static_cast<double>(right[j]) * right[j];
    }
    if (std::sqrt(error) > kTolerance * std::sqrt(norm) || 10000 * cut > expected[i].numel())
      throw WorkerError("its output is wrong");
  }
}

// The 95 % confidence interval of the median: between these two order statistics (normal approximation of the binomial).
std::pair<double, double> interval(std::vector<double> values) {
  std::ranges::sort(values);
  const auto n = static_cast<double>(values.size());
  const auto below = static_cast<int64_t>(std::floor(n / 2 - 0.98 * std::sqrt(n)));
  const auto last = std::ssize(values) - 1;
  return {values[static_cast<size_t>(std::clamp<int64_t>(below - 1, 0, last))],
          values[static_cast<size_t>(std::clamp<int64_t>(last - below + 1, 0, last))]};
}

std::vector<double> ratios_of(const std::vector<Taken>& student, const std::vector<Taken>& reference) {
  std::vector<double> ratios;
  for (size_t i = 0; i < student.size(); ++i) ratios.push_back(student[i].cpu / reference[i].cpu);
  return ratios;
}

// Whether more repetitions could tell more: the border of the full points lies in the interval.
bool is_open(const std::vector<Taken>& student, const std::vector<Taken>& reference) {
  const auto [low, high] = interval(ratios_of(student, reference));
  return low < kFullRatio && high > kFullRatio;
}

void summarize(const RaceOp& op, bool gpu, const std::vector<Taken>& student,
               const std::vector<Taken>& reference, const RaceOptions& options, RaceResult& result) {
  std::vector<double> walls, other_walls, seconds, others;
  for (size_t i = 0; i < student.size(); ++i) {
    walls.push_back(student[i].wall);
    other_walls.push_back(reference[i].wall);
    seconds.push_back(student[i].cpu);
    others.push_back(reference[i].cpu);
  }
  const std::vector<double> ratios = ratios_of(student, reference);
  result.ratio = median(ratios);
  std::tie(result.low, result.high) = interval(ratios);
  result.repetitions = static_cast<int>(ratios.size());
  result.wall_ratio = std::ranges::min(walls) / std::ranges::min(other_walls);
  result.seconds = median(seconds);
  result.reference_seconds = median(others);
  // The problem lies in a cache at best: at the rate of copies of its size.
  const auto bytes = static_cast<int64_t>(op.bytes);
  const double least = std::max(op.bytes / (gpu ? gpu_copy_rate(bytes) : copy_rate(bytes)),
                                op.flops > 0 ? op.flops / (gpu ? gpu_product_rate() : fma_rate()) : 0.0);
  result.share = least / result.seconds;
  if (options.without.contains("floor")) return;
  if (result.seconds < 0.7 * least)
    result.flags.push_back(
        "faster than its bytes and products allow: " + std::to_string(1e6 * result.seconds) +
        " us, the roofline says " + std::to_string(1e6 * least) + " us");
  if (!gpu && result.wall_ratio > 4 * result.ratio + 1)
    result.flags.push_back(
        "takes " + std::to_string(result.wall_ratio) +
        " times as long as the reference by the wall clock, but uses little of the processor: "
        "does somebody else compute for it?");
}

}  // namespace

RaceResult race(const RaceOp& op, const std::string& rung, uint64_t seed,
                const std::vector<std::string>& student, const std::vector<std::string>& reference,
                const RaceOptions& options) {
  Random random(seed), order{std::random_device{}()};
  Racer theirs(op, rung, student, options);
  Racer ours(op, rung, reference, options);
  std::vector<char> inputs_memory(static_cast<size_t>(bytes_of(op))), answer_memory(inputs_memory.size());
  const Tensors inputs = pieces_in(op, inputs_memory.data()), answer = pieces_in(op, answer_memory.data());
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  std::optional<GpuSide> gpu;
  if (on_gpu(rung)) gpu.emplace(op);
  std::vector<Taken> their_times, our_times;
  Tokens tokens;
  RaceResult result;
  constexpr int kWarmUp = 2;
  const int most = gpu ? options.repetitions : 3 * options.repetitions;
  for (int repetition = -kWarmUp; repetition < most; ++repetition) {
    if (repetition >= options.repetitions && !is_open(their_times, our_times)) break;
    if (repetition == -kWarmUp || !options.without.contains("fresh")) op.fill(random, inputs);
    answer_memory = inputs_memory;
    if (gpu) {
      gpu->load(answer);
      gpu->run("cuda_naive");
      gpu->fetch(answer);
    } else {
      const ArenaScope scope(arena);
      op.run(ctx, "loop", answer);
    }
    Taken taken[2];
    const bool student_first = order() & 1;
    for (const bool first : {true, false}) {
      const bool is_student = first == student_first;
      Racer& racer = is_student ? theirs : ours;
      const Taken run = racer.run(inputs, answer, order), empty = racer.empty_call();
      const double cost = gpu ? run.wall - empty.wall : run.cpu - empty.cpu;
      taken[is_student ? 0 : 1] = {std::max(cost, 1e-9), run.wall};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(order() % 800));
    for (Racer* racer : {&theirs, &ours}) {
      racer->check_late();
      if (!options.without.contains("check")) check_outputs(op, racer->copies(), answer, tokens);
    }
    if (repetition < 0) continue;
    their_times.push_back(taken[0]);
    our_times.push_back(taken[1]);
  }
  // One in a repetition may be rounding; one in every repetition is a row that is left out.
  if (50 * tokens.wrong > tokens.seen) throw WorkerError("its output is wrong");
  theirs.empty_call();
  theirs.check_idle();
  summarize(op, gpu.has_value(), their_times, our_times, options, result);
  return result;
}

}  // namespace ladder::course
