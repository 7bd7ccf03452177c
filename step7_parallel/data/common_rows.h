#pragma once
// 7.9: how many rows replicas that step together run on GPUs. An exchange within a captured graph has the shape that it was
// captured with, so that all have to come to it with as many:
//
//   rows of the step          agreed: the next number that has graphs      what each runs
//   replica 0    3 decodes                                               24 rows, 21 of them spare
//   replica 1   21, a prompt                    24                       24 rows,  3 of them spare
//   replica 2    no step                                                 24 rows, all of them spare
//
// Which graph is each one's own: one of decodes, one of any rows, or none, as long as it has the agreed rows exactly. Spare rows are
// in no slot of the cache. (vLLM: vllm/v1/worker/dp_utils.py)
#include <cstdint>

#include "step3_sequence/batch_config.h"

namespace ladder {

// The fewest rows, not less than `most` of any replica, for which no runner of this configuration takes a larger graph
// (step4_runner/step_graphs.h): those of both kinds have so many, or none has more. At least 1, and at most
// max_num_batched_tokens where `most` is.
int64_t common_rows(int64_t most, const BatchConfig& batch);

}  // namespace ladder
