#include "step2_model/loading/kv_scales.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "step1_layers/core/error.h"

namespace ladder {
namespace {

enum Which : size_t { kKeys, kValues, kNumWhich };

struct KvScale {
  int64_t layer = 0;
  std::array<bool, kNumWhich> of = {};
};

std::optional<KvScale> parse_name(std::string_view name) {
  struct Known {
    std::string_view end;
    std::array<bool, kNumWhich> of;
  };
  static constexpr Known kKnown[] = {{".self_attn.k_scale", {true, false}},
                                     {".self_attn.v_scale", {false, true}},
                                     {".self_attn.kv_scale", {true, true}},
                                     {".self_attn.k_proj.k_scale", {true, false}},
                                     {".self_attn.v_proj.v_scale", {false, true}},
                                     {".self_attn.k_proj.output_scale", {true, false}},
                                     {".self_attn.v_proj.output_scale", {false, true}}};
  for (const Known& known : kKnown) {
    if (!name.ends_with(known.end)) continue;
    name.remove_suffix(known.end.size());
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || !name.substr(0, dot).ends_with("layers")) return std::nullopt;
    const std::string_view digits = name.substr(dot + 1);
    KvScale scale{0, known.of};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), scale.layer);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
    return is_number && scale.layer >= 0 ? std::optional(scale) : std::nullopt;
  }
  return std::nullopt;
}

void check_numbers(const Tensor& scales, int64_t num_kv_heads) {
  const bool one = scales.numel() == 1 && scales.ndim() <= 1;
  const bool per_head = (scales.ndim() == 1 || scales.ndim() == 3) && scales.dim(0) == num_kv_heads &&
                        scales.numel() == num_kv_heads;
  LADDER_CHECK(one || per_head, "has the shape {}, expected [1], or [{}] or [{}, 1, 1] with a scale per head",
               scales.shape().str(), num_kv_heads, num_kv_heads);
  const DType dtype = scales.dtype();
  LADDER_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
               "has the dtype {}, expected f32, bf16 or f16", dtype_name(dtype));
  const Tensor numbers = scales.clone().to(DType::f32);  // in the file they need not be aligned
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const float number = numbers.data<float>()[i];
    LADDER_CHECK(std::isfinite(number) && number > 0, "is {}, expected a finite number above 0", number);
  }
}

}  // namespace

bool is_kv_scale(std::string_view checkpoint_name) {
  return parse_name(checkpoint_name).has_value();
}

void check_kv_scales(const Checkpoint& checkpoint, const DecoderSpec& spec) {
  if (spec.quantization_config.empty()) return;
  std::map<int64_t, std::array<std::string, kNumWhich>> names;  // of each layer's scales
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const std::string& name = entry.info->name;
    const std::optional<KvScale> scale = parse_name(name);
    if (!scale) continue;
    try {
      LADDER_CHECK(scale->layer < spec.num_layers, "the model has {} layers", spec.num_layers);
      check_numbers(entry.tensor(), spec.num_kv_heads);
      for (size_t which = 0; which < kNumWhich; ++which) {
        if (!scale->of[which]) continue;
        std::string& known = names[scale->layer][which];
        LADDER_CHECK(known.empty(), "says what {} says: expected one of them", printable(known));
        known = name;
      }
    } catch (const Error& error) {
      fail("{}: tensor {}: {}", entry.file->path().string(), printable(name), error.what());
    }
  }
  if (names.empty()) return;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer)
    for (size_t which = 0; which < kNumWhich; ++which)
      LADDER_CHECK(!names[layer][which].empty(),
                   "{}: model.layers.{}.self_attn.{}_scale is missing, which other layers have",
                   checkpoint.directory().string(), layer, which == kKeys ? 'k' : 'v');
}

}  // namespace ladder
