#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/safetensors.h"

namespace ladder {
namespace {

using Json = nlohmann::json;

std::optional<DType> dtype_from_name(std::string_view name) {
  constexpr std::pair<std::string_view, DType> names[] = {
      {"F64", DType::f64}, {"F32", DType::f32},        {"F16", DType::f16}, {"BF16", DType::bf16},
      {"I64", DType::i64}, {"I32", DType::i32},        {"I8", DType::i8},   {"U8", DType::u8},
      {"BOOL", DType::u8}, {"F8_E4M3", DType::f8_e4m3}};
  for (const auto& [known, dtype] : names)
    if (known == name) return dtype;
  return std::nullopt;
}

// The header has one shape: an object of objects whose members are a string or an array of integers. So its
// events are read by a small state machine; a tree of a 100 MB header is never built, and what nests deeper
// ends the parse at once.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::string_view what, std::vector<SafetensorsInfo>& tensors)
      : what_(what), tensors_(tensors) {}

  bool start_object(std::size_t) override {
    if (depth_ == 0 || (depth_ == 1 && !in_array_)) {
      ++depth_;
      return true;
    }
    unexpected("an object");
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      LADDER_CHECK(names_.insert(name).second, "{}: the tensor {} occurs twice", what_, printable(name));
      in_metadata_ = name == "__metadata__";
      if (!in_metadata_) {
        tensors_.emplace_back().name = name;
        has_dtype_ = has_shape_ = has_offsets_ = false;
      }
      return true;
    }
    if (in_metadata_) {
      LADDER_CHECK(metadata_keys_.insert(name).second, "{}: the __metadata__ key {} occurs twice", what_,
                   printable(name));
      return true;
    }
    field_ = name == "dtype"          ? Field::dtype
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::offsets
                                      : Field::none;
    LADDER_CHECK(field_ != Field::none, "{}: tensor {} has the unknown field {}", what_, printable(current()),
                 printable(name));
    bool& seen = field_ == Field::dtype ? has_dtype_ : field_ == Field::shape ? has_shape_ : has_offsets_;
    LADDER_CHECK(!seen, "{}: tensor {} has the field {} twice", what_, printable(current()), name);
    seen = true;
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != Field::dtype) unexpected("a string");
    const auto dtype = dtype_from_name(value);
    LADDER_CHECK(dtype.has_value(),
                 "{}: tensor {} has the unknown dtype {}; known are F64, F32, F16, BF16, F8_E4M3, I64, I32, "
                 "I8, U8 and BOOL",
                 what_, printable(current()), printable(value));
    tensors_.back().dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == Field::dtype) unexpected("an array");
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) unexpected("a number");
    LADDER_CHECK(value <= static_cast<uint64_t>(INT64_MAX), "{}: tensor {}: the number {} is too large",
                 what_, printable(current()), value);
    LADDER_CHECK(numbers_.size() < Shape::kMaxDims, "{}: tensor {} has more than {} dimensions", what_,
                 printable(current()), static_cast<int>(Shape::kMaxDims));
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (field_ == Field::shape) {
      tensors_.back().shape = Shape(std::span<const int64_t>(numbers_));
    } else {
      LADDER_CHECK(numbers_.size() == 2, "{}: tensor {}: data_offsets has {} numbers, expected 2", what_,
                   printable(current()), numbers_.size());
      tensors_.back().begin = numbers_[0];
      tensors_.back().end = numbers_[1];
    }
    return true;
  }

  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_) {
      LADDER_CHECK(has_dtype_, "{}: tensor {} has no dtype", what_, printable(current()));
      LADDER_CHECK(has_shape_, "{}: tensor {} has no shape", what_, printable(current()));
      LADDER_CHECK(has_offsets_, "{}: tensor {} has no data_offsets", what_, printable(current()));
    }
    in_metadata_ = false;
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    unexpected("the number " + printable(text));
  }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("{}: the header is not valid JSON at byte {}", what_, position);
  }

 private:
  enum class Field : uint8_t { none, dtype, shape, offsets };

  const std::string& current() const { return tensors_.back().name; }
  [[noreturn]] void unexpected(std::string_view found) const {
    if (depth_ == 0) fail("{}: the header must be a JSON object, found {}", what_, found);
    if (in_metadata_) fail("{}: __metadata__ must map strings to strings, found {}", what_, found);
    if (depth_ == 1) fail("{}: tensor {} must be an object, found {}", what_, printable(current()), found);
    fail("{}: tensor {} has {} where {} was expected", what_, printable(current()), found,
         field_ == Field::dtype ? "the name of a dtype" : "an array of non-negative integers");
  }

  std::string_view what_;
  std::vector<SafetensorsInfo>& tensors_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> metadata_keys_;
  std::vector<int64_t> numbers_;
  int depth_ = 0;
  bool in_array_ = false;
  bool in_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  Field field_ = Field::none;
};

}  // namespace

std::string printable(std::string_view name) {
  std::string text =
      Json(std::string(name.substr(0, 120))).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (name.size() > 120) text += "...";
  return text;
}

// >>> task 2.2: check that the tensors of a header tile the data exactly
namespace {

// Bytes that dtype and shape ask for; nullopt where they do not fit 63 bits. A size of zero does not excuse
// the other sizes: strides are products too.
std::optional<int64_t> bytes_of(DType dtype, const Shape& shape) {
  int64_t bytes = dtype_size(dtype);
  bool empty = false;
  for (int64_t size : shape.dims()) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

}  // namespace

std::vector<SafetensorsInfo> parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                                      std::string_view what) {
  // The specification wants `{` first; the reference reader also takes leading white space, which writers use
  // to pad to a page. A byte order mark, which the JSON parser would skip, is neither.
  const size_t first = header.find_first_not_of(" \t\r\n");
  LADDER_CHECK(first != std::string_view::npos && header[first] == '{',
               "{}: the header must be a JSON object", what);
  std::vector<SafetensorsInfo> tensors;
  HeaderReader reader(what, tensors);
  Json::sax_parse(header.begin(), header.end(), &reader);

  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsInfo& a, const SafetensorsInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t end = 0;
  for (const SafetensorsInfo& tensor : tensors) {
    LADDER_CHECK(tensor.begin == end && tensor.end >= tensor.begin,
                 "{}: tensor {} lies at bytes [{}, {}), expected to begin at {}, where the one before ends",
                 what, printable(tensor.name), tensor.begin, tensor.end, end);
    const auto bytes = bytes_of(tensor.dtype, tensor.shape);
    LADDER_CHECK(bytes.has_value(), "{}: tensor {}: the shape {} is too large", what, printable(tensor.name),
                 tensor.shape.str());
    LADDER_CHECK(*bytes == tensor.nbytes(), "{}: tensor {} has {} bytes, but {}{} needs {}", what,
                 printable(tensor.name), tensor.nbytes(), dtype_name(tensor.dtype), tensor.shape.str(),
                 *bytes);
    LADDER_CHECK(tensor.end <= data_bytes,
                 "{}: tensor {} ends at byte {} of the data, but the file holds {} (truncated?)", what,
                 printable(tensor.name), tensor.end, data_bytes);
    end = tensor.end;
  }
  LADDER_CHECK(end == data_bytes, "{}: the tensors end at byte {} of the data, but the file holds {}", what,
               end, data_bytes);
  return tensors;
}
// <<< task 2.2

}  // namespace ladder
