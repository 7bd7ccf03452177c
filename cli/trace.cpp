// ladder trace: what a recorded trace says.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step6_engine/metrics/metrics.h"
#include "step6_engine/trace/perfetto.h"
#include "step6_engine/trace/trace_file.h"

namespace ladder {

namespace {

struct TraceArguments {
  std::string file, perfetto;
};

// Everything that the summary prints is a number or a word of ours: nothing of the file's text reaches the terminal.
class Summary {
 public:
  explicit Summary(const TraceHeader& header) : header_(header), state_(header.num_blocks) {}

  void add(const TraceRecord& record) {
    state_.apply(record);
    const double end = record.begin + record.seconds;
    if (record.step >= 0) {
      if (seconds_.empty()) first_ = record.begin;
      last_ = std::max(last_, end);
      seconds_.push_back(record.seconds);
      execute_ += record.execute_seconds;
    }
    num_sequences_ += std::ssize(record.arrived);
    for (const TraceWork& work : record.batch)
      (work.phase == TracePhase::prefill ? num_prefill_ : num_decode_) += work.num_tokens;
    for (const TraceAdmission& admission : record.admitted) num_cached_ += admission.num_cached_tokens;
    num_new_ += record.num_new_tokens;
    most_running_ = std::max(most_running_, std::ssize(record.batch));
    most_waiting_ = std::max(most_waiting_, record.num_waiting);
    most_blocks_ = std::max(
        most_blocks_, state_.num_blocks_of(BlockState::held) + state_.num_blocks_of(BlockState::shared));
    most_shared_ = std::max(most_shared_, state_.num_blocks_of(BlockState::shared));
    num_preempted_ += std::ssize(record.preempted);
    for (const BlockRange& range : record.blocks.evicted) num_evicted_ += range.count;
    for (const TraceEnd& end_of : record.ended) ++ends_[std::string(finish_reason_name(end_of.reason))];
  }

  std::string text(const TraceFileEnd& end) const {
    const double seconds = std::max(0.0, last_ - first_);
    const double in_steps = [this] {
      double sum = 0.0;
      for (const double each : seconds_) sum += each;
      return sum;
    }();
    std::string ends;
    for (const auto& [reason, count] : ends_)
      ends += fmt::format("{}{} {}", ends.empty() ? "" : ", ", format_count(count), reason);
    std::string text = format_pairs({
        {"steps", format_count(std::ssize(seconds_))},
        {"time", format_seconds(seconds)},
        {"step, median", format_seconds(percentile(seconds_, 0.5))},
        {"step, 99 %", format_seconds(percentile(seconds_, 0.99))},
        {"step, longest", format_seconds(percentile(seconds_, 1.0))},
        {"share of steps in the executor",
         in_steps > 0.0 ? fmt::format("{:.1f} %", 100.0 * execute_ / in_steps) : "-"},
        {"completions seen", format_count(num_sequences_)},
        {"ended", ends.empty() ? "none" : ends},
        {"tokens computed",
         fmt::format("{} prefill, {} decode", format_count(num_prefill_), format_count(num_decode_))},
        {"tokens found in the cache", format_count(num_cached_)},
        {"new tokens", format_count(num_new_)},
        {"new tokens/s",
         seconds > 0.0 ? fmt::format("{:.1f}", static_cast<double>(num_new_) / seconds) : "-"},
        {"most sequences in a step",
         fmt::format("{} of {}", format_count(most_running_), format_count(header_.max_num_seqs))},
        {"most sequences waiting", format_count(most_waiting_)},
        {"most KV blocks held", fmt::format("{} of {} (of {} tokens)", format_count(most_blocks_),
                                            format_count(header_.num_blocks), header_.block_size)},
        {"most KV blocks shared", format_count(most_shared_)},
        {"KV blocks evicted", format_count(num_evicted_)},
        {"preemptions", format_count(num_preempted_)},
    });
    if (end.truncated) text += "The file had become as large as it might: what followed was not recorded.\n";
    if (end.cut_off)
      text +=
          "The last line is not complete and was left out: the program was ended while it wrote, or the disk "
          "was full.\n";
    return text;
  }

 private:
  const TraceHeader header_;
  TraceState state_;
  std::vector<double> seconds_;
  std::map<std::string, int64_t> ends_;
  double first_ = 0.0, last_ = 0.0, execute_ = 0.0;
  int64_t num_sequences_ = 0, num_prefill_ = 0, num_decode_ = 0, num_cached_ = 0, num_new_ = 0,
          most_waiting_ = 0, most_blocks_ = 0, most_shared_ = 0, num_preempted_ = 0, num_evicted_ = 0;
  std::ptrdiff_t most_running_ = 0;
};

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

void run_trace(const TraceArguments& arguments) {
  std::unique_ptr<std::FILE, CloseFile> out;
  const auto write = [&](std::string_view text) {
    LADDER_CHECK(std::fwrite(text.data(), 1, text.size(), out.get()) == text.size(),
                 "--perfetto {}: cannot be written", arguments.perfetto);
  };
  std::optional<Summary> summary;
  std::optional<PerfettoWriter> perfetto;
  const TraceFileEnd end = read_trace(
      arguments.file,
      [&](const TraceHeader& header) {
        summary.emplace(header);
        if (arguments.perfetto.empty()) return;
        std::error_code ignored;
        LADDER_CHECK(!std::filesystem::equivalent(arguments.file, arguments.perfetto, ignored),
                     "--perfetto {}: that is the trace itself", arguments.perfetto);
        out.reset(std::fopen(arguments.perfetto.c_str(), "wbe"));
        LADDER_CHECK(out != nullptr, "--perfetto {}: cannot be written", arguments.perfetto);
        perfetto.emplace(header, write);
      },
      [&](const TraceRecord& record) {
        summary->add(record);
        if (perfetto) perfetto->add(record);
      });
  if (perfetto) {
    perfetto->finish();
    LADDER_CHECK(std::fflush(out.get()) == 0, "--perfetto {}: cannot be written", arguments.perfetto);
  }
  write_out(summary->text(end));
}

}  // namespace

RunCommand add_trace_command(CLI::App& app) {
  auto arguments = std::make_shared<TraceArguments>();
  app.add_option("FILE", arguments->file, "what --trace has written")->required();
  app.add_option("--perfetto", arguments->perfetto, "write it for ui.perfetto.dev too, as Chrome trace JSON")
      ->type_name("OUT.json");
  return [arguments] { run_trace(*arguments); };
}

}  // namespace ladder
