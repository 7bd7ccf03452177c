#include "step6_engine/trace/trace_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "step1_layers/core/error.h"
#include "step6_engine/trace/step_recorder.h"

namespace ladder {

namespace {

constexpr int64_t kMaxLine = int64_t{64} << 20;  // of a file that is read

}  // namespace

TraceWriter::TraceWriter(const std::filesystem::path& path, int64_t max_bytes, OnError on_error)
    : path_(path.string()),
      on_error_(std::move(on_error)),
      file_(std::fopen(path.c_str(), "wbe")),
      bytes_left_(max_bytes - static_cast<int64_t>(trace_json(TraceTruncated{}).size()) - 1) {
  LADDER_CHECK(file_ != nullptr, "{}: cannot be written: {}", path_, std::strerror(errno));
}

TraceWriter::~TraceWriter() {
  if (std::fclose(file_) != 0) give_up();
}

void TraceWriter::give_up() {
  const int error = errno;
  ended_ = true;
  if (!std::exchange(failed_, true))
    on_error_(fmt::format("{}: cannot be written any more, and ends here: {}", path_, std::strerror(error)));
}

// Most of what cannot be written fails here: until then it waits in memory.
void TraceWriter::flush() {
  if (std::fflush(file_) != 0) give_up();
}

void TraceWriter::put(const std::string& line) {
  if (ended_) return;
  bytes_left_ -= static_cast<int64_t>(line.size()) + 1;
  ended_ = bytes_left_ < 0;
  const std::string text = (ended_ ? trace_json(TraceTruncated{}) : line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) give_up();
  if (ended_ && !failed_) flush();
}

void TraceWriter::write(const TraceRecord& record) {
  put(trace_json(record));
  if (ended_ || (record.step >= 0 && record.begin < flushed_ + 1.0)) return;
  flushed_ = record.begin;
  flush();
}

void record_to_file(Engine& engine, std::shared_ptr<TraceWriter> writer) {
  writer->write(trace_header(engine));
  engine.add_observer(
      std::make_shared<StepRecorder>(engine, [writer](const TraceRecord& record) { writer->write(record); }));
}

TraceFileEnd read_trace(const std::filesystem::path& path,
                        const std::function<void(const TraceHeader&)>& on_header,
                        const std::function<void(const TraceRecord&)>& on_record) {
  const std::string name = path.string();
  LADDER_CHECK(std::filesystem::exists(path), "{}: there is no such file", name);
  LADDER_CHECK(!std::filesystem::is_directory(path), "{}: expected a trace, found a folder", name);
  std::ifstream file(path, std::ios::binary);
  LADDER_CHECK(file.good(), "{}: cannot be read: {}", name, std::strerror(errno));

  // getline() of a string takes a line of any length; a part at a time does not.
  std::string line, part(size_t{1} << 16, '\0');
  TraceHeader header;
  TraceFileEnd end;
  for (int64_t number = 1;; ++number) {
    const std::string where = fmt::format("{}: line {}", name, number);
    line.clear();
    while (true) {
      file.getline(part.data(), static_cast<std::streamsize>(part.size()));
      line.append(part.data(), static_cast<size_t>(file.gcount()));
      LADDER_CHECK(std::ssize(line) <= kMaxLine, "{}: longer than {} bytes", where, kMaxLine);
      if (!file.fail() || file.eof() || file.gcount() == 0) break;
      file.clear();  // the part was full
    }
    LADDER_CHECK(!file.bad(), "{}: cannot be read", name);
    if (!file.eof() && !line.empty()) line.pop_back();  // the line's end, which getline() counts
    if (file.eof()) {
      end.cut_off = !line.empty();
      LADDER_CHECK(number > 1, "{}: expected a trace of ladder, found no complete line", name);
      return end;
    }
    if (number == 1) {
      header = parse_trace_header(line, where);
      on_header(header);
      continue;
    }
    LADDER_CHECK(!end.truncated, "{}: after the line that says that the trace was truncated", where);
    const TraceLine read = parse_trace_line(line, header, where);
    end.truncated = std::holds_alternative<TraceTruncated>(read);
    if (const auto* record = std::get_if<TraceRecord>(&read)) on_record(*record);
  }
}

}  // namespace ladder
