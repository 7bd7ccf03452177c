#include "step1_layers/core/tensor.h"

#include <algorithm>
#include <cstring>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

std::array<int64_t, Shape::kMaxDims> contiguous_strides(const Shape& shape) {
  std::array<int64_t, Shape::kMaxDims> strides{};
  int64_t stride = 1;
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

// Calls fn(source offset, destination offset, count) for every run along the last dimension.
template <class Fn>
void for_each_row(const Tensor& source, const Tensor& destination, Fn&& fn) {
  const int ndim = source.ndim();
  if (source.numel() == 0) return;
  if (ndim == 0) return fn(int64_t{0}, int64_t{0}, int64_t{1});
  std::array<int64_t, Shape::kMaxDims> index{};
  const int64_t rows = source.numel() / source.dim(-1);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t from = 0, to = 0;
    for (int i = 0; i < ndim - 1; ++i) {
      from += index[i] * source.stride(i);
      to += index[i] * destination.stride(i);
    }
    fn(from, to, source.dim(-1));
    for (int i = ndim - 2; i >= 0 && ++index[i] == source.dim(i); --i) index[i] = 0;
  }
}

}  // namespace

// >>> task 1.1: shapes, strided views and checked access
Shape::Shape(std::span<const int64_t> dims) {
  LADDER_CHECK(dims.size() <= kMaxDims, "a tensor has at most {} dimensions, got {}", kMaxDims, dims.size());
  for (int64_t size : dims) {
    LADDER_CHECK(size >= 0, "a dimension cannot have the size {}", size);
    dims_[ndim_++] = size;
  }
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int i = 0; i < ndim_; ++i)
    LADDER_CHECK(!__builtin_mul_overflow(count, dims_[i], &count), "the shape {} has too many elements",
                 str());
  return count;
}

bool Shape::operator==(const Shape& other) const {
  return ndim_ == other.ndim_ && std::equal(dims_.begin(), dims_.begin() + ndim_, other.dims_.begin());
}

bool Tensor::is_contiguous() const {
  auto expected = contiguous_strides(shape_);
  for (int i = 0; i < ndim(); ++i)
    if (shape_[i] > 1 && strides_[i] != expected[i]) return false;
  return true;
}

Tensor Tensor::narrow(int dim, int64_t start, int64_t length) const {
  LADDER_CHECK(dim >= 0 && dim < ndim() && start >= 0 && length >= 0 && start <= shape_[dim] - length,
               "no {} elements from {} in dimension {} of {}", length, start, dim, str());
  Tensor result = *this;
  result.shape_[dim] = length;
  result.data_ = static_cast<char*>(data_) + start * strides_[dim] * dtype_size(dtype_);
  return result;
}

Tensor Tensor::select(int dim, int64_t index) const {
  Tensor narrowed = narrow(dim, index, 1);
  Tensor result = narrowed;
  Shape shape;
  std::array<int64_t, Shape::kMaxDims> dims{};
  int kept = 0;
  for (int i = 0; i < ndim(); ++i) {
    if (i == dim) continue;
    dims[kept] = shape_[i];
    result.strides_[kept++] = strides_[i];
  }
  result.shape_ = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(kept)));
  return result;
}

Tensor Tensor::view(const Shape& shape) const {
  LADDER_CHECK(is_contiguous(), "cannot view {} as {}: it is not contiguous", str(), shape.str());
  LADDER_CHECK(shape.numel() == numel(), "cannot view {} as {}: another number of elements", str(),
               shape.str());
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = contiguous_strides(shape);
  return result;
}

int64_t Tensor::checked_offset(std::initializer_list<int64_t> index) const {
  LADDER_CHECK(device_.is_cpu(), "{} is not on the CPU", str());
  LADDER_CHECK(static_cast<int>(index.size()) == ndim(), "{} indices into {}", index.size(), str());
  int64_t offset = 0;
  int i = 0;
  for (int64_t position : index) {
    LADDER_CHECK(position >= 0 && position < shape_[i], "index {} of dimension {} is outside {}", position, i,
                 str());
    offset += position * strides_[i++];
  }
  return offset;
}
// <<< task 1.1

std::string Shape::str() const {
  return fmt::format("[{}]", fmt::join(dims_.begin(), dims_.begin() + ndim_, ", "));
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  int64_t bytes = 0;
  LADDER_CHECK(!__builtin_mul_overflow(shape.numel(), dtype_size(dtype), &bytes), "{}{} is too large",
               dtype_name(dtype), shape.str());
  auto memory = device_allocate(device, bytes);
  void* data = memory.get();
  return wrap(data, shape, dtype, device, std::move(memory));
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  result.fill_bytes(0);
  return result;
}

Tensor Tensor::wrap(void* data, const Shape& shape, DType dtype, Device device, std::shared_ptr<void> owner) {
  Tensor result;
  result.data_ = data;
  result.owner_ = std::move(owner);
  result.shape_ = shape;
  result.strides_ = contiguous_strides(shape);
  result.dtype_ = dtype;
  result.device_ = device;
  return result;
}

Tensor Tensor::rebased(void* data, Device device, std::shared_ptr<void> owner) const {
  Tensor result = *this;
  result.data_ = data;
  result.device_ = device;
  result.owner_ = std::move(owner);
  return result;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return clone();
  Tensor result = empty(shape_, dtype);
  with_float_type(dtype_, "a conversion", [&](auto from_tag) {
    with_float_type(dtype, "a conversion", [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const From* source = data<From>();
      To* target = result.data<To>();
      for_each_row(*this, result, [&](int64_t from, int64_t to, int64_t count) {
        const int64_t step = stride(-1);
        for (int64_t i = 0; i < count; ++i) target[to + i] = To(static_cast<float>(source[from + i * step]));
      });
    });
  });
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape_, dtype_, device_);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(Device device, void* stream) const {
  Tensor result = empty(shape_, dtype_, device);
  result.copy_from(*this, stream);
  return result;
}

void Tensor::copy_from(const Tensor& source, void* stream) const {
  LADDER_CHECK(source.shape() == shape_ && source.dtype() == dtype_, "cannot copy {} into {}", source.str(),
               str());
  if (numel() == 0) return;  // such a tensor may have no memory
  const int64_t size = dtype_size(dtype_);
  if (!device_.is_cpu() || !source.device().is_cpu()) {
    if (is_contiguous() && source.is_contiguous())
      return device_copy(data_, device_, source.data_, source.device(), nbytes(), stream);
    LADDER_CHECK(ndim() == 2 && stride(1) == 1 && source.stride(1) == 1,
                 "a copy from {} to {} takes contiguous tensors, or rows of adjacent elements",
                 device_name(source.device()), device_name(device_));
    return device_copy_rows(data_, device_, stride(0) * size, source.data_, source.device(),
                            source.stride(0) * size, dim(1) * size, dim(0), stream);
  }
  const char* from_data = static_cast<const char*>(source.data_);
  char* to_data = static_cast<char*>(data_);
  if (is_contiguous() && source.is_contiguous()) {
    std::memcpy(to_data, from_data, static_cast<size_t>(nbytes()));
    return;
  }
  const int64_t from_step = ndim() ? source.stride(-1) : 1;
  const int64_t to_step = ndim() ? stride(-1) : 1;
  for_each_row(source, *this, [&](int64_t from, int64_t to, int64_t count) {
    if (from_step == 1 && to_step == 1) {
      std::memcpy(to_data + to * size, from_data + from * size, static_cast<size_t>(count * size));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(to_data + (to + i * to_step) * size, from_data + (from + i * from_step) * size,
                  static_cast<size_t>(size));
  });
}

void Tensor::fill_bytes(uint8_t value) const {
  LADDER_CHECK(is_contiguous(), "fill_bytes takes a contiguous tensor, got {}", str());
  device_fill(data_, device_, value, nbytes());
}

std::string Tensor::str() const {
  return fmt::format("{}{}", dtype_name(dtype_), shape_.str());
}

void Tensor::fail_dtype(DType wanted) const {
  fail("{} read as {}", str(), dtype_name(wanted));
}

void expect_dtype(const Tensor& tensor, DType dtype, std::string_view what) {
  LADDER_CHECK(tensor.dtype() == dtype, "{}: expected {}, got {}", what, dtype_name(dtype), tensor.str());
}

void expect_shape(const Tensor& tensor, std::initializer_list<int64_t> dims, std::string_view what) {
  bool equal = static_cast<int>(dims.size()) == tensor.ndim();
  int i = 0;
  for (int64_t size : dims) {
    if (!equal) break;
    equal = size == -1 || size == tensor.dim(i);
    ++i;
  }
  LADDER_CHECK(equal, "{}: expected shape [{}], got {}", what, fmt::join(dims, ", "), tensor.str());
}

}  // namespace ladder
