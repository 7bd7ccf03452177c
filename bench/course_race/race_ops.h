#pragma once
// What is raced: an operator with a fixed size, its tensors side by side in shared memory. Judge and worker are compiled
// from this same description.
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"

namespace ladder::course {

using Tensors = std::vector<Tensor>;
using Random = std::mt19937_64;

struct Piece {
  enum class Use : uint8_t { input, output, both };  // both: updated in place
  Use use = Use::input;
  Shape shape;
  DType dtype = DType::f32;
};

struct RaceOp {
  std::string name;
  std::vector<Piece> pieces;
  double bytes = 0;  // that must at least be read and written, once each
  double flops = 0;  // of products and sums that no way of computing it avoids; 0: not counted
  std::function<void(Random&, const Tensors&)> fill;  // all that is read: a new problem
  // Error (ladder::Error): there is no such rung, or it cannot run here.
  std::function<void(const OpContext&, std::string_view rung, const Tensors&)> run;
};

// Enough work for one core, for a whole GPU, or for a checker under which everything takes a thousand times as long.
enum class Size : uint8_t { core, gpu, small };
const RaceOp* find_race_op(std::string_view name, Size size);  // null: none
std::vector<std::string> race_op_names(Size size);

// "simd" is the widest instruction set of this machine: "avx512", "avx2" or "portable"; any other name is itself. Rungs on a
// GPU are called as their tests are: "cuda_tiled".
std::string rung_here(std::string_view rung);
bool on_gpu(std::string_view rung);

// Where the pieces lie, from `memory` on, 4096 bytes apart at least; a guard of as many bytes follows each.
Tensors pieces_in(const RaceOp& op, void* memory);
int64_t bytes_of(const RaceOp& op);

}  // namespace ladder::course
