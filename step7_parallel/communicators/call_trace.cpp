#include "step7_parallel/communicators/call_trace.h"

#include <fmt/format.h>

#include <utility>

namespace ladder {

namespace {

constexpr size_t kKept = 3;  // calls of a rank before the one it is in

}  // namespace

void CallTrace::begin(int rank, std::string call) {
  std::lock_guard lock(mutex_);
  OfRank& mine = ranks_[static_cast<size_t>(rank)];
  ++mine.calls;
  mine.is_in = true;
  mine.last.push_front(std::move(call));
  if (mine.last.size() > kKept + 1) mine.last.pop_back();
}

void CallTrace::end(int rank) {
  std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank)].is_in = false;
}

std::string CallTrace::str() const {
  std::lock_guard lock(mutex_);
  std::string text;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const OfRank& mine = ranks_[rank];
    text += fmt::format("rank {}: {} call {}", rank, mine.is_in ? "in" : "after", mine.calls);
    for (size_t i = 0; i < mine.last.size(); ++i)
      text += (i == 0 ? ", " : i == 1 ? "; before it: " : ", ") + mine.last[i];
    text += "\n";
  }
  return text;
}

template <class Call>
void TracedCommunicator::noted(std::string name, Call&& call) {
  struct End {
    ~End() { trace.end(rank); }
    CallTrace& trace;
    int rank;
  } const end{trace_, rank()};
  trace_.begin(rank(), std::move(name));
  call();
}

void TracedCommunicator::all_reduce(const OpContext& ctx, const Tensor& tensor) {
  noted("all_reduce " + tensor.str(), [&] { inner_.all_reduce(ctx, tensor); });
}
void TracedCommunicator::all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  noted("all_gather " + input.str(), [&] { inner_.all_gather(ctx, input, output); });
}
void TracedCommunicator::reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  noted("reduce_scatter " + input.str(), [&] { inner_.reduce_scatter(ctx, input, output); });
}
void TracedCommunicator::all_to_all(const OpContext& ctx, const Tensor& input,
                                    std::span<const int64_t> send_counts, const Tensor& output,
                                    std::span<const int64_t> recv_counts) {
  noted("all_to_all " + input.str(),
        [&] { inner_.all_to_all(ctx, input, send_counts, output, recv_counts); });
}
void TracedCommunicator::send(const OpContext& ctx, const Tensor& tensor, int to) {
  noted(fmt::format("send {} to {}", tensor.str(), to), [&] { inner_.send(ctx, tensor, to); });
}
void TracedCommunicator::recv(const OpContext& ctx, const Tensor& tensor, int from) {
  noted(fmt::format("recv {} from {}", tensor.str(), from), [&] { inner_.recv(ctx, tensor, from); });
}
void TracedCommunicator::broadcast(const OpContext& ctx, const Tensor& tensor, int root) {
  noted(fmt::format("broadcast {} of {}", tensor.str(), root), [&] { inner_.broadcast(ctx, tensor, root); });
}
void TracedCommunicator::barrier(const OpContext& ctx) {
  noted("barrier", [&] { inner_.barrier(ctx); });
}

}  // namespace ladder
