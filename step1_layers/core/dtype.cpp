#include "step1_layers/core/dtype.h"

#include "step1_layers/core/error.h"

namespace ladder {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
    case DType::i8:
      return "i8";
    case DType::f8_e4m3:
      return "f8_e4m3";
    case DType::f64:
      return "f64";
  }
  return "?";
}

void fail_not_floating(DType dtype, std::string_view what) {
  fail("{} takes f32, bf16 or f16, got {}", what, dtype_name(dtype));
}

}  // namespace ladder
