#include "step1_layers/distributed/call_form.h"

#include <cstring>
#include <numeric>

#include "step1_layers/core/error.h"

namespace ladder {

TensorForm TensorForm::of(const Tensor& tensor) {
  TensorForm form{.defined = tensor.defined(),
                  .is_plain = !tensor.defined() || (tensor.device().is_cpu() && tensor.is_contiguous()),
                  .dtype = tensor.dtype(),
                  .ndim = tensor.ndim()};
  std::copy_n(tensor.shape().dims().begin(), tensor.ndim(), form.dims.begin());
  return form;
}

int64_t TensorForm::row_elements() const {
  return ndim == 0 ? 1 : Shape(std::span(dims.data() + 1, static_cast<size_t>(ndim - 1))).numel();
}

std::string TensorForm::str() const {
  return fmt::format("{}{}", dtype_name(dtype), shape().str());
}

CallForm call_form(const char* name, const Tensor& input, const Tensor& output, int root, bool has_counts) {
  CallForm form{.input = TensorForm::of(input),
                .output = TensorForm::of(output),
                .root = root,
                .has_counts = has_counts};
  std::strncpy(form.name.data(), name, form.name.size() - 1);
  return form;
}

std::string disagreement(std::span<const CallForm> calls) {
  const CallForm& first = calls[0];
  for (size_t r = 0; r < calls.size(); ++r) {
    const CallForm& call = calls[r];
    if (call.name != first.name)
      return fmt::format("rank 0 called {} while rank {} called {}", first.name.data(), r, call.name.data());
    for (const TensorForm* tensor : {&call.input, &call.output})
      if (!tensor->is_plain)
        return fmt::format("{}: rank {}'s {} is not contiguous CPU memory", call.name.data(), r,
                           tensor->str());
    const bool same_sizes = call.has_counts ? call.input.row_elements() == first.input.row_elements()
                                            : call.input.numel() == first.input.numel() &&
                                                  call.output.numel() == first.output.numel();
    if (call.input.dtype != first.input.dtype || call.output.dtype != first.output.dtype || !same_sizes)
      return fmt::format("{}: rank 0 brought {} and rank {} brought {}", call.name.data(), first.input.str(),
                         r, call.input.str());
    if (call.root != first.root)
      return fmt::format("{}: rank 0 named rank {} as root and rank {} rank {}", call.name.data(), first.root,
                         r, call.root);
  }
  return {};
}

std::string misfit(const CallForm& call, int size) {
  const std::string_view name = call.name.data();
  const bool same_dtype = call.output.dtype == call.input.dtype;
  if (name == "all_gather" && !(same_dtype && call.output.numel() == size * call.input.numel()))
    return fmt::format("all_gather: {} cannot take {} of {} ranks", call.output.str(), call.input.str(),
                       size);
  if (name == "reduce_scatter" && !(same_dtype && call.input.numel() == size * call.output.numel()))
    return fmt::format("reduce_scatter: {} does not hold {} parts of {}", call.input.str(), size,
                       call.output.str());
  if (name == "broadcast" && (call.root < 0 || call.root >= size))
    return fmt::format("broadcast: there is no rank {}", call.root);
  return {};
}

std::string counts_problem(std::span<const CallForm> calls, const CallCounts& counts) {
  const size_t size = calls.size();
  const auto fits = [size](const std::vector<int64_t>& counts, const TensorForm& tensor) {
    return counts.size() == size && tensor.ndim >= 1 &&
           std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count >= 0; }) &&
           std::accumulate(counts.begin(), counts.end(), int64_t{0}) == tensor.dims[0];
  };
  for (size_t r = 0; r < size; ++r) {
    const CallForm& call = calls[r];
    if (!fits(counts.send[r], call.input) || !fits(counts.recv[r], call.output) ||
        call.output.dtype != call.input.dtype || call.output.row_elements() != call.input.row_elements())
      return fmt::format("all_to_all: rank {}'s counts do not fit {} and {}", r, call.input.str(),
                         call.output.str());
  }
  for (size_t from = 0; from < size; ++from)
    for (size_t to = 0; to < size; ++to)
      if (counts.send[from][to] != counts.recv[to][from])
        return fmt::format("all_to_all: rank {} sends {} rows to rank {}, which expects {}", from,
                           counts.send[from][to], to, counts.recv[to][from]);
  return {};
}

}  // namespace ladder
