#pragma once
// Task 1.1: tensors.
//
// A Tensor is a typed, strided window onto a block of memory. Copying a Tensor copies the window, not the
// elements: views share storage and keep it alive. Memory is 64-byte aligned (one cache line, one AVX-512
// register). Sizes, strides and offsets are 64-bit and counted in elements. Device memory comes through the
// same class (device.h).
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "step1_layers/core/device.h"
#include "step1_layers/core/dtype.h"

namespace ladder {

// Up to six dimensions, held inline: a tensor is made on every operator call, so it must not allocate for its
// shape.
class Shape {
 public:
  static constexpr int kMaxDims = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);  // Error: more than kMaxDims, or a negative size

  int ndim() const { return ndim_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t& operator[](int i) { return dims_[i]; }
  int64_t numel() const;  // 1 for no dimensions. Error: the product does not fit 63 bits
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(ndim_)}; }
  std::string str() const;  // "[2, 3]"
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false

  // New memory, uninitialised. Error: negative size, overflow, out of memory (says how much).
  static Tensor empty(const Shape& shape, DType dtype, Device device = {});
  static Tensor zeros(const Shape& shape, DType dtype, Device device = {});
  // A window onto memory that is not its own; `owner`, if given, is kept alive with the tensor.
  static Tensor wrap(void* data, const Shape& shape, DType dtype, Device device = {},
                     std::shared_ptr<void> owner = nullptr);
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);  // a copy, on the CPU

  bool defined() const { return data_ != nullptr || shape_.ndim() > 0; }
  const Shape& shape() const { return shape_; }
  int ndim() const { return shape_.ndim(); }
  int64_t dim(int i) const { return shape_[i < 0 ? i + ndim() : i]; }
  int64_t stride(int i) const { return strides_[i < 0 ? i + ndim() : i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t nbytes() const { return numel() * dtype_size(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool is_contiguous() const;

  void* raw() const { return data_; }
  template <class T>
  T* data() const {  // Error: T is not the dtype
    if (dtype_of<T> != dtype_) [[unlikely]]
      fail_dtype(dtype_of<T>);
    return static_cast<T*>(data_);
  }
  // One element, bounds checked, CPU only: for tests and for reading a result, not for loops.
  template <class T>
  T& at(std::initializer_list<int64_t> index) const {
    return data<T>()[checked_offset(index)];
  }

  // Views. Error: out of range, or (view) not contiguous or another number of elements.
  Tensor narrow(int dim, int64_t start,
                int64_t length) const;          // elements [start, start + length) of one dimension
  Tensor select(int dim, int64_t index) const;  // one index; the dimension disappears
  Tensor view(const Shape& shape) const;        // the same elements under another shape
  // The same window onto memory that is not its own, its first element at `data`.
  Tensor rebased(void* data, Device device, std::shared_ptr<void> owner = nullptr) const;
  Tensor rows(int64_t count) const { return narrow(0, 0, count); }

  Tensor to(DType dtype) const;  // a contiguous copy, converted through float; CPU, f32/bf16/f16
  // A contiguous copy on another device (or the same), ordered on `stream`; nullptr: done when the call
  // returns.
  Tensor to(Device device, void* stream = nullptr) const;
  Tensor clone() const;  // a contiguous copy on the same device
  // Same shape and dtype. Any strides on the CPU; where a GPU takes part contiguous on both sides, or two-dimensional
  // with adjacent elements in a row.
  void copy_from(const Tensor& source, void* stream = nullptr) const;
  void fill_bytes(uint8_t value) const;  // contiguous; 0xff makes NaN of every floating dtype

  std::string str() const;  // "bf16[2, 3]", for messages

 private:
  [[noreturn]] void fail_dtype(DType wanted) const;
  int64_t checked_offset(std::initializer_list<int64_t> index) const;

  void* data_ = nullptr;
  std::shared_ptr<void> owner_;
  Shape shape_;
  std::array<int64_t, Shape::kMaxDims> strides_{};
  DType dtype_ = DType::f32;
  Device device_;
};

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  Tensor result = empty(shape, dtype_of<T>);
  result.copy_from(wrap(const_cast<T*>(values.data()), shape, dtype_of<T>));
  return result;
}

// Error naming `what` unless the tensor has this dtype, or this shape (-1 matches any size).
void expect_dtype(const Tensor& tensor, DType dtype, std::string_view what);
void expect_shape(const Tensor& tensor, std::initializer_list<int64_t> dims, std::string_view what);

}  // namespace ladder
