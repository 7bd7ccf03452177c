// Workers of task 4.5, on the fake device of the tests, which remembers every copy, launch and wait of the host.
#include <deque>

#include "bench/course_counts/step_json.h"
#include "bench/course_counts/workers.h"
#include "step4_runner/step_io.h"
#include "tests/step4_runner/fake_runner.h"

namespace ladder::course {
namespace {

using nlohmann::json;
using testing::RecordingStream;

json counts_of(const RecordingStream& stream) {
  const RecordingStream::Counts counts = stream.counts();
  return {{"copies", counts.copies_from_host + counts.copies_to_host},
          {"bytes", counts.bytes_from_host + counts.bytes_to_host},
          {"waits", counts.waits}};
}

// A step uploads some lists; a kernel adds each up; the sums come back.
class CopiesWorker final : public CountedWorker {
 public:
  json handle(const json& request) override {
    const auto lists = request.at("lists").get<std::vector<std::vector<int32_t>>>();
    int64_t bytes = 0;
    for (const auto& list : lists) bytes += StepUpload::bytes_of<int32_t>(std::ssize(list));
    json sums = nullptr;  // of the step before last, which is collected before a new one is made
    if (in_flight_.size() == 2) {
      in_flight_.front().done->wait();
      const Tensor& result = in_flight_.front().result;
      sums = std::vector<int32_t>(result.data<int32_t>(), result.data<int32_t>() + result.numel());
      in_flight_.pop_front();
    }
    stream_.clear();  // what the collecting waited for is not the ring's
    upload_.begin(ctx_, bytes);
    download_.begin(ctx_, StepUpload::bytes_of<int32_t>(std::ssize(lists)));
    std::vector<Tensor> on_device;
    for (const auto& list : lists) {
      const auto staged = upload_.take<int32_t>(std::ssize(list));
      std::copy(list.begin(), list.end(), staged.host);
      on_device.push_back(staged.device);
    }
    upload_.send(ctx_);
    const Tensor to = Tensor::zeros({std::ssize(lists)}, DType::i32, ctx_.device);
    stream_.launch({"sums", 0, [on_device, to] {
                      for (size_t i = 0; i < on_device.size(); ++i) {
                        const int32_t* from = on_device[i].data<int32_t>();
                        uint32_t sum = 0;
                        for (int64_t j = 0; j < on_device[i].numel(); ++j)
                          sum = 31 * sum + static_cast<uint32_t>(from[j]);
                        to.data<int32_t>()[i] = static_cast<int32_t>(sum);
                      }
                    }});
    InFlight step{download_.take(ctx_, to), to, std::make_shared<DeviceEvent>()};
    step.done->record(ctx_);
    upload_.keep_until(step.done);
    download_.keep_until(step.done);
    in_flight_.push_back(std::move(step));
    return {{"sums", sums}, {"counts", counts_of(stream_)}};
  }

 private:
  struct InFlight {
    Tensor result, on_device;  // the copy reads it until the step is done
    std::shared_ptr<DeviceEvent> done;
  };
  RecordingStream stream_;
  OpContext ctx_ = stream_.context();
  StepUpload upload_;
  StepDownload download_;
  std::deque<InFlight> in_flight_;
};

// A runner of the fake model: a step is launched, or the oldest one collected.
class RunnerWorker final : public CountedWorker {
 public:
  explicit RunnerWorker(const json& settings) : runner_(config(settings)) {}

  json handle(const json& request) override {
    runner_.stream.clear();
    if (request.at("do") == "launch") {
      launched_.push_back(runner_.runner->launch(request.at("step").get<SchedulerOutput>()));
      return {{"counts", counts_of(runner_.stream)}};
    }
    const StepOutput output = launched_.front()->collect();
    launched_.pop_front();
    return {{"answer", output}};
  }

 private:
  static RunnerConfig config(const json& settings) {
    RunnerConfig config = testing::recorded_config();
    settings.at("batch").get_to(config.batch);
    return config;
  }

  testing::RecordedRunner runner_;
  std::deque<std::shared_ptr<const LaunchedStep>> launched_;
};

}  // namespace

std::unique_ptr<CountedWorker> make_copies_worker(const json&) {
  return std::make_unique<CopiesWorker>();
}
std::unique_ptr<CountedWorker> make_runner_worker(const json& settings) {
  return std::make_unique<RunnerWorker>(settings);
}

}  // namespace ladder::course
