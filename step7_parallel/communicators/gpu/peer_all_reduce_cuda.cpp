// The table of peer_all_reduce.h, and the choice between its rows.
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"

#include "step1_layers/core/device_cuda.h"

namespace ladder {

namespace {

bool has_nccl(const PeerAllReduceArgs& args) {
  return args.nccl != nullptr;
}
bool has_peers(const PeerAllReduceArgs& args) {
  return args.group != nullptr;
}
void all_reduce_nccl(const OpContext& ctx, const PeerAllReduceArgs& args) {
  args.nccl->all_reduce(ctx, args.tensor);
}

constexpr Variant<PeerAllReduceArgs> kRungs[] = {
    {.name = "nccl",
     .device = DeviceType::cuda,
     .idea = "the library: rings and trees over any link",
     .batch_invariant = false,  // its order of adding depends on the size
     .supports = has_nccl,
     .run = all_reduce_nccl},
    {.name = "barrier",
     .device = DeviceType::cuda,
     .idea = "stage, meet, read what every peer staged",
     .supports = has_peers,
     .run = all_reduce_barrier},
    {.name = "two_shot",
     .device = DeviceType::cuda,
     .idea = "a slice to its owner, its sum to all: a message and not n - 1 leaves a GPU",
     .supports = has_peers,
     .run = all_reduce_two_shot},
    {.name = "push",
     .device = DeviceType::cuda,
     .idea = "values into every peer's buffer, which are their own flags: one way over the link, no meeting",
     .supports = fits_push,
     .run = all_reduce_push},
};

}  // namespace

std::span<const Variant<PeerAllReduceArgs>> peer_all_reduce_variants() {
  return kRungs;
}

std::string_view fastest_all_reduce(int size, int64_t bytes) {
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  // H200s with 18 NVLinks each: two ranks (bench/results/h200/step7_gpu_all_reduce.json), four
  // (bench/results/h200x4/collectives.json). A push of two ranks to each other carries the bytes that two shots do, without
  // the second meeting. Eight: where vLLM changes, not measured here.
  const int64_t most_pushed = size == 2 ? 4 * kMiB : size <= 4 ? kMiB : 256 * kKiB;
  const int64_t most_in_two_shots = size == 2 ? 64 * kMiB : size <= 4 ? 16 * kMiB : 8 * kMiB;
  if (bytes <= most_pushed) return "push";
  return bytes <= most_in_two_shots ? "two_shot" : "nccl";
}

void peer_all_reduce(const OpContext& ctx, const PeerAllReduceArgs& args) {
  if (ctx.batch_invariant && args.group == nullptr) {  // NCCL alone: nothing keeps that promise
    OpContext any = ctx;
    any.batch_invariant = false;
    return peer_all_reduce(any, args);
  }
  const int size = args.group != nullptr ? args.group->layout.size : args.nccl->size();
  run_variant<PeerAllReduceArgs>("all_reduce", kRungs, ctx, args,
                                 fastest_all_reduce(size, args.tensor.nbytes()));
}

}  // namespace ladder
