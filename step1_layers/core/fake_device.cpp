#include "step1_layers/core/fake_device.h"

#include <cstring>
#include <utility>

namespace ladder {

namespace {

void launch_or_run(void* stream, std::string_view name, int64_t bytes, std::function<void()> work) {
  if (stream == nullptr)
    work();
  else
    static_cast<FakeStream*>(stream)->launch({std::string(name), bytes, std::move(work)});
}

}  // namespace

void fake_launch(const OpContext& ctx, std::string_view name, std::function<void(const OpContext&)> work) {
  OpContext on_cpu = ctx;
  on_cpu.device = {};
  on_cpu.stream = nullptr;
  launch_or_run(ctx.stream, name, 0, [on_cpu, work = std::move(work)]() mutable {
    Arena scratch;
    on_cpu.arena = &scratch;
    work(on_cpu);
  });
}

void fake_copy(void* to, Device to_device, const void* from, Device from_device, int64_t bytes,
               void* stream) {
  const std::string_view name = from_device.is_cpu() ? FakeStream::kFromHost
                                : to_device.is_cpu() ? FakeStream::kToHost
                                                     : FakeStream::kCopy;
  launch_or_run(stream, name, bytes, [=] {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  });
}

void fake_fill(void* memory, uint8_t value, int64_t bytes, void* stream) {
  launch_or_run(stream, "fill", bytes, [=] {
    if (bytes > 0) std::memset(memory, value, static_cast<size_t>(bytes));
  });
}

}  // namespace ladder
