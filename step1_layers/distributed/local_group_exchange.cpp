#include <cstring>
#include <numeric>

#include "step1_layers/distributed/local_group_state.h"

namespace ladder {

// >>> task 1.4.exchange: to each rank its own part: sums, rows by counts, messages between two ranks
void LocalGroup::State::Rank::reduce_scatter(const OpContext&, const Tensor& input, const Tensor& output) {
  state_.collective(rank_, {.name = "reduce_scatter", .input = input, .output = output},
                    [&]() -> std::string {
                      if (output.dtype() != input.dtype() || input.numel() != size() * output.numel())
                        return fmt::format("reduce_scatter: {} does not hold {} parts of {}", input.str(),
                                           size(), output.str());
                      with_float_type(input.dtype(), "reduce_scatter", [&](auto tag) {
                        using T = decltype(tag);
                        std::vector<const T*> from;
                        for (const GroupCall& call : state_.calls)
                          from.push_back(call.input.data<T>() + rank_ * output.numel());
                        reduce_elements(from, {output.data<T>()}, output.numel());
                      });
                      return {};
                    });
}

void LocalGroup::State::Rank::all_to_all(const OpContext&, const Tensor& input,
                                         std::span<const int64_t> send_counts, const Tensor& output,
                                         std::span<const int64_t> recv_counts) {
  GroupCall call{.name = "all_to_all",
                 .input = input,
                 .output = output,
                 .send_counts = {send_counts.begin(), send_counts.end()},
                 .recv_counts = {recv_counts.begin(), recv_counts.end()}};
  state_.collective(rank_, std::move(call), [&]() -> std::string {
    if (std::string problem = counts_problem(); !problem.empty()) return problem;
    int64_t row = 0;
    for (int r = 0; r < size(); ++r) {
      const GroupCall& from = state_.calls[at(r)];
      const int64_t first =
          std::accumulate(from.send_counts.begin(), from.send_counts.begin() + rank_, int64_t{0});
      const int64_t count = from.send_counts[at(rank_)];
      std::memcpy(row_address(output, row), row_address(from.input, first),
                  static_cast<size_t>(count * row_elements(input) * dtype_size(input.dtype())));
      row += count;
    }
    return {};
  });
}

void LocalGroup::State::Rank::send(const OpContext&, const Tensor& tensor, int to) {
  check_peer("send", to);
  LADDER_CHECK(tensor.device().is_cpu(), "send: {} is not on the CPU", tensor.str());
  Tensor copy = tensor.clone();
  std::lock_guard lock(state_.mutex);
  const std::string why = state_.obstacle(to);
  LADDER_CHECK(why.empty(), "{}", why);
  state_.mailboxes[at(rank_ * size() + to)].push_back(std::move(copy));
  state_.changed.notify_all();
}

void LocalGroup::State::Rank::recv(const OpContext&, const Tensor& tensor, int from) {
  check_peer("recv", from);
  auto& mailbox = state_.mailboxes[at(from * size() + rank_)];
  Tensor sent;
  {
    std::unique_lock lock(state_.mutex);
    std::string why;
    state_.changed.wait(lock, [&] { return !mailbox.empty() || !(why = state_.obstacle(from)).empty(); });
    LADDER_CHECK(!mailbox.empty(), "{}", why);
    sent = std::move(mailbox.front());
    mailbox.pop_front();
  }
  if (sent.shape() != tensor.shape() || sent.dtype() != tensor.dtype()) {
    const std::string problem =
        fmt::format("recv of {} from rank {}, which sent {}", tensor.str(), from, sent.str());
    state_.leave(rank_, problem);  // the sender went on long ago: it learns at its next call
    fail("{}", problem);
  }
  tensor.copy_from(sent);
}
// <<< task 1.4.exchange

}  // namespace ladder
