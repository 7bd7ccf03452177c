// The collectives of a SharedMemoryGroup; shared_memory_group.h has the idea.
#include <cstring>
#include <numeric>

#include "step7_parallel/communicators/shared_memory_rank.h"

namespace ladder {

namespace {

// An all_reduce of up to so many bytes has one meeting. See bench/step7_parallel/communicators.
constexpr int64_t kOneMeetingBytes = 16 << 10;

char* byte_of(const Tensor& tensor, int64_t at) {
  return static_cast<char*>(tensor.raw()) + at;
}

}  // namespace

void SharedMemoryRank::put(const void* bytes, int64_t count, int64_t at) {
  if (count > 0) std::memcpy(staged(rank_) + at, bytes, static_cast<size_t>(count));
}

void SharedMemoryRank::agree(const CallForm& call, std::span<const int64_t> send_counts,
                             std::span<const int64_t> recv_counts) {
  GroupMemory::Staging& mine = memory_->staging(rank_, turn_);
  mine.form = call;
  mine.num_sent = static_cast<int32_t>(std::min<size_t>(send_counts.size(), static_cast<size_t>(size())));
  mine.num_received = static_cast<int32_t>(std::min<size_t>(recv_counts.size(), static_cast<size_t>(size())));
  std::copy_n(send_counts.begin(), mine.num_sent, memory_->counts(rank_, turn_));
  std::copy_n(recv_counts.begin(), mine.num_received, memory_->counts(rank_, turn_) + size());
  meet();
  const std::vector<CallForm> calls = forms();
  std::string problem = disagreement(calls);
  if (problem.empty()) problem = misfit(call, size());
  if (problem.empty() && call.has_counts) problem = counts_problem(calls, counts());
  LADDER_CHECK(problem.empty(), "{}", problem);
}

void SharedMemoryRank::barrier(const OpContext&) {
  const InCall in_call(*this, "barrier");
  next_turn();
  agree(call_form("barrier"));
}

// >>> task 7.2: a meeting of all ranks, and the sum of what they bring to it
void SharedMemoryRank::meet() {
  // Whoever knows that somebody will never come does not arrive: or else two arrivals of one rank would pass for two
  // ranks.
  if (is_obstructed(kEverybody)) fail("{}", obstacle(kEverybody));
  memory_->place(rank_).rounds.store(++rounds_);
  const uint64_t all = rounds_ * static_cast<uint64_t>(size());
  if (memory_->arrived().fetch_add(1) + 1 == all) return memory_->ring_all();
  wait([&] { return memory_->arrived().load() >= all; }, kEverybody,
       [&] {
         const uint32_t call = memory_->place(rank_).doing.load();
         return fmt::format("{} did not come to rank {}'s {}", absent_from_meeting(), rank_,
                            GroupMemory::call_name(call));
       });
}

void SharedMemoryRank::all_reduce(const OpContext&, const Tensor& tensor) {
  const InCall in_call(*this, "all_reduce");
  const CallForm call = call_form("all_reduce", tensor);
  const int64_t element = dtype_size(tensor.dtype()), most = memory_->shape().staging_bytes / element;
  int64_t done = 0;
  do {
    const int64_t count = std::min(tensor.numel() - done, most);
    next_turn();
    if (call.input.is_plain) put(byte_of(tensor, done * element), count * element);
    done == 0 ? agree(call) : meet();
    with_float_type(tensor.dtype(), "all_reduce", [&](auto tag) {
      using T = decltype(tag);
      T* const mine = tensor.data<T>() + done;
      const bool is_small = count * element <= kOneMeetingBytes;
      const auto slice = [&](int rank) { return count * rank / size(); };  // its begin
      const int64_t begin = is_small ? 0 : slice(rank_), end = is_small ? count : slice(rank_ + 1);
      std::vector<const T*> from;
      for (int rank = 0; rank < size(); ++rank) from.push_back(staged<T>(rank) + begin);
      if (is_small) return reduce_elements(from, {mine}, count);
      reduce_elements(from, {staged<T>(rank_) + begin}, end - begin);  // nobody else reads this slice of it
      meet();
      for (int rank = 0; rank < size(); ++rank)
        std::memcpy(mine + slice(rank), staged<T>(rank) + slice(rank),
                    static_cast<size_t>((slice(rank + 1) - slice(rank)) * element));
    });
    done += count;
  } while (done < tensor.numel());
}
// <<< task 7.2

void SharedMemoryRank::all_gather(const OpContext&, const Tensor& input, const Tensor& output) {
  const InCall in_call(*this, "all_gather");
  const CallForm call = call_form("all_gather", input, output);
  int64_t done = 0;  // bytes
  do {
    const int64_t count = std::min(input.nbytes() - done, memory_->shape().staging_bytes);
    next_turn();
    if (call.input.is_plain) put(byte_of(input, done), count);
    done == 0 ? agree(call) : meet();
    for (int rank = 0; rank < size(); ++rank)
      if (count > 0)
        std::memcpy(byte_of(output, rank * input.nbytes() + done), staged(rank), static_cast<size_t>(count));
    done += count;
  } while (done < input.nbytes());
}

void SharedMemoryRank::broadcast(const OpContext&, const Tensor& tensor, int root) {
  const InCall in_call(*this, "broadcast");
  const CallForm call = call_form("broadcast", tensor, {}, root);
  int64_t done = 0;  // bytes
  do {
    const int64_t count = std::min(tensor.nbytes() - done, memory_->shape().staging_bytes);
    next_turn();
    if (call.input.is_plain && rank_ == root) put(byte_of(tensor, done), count);
    done == 0 ? agree(call) : meet();
    if (rank_ != root && count > 0)
      std::memcpy(byte_of(tensor, done), staged(root), static_cast<size_t>(count));
    done += count;
  } while (done < tensor.nbytes());
}

void SharedMemoryRank::reduce_scatter(const OpContext&, const Tensor& input, const Tensor& output) {
  const InCall in_call(*this, "reduce_scatter");
  const CallForm call = call_form("reduce_scatter", input, output);
  const bool fits = call.input.is_plain && misfit(call, size()).empty();
  const int64_t element = dtype_size(input.dtype()), part = output.numel();
  const int64_t most =
      std::max<int64_t>(memory_->shape().staging_bytes / element / size(), 1);  // of each part
  int64_t done = 0;
  do {
    const int64_t count = std::min(part - done, most);
    next_turn();
    for (int rank = 0; rank < size() && fits; ++rank)
      put(byte_of(input, (rank * part + done) * element), count * element, rank * count * element);
    done == 0 ? agree(call) : meet();
    with_float_type(input.dtype(), "reduce_scatter", [&](auto tag) {
      using T = decltype(tag);
      std::vector<const T*> from;
      for (int rank = 0; rank < size(); ++rank) from.push_back(staged<T>(rank) + rank_ * count);
      reduce_elements(from, {output.data<T>() + done}, count);
    });
    done += count;
  } while (done < part);
}

// Each rank's input is a stream of bytes, all of which are staged, a part a round; a receiver takes what is for it.
void SharedMemoryRank::all_to_all(const OpContext&, const Tensor& input, std::span<const int64_t> send_counts,
                                  const Tensor& output, std::span<const int64_t> recv_counts) {
  const InCall in_call(*this, "all_to_all");
  const CallForm call = call_form("all_to_all", input, output, 0, true);
  const int64_t most = memory_->shape().staging_bytes;
  const int64_t row = call.input.row_elements() * dtype_size(input.dtype());
  CallCounts all;
  int64_t longest = 0;  // bytes
  int64_t done = 0;
  do {
    next_turn();
    if (call.input.is_plain) put(byte_of(input, done), std::clamp<int64_t>(input.nbytes() - done, 0, most));
    if (done == 0) {
      agree(call, send_counts, recv_counts);
      all = counts();
      for (const auto& sent : all.send)
        longest = std::max(longest, row * std::accumulate(sent.begin(), sent.end(), int64_t{0}));
    } else {
      meet();
    }
    int64_t at = 0;  // in the output
    for (const auto& sent : all.send) {
      const auto from = static_cast<int>(&sent - all.send.data());
      const auto mine = sent.begin() + rank_;
      // What is for this rank in the sender's stream, and the part of it that is staged.
      const int64_t first = row * std::accumulate(sent.begin(), mine, int64_t{0}), last = first + row * *mine;
      const int64_t begin = std::max(first, done), end = std::min(last, done + most);
      if (begin < end)
        std::memcpy(byte_of(output, at + begin - first), staged(from) + (begin - done),
                    static_cast<size_t>(end - begin));
      at += last - first;
    }
    done += most;
  } while (done < longest);
}

}  // namespace ladder
