#pragma once
// NVIDIA's library of collectives, looked up when it is first wanted: a program that was built with its header starts
// on a machine that has no libnccl.so.2.
#include <nccl.h>

#include <string>

namespace ladder {

struct NcclLibrary {
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRank) comm_init_rank;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&::ncclCommDestroy) comm_destroy;
  decltype(&::ncclCommAbort) comm_abort;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error;
  decltype(&::ncclGetErrorString) get_error_string;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
};

// Loaded once. Error: it is not there; one line that says what was looked for.
const NcclLibrary& nccl_library();

// Error, NCCL's reason: neither success nor that it is under way.
void check_nccl(ncclResult_t status, const char* what);

}  // namespace ladder
