#pragma once
// The rungs of quantized_matmul.h's table, and what they share. Their arguments have been checked.
#include "step8_advanced/quantization/kernels/quantized_matmul.h"

namespace ladder {

void quantized_matmul_loop(const OpContext& ctx, const QuantizedMatmulArgs& args);

// Many rows of x (dequantized_tiles.cpp).
bool dequantized_tiles_support(const QuantizedMatmulArgs& args);
int64_t dequantized_tiles_workspace_portable(const QuantizedMatmulArgs& args);
void dequantized_tiles_portable(const OpContext& ctx, const QuantizedMatmulArgs& args);
// Few rows of x (few_rows.cpp).
bool few_rows_support(const QuantizedMatmulArgs& args);
int64_t few_rows_workspace_portable(const QuantizedMatmulArgs& args);
void few_rows_portable(const OpContext& ctx, const QuantizedMatmulArgs& args);
// 8-bit integers on both sides, any number of rows (int8.cpp).
bool int8_supports(const QuantizedMatmulArgs& args);
int64_t int8_workspace_madd(const QuantizedMatmulArgs& args);
void int8_portable(const OpContext& ctx, const QuantizedMatmulArgs& args);
#if defined(__x86_64__)
int64_t dequantized_tiles_workspace_avx2(const QuantizedMatmulArgs& args);
int64_t dequantized_tiles_workspace_avx512(const QuantizedMatmulArgs& args);
void dequantized_tiles_avx2(const OpContext& ctx, const QuantizedMatmulArgs& args);
void dequantized_tiles_avx512(const OpContext& ctx, const QuantizedMatmulArgs& args);
int64_t few_rows_workspace_avx2(const QuantizedMatmulArgs& args);
int64_t few_rows_workspace_avx512(const QuantizedMatmulArgs& args);
void few_rows_avx2(const OpContext& ctx, const QuantizedMatmulArgs& args);
void few_rows_avx512(const OpContext& ctx, const QuantizedMatmulArgs& args);
void int8_avx2(const OpContext& ctx, const QuantizedMatmulArgs& args);
void int8_avx512(const OpContext& ctx, const QuantizedMatmulArgs& args);
bool int8_vnni_supports(const QuantizedMatmulArgs& args);
int64_t int8_workspace_vnni(const QuantizedMatmulArgs& args);
void int8_vnni(const OpContext& ctx, const QuantizedMatmulArgs& args);
#endif

// out[row][j] for j in [begin, end), from sum(j), the sum of products in units of the row's scale (+ bias), rounded
// once. In double: every rung that sums integers exactly gives the same bits.
template <class Sum>
void store_row(const QuantizedMatmulArgs& args, int64_t row, float row_scale, int64_t begin, int64_t end,
               Sum&& sum) {
  with_float_type(args.x.dtype(), "quantized_matmul", [&](auto tag) {
    using T = decltype(tag);
    const T* bias = args.bias.defined() ? args.bias.data<T>() : nullptr;
    const auto store_as = [&](auto* out) {
      using Out = std::remove_reference_t<decltype(*out)>;
      for (int64_t j = begin; j < end; ++j) {
        const double scaled = static_cast<double>(sum(j)) * static_cast<double>(row_scale);
        const float addend = bias != nullptr ? static_cast<float>(bias[j]) : 0.0f;
        out[j] = Out(static_cast<float>(scaled + static_cast<double>(addend)));
      }
    };
    if (args.out.dtype() == DType::f32)
      store_as(args.out.data<float>() + row * args.out.stride(0));
    else
      store_as(args.out.data<T>() + row * args.out.stride(0));
  });
}

}  // namespace ladder
