#include "step7_parallel/communicators/exchange_communicator.h"

#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// An all_reduce of up to so many bytes is one exchange of the whole; a larger one is two, of slices and of their
// sums.
constexpr int64_t kOneExchangeBytes = 16 << 10;

std::byte* byte_of(void* bytes, int64_t at) {
  return static_cast<std::byte*>(bytes) + at;
}
const std::byte* byte_of(const void* bytes, int64_t at) {
  return static_cast<const std::byte*>(bytes) + at;
}

// Where parts of these sizes begin, one after another, and where the last ends; in bytes.
std::vector<int64_t> begins_of(std::span<const int64_t> counts, int64_t bytes_each) {
  std::vector<int64_t> begins = {0};
  for (const int64_t count : counts) begins.push_back(begins.back() + count * bytes_each);
  return begins;
}

template <class T>
void sum_in_rank_order(const Tensor& parts, T* to) {
  std::vector<const T*> from;
  for (int64_t rank = 0; rank < parts.dim(0); ++rank) from.push_back(parts.data<T>() + rank * parts.dim(1));
  reduce_elements(from, {to}, parts.dim(1));
}

}  // namespace

void ExchangeCommunicator::scatter_bytes(const void* from, std::span<const int64_t> begins, void* to,
                                         std::span<const int64_t> into) {
  std::vector<PeerPiece> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    const auto p = static_cast<size_t>(peer);
    const int64_t sent = begins[p + 1] - begins[p], received = into[p + 1] - into[p];
    if (peer != rank()) {
      if (sent > 0) sends.push_back({peer, byte_of(from, begins[p]), sent});
      if (received > 0) receives.push_back({peer, byte_of(to, into[p]), received});
    } else if (sent > 0) {
      std::memcpy(byte_of(to, into[p]), byte_of(from, begins[p]), static_cast<size_t>(sent));
    }
  }
  exchange_->exchange(sends, receives);
}

void ExchangeCommunicator::gather_bytes(const void* mine, int64_t count, void* all) {
  std::vector<PeerPiece> sends, receives;
  for (int peer = 0; peer < size() && count > 0; ++peer) {
    if (peer != rank()) {
      sends.push_back({peer, mine, count});
      receives.push_back({peer, byte_of(all, peer * count), count});
    } else if (byte_of(all, peer * count) != mine) {
      std::memcpy(byte_of(all, peer * count), mine, static_cast<size_t>(count));
    }
  }
  exchange_->exchange(sends, receives);
}

void ExchangeCommunicator::agree(const CallForm& call, std::span<const int64_t> send_counts,
                                 std::span<const int64_t> recv_counts) {
  const auto ranks = static_cast<size_t>(size());
  std::vector<CallForm> calls(ranks);
  gather_bytes(&call, sizeof call, calls.data());
  std::string problem = disagreement(calls);
  if (problem.empty()) problem = misfit(call, size());
  if (problem.empty() && call.has_counts) {
    // How many counts in either direction, and the counts, of which there is room for as many as there are ranks.
    const size_t length = 2 + 2 * ranks;
    std::vector<int64_t> mine(length), all(length * ranks);
    mine[0] = static_cast<int64_t>(std::min(send_counts.size(), ranks + 1));
    mine[1] = static_cast<int64_t>(std::min(recv_counts.size(), ranks + 1));
    std::copy_n(send_counts.begin(), std::min(send_counts.size(), ranks), mine.begin() + 2);
    std::copy_n(recv_counts.begin(), std::min(recv_counts.size(), ranks), mine.begin() + 2 + size());
    gather_bytes(mine.data(), static_cast<int64_t>(length * sizeof(int64_t)), all.data());
    CallCounts counts;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto of_rank = all.begin() + static_cast<std::ptrdiff_t>(rank * length), values = of_rank + 2;
      const auto fits = [&](int64_t count) { return count == size(); };
      counts.send.emplace_back(values, values + (fits(of_rank[0]) ? size() : 0));
      counts.recv.emplace_back(values + size(), values + size() + (fits(of_rank[1]) ? size() : 0));
    }
    problem = counts_problem(calls, counts);
  }
  LADDER_CHECK(problem.empty(), "{}", problem);
}

void ExchangeCommunicator::barrier(const OpContext&) {
  agree(call_form("barrier"));
}

void ExchangeCommunicator::all_reduce(const OpContext&, const Tensor& tensor) {
  agree(call_form("all_reduce", tensor));
  const int64_t count = tensor.numel(), element = dtype_size(tensor.dtype());
  with_float_type(tensor.dtype(), "all_reduce", [&](auto tag) {
    using T = decltype(tag);
    T* const values = tensor.data<T>();
    if (count * element <= kOneExchangeBytes) {
      const Tensor all = Tensor::empty({size(), count}, tensor.dtype());
      gather_bytes(values, tensor.nbytes(), all.raw());
      return sum_in_rank_order<T>(all, values);
    }
    std::vector<int64_t> slices, begins;  // elements, bytes
    for (int rank = 0; rank < size(); ++rank)
      slices.push_back(count * (rank + 1) / size() - count * rank / size());
    begins = begins_of(slices, element);
    const int64_t mine = slices[static_cast<size_t>(rank())];
    const Tensor parts = Tensor::empty({size(), mine}, tensor.dtype());
    const std::vector<int64_t> equal(static_cast<size_t>(size()), mine);
    scatter_bytes(values, begins, parts.raw(), begins_of(equal, element));
    const Tensor sum = Tensor::empty({mine}, tensor.dtype());
    sum_in_rank_order<T>(parts, sum.data<T>());
    std::vector<PeerPiece> sends, receives;
    for (int peer = 0; peer < size(); ++peer) {
      const auto p = static_cast<size_t>(peer);
      if (peer == rank()) continue;
      sends.push_back({peer, sum.raw(), sum.nbytes()});
      receives.push_back({peer, byte_of(tensor.raw(), begins[p]), begins[p + 1] - begins[p]});
    }
    exchange_->exchange(sends, receives);
    std::memcpy(byte_of(tensor.raw(), begins[static_cast<size_t>(rank())]), sum.raw(),
                static_cast<size_t>(sum.nbytes()));
  });
}

void ExchangeCommunicator::all_gather(const OpContext&, const Tensor& input, const Tensor& output) {
  agree(call_form("all_gather", input, output));
  gather_bytes(input.raw(), input.nbytes(), output.raw());
}

void ExchangeCommunicator::reduce_scatter(const OpContext&, const Tensor& input, const Tensor& output) {
  agree(call_form("reduce_scatter", input, output));
  with_float_type(input.dtype(), "reduce_scatter", [&](auto tag) {
    using T = decltype(tag);
    const Tensor parts = Tensor::empty({size(), output.numel()}, input.dtype());
    const std::vector<int64_t> equal(static_cast<size_t>(size()), output.nbytes());
    const std::vector<int64_t> begins = begins_of(equal, 1);
    scatter_bytes(input.raw(), begins, parts.raw(), begins);
    sum_in_rank_order<T>(parts, output.data<T>());
  });
}

void ExchangeCommunicator::all_to_all(const OpContext&, const Tensor& input,
                                      std::span<const int64_t> send_counts, const Tensor& output,
                                      std::span<const int64_t> recv_counts) {
  const CallForm call = call_form("all_to_all", input, output, 0, true);
  agree(call, send_counts, recv_counts);
  const int64_t row = call.input.row_elements() * dtype_size(input.dtype());
  scatter_bytes(input.raw(), begins_of(send_counts, row), output.raw(), begins_of(recv_counts, row));
}

void ExchangeCommunicator::broadcast(const OpContext&, const Tensor& tensor, int root) {
  agree(call_form("broadcast", tensor, {}, root));
  const PeerPiece whole{root, tensor.raw(), tensor.nbytes()};
  if (rank() != root) return exchange_->exchange({}, {&whole, 1});
  std::vector<PeerPiece> sends;
  for (int peer = 0; peer < size(); ++peer)
    if (peer != root) sends.push_back({peer, whole.bytes, whole.count});
  exchange_->exchange(sends, {});
}

void ExchangeCommunicator::check_peer(const char* name, int peer) const {
  LADDER_CHECK(peer >= 0 && peer < size() && peer != rank(), "{}: rank {} has no peer {}", name, rank(),
               peer);
}

void ExchangeCommunicator::send(const OpContext&, const Tensor& tensor, int to) {
  check_peer("send", to);
  LADDER_CHECK(tensor.device().is_cpu(), "send: {} is not on the CPU", tensor.str());
  const Tensor copy = tensor.clone(), form = Tensor::empty({sizeof(TensorForm)}, DType::u8);
  const TensorForm of_copy = TensorForm::of(copy);
  std::memcpy(form.raw(), &of_copy, sizeof of_copy);
  exchange_->post(form, to, PeerExchange::form);
  exchange_->post(copy, to, PeerExchange::message);
}

void ExchangeCommunicator::recv(const OpContext&, const Tensor& tensor, int from) {
  check_peer("recv", from);
  LADDER_CHECK(tensor.device().is_cpu(), "recv: {} is not on the CPU", tensor.str());
  TensorForm sent;
  const PeerPiece form{from, &sent, sizeof sent};
  exchange_->exchange({}, {&form, 1}, PeerExchange::form);
  LADDER_CHECK(sent.shape() == tensor.shape() && sent.dtype == tensor.dtype(),
               "recv of {} from rank {}, which sent {}", tensor.str(), from, sent.str());
  const Tensor into = tensor.is_contiguous() ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
  const PeerPiece message{from, into.raw(), into.nbytes()};
  exchange_->exchange({}, {&message, 1}, PeerExchange::message);
  if (into.raw() != tensor.raw()) tensor.copy_from(into);
}

}  // namespace ladder
