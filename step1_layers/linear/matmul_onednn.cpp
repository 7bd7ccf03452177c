// oneDNN's matrix product, on the plain layouts.
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <list>

#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul_rungs.h"

namespace ladder {

namespace {

// Below this many rows the product is bound by reading the weight, and the own rungs read it faster.
constexpr int64_t kMinRows = 16;

dnnl::memory::data_type onednn_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    default:
      return dnnl::memory::data_type::undef;
  }
}

// What a primitive is made for.
using Key = std::array<int64_t, 9>;

struct Primitive {
  Key key;
  dnnl::matmul::primitive_desc descriptor;
  dnnl::matmul matmul;
};

dnnl::engine& engine() {
  static thread_local dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// Making a primitive costs far more than finding one, so each thread keeps those it used last.
Primitive& primitive_for(const MatmulArgs& args) {
  constexpr size_t kKept = 128;
  static thread_local std::list<Primitive> kept;
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.weight.dim(0);
  const Key key = {m,
                   n,
                   k,
                   args.x.stride(0),
                   args.weight.stride(0),
                   args.out.stride(0),
                   static_cast<int64_t>(args.x.dtype()),
                   static_cast<int64_t>(args.out.dtype()),
                   args.bias.defined()};
  auto found = std::find_if(kept.begin(), kept.end(), [&](const Primitive& p) { return p.key == key; });
  if (found != kept.end()) {
    kept.splice(kept.begin(), kept, found);
    return kept.front();
  }
  const auto type = onednn_type(args.x.dtype());
  const dnnl::memory::desc x({m, k}, type, dnnl::memory::dims{args.x.stride(0), 1});
  const dnnl::memory::desc weight({k, n}, type, dnnl::memory::dims{1, args.weight.stride(0)});
  const dnnl::memory::desc out({m, n}, onednn_type(args.out.dtype()),
                               dnnl::memory::dims{args.out.stride(0), 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::desc operation =
      args.bias.defined()
          ? dnnl::matmul::desc(x, weight, dnnl::memory::desc({1, n}, type, dnnl::memory::dims{n, 1}), out)
          : dnnl::matmul::desc(x, weight, out);
  const dnnl::matmul::primitive_desc descriptor(operation, attributes, engine());
  kept.push_front({key, descriptor, dnnl::matmul(descriptor)});
  if (kept.size() > kKept) kept.pop_back();
  return kept.front();
}

}  // namespace

bool matmul_onednn_supports(const MatmulArgs& args) {
  if (args.x.dim(0) < kMinRows || args.weight.dim(0) == 0 || args.x.dim(1) == 0) return false;
  if (args.x.dtype() == DType::f32) return true;
  // It refuses bf16 on processors without AVX-512.
  return args.x.dtype() == DType::bf16 && cpu_isa() >= CpuIsa::avx512;
}

bool matmul_onednn_takes_amx(const MatmulArgs& args) {
  if (args.x.dtype() != DType::bf16 || !matmul_onednn_supports(args)) return false;
  // The processor has it; the library also asks whether the system lets it be used. Its sets are bit masks,
  // those of later processors with more bits.
  const auto required = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & required) == required;
}

int64_t matmul_onednn_workspace(const MatmulArgs& args) {
  return static_cast<int64_t>(primitive_for(args).descriptor.scratchpad_desc().get_size());
}

void matmul_onednn(const OpContext& ctx, const MatmulArgs& args) {
  try {
    Primitive& primitive = primitive_for(args);
    const auto& descriptor = primitive.descriptor;
    Arena own;  // for callers that bring no scratch memory
    Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
    ArenaScope scope(arena);
    Tensor scratch = arena.take({static_cast<int64_t>(descriptor.scratchpad_desc().get_size())}, DType::u8);
    std::unordered_map<int, dnnl::memory> memories = {
        {DNNL_ARG_SRC, {descriptor.src_desc(), engine(), args.x.raw()}},
        {DNNL_ARG_WEIGHTS, {descriptor.weights_desc(), engine(), args.weight.raw()}},
        {DNNL_ARG_DST, {descriptor.dst_desc(), engine(), args.out.raw()}},
        {DNNL_ARG_SCRATCHPAD, {descriptor.scratchpad_desc(), engine(), scratch.raw()}},
    };
    if (args.bias.defined())
      memories[DNNL_ARG_BIAS] = {descriptor.query_md(dnnl::query::weights_md, 1), engine(), args.bias.raw()};
    dnnl::stream stream(engine());
    primitive.matmul.execute(stream, memories);
    stream.wait();
  } catch (const dnnl::error& error) {
    fail("oneDNN refuses {} times {}: {}", args.x.str(), args.weight.str(), error.what());
  }
}

}  // namespace ladder
