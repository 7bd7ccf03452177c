#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"

#include <optional>

#include "step1_layers/core/error.h"
#include "step1_layers/core/packed.h"
#include "step1_layers/moe/local_experts.h"

namespace ladder {

namespace {

void check_sizes(const ExpertExchangeSizes& sizes, int ranks) {
  LADDER_CHECK(sizes.max_rows > 0 && sizes.hidden > 0 && sizes.top_k > 0,
               "expert_exchange: expected at least one row, value and expert of a token, found {}, {} and {}",
               sizes.max_rows, sizes.hidden, sizes.top_k);
  for (const int32_t rank : sizes.rank_of)
    LADDER_CHECK(rank >= 0 && rank < ranks, "expert_exchange: there is no rank {}, they are {}", rank, ranks);
  LADDER_CHECK(sizes.number_of.empty() || sizes.number_of.size() == sizes.rank_of.size(),
               "expert_exchange: expected a rank and a number for every expert, found {} and {}",
               sizes.rank_of.size(), sizes.number_of.size());
  // The dispatch has them in the 48 KiB of shared memory that a block gets unasked.
  LADDER_CHECK(sizes.rank_of.size() <= 4096 && sizes.max_rows <= 65536,
               "expert_exchange: expected at most 4096 experts and 65536 rows, found {} and {}",
               sizes.rank_of.size(), sizes.max_rows);
}

// What the kernels of all ranks take for granted: ranks that come with other sizes would wait for what nobody sends.
void expect_same_sizes(Communicator& host, const ExpertExchangeSizes& mine) {
  const std::vector<std::string> sizes =
      exchange_texts(host, fmt::format("{} rows of {} {}, {} of {} experts each", mine.max_rows, mine.hidden,
                                       dtype_name(mine.dtype), mine.top_k, mine.rank_of.size()));
  for (size_t rank = 1; rank < sizes.size(); ++rank)
    LADDER_CHECK(sizes[rank] == sizes[0], "expert_exchange: rank {} has {}, expected those of rank 0, {}",
                 rank, sizes[rank], sizes[0]);
}

void expect_like(const Tensor& tensor, std::initializer_list<int64_t> dims, DType dtype, Device device,
                 const char* what) {
  const std::string name = fmt::format("expert_exchange: {}", what);
  expect_shape(tensor, dims, name);
  expect_dtype(tensor, dtype, name);
  LADDER_CHECK(tensor.device() == device && tensor.is_contiguous(),
               "{}: expected a tensor on {} without gaps, found {} on {}", name, device_name(device),
               tensor.str(), device_name(tensor.device()));
}

void check_dispatched(const GpuExpertExchange& exchange, const DispatchedTokens& tokens, Device device) {
  const ExpertExchangeSizes& sizes = exchange.sizes();
  const int64_t rows = tokens.sent_to.dim(0), all = exchange.size() * rows;
  LADDER_CHECK(rows <= sizes.max_rows, "expert_exchange: {} rows a rank, made for {}", rows, sizes.max_rows);
  expect_like(tokens.x, {all, sizes.hidden}, sizes.dtype, device, "dispatched x");
  expect_like(tokens.expert_ids, {all, sizes.top_k}, DType::i32, device, "dispatched expert_ids");
  expect_like(tokens.weights, {all, sizes.top_k}, DType::f32, device, "dispatched weights");
  expect_like(tokens.sent_to, {rows}, DType::i32, device, "sent_to");
  expect_like(tokens.came_from, {rows}, DType::i32, device, "came_from");
}

}  // namespace

GpuExpertExchange::GpuExpertExchange(const OpContext& ctx, GpuCommunicator& group, Communicator& host,
                                     ExpertExchangeSizes sizes)
    : group_(group), sizes_(std::move(sizes)) {
  check_sizes(sizes_, size());
  expect_same_sizes(host, sizes_);
  LADDER_CHECK(group.peer_memory() != nullptr || nccl() != nullptr,
               "expert_exchange: the GPUs of {} ranks cannot talk: {}; {}", size(), group.without_nccl(),
               group.without_peers());
  const int64_t experts = std::ssize(sizes_.rank_of), row_bytes = sizes_.hidden * dtype_size(sizes_.dtype);
  std::vector<int32_t> owners, local;
  for (size_t e = 0; e < sizes_.rank_of.size(); ++e) {
    const int32_t number = sizes_.number_of.empty() ? static_cast<int32_t>(e) : sizes_.number_of[e];
    owners.insert(owners.end(), {sizes_.rank_of[e], number});
    local.push_back(sizes_.rank_of[e] == rank() ? number : -1);
  }
  if (experts > 0) {
    experts_ = Tensor::from<int32_t>(owners, {experts, 2}).to(ctx.device);
    local_numbers_ = Tensor::from<int32_t>(local, {experts}).to(ctx.device);
  }
  if (group.peer_memory() != nullptr && row_bytes % 16 == 0) {
    peers_.layout = expert_layout(size(), sizes_.max_rows, sizes_.top_k, row_bytes);
    peer_memory_ = std::make_unique<PeerMemory>(
        ctx.device.index, host, PeerBytes{ExpertLayout::kNotes, peers_.layout.total}, group.peer_memory());
    static_cast<PeerView&>(peers_) = peer_memory_->view();
  }
  // A kernel's first call loads it: here, where no rank is ahead by more than a call (GpuCommunicator).
  Arena arena(ctx.device);
  const DispatchedTokens one = take(arena, 1);
  const Tensor x = Tensor::zeros({1, sizes_.hidden}, sizes_.dtype, ctx.device), out = x.clone(),
               ids = Tensor::zeros({1, sizes_.top_k}, DType::i32, ctx.device),
               weights = Tensor::zeros({1, sizes_.top_k}, DType::f32, ctx.device);
  for (const GpuExchangeRung& rung : gpu_exchange_rungs())
    if (rung.supports(*this)) {
      rung.dispatch(ctx, {this, x, ids, weights, one});
      rung.combine(ctx, {this, one.x, one, out});
      device_synchronize(ctx.device, ctx.stream);
    }
  host.barrier({});
}

DispatchedTokens GpuExpertExchange::take(Arena& arena, int64_t rows) const {
  return {.x = arena.take({size() * rows, sizes_.hidden}, sizes_.dtype),
          .expert_ids = arena.take({size() * rows, sizes_.top_k}, DType::i32),
          .weights = arena.take({size() * rows, sizes_.top_k}, DType::f32),
          .sent_to = arena.take({rows}, DType::i32),
          .came_from = arena.take({rows}, DType::i32)};
}

void check_dispatch(const OpContext& ctx, const ExpertDispatchArgs& args) {
  const ExpertExchangeSizes& sizes = args.exchange->sizes();
  const int64_t tokens = args.x.dim(0);
  check_dispatched(*args.exchange, args.to, ctx.device);
  LADDER_CHECK(tokens <= args.to.sent_to.dim(0), "expert_exchange: {} tokens, and {} rows for them", tokens,
               args.to.sent_to.dim(0));
  expect_like(args.x, {tokens, sizes.hidden}, sizes.dtype, ctx.device, "x");
  expect_like(args.expert_ids, {tokens, sizes.top_k}, DType::i32, ctx.device, "expert_ids");
  expect_like(args.weights, {tokens, sizes.top_k}, DType::f32, ctx.device, "weights");
}

void check_combine(const OpContext& ctx, const ExpertCombineArgs& args) {
  check_dispatched(*args.exchange, args.from, ctx.device);
  const ExpertExchangeSizes& sizes = args.exchange->sizes();
  expect_like(args.parts, {args.from.x.dim(0), sizes.hidden}, sizes.dtype, ctx.device, "parts");
  LADDER_CHECK(args.out.dim(0) <= args.from.sent_to.dim(0), "expert_exchange: {} tokens, and {} rows of them",
               args.out.dim(0), args.from.sent_to.dim(0));
  expect_like(args.out, {-1, sizes.hidden}, sizes.dtype, ctx.device, "out");
}

namespace {

// nccl
// Any shape. Every token to every rank, in three gathers that NCCL makes one launch of, and out of the ids what is elsewhere;
// parts that are nothing are zeros and are added with the others.

bool has_nccl(const GpuExpertExchange& exchange) {
  return exchange.nccl() != nullptr;
}

void dispatch_nccl(const OpContext& ctx, const ExpertDispatchArgs& args) {
  check_dispatch(ctx, args);
  const int64_t tokens = args.x.dim(0), rows = args.to.sent_to.dim(0);
  if (rows == 0) return;
  const auto filled_up = [&](const Tensor& values, uint8_t fill) {
    if (tokens == rows) return values;
    const Tensor padded = ctx.arena->take({rows, values.dim(1)}, values.dtype());
    device_fill(padded.raw(), ctx.device, fill, padded.nbytes(), ctx.stream);
    if (tokens > 0) padded.rows(tokens).copy_from(values, ctx.stream);
    return padded;
  };
  std::optional<ArenaScope> scope;
  if (tokens < rows) scope.emplace(*ctx.arena);
  const Tensor x = filled_up(args.x, 0), ids = filled_up(args.expert_ids, 0xff),
               weights = filled_up(args.weights, 0);
  NcclCommunicator& nccl = *args.exchange->nccl();
  nccl.together([&] {
    nccl.all_gather(ctx, x, args.to.x);
    nccl.all_gather(ctx, ids, args.to.expert_ids);
    nccl.all_gather(ctx, weights, args.to.weights);
  });
  if (args.exchange->local_numbers().defined())
    find_local_experts(ctx, args.to.expert_ids, args.exchange->local_numbers());
}

void combine_nccl(const OpContext& ctx, const ExpertCombineArgs& args) {
  check_combine(ctx, args);
  const int64_t tokens = args.out.dim(0), rows = args.from.sent_to.dim(0);
  if (tokens == rows) return args.exchange->nccl()->reduce_scatter(ctx, args.parts, args.out);
  ArenaScope scope(*ctx.arena);
  const Tensor sums = ctx.arena->take({rows, args.out.dim(1)}, args.out.dtype());
  args.exchange->nccl()->reduce_scatter(ctx, args.parts, sums);
  if (tokens > 0) args.out.copy_from(sums.rows(tokens), ctx.stream);
}

void expect_packed(const Tensor& tensor, const char* what) {
  LADDER_CHECK(tensor.dim(0) == 0 || is_packed(tensor),
               "expert_exchange: {}: expected rows that begin at multiples of 16 bytes, found {}", what,
               tensor.str());
}

void dispatch_peer(const OpContext& ctx, const ExpertDispatchArgs& args) {
  check_dispatch(ctx, args);
  expect_packed(args.x, "x");
  expect_packed(args.to.x, "dispatched x");
  dispatch_push(ctx, args);
}

void combine_peer(const OpContext& ctx, const ExpertCombineArgs& args) {
  check_combine(ctx, args);
  expect_packed(args.parts, "parts");
  expect_packed(args.out, "out");
  combine_push(ctx, args);
}

constexpr GpuExchangeRung kRungs[] = {
    {.name = "nccl", .supports = has_nccl, .dispatch = dispatch_nccl, .combine = combine_nccl},
    {.name = "peer", .supports = fits_expert_peers, .dispatch = dispatch_peer, .combine = combine_peer},
};

void exchange(const OpContext& ctx, const ExpertExchangeArgs& args, const GpuExchangeRung& rung) {
  ArenaScope scope(*ctx.arena);
  const DispatchedTokens tokens = args.gpu->take(*ctx.arena, args.rows);
  const Tensor parts = ctx.arena->take(tokens.x.shape(), tokens.x.dtype());
  rung.dispatch(ctx, {args.gpu, args.x, args.expert_ids, args.weights, tokens});
  args.compute(ctx, tokens.x, tokens.expert_ids, tokens.weights, parts);
  rung.combine(ctx, {args.gpu, parts, tokens, args.out});
}

}  // namespace

std::span<const GpuExchangeRung> gpu_exchange_rungs() {
  return kRungs;
}

bool fits_expert_peers(const GpuExpertExchange& exchange) {
  return exchange.peers() != nullptr;
}

bool exchange_takes_nccl(const ExpertExchangeArgs& args) {
  return args.gpu != nullptr && has_nccl(*args.gpu);
}
bool exchange_takes_peer(const ExpertExchangeArgs& args) {
  return args.gpu != nullptr && fits_expert_peers(*args.gpu);
}
void expert_exchange_nccl(const OpContext& ctx, const ExpertExchangeArgs& args) {
  exchange(ctx, args, kRungs[0]);
}
void expert_exchange_peer(const OpContext& ctx, const ExpertExchangeArgs& args) {
  exchange(ctx, args, kRungs[1]);
}

}  // namespace ladder
