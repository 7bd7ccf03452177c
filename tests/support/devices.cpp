#include "tests/support/devices.h"

#include <cstdio>
#include <cstring>

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder::testing {

namespace {

constexpr int64_t kGuard = 256;
constexpr char kGuardByte = 0x5a;

// Calls fn(offset of an element in bytes) for every element of a window.
template <class Fn>
void for_each_element(const Tensor& tensor, Fn&& fn, int dim = 0, int64_t offset = 0) {
  if (dim == tensor.ndim()) {
    fn(offset * dtype_size(tensor.dtype()));
    return;
  }
  for (int64_t i = 0; i < tensor.dim(dim); ++i)
    for_each_element(tensor, fn, dim + 1, offset + i * tensor.stride(dim));
}

bool same_window(const Tensor& a, const Tensor& b) {
  if (a.raw() != b.raw() || a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  for (int i = 0; i < a.ndim(); ++i)
    if (a.stride(i) != b.stride(i)) return false;
  return true;
}

}  // namespace

const OpContext* cuda_context() {
#ifdef LADDER_HAS_CUDA
  struct Gpu {
    CudaContext cuda{0};
    Arena arena{{DeviceType::cuda, 0}};
    OpContext ctx = cuda.op_context();
  };
  // Never freed: at exit the driver may be gone before static objects are.
  static Gpu* gpu = [] {
    if (cuda_device_count() == 0) return static_cast<Gpu*>(nullptr);
    auto* made = new Gpu;
    made->ctx.arena = &made->arena;
    return made;
  }();
  return gpu ? &gpu->ctx : nullptr;
#else
  return nullptr;
#endif
}

bool emulated() {
#ifdef LADDER_EMULATED
  return true;
#else
  return false;
#endif
}

void note_left_out() {
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  static const ::testing::TestInfo* last = nullptr;
  if (test == last || test == nullptr) return;
  last = test;
  std::string reason;
  cuda_device_count(&reason);
  std::printf("[ CPU ONLY ] %s.%s: no CUDA rung was run: %s\n", test->test_suite_name(), test->name(),
              reason.c_str());
}

std::map<const void*, GpuCalls>& gpu_calls() {
  static std::map<const void*, GpuCalls> calls;
  return calls;
}

Tensor Mirror::operator()(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.numel() == 0) return Tensor::empty(tensor.shape(), tensor.dtype(), ctx_.device);
  for (const Entry& entry : entries_)
    if (same_window(entry.host, tensor)) return entry.device;
  int64_t last = 0;
  for (int i = 0; i < tensor.ndim(); ++i) last += (tensor.dim(i) - 1) * tensor.stride(i);
  const int64_t bytes = (last + 1) * dtype_size(tensor.dtype());
  Entry entry;
  entry.host = tensor;
  entry.offset = kGuard + static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.raw()) % 64);
  entry.uploaded.assign(static_cast<size_t>(entry.offset + bytes + kGuard), kGuardByte);
  std::memcpy(entry.uploaded.data() + entry.offset, tensor.raw(), static_cast<size_t>(bytes));
  const auto total = static_cast<int64_t>(entry.uploaded.size());
  std::shared_ptr<void> memory = device_allocate(ctx_.device, total);
  entry.memory = memory.get();
  device_copy(entry.memory, ctx_.device, entry.uploaded.data(), {}, total, ctx_.stream);
  entry.device = tensor.rebased(static_cast<char*>(entry.memory) + entry.offset, ctx_.device, memory);
  entries_.push_back(std::move(entry));
  return entries_.back().device;
}

void Mirror::copy_back() {
  device_synchronize(ctx_.device, ctx_.stream);
  for (Entry& entry : entries_) {
    std::vector<char> result(entry.uploaded.size());
    device_copy(result.data(), {}, entry.memory, ctx_.device, static_cast<int64_t>(result.size()),
                ctx_.stream);
    device_synchronize(ctx_.device, ctx_.stream);
    const auto size = static_cast<size_t>(dtype_size(entry.host.dtype()));
    for_each_element(entry.host, [&](int64_t offset) {
      char* from = result.data() + entry.offset + offset;
      std::memcpy(static_cast<char*>(entry.host.raw()) + offset, from, size);
      std::memcpy(from, entry.uploaded.data() + entry.offset + offset, size);
    });
    EXPECT_TRUE(result == entry.uploaded) << "memory outside of " << entry.host.str() << " was written";
  }
}

}  // namespace ladder::testing
