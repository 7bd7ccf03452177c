#pragma once
// Task 1.4: collectives, the interface that tensor parallelism is written against.
//
// A Communicator is one rank's handle to a group. Every call is ordered on the caller's stream (ctx.stream;
// on the CPU it returns when done), neither allocates nor synchronises with the host on a device, and so can
// be captured in a graph. Every rank of the group must make the same calls in the same order with the same
// sizes.
//
// Every rank ends with the same bits of a sum: what the ranks decide from it (a router's choice, a token) must
// be the same everywhere. Ours add in f32 and in rank order, rounded once; NCCL adds in an order of its own.
#include <cstdint>
#include <span>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// residual += sum over the ranks of `partial`; out = rms_norm(residual) * weight.
struct AllReduceNormArgs {
  Tensor partial;   // [rows, hidden]; holds the sum afterwards, or anything: not to be read
  Tensor residual;  // [rows, hidden], the same on all ranks
  Tensor weight;    // [hidden]
  double eps = 0;
  Tensor out;  // [rows, hidden]; may be `partial`
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Element-wise sum over all ranks, in place. f32, bf16, f16.
  virtual void all_reduce(const OpContext& ctx, const Tensor& tensor) = 0;
  // output [size * n, ...] = the ranks' inputs [n, ...] one after another.
  virtual void all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) = 0;
  // output [n, ...] = this rank's part of the sum of the ranks' inputs [size * n, ...].
  virtual void reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) = 0;
  // Rows: send_counts[r] rows of input go to rank r, recv_counts[r] rows of output come from rank r, in rank
  // order. The host reads the counts: a graph replays those of its capture.
  virtual void all_to_all(const OpContext& ctx, const Tensor& input, std::span<const int64_t> send_counts,
                          const Tensor& output, std::span<const int64_t> recv_counts) = 0;
  virtual void send(const OpContext& ctx, const Tensor& tensor, int to) = 0;
  virtual void recv(const OpContext& ctx, const Tensor& tensor, int from) = 0;
  virtual void broadcast(const OpContext& ctx, const Tensor& tensor, int root) = 0;
  virtual void barrier(const OpContext& ctx) = 0;

  // At `root`: output [size * n, ...] = the ranks' inputs [n, ...] one after another; elsewhere `output` is not looked
  // at. By send and recv, where there is nothing better.
  virtual void gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root);
  // What follows a row-parallel product in a decoder layer, in one call, so that it may be one kernel. By the
  // operators one after the other, where there is nothing better.
  virtual void all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args);
};

// The group of one: every collective is a no-op or a copy.
Communicator& single_rank();

// The groups that one rank belongs to, one per kind of parallelism. They travel in OpContext::parallel.
struct ParallelContext {
  Communicator* tp = &single_rank();  // tensor parallel: one layer's weights are split
  Communicator* pp = &single_rank();  // pipeline parallel: layers are split
  Communicator* dp = &single_rank();  // data parallel: requests are split
  Communicator* ep = &single_rank();  // expert parallel: experts are split
  Communicator* cp = &single_rank();  // context parallel: one sequence is split
};

inline Communicator& tp_group(const OpContext& ctx) {
  return ctx.parallel ? *ctx.parallel->tp : single_rank();
}
inline Communicator& pp_group(const OpContext& ctx) {
  return ctx.parallel ? *ctx.parallel->pp : single_rank();
}
inline Communicator& cp_group(const OpContext& ctx) {
  return ctx.parallel ? *ctx.parallel->cp : single_rank();
}

}  // namespace ladder
