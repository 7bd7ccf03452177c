#pragma once
// Keys and values in 8 and 4 bits: one head of one token, `dim` numbers, becomes codes and two numbers (per token and head:
// nothing has to be known in advance, and a token's codes do not depend on the others').
//
//   fp8    code: E4M3's bits    x = code * scale              scale = absmax / 448
//   int8   code: -127 .. 127    x = code * scale              scale = absmax / 127
//   int4   code: 0 .. 15        x = lowest + code * scale     scale = (largest - lowest) / 15; two codes a byte, the even one
//                                                             in the lower half
//
// Rounded to the nearest, half to even. All numbers equal 0: the scale is 0. A number that is not finite is none that a cache
// can keep: NaN counts as 0 and infinity as half of the largest float.
#include <cstdint>
#include <string_view>

#include "step1_layers/attention/kv_cache.h"

namespace ladder {

// codes [kv_code_bytes(kept_as, dim)], scales [kKvScales] = of x [dim].
void quantize_kv(KvCacheDType kept_as, const float* x, int64_t dim, uint8_t* codes, float* scales);
void dequantize_kv(KvCacheDType kept_as, const uint8_t* codes, const float* scales, int64_t dim, float* x);

// Error naming `op`: a cache that does not keep heads of k_dim and v_dim values of this dtype as it says it does.
void expect_kv_cache(const KvCacheView& cache, DType dtype, int64_t k_dim, int64_t v_dim,
                     std::string_view op);

// "fp8", ... as users write it. Error: `name` is none of them, auto included; says `flag` and lists them.
KvCacheDType parse_kv_cache_dtype(std::string_view name, std::string_view flag);
std::string_view kv_cache_dtype_name(KvCacheDType kept_as);

}  // namespace ladder
