#pragma once
// A trace in a file: written while an engine runs, read by `ladder trace` and by the page of the server.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "step6_engine/engine.h"
#include "step6_engine/trace/trace_json.h"

namespace ladder {

// Writes what an engine does from now on, until it is destroyed: at least once a second, and always when the engine
// comes to rest, so that a reader finds whole lines of what was. A file that cannot be written any more (disk full)
// ends the recording, which on_error is told once, and nothing else: the engine's answers are worth more than its trace.
class TraceWriter {
 public:
  using OnError = std::function<void(const std::string& why)>;  // names the file

  // Error: the file cannot be made. `max_bytes`: the file grows no larger; a last line says where that ended it.
  // `on_error` is called by whoever writes, the destructor too, and must not throw.
  TraceWriter(const std::filesystem::path& path, int64_t max_bytes, OnError on_error);
  ~TraceWriter();

  void write(const TraceHeader& header) { put(trace_json(header)); }
  void write(const TraceRecord& record);

 private:
  void put(const std::string& line);
  void flush();
  void give_up();  // errno says why

  const std::string path_;
  const OnError on_error_;
  std::FILE* file_ = nullptr;
  int64_t bytes_left_ = 0;
  double flushed_ = 0.0;  // on the records' clock
  bool ended_ = false;    // nothing more is written:
  bool failed_ = false;   // it could not be
};

// Adds an observer to the engine that writes.
void record_to_file(Engine& engine, std::shared_ptr<TraceWriter> writer);

struct TraceFileEnd {
  bool truncated = false;  // the file had become as large as it might
  // The last line is not complete and left out: who wrote it was killed, or its disk was full.
  bool cut_off = false;
};

// Calls on_header once, then on_record for each record, in order. Error, naming file and line: it cannot be read, or is
// no trace.
TraceFileEnd read_trace(const std::filesystem::path& path,
                        const std::function<void(const TraceHeader&)>& on_header,
                        const std::function<void(const TraceRecord&)>& on_record);

}  // namespace ladder
