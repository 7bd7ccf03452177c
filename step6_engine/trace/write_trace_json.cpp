#include <fmt/format.h>

#include <iterator>

#include "step2_model/json.h"
#include "step6_engine/trace/trace_json.h"

namespace ladder {

namespace {

constexpr std::string_view kBlockStates = "fchs";  // by BlockState

// "name":[[...],[...]], with one entry for each of `items`; nothing for none.
template <class Items, class Write>
void append_list(std::string& line, std::string_view name, const Items& items, Write write) {
  if (items.empty()) return;
  fmt::format_to(std::back_inserter(line), ",\"{}\":[", name);
  for (const auto& item : items) {
    write(std::back_inserter(line), item);
    line += ',';
  }
  line.back() = ']';
}

}  // namespace

std::string trace_json(const TraceHeader& header) {
  return fmt::format(
      "{{\"ladder_trace\":{},\"num_blocks\":{},\"block_size\":{},\"max_num_seqs\":{},\"max_num_batched_tokens\":{},"
      "\"started\":{:.3f}}}",
      kTraceVersion, header.num_blocks, header.block_size, header.max_num_seqs, header.max_num_batched_tokens,
      header.started);
}

std::string trace_json(const TraceRecord& record) {
  std::string line = fmt::format("{{\"begin\":{:.6f}", record.begin);
  const auto out = std::back_inserter(line);
  if (record.restart) line += ",\"restart\":true";
  if (record.step >= 0)
    fmt::format_to(
        out,
        ",\"step\":{},\"seconds\":{:.6f},\"execute_seconds\":{:.6f},\"new_tokens\":{},\"num_waiting\":{}",
        record.step, record.seconds, record.execute_seconds, record.num_new_tokens, record.num_waiting);
  append_list(line, "arrived", record.arrived, [](auto to, const TraceSequence& sequence) {
    const std::string id = Json(sequence.request_id).dump(-1, ' ', false, Json::error_handler_t::replace);
    fmt::format_to(to, "[{},{},{},{},{:.6f}]", sequence.id, id, sequence.completion,
                   sequence.num_prompt_tokens, sequence.arrival);
  });
  append_list(line, "admitted", record.admitted, [](auto to, const TraceAdmission& admission) {
    fmt::format_to(to, "[{},{}]", admission.id, admission.num_cached_tokens);
  });
  append_list(line, "batch", record.batch, [](auto to, const TraceWork& work) {
    fmt::format_to(to, "[{},\"{}\",{},{}]", work.id, work.phase == TracePhase::decode ? 'd' : 'p',
                   work.num_tokens, work.num_computed);
  });
  const auto number = [](auto to, SequenceId id) { fmt::format_to(to, "{}", id); };
  append_list(line, "queue", record.queue, number);
  append_list(line, "preempted", record.preempted, number);
  append_list(line, "ended", record.ended, [](auto to, const TraceEnd& end) {
    fmt::format_to(to, "[{},\"{}\"]", end.id, finish_reason_name(end.reason));
  });
  append_list(line, "blocks", record.blocks.runs, [](auto to, const BlockRun& run) {
    fmt::format_to(to, "[{},{},\"{}\"]", run.blocks.first, run.blocks.count,
                   kBlockStates[static_cast<size_t>(run.state)]);
  });
  append_list(line, "evicted", record.blocks.evicted, [](auto to, const BlockRange& range) {
    fmt::format_to(to, "[{},{}]", range.first, range.count);
  });
  line += '}';
  return line;
}

std::string trace_json(TraceTruncated) {
  return "{\"truncated\":true}";
}

}  // namespace ladder
