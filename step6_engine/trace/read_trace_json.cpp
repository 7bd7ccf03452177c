#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step6_engine/trace/trace_json.h"

namespace ladder {

namespace {

constexpr int64_t kMost = int64_t{1} << 53;        // what a viewer in a browser can count
constexpr int64_t kMostBlocks = int64_t{1} << 26;  // a table of 64 Mi blocks; a reader makes one of it
constexpr double kMostSeconds = 1e10;

double seconds_of(const Json& value, const std::string& what, double low = 0.0) {
  const double seconds = json_number(value, what);
  LADDER_CHECK(seconds >= low && seconds <= kMostSeconds, "{}: expected seconds, found {}", what,
               json_brief(value));
  return seconds;
}

int64_t count_of(const Json& object, const char* key, std::string_view what) {
  const Json* value = json_find(object, key, what);
  return value == nullptr ? 0 : json_int(*value, fmt::format("{}: {}", what, key), 0, kMost);
}

double seconds_of(const Json& object, const char* key, std::string_view what) {
  const Json* value = json_find(object, key, what);
  return value == nullptr ? 0.0 : seconds_of(*value, fmt::format("{}: {}", what, key));
}

bool flag_of(const Json& object, const char* key, std::string_view what) {
  const Json* value = json_find(object, key, what);
  return value != nullptr && json_bool(*value, fmt::format("{}: {}", what, key));
}

// Calls read(entry, where) for the entries of a list, each of which is a list of `width` values (0: anything).
template <class Read>
void for_each(const Json& object, const char* key, size_t width, std::string_view what, Read read) {
  const Json* list = json_find(object, key, what);
  if (list == nullptr) return;
  LADDER_CHECK(list->is_array(), "{}: {}: expected a list, found {}", what, key, json_brief(*list));
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    const std::string where = fmt::format("{}: {}[{}]", what, key, i);
    LADDER_CHECK(width == 0 || (entry.is_array() && entry.size() == width),
                 "{}: expected a list of {}, found {}", where, width, json_brief(entry));
    read(entry, where);
  }
}

// One of the letters, by its place.
size_t letter_of(const Json& value, std::string_view letters, const std::string& what) {
  const std::string& text = json_string(value, what);
  const size_t at = text.size() == 1 ? letters.find(text[0]) : std::string_view::npos;
  LADDER_CHECK(at != std::string_view::npos, "{}: expected one of the letters {}, found {}", what, letters,
               json_brief(value));
  return at;
}

FinishReason reason_of(const Json& value, const std::string& what) {
  const std::string& name = json_string(value, what);
  for (const FinishReason reason :
       {FinishReason::stop, FinishReason::length, FinishReason::abort, FinishReason::error})
    if (name == finish_reason_name(reason)) return reason;
  fail("{}: expected stop, length, abort or error, found {}", what, json_brief(value));
}

BlockRange range_of(const Json& entry, const TraceHeader& header, const std::string& what) {
  const int64_t first = json_int(entry[0], what, 0, header.num_blocks - 1);
  return {first, json_int(entry[1], what, 1, header.num_blocks - first)};
}

SequenceId id_of(const Json& value, const std::string& what) {
  return json_int(value, what, 0, kMost);
}

}  // namespace

TraceHeader parse_trace_header(std::string_view line, std::string_view what) {
  const Json json = parse_json(line, what);
  const Json* version = json.is_object() ? json_find(json, "ladder_trace", what) : nullptr;
  LADDER_CHECK(version != nullptr, "{}: expected a trace of ladder, whose first line has \"ladder_trace\"",
               what);
  const int64_t number = json_int(*version, fmt::format("{}: ladder_trace", what));
  LADDER_CHECK(number == kTraceVersion, "{}: a trace of version {}; this program reads version {}", what,
               number, kTraceVersion);
  TraceHeader header;
  const auto number_of = [&](const char* key, int64_t most) {
    return json_int(json_at(json, key, what), fmt::format("{}: {}", what, key), 1, most);
  };
  header.num_blocks = number_of("num_blocks", kMostBlocks);
  header.block_size = number_of("block_size", kMost);
  header.max_num_seqs = number_of("max_num_seqs", kMost);
  header.max_num_batched_tokens = number_of("max_num_batched_tokens", kMost);
  header.started = seconds_of(json, "started", what);
  return header;
}

TraceLine parse_trace_line(std::string_view line, const TraceHeader& header, std::string_view what) {
  const Json json = parse_json(line, what);
  LADDER_CHECK(json.is_object(), "{}: expected a record, found {}", what, json_brief(json));
  if (flag_of(json, "truncated", what)) return TraceTruncated{};

  TraceRecord record;
  record.restart = flag_of(json, "restart", what);
  if (json_find(json, "step", what) != nullptr) record.step = count_of(json, "step", what);
  record.begin = seconds_of(json, "begin", what);
  record.seconds = seconds_of(json, "seconds", what);
  record.execute_seconds = seconds_of(json, "execute_seconds", what);
  record.num_new_tokens = count_of(json, "new_tokens", what);
  record.num_waiting = count_of(json, "num_waiting", what);
  for_each(json, "arrived", 5, what, [&](const Json& entry, const std::string& where) {
    record.arrived.push_back({id_of(entry[0], where), json_string(entry[1], where),
                              json_int(entry[2], where, 0, kMost), json_int(entry[3], where, 0, kMost),
                              seconds_of(entry[4], where, -kMostSeconds)});
  });
  for_each(json, "admitted", 2, what, [&](const Json& entry, const std::string& where) {
    record.admitted.push_back({id_of(entry[0], where), json_int(entry[1], where, 0, kMost)});
  });
  for_each(json, "batch", 4, what, [&](const Json& entry, const std::string& where) {
    record.batch.push_back({id_of(entry[0], where), static_cast<TracePhase>(letter_of(entry[1], "pd", where)),
                            json_int(entry[2], where, 0, kMost >> 20), json_int(entry[3], where, 0, kMost)});
  });
  for_each(json, "queue", 0, what,
           [&](const Json& entry, const std::string& where) { record.queue.push_back(id_of(entry, where)); });
  for_each(json, "preempted", 0, what, [&](const Json& entry, const std::string& where) {
    record.preempted.push_back(id_of(entry, where));
  });
  for_each(json, "ended", 2, what, [&](const Json& entry, const std::string& where) {
    record.ended.push_back({id_of(entry[0], where), reason_of(entry[1], where)});
  });
  for_each(json, "blocks", 3, what, [&](const Json& entry, const std::string& where) {
    record.blocks.runs.push_back(
        {range_of(entry, header, where), static_cast<BlockState>(letter_of(entry[2], "fchs", where))});
  });
  for_each(json, "evicted", 2, what, [&](const Json& entry, const std::string& where) {
    record.blocks.evicted.push_back(range_of(entry, header, where));
  });
  return record;
}

}  // namespace ladder
