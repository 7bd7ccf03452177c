#include "step1_layers/embedding/embedding_cpu.h"

#include <algorithm>
#include <cstring>

#include "step1_layers/core/parallel.h"

namespace ladder {

// >>> task 1.5: look ids up in one rank's rows, element by element and by whole rows
void embedding_loop(const OpContext&, const EmbeddingArgs& args) {
  with_float_type(args.weight.dtype(), "embedding", [&](auto tag) {
    using T = decltype(tag);
    const T* weight = args.weight.data<T>();
    T* out = args.out.data<T>();
    for (int64_t i = 0; i < args.ids.dim(0); ++i) {
      const int64_t row = args.ids.data<int32_t>()[i] - args.row_begin;
      const bool owned = row >= 0 && row < args.weight.dim(0);
      for (int64_t j = 0; j < args.weight.dim(1); ++j)
        out[i * args.out.stride(0) + j] = owned ? weight[row * args.weight.stride(0) + j] : T(0.0f);
    }
  });
}

// Rows are copied as they are: nothing is computed, so whole rows move at the speed of memcpy, several
// threads at once when a prefill brings many.
void embedding_copy(const OpContext&, const EmbeddingArgs& args) {
  const int64_t size = dtype_size(args.weight.dtype());
  const int64_t row_bytes = args.weight.dim(1) * size;
  const char* weight = static_cast<const char*>(args.weight.raw());
  char* out = static_cast<char*>(args.out.raw());
  const int32_t* ids = args.ids.data<int32_t>();
  const int64_t grain = std::max<int64_t>(1, (int64_t{64} << 10) / std::max<int64_t>(row_bytes, 1));
  parallel_for(args.ids.dim(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = ids[i] - args.row_begin;
      char* to = out + i * args.out.stride(0) * size;
      if (row >= 0 && row < args.weight.dim(0))
        std::memcpy(to, weight + row * args.weight.stride(0) * size, static_cast<size_t>(row_bytes));
      else
        std::memset(to, 0, static_cast<size_t>(row_bytes));
    }
  });
}
// <<< task 1.5

}  // namespace ladder
