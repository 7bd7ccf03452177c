#include <cstring>

#include "step1_layers/distributed/local_group_state.h"

namespace ladder {

// >>> task 1.4.group: meet the other ranks, or learn that one will never come; sums and copies for all of them
std::string LocalGroup::State::obstacle(int peer) const {
  if (!failure.empty()) return failure;
  for (int r = 0; r < size(); ++r)
    if (gone[static_cast<size_t>(r)] && (peer == -1 || peer == r))
      return fmt::format("rank {} has left the group", r);
  return {};
}

void LocalGroup::State::barrier() {
  std::unique_lock lock(mutex);
  std::string why = obstacle(-1);
  LADDER_CHECK(why.empty(), "{}", why);
  const uint64_t mine = generation;
  if (++arrived == size()) {
    arrived = 0;
    ++generation;
    changed.notify_all();
    return;
  }
  changed.wait(lock, [&] { return generation != mine || !(why = obstacle(-1)).empty(); });
  // A barrier that all ranks reached counts, also if one of them left right after it.
  LADDER_CHECK(generation != mine, "{}", why);
}

void LocalGroup::State::Rank::all_reduce(const OpContext&, const Tensor& tensor) {
  state_.collective(rank_, {.name = "all_reduce", .input = tensor}, [&]() -> std::string {
    // Every rank sums one slice for all of them: each element is read and written by one thread only.
    const int64_t begin = tensor.numel() * rank_ / size(), end = tensor.numel() * (rank_ + 1) / size();
    with_float_type(tensor.dtype(), "all_reduce", [&](auto tag) {
      using T = decltype(tag);
      std::vector<const T*> from;
      std::vector<T*> to;
      for (const GroupCall& call : state_.calls) {
        from.push_back(call.input.data<T>() + begin);
        to.push_back(call.input.data<T>() + begin);
      }
      reduce_elements(from, to, end - begin);
    });
    return {};
  });
}

void LocalGroup::State::Rank::all_gather(const OpContext&, const Tensor& input, const Tensor& output) {
  state_.collective(rank_, {.name = "all_gather", .input = input, .output = output}, [&]() -> std::string {
    if (output.dtype() != input.dtype() || output.numel() != size() * input.numel())
      return fmt::format("all_gather: {} cannot take {} of {} ranks", output.str(), input.str(), size());
    for (int r = 0; r < size(); ++r)
      std::memcpy(static_cast<char*>(output.raw()) + r * input.nbytes(), state_.calls[at(r)].input.raw(),
                  static_cast<size_t>(input.nbytes()));
    return {};
  });
}

void LocalGroup::State::Rank::broadcast(const OpContext&, const Tensor& tensor, int root) {
  state_.collective(rank_, {.name = "broadcast", .input = tensor, .root = root}, [&]() -> std::string {
    if (root < 0 || root >= size()) return fmt::format("broadcast: there is no rank {}", root);
    if (rank_ != root)
      std::memcpy(tensor.raw(), state_.calls[at(root)].input.raw(), static_cast<size_t>(tensor.nbytes()));
    return {};
  });
}

void LocalGroup::State::Rank::gather(const OpContext&, const Tensor& input, const Tensor& output, int root) {
  GroupCall call{
      .name = "gather", .input = input, .root = root, .gathered = rank_ == root ? output : Tensor()};
  state_.collective(rank_, std::move(call), [&]() -> std::string {
    if (root < 0 || root >= size()) return fmt::format("gather: there is no rank {}", root);
    const Tensor& all = state_.calls[at(root)].gathered;
    if (!all.is_contiguous() || all.dtype() != input.dtype() || all.numel() != size() * input.numel())
      return fmt::format("gather: {} cannot take {} of {} ranks", all.str(), input.str(), size());
    // Each rank brings its own part, so that all copy at once.
    std::memcpy(static_cast<char*>(all.raw()) + rank_ * input.nbytes(), input.raw(),
                static_cast<size_t>(input.nbytes()));
    return {};
  });
}

void LocalGroup::State::Rank::barrier(const OpContext&) {
  state_.collective(rank_, {.name = "barrier"}, []() -> std::string { return {}; });
}
// <<< task 1.4.group

}  // namespace ladder
