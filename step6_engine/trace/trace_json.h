#pragma once
// A trace as JSON lines: the header, then one record a line. What is empty or 0 is left out.
//
//   {"ladder_trace":1,"num_blocks":64,"block_size":16,"max_num_seqs":8,"max_num_batched_tokens":512,"started":1.7e9}
//   {"restart":true}
//   {"step":0,"begin":0.0012,"seconds":0.0031,"execute_seconds":0.003,"new_tokens":1,
//    "arrived":[[0,"cmpl-1",0,17,0.001]],        sequence, request, completion, prompt tokens, arrival
//    "admitted":[[0,16]],                        sequence, tokens that it need not compute
//    "batch":[[0,"p",1,16]],                     sequence, p(refill) or d(ecode), tokens, computed before
//    "num_waiting":1,"queue":[1],"preempted":[],"ended":[[0,"length"]],
//    "blocks":[[0,2,"h"]],                       first, count, f(ree), c(ached), h(eld) or s(hared)
//    "evicted":[[5,1]]}                          first, count
//   {"truncated":true}                           in the end, where the file has become as large as it may
#include <string>
#include <string_view>
#include <variant>

#include "step6_engine/trace/trace_record.h"

namespace ladder {

inline constexpr int64_t kTraceVersion = 1;

struct TraceTruncated {};
using TraceLine = std::variant<TraceRecord, TraceTruncated>;

// One line, without its end.
std::string trace_json(const TraceHeader& header);
std::string trace_json(const TraceRecord& record);
std::string trace_json(TraceTruncated);

// A line of anybody's file. Error, beginning with `what`: it is no such line, a number is not in its range, a block is
// not in the table of the header.
TraceHeader parse_trace_header(std::string_view line, std::string_view what);
TraceLine parse_trace_line(std::string_view line, const TraceHeader& header, std::string_view what);

}  // namespace ladder
