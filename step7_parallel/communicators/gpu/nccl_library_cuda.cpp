#ifdef LADDER_HAS_NCCL
#include "step7_parallel/communicators/gpu/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

NcclLibrary load() {
  // No sums inside the switch (NVLS), unless the user asks: they need multicast memory, which not every machine lends.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  LADDER_CHECK(library != nullptr, "there is no NCCL: expected libnccl.so.2 where the loader looks ({})",
               ::dlerror());
  NcclLibrary found{};
  const auto look_up = [&](auto& function, const char* name) {
    void* const address = ::dlsym(library, name);
    LADDER_CHECK(address != nullptr, "the NCCL that was found has no {}: expected version 2.14 or newer",
                 name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  look_up(found.get_unique_id, "ncclGetUniqueId");
  look_up(found.comm_init_rank, "ncclCommInitRank");
  look_up(found.comm_init_rank_config, "ncclCommInitRankConfig");
  look_up(found.comm_destroy, "ncclCommDestroy");
  look_up(found.comm_abort, "ncclCommAbort");
  look_up(found.comm_get_async_error, "ncclCommGetAsyncError");
  look_up(found.get_error_string, "ncclGetErrorString");
  look_up(found.all_reduce, "ncclAllReduce");
  look_up(found.all_gather, "ncclAllGather");
  look_up(found.reduce_scatter, "ncclReduceScatter");
  look_up(found.broadcast, "ncclBroadcast");
  look_up(found.send, "ncclSend");
  look_up(found.recv, "ncclRecv");
  look_up(found.group_start, "ncclGroupStart");
  look_up(found.group_end, "ncclGroupEnd");
  return found;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

void check_nccl(ncclResult_t status, const char* what) {
  LADDER_CHECK(status == ncclSuccess || status == ncclInProgress, "NCCL: {}: {}", what,
               nccl_library().get_error_string(status));
}

}  // namespace ladder
#endif
