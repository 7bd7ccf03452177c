#include "step1_layers/distributed/call_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace ladder {

namespace {

bool is_message(const TracedCall& call) {
  return std::string_view(call.name) == "send" || std::string_view(call.name) == "recv";
}

std::string nth(const std::vector<TracedCall>& calls, size_t index) {
  return index < calls.size() ? calls[index].str() : "no call";
}

// In the form of what they move. The rows of an all_to_all are each rank's own.
bool move_the_same(const TracedCall& a, const TracedCall& b) {
  if (a.tensor.defined != b.tensor.defined || a.tensor.dtype != b.tensor.dtype) return false;
  if (std::string_view(a.name) == "all_to_all") return a.tensor.row_elements() == b.tensor.row_elements();
  return a.tensor.shape() == b.tensor.shape();
}

bool are_one_collective(const TracedCall& a, const TracedCall& b) {
  return std::string_view(a.name) == b.name && a.peer == b.peer && move_the_same(a, b);
}

// Where two lists differ first; -1: nowhere.
template <class Fit>
int64_t first_misfit(const std::vector<TracedCall>& a, const std::vector<TracedCall>& b, Fit fit) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i)
    if (i >= a.size() || i >= b.size() || !fit(a[i], b[i])) return static_cast<int64_t>(i);
  return -1;
}

template <class Holds>
std::vector<TracedCall> those(const std::vector<TracedCall>& calls, Holds holds) {
  std::vector<TracedCall> some;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(some), holds);
  return some;
}

std::vector<TracedCall> messages(const std::vector<TracedCall>& calls, std::string_view name, size_t peer) {
  return those(calls, [&](const TracedCall& call) {
    return call.name == name && call.peer == static_cast<int>(peer);
  });
}

}  // namespace

std::string TracedCall::str() const {
  std::string text = name;
  if (tensor.defined) text += " " + tensor.str();
  if (peer < 0) return text;
  const std::string_view word = std::string_view(name) == "recv"        ? "from"
                                : std::string_view(name) == "broadcast" ? "of"
                                                                        : "to";
  return text + fmt::format(" {} {}", word, peer);
}

void CallTrace::begin(int rank, const TracedCall& call) {
  OfRank& mine = ranks_[static_cast<size_t>(rank)];
  std::lock_guard lock(mine.mutex);
  ++mine.calls;
  mine.is_in = true;
  mine.last.push_back(call);
  if (mine.last.size() > kept_) mine.last.pop_front();
}

void CallTrace::end(int rank) {
  OfRank& mine = ranks_[static_cast<size_t>(rank)];
  std::lock_guard lock(mine.mutex);
  mine.is_in = false;
}

std::string CallTrace::str() const {
  constexpr size_t kTold = 4;
  std::string text;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const OfRank& of = ranks_[rank];
    std::lock_guard lock(of.mutex);
    text += fmt::format("rank {}: {} call {}", rank, of.is_in ? "in" : "after", of.calls);
    for (size_t i = 0; i < std::min(kTold, of.last.size()); ++i)
      text += (i == 0 ? ", " : i == 1 ? "; before it: " : ", ") + of.last[of.last.size() - 1 - i].str();
    text += "\n";
  }
  return text;
}

std::vector<TracedCall> CallTrace::calls(int rank) const {
  const OfRank& of = ranks_[static_cast<size_t>(rank)];
  std::lock_guard lock(of.mutex);
  return {of.last.begin(), of.last.end()};
}

std::string CallTrace::parting() const {
  std::vector<std::vector<TracedCall>> all, collectives;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    all.push_back(calls(static_cast<int>(rank)));
    collectives.push_back(those(all.back(), [](const TracedCall& call) { return !is_message(call); }));
  }
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (const int64_t at = first_misfit(collectives[0], collectives[rank], are_one_collective); at >= 0)
      return fmt::format("collective {}: rank 0 {}, rank {} {}", at + 1,
                         nth(collectives[0], static_cast<size_t>(at)), rank,
                         nth(collectives[rank], static_cast<size_t>(at)));
  for (size_t from = 0; from < all.size(); ++from)
    for (size_t to = 0; to < all.size(); ++to) {
      const auto sent = messages(all[from], "send", to), received = messages(all[to], "recv", from);
      if (const int64_t at = first_misfit(sent, received, move_the_same); at >= 0)
        return fmt::format("message {} of rank {} to rank {}: {}, {}", at + 1, from, to,
                           nth(sent, static_cast<size_t>(at)), nth(received, static_cast<size_t>(at)));
    }
  return {};
}

template <class Call>
void TracedCommunicator::noted(const TracedCall& traced, Call&& call) {
  struct End {
    ~End() { trace.end(rank); }
    CallTrace& trace;
    int rank;
  } const end{trace_, rank()};
  trace_.begin(rank(), traced);
  call();
}

void TracedCommunicator::all_reduce(const OpContext& ctx, const Tensor& tensor) {
  noted({"all_reduce", TensorForm::of(tensor)}, [&] { inner_.all_reduce(ctx, tensor); });
}
void TracedCommunicator::all_gather(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  noted({"all_gather", TensorForm::of(input)}, [&] { inner_.all_gather(ctx, input, output); });
}
void TracedCommunicator::reduce_scatter(const OpContext& ctx, const Tensor& input, const Tensor& output) {
  noted({"reduce_scatter", TensorForm::of(input)}, [&] { inner_.reduce_scatter(ctx, input, output); });
}
void TracedCommunicator::all_to_all(const OpContext& ctx, const Tensor& input,
                                    std::span<const int64_t> send_counts, const Tensor& output,
                                    std::span<const int64_t> recv_counts) {
  noted({"all_to_all", TensorForm::of(input)},
        [&] { inner_.all_to_all(ctx, input, send_counts, output, recv_counts); });
}
void TracedCommunicator::send(const OpContext& ctx, const Tensor& tensor, int to) {
  noted({"send", TensorForm::of(tensor), to}, [&] { inner_.send(ctx, tensor, to); });
}
void TracedCommunicator::recv(const OpContext& ctx, const Tensor& tensor, int from) {
  noted({"recv", TensorForm::of(tensor), from}, [&] { inner_.recv(ctx, tensor, from); });
}
void TracedCommunicator::broadcast(const OpContext& ctx, const Tensor& tensor, int root) {
  noted({"broadcast", TensorForm::of(tensor), root}, [&] { inner_.broadcast(ctx, tensor, root); });
}
void TracedCommunicator::barrier(const OpContext& ctx) {
  noted({"barrier"}, [&] { inner_.barrier(ctx); });
}
void TracedCommunicator::gather(const OpContext& ctx, const Tensor& input, const Tensor& output, int root) {
  noted({"gather", TensorForm::of(input), root}, [&] { inner_.gather(ctx, input, output, root); });
}
void TracedCommunicator::all_reduce_add_norm(const OpContext& ctx, const AllReduceNormArgs& args) {
  noted({"all_reduce_add_norm", TensorForm::of(args.partial)},
        [&] { inner_.all_reduce_add_norm(ctx, args); });
}

}  // namespace ladder
