#pragma once
// Values to bytes and back, between processes of one program on one machine: fixed little-endian layouts, no types
// from the peer that are executed or constructed by name. Reading checks every length against what is left.
//
// A struct is described once, for both directions, by a function beside its own wire form:
//
//   LADDER_WIRE_FORM(Point) {
//     auto& [x, y] = value;     // names them all: a field that is added later does not compile without a place here
//     wire(x, y);
//   }
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "step1_layers/core/error.h"

namespace ladder {

static_assert(std::endian::native == std::endian::little);

// Numbers, flags and enumerations: their own bytes.
template <class T>
concept WirePlain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// T is Struct, or const Struct.
template <class T, class Struct>
concept WireForm = std::is_same_v<std::remove_const_t<T>, Struct>;

class WireWriter {
 public:
  explicit WireWriter(std::string& bytes) : bytes_(bytes) {}  // appends

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

 private:
  template <WirePlain T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    if constexpr (WirePlain<T>) {
      bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    } else {
      for (const T& one : list) put(one);
    }
  }
  template <WirePlain T, size_t N>
  void put(const std::array<T, N>& list) {
    bytes_.append(reinterpret_cast<const char*>(list.data()), sizeof list);
  }
  template <class Key, class T, class Compare>
  void put(const std::map<Key, T, Compare>& map) {
    put(static_cast<uint32_t>(map.size()));
    for (const auto& [key, value] : map) (*this)(key, value);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class... T>
  void put(const std::variant<std::monostate, T...>& value) {
    put(static_cast<uint8_t>(value.index()));
    std::visit(
        [this](const auto& one) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, std::monostate>) put(one);
        },
        value);
  }
  template <class T>
  requires(std::is_class_v<T>) void put(const T& value) { wire_fields(*this, value); }

  std::string& bytes_;
};

// Error: the bytes end before the value, or hold what no writer wrote.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  template <class T>
  T value() {
    T result{};
    get(result);
    return result;
  }
  bool at_end() const { return rest_.empty(); }
  void expect_end() const {
    LADDER_CHECK(at_end(), "message: {} bytes are left behind its end", rest_.size());
  }

 private:
  std::string_view take(size_t count) {
    LADDER_CHECK(count <= rest_.size(), "message: {} bytes expected at {} of {}", count, size_ - rest_.size(),
                 size_);
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  // Of a list whose entries take at least a byte each: what cannot be there is refused before memory is taken.
  uint32_t take_count() {
    const auto count = value<uint32_t>();
    LADDER_CHECK(count <= rest_.size(), "message: a list of {} entries expected in {} bytes", count,
                 rest_.size());
    return count;
  }
  template <WirePlain T>
  void get(T& value) {
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
  }
  void get(bool& value) {
    const auto byte = this->value<uint8_t>();
    LADDER_CHECK(byte <= 1, "message: a flag of {}", byte);
    value = byte == 1;
  }
  void get(std::string& text) { text = take(take_count()); }
  template <class T>
  void get(std::vector<T>& list) {
    const uint32_t count = take_count();
    if constexpr (WirePlain<T>) {
      const std::string_view bytes = take(count * sizeof(T));
      list.resize(count);
      if (count > 0) std::memcpy(list.data(), bytes.data(), bytes.size());
    } else {
      list.clear();
      for (uint32_t i = 0; i < count; ++i) get(list.emplace_back());
    }
  }
  template <WirePlain T, size_t N>
  void get(std::array<T, N>& list) {
    std::memcpy(list.data(), take(sizeof list).data(), sizeof list);
  }
  template <class Key, class T, class Compare>
  void get(std::map<Key, T, Compare>& map) {
    map.clear();
    for (uint32_t left = take_count(); left > 0; --left) {
      Key key{};
      get(key);
      get(map[key]);
    }
  }
  template <class T>
  void get(std::optional<T>& value) {
    value.reset();
    if (this->value<bool>()) get(value.emplace());
  }
  template <class... T>
  void get(std::variant<std::monostate, T...>& value) {
    const auto kind = this->value<uint8_t>();
    LADDER_CHECK(kind <= sizeof...(T), "message: kind {} of {}", kind, sizeof...(T));
    value = std::monostate();
    uint8_t index = 0;
    ((++index == kind ? get(value.template emplace<T>()) : void()), ...);
  }
  template <class T>
  requires(std::is_class_v<T>) void get(T& value) { wire_fields(*this, value); }

  std::string_view rest_;
  size_t size_;
};

// An enumeration's value is only known to be one if it is looked at.
template <class Enum>
void check_enum(Enum value, Enum last) {
  LADDER_CHECK(value <= last, "message: {} is no value of this field", static_cast<int64_t>(value));
}

#define LADDER_WIRE_FORM(Type)   \
  template <class Wire, class T> \
  requires WireForm<T, Type>     \
  void wire_fields(Wire& wire, T& value)

template <class T>
std::string to_bytes(const T& value) {
  std::string bytes;
  WireWriter{bytes}(value);
  return bytes;
}
// Error: the bytes are not just that.
template <class T>
T from_bytes(std::string_view bytes) {
  WireReader reader(bytes);
  T result = reader.value<T>();
  reader.expect_end();
  return result;
}

}  // namespace ladder
