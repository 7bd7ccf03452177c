#include "tests/step7_parallel/context_problem.h"

#include <chrono>
#include <cmath>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"

namespace ladder::testing {

ContextProblem::ContextProblem(Random& random, int ranks, const std::vector<ContextPart>& parts,
                               int64_t kv_heads, int64_t heads, int64_t dim, DType dtype)
    : ranks_(ranks), scale_(1 / std::sqrt(static_cast<double>(dim))), parts_(parts) {
  if (kv_heads == 0) {
    kv_heads = random.integer(1, 2);
    heads = kv_heads * random.integer(1, 3);
  }
  for (const ContextPart& part : parts) {
    q_.push_back(random.normal({part.length, heads, dim}, dtype));
    k_.push_back(random.normal({part.cached + part.length, kv_heads, dim}, dtype));
    v_.push_back(random.normal({part.cached + part.length, kv_heads, dim}, dtype));
    std::vector<int>& holder = holder_.emplace_back();
    for (int64_t i = 0; i < part.cached; ++i)
      holder.push_back(static_cast<int>(random.integer(0, ranks - 1)));
  }
}

ContextAttentionArgs ContextProblem::args_of(int rank) const {
  ContextAttentionArgs args;
  for (size_t i = 0; i < parts_.size(); ++i) {
    ContextPrompt& prompt = args.prompts.emplace_back(ContextPrompt{.length = parts_[i].length});
    if (parts_[i].cached > 0) prompt.cached.resize(static_cast<size_t>(ranks_));
    for (const int holder : holder_[i]) ++prompt.cached[static_cast<size_t>(holder)];
  }
  const int64_t rows = context_rows(args.prompts, ranks_, rank),
                keys = context_keys(args.prompts, ranks_, rank);
  const DType dtype = q_[0].dtype();
  args.q = Tensor::empty({rows, q_[0].dim(1), q_[0].dim(2)}, dtype);
  args.k = Tensor::empty({keys, k_[0].dim(1), q_[0].dim(2)}, dtype);
  args.v = Tensor::empty(args.k.shape(), dtype);
  int64_t row = 0, key = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t cached = parts_[i].cached;
    auto take_key = [&](int64_t p) {
      args.k.select(0, key).copy_from(k_[i].select(0, p));
      args.v.select(0, key++).copy_from(v_[i].select(0, p));
    };
    for (int64_t p = 0; p < cached; ++p)
      if (holder_[i][static_cast<size_t>(p)] == rank) take_key(p);
    const ZigzagShare share = zigzag_share(parts_[i].length, ranks_, rank);
    for (const TokenSpan& span : {share.early, share.late})
      for (int64_t p = span.begin; p < span.end; ++p) {
        args.q.select(0, row++).copy_from(q_[i].select(0, p));
        take_key(cached + p);
      }
  }
  args.scale = scale_;
  args.out = poisoned(args.q.shape(), dtype);
  return args;
}

void ContextProblem::put_back(int rank, const Tensor& rows, const std::vector<Tensor>& outs) const {
  int64_t row = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const ZigzagShare share = zigzag_share(parts_[i].length, ranks_, rank);
    for (const TokenSpan& span : {share.early, share.late})
      for (int64_t p = span.begin; p < span.end; ++p) outs[i].select(0, p).copy_from(rows.select(0, row++));
  }
}

void ContextProblem::run(const Method& method, int rank, Communicator& group) const {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  run_on(ctx, method, rank, group);
}

void ContextProblem::run_on(const OpContext& ctx, const Method& method, int rank, Communicator& group) const {
  ContextAttentionArgs args = args_of(rank);
  args.group = &group;
  for (Tensor* tensor : {&args.q, &args.k, &args.v, &args.out})
    if (!ctx.device.is_cpu()) *tensor = tensor->to(ctx.device);
  method(ctx, args);
  device_synchronize(ctx.device, ctx.stream);
  if (!ctx.device.is_cpu()) args.out = args.out.to(Device{});
  int64_t row = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::vector<double>& expected = on_one_rank(i);
    const ZigzagShare share = zigzag_share(parts_[i].length, ranks_, rank);
    for (const TokenSpan& span : {share.early, share.late})
      for (int64_t p = span.begin; p < span.end; ++p) {
        const int64_t row_size = q_[i].dim(1) * q_[i].dim(2);
        const auto first = expected.begin() + p * row_size;
        const auto close = close_to(args.out.select(0, row++), std::vector<double>(first, first + row_size));
        LADDER_CHECK(close, "position {} of prompt {}: {}", p, i, close.message());
      }
  }
}

std::vector<Tensor> ContextProblem::over_threads(const Method& method) const {
  std::vector<Tensor> outs;
  for (const Tensor& q : q_) outs.push_back(poisoned(q.shape(), q.dtype()));
  run_ranks(
      ranks_,
      [&](int rank, const ParallelContext& parallel) {
        Arena arena;
        OpContext ctx;
        ctx.arena = &arena;
        ContextAttentionArgs args = args_of(rank);
        args.group = parallel.tp;
        method(ctx, args);
        put_back(rank, args.out, outs);
      },
      std::chrono::seconds(60));
  return outs;
}

::testing::AssertionResult ContextProblem::is_solved_by(const Method& method) const {
  const std::vector<Tensor> outs = over_threads(method);
  for (size_t i = 0; i < outs.size(); ++i)
    if (auto close = close_to(outs[i], on_one_rank(i)); !close) return close << ", prompt " << i;
  return ::testing::AssertionSuccess();
}

const std::vector<double>& ContextProblem::on_one_rank(size_t prompt) const {
  std::call_once(computes_, [&] {
    for (size_t i = 0; i < q_.size(); ++i) expected_.push_back(computed(i));
  });
  return expected_[prompt];
}

std::vector<double> ContextProblem::computed(size_t prompt) const {
  const auto q = to_double(q_[prompt]), k = to_double(k_[prompt]), v = to_double(v_[prompt]);
  const int64_t rows = q_[prompt].dim(0), heads = q_[prompt].dim(1), dim = q_[prompt].dim(2),
                kv_heads = k_[prompt].dim(1), group = heads / kv_heads, cached = parts_[prompt].cached;
  std::vector<double> out(q.size(), 0.0);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      double sum = 0;
      double* o = out.data() + (row * heads + head) * dim;
      const double* query = q.data() + (row * heads + head) * dim;
      for (int64_t j = 0; j <= cached + row; ++j) {
        const int64_t key = (j * kv_heads + head / group) * dim;
        double score = 0;
        for (int64_t i = 0; i < dim; ++i) score += query[i] * k[static_cast<size_t>(key + i)];
        const double weight = std::exp(score * scale_);
        sum += weight;
        for (int64_t i = 0; i < dim; ++i) o[i] += weight * v[static_cast<size_t>(key + i)];
      }
      for (int64_t i = 0; i < dim; ++i) o[i] /= sum;
    }
  return out;
}

std::string ContextProblem::str() const {
  std::string text = std::to_string(ranks_) + " ranks, " + std::to_string(q_[0].dim(1)) + " heads, of keys " +
                     std::to_string(k_[0].dim(1));
  for (const ContextPart& part : parts_)
    text += ", " + std::to_string(part.length) + " tokens after " + std::to_string(part.cached);
  return text;
}

}  // namespace ladder::testing
