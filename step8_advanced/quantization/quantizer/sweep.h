#pragma once
// Task 8.5: what bits cost, by which method: a model quantized for each of bits x group x method, each judged by its KL divergence
// from the model that it was made of (evaluate.h). A table, and a picture of it:
//
//   KL divergence, log   |  a--a--a
//                        |   b--b--b                     a line: one method with so many bits, its groups from coarse to fine
//                        |             a--a--a
//                        +----------------------- bits of a weight, its share of the scales included
//
// The models themselves are not kept: one `ladder quantize` makes the one that is wanted.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "step8_advanced/quantization/quantizer/evaluate.h"
#include "step8_advanced/quantization/quantizer/recipe.h"

namespace ladder {

struct SweepRow {
  std::string method;
  int64_t bits = 0, group_size = 0;  // 0: a scale per row
  double bits_per_weight = 0;        // that the linears take in the file
  Estimate kl, delta_nll;
  double perplexity = 0;
  double seconds = 0;  // of quantizing
};

struct SweepOptions {
  std::filesystem::path model, output;  // output: must not be there; gets sweep.json and sweep.svg
  // Symmetric integers.
  std::vector<int64_t> bits, group_sizes;
  std::vector<std::string> methods;  // that take a scheme: recipe.h
  std::vector<TokenIds> texts;       // calibration's; empty where no method needs some
  std::vector<TextWindow> windows;   // that all are judged on
  std::function<void(int64_t done, int64_t total)> progress;  // may be empty
};

// The recipes of a sweep, in the order of its rows: bits, groups, methods. Error: see parse_recipe().
std::vector<Recipe> sweep_recipes(const SweepOptions& options, DType checkpoint_dtype);

// In f32. Errors, before anything is written: a list without entries, `output` is there, see sweep_recipes() and assign_stages().
std::vector<SweepRow> sweep(const OpContext& ctx, const SweepOptions& options);

std::string sweep_json(std::span<const SweepRow> rows);
std::string sweep_picture(std::span<const SweepRow> rows);  // SVG

}  // namespace ladder
