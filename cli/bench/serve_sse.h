#pragma once
// Server-sent events, read as they come in: bytes of any cut in, events out, without a copy where an event lies
// within one piece and without an allocation once the buffers have grown.
//
//   data: {"choices":[...]}\n
//   \n                          <- the event ends
//
// Lines end with \n or \r\n. Comments (": ping"), "event:", "id:" and "retry:" are skipped.
#include <cstddef>
#include <string>
#include <string_view>

#include "step1_layers/core/error.h"

namespace ladder {

class SseReader {
 public:
  // Calls on_event(data) for every event that these bytes end. The view is good until on_event returns. Error: a
  // line, or an event, of more than 16 MiB.
  template <typename OnEvent>
  void feed(std::string_view bytes, OnEvent&& on_event) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      if (end == std::string_view::npos) break;
      if (partial_.empty()) {
        line(bytes.substr(0, end), on_event);
      } else {
        append(partial_, bytes.substr(0, end));
        line(partial_, on_event);
        keep_event();  // it may be a view of partial_
        partial_.clear();
      }
      bytes.remove_prefix(end + 1);
    }
    keep_event();
    append(partial_, bytes);
  }

  // Nothing of an event has come whose end has not: where a stream may end.
  bool between_events() const { return partial_.empty() && !has_event_; }

  void reset() {
    partial_.clear();
    kept_.clear();
    event_ = {};
    has_event_ = false;
  }

 private:
  static constexpr size_t kLimit = size_t{16} << 20;

  template <typename OnEvent>
  void line(std::string_view text, OnEvent&& on_event) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) {
      if (has_event_) on_event(event_);
      has_event_ = false;
      event_ = {};
      return;
    }
    if (!text.starts_with("data:")) return;
    text.remove_prefix(text.starts_with("data: ") ? 6 : 5);
    if (!has_event_) {
      event_ = text;
      has_event_ = true;
      return;
    }
    keep_event();
    append(kept_, "\n");
    append(kept_, text);
    event_ = kept_;
  }

  // Copies the event's lines so far, if they are a view of what will be gone.
  void keep_event() {
    if (!has_event_ || event_.data() == kept_.data()) return;
    kept_.clear();
    append(kept_, event_);
    event_ = kept_;
  }

  static void append(std::string& to, std::string_view bytes) {
    LADDER_CHECK(to.size() + bytes.size() <= kLimit, "an event of more than 16 MiB");
    to.append(bytes);
  }

  std::string partial_;     // a line whose end has not come
  std::string kept_;        // the event's data, where it is not a view
  std::string_view event_;  // the data lines so far
  bool has_event_ = false;
};

// What one event of a completion says. Nothing is parsed: keys are looked for. That is sound, since a quote within a
// JSON string is written \" and so no text can hold "usage": .
struct ChunkNews {
  bool done = false;   // [DONE]
  bool error = false;  // {"error": ...} within the stream
  bool token = false;  // a choice, and not just its role
  std::string_view finish_reason = {};
  bool usage = false;
  long long prompt_tokens = -1, completion_tokens = -1, cached_tokens = -1;
};

ChunkNews read_chunk(std::string_view data);

}  // namespace ladder
