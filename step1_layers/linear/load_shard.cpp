#include "step1_layers/linear/load_shard.h"

#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {

namespace {

// Converts one row. Mapped checkpoint data may lie at any address, so elements are read by memcpy.
template <class From, class To>
void convert_row(const char* from, To* to, int64_t count, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof value);
    to[i * to_step] = To(static_cast<float>(value));
  }
}

}  // namespace

// >>> task 1.4.shards: load a rank's shard of a checkpoint tensor
void load_shard(const std::string& what, const Tensor& checkpoint, const ShardWindow& window,
                const Tensor& destination) {
  LADDER_CHECK(checkpoint.shape() == window.full, "{}: expected shape {}, found {}", what, window.full.str(),
               checkpoint.str());
  Tensor source = checkpoint;
  for (int i = 0; i < source.ndim(); ++i) source = source.narrow(i, window.begin[i], window.size[i]);
  if (!destination.device().is_cpu() && (source.dtype() != destination.dtype() || !source.is_contiguous())) {
    // Cut out and converted here, it goes to the device in one piece.
    const Tensor piece = Tensor::empty(destination.shape(), destination.dtype());
    load_shard(what, checkpoint, window, piece);
    destination.copy_from(piece);
    return;
  }
  if (source.dtype() == destination.dtype()) {
    destination.copy_from(source);
    return;
  }

  const auto is_float = [](DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  };
  LADDER_CHECK(is_float(source.dtype()) && is_float(destination.dtype()),
               "{}: a checkpoint tensor in {} cannot be converted to {}", what, dtype_name(source.dtype()),
               dtype_name(destination.dtype()));
  LADDER_CHECK(source.shape() == destination.shape() && source.ndim() >= 1 && source.ndim() <= 2 &&
                   source.stride(-1) == 1,
               "{}: {} cannot be converted into {}", what, source.str(), destination.str());
  const bool matrix = source.ndim() == 2;
  const int64_t rows = matrix ? source.dim(0) : 1;
  const int64_t source_stride = (matrix ? source.stride(0) : 0) * dtype_size(source.dtype());
  const int64_t destination_stride = matrix ? destination.stride(0) : 0;
  with_float_type(source.dtype(), what, [&](auto from_tag) {
    with_float_type(destination.dtype(), what, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const char* from = static_cast<const char*>(source.raw());
      To* to = destination.data<To>();
      parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          convert_row<From>(from + row * source_stride, to + row * destination_stride, source.dim(-1),
                            destination.stride(-1));
      });
    });
  });
}
// <<< task 1.4.shards

}  // namespace ladder
