#include "step2_model/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
#include "step2_model/json_packed_ids.h"

namespace ladder {
namespace {

// Builds the tree from nlohmann's events, because its own builder has neither a depth limit nor a duplicate
// check.
template <class Tree>
class TreeBuilder final : public nlohmann::json_sax<Tree> {
 public:
  using typename nlohmann::json_sax<Tree>::number_integer_t;
  using typename nlohmann::json_sax<Tree>::number_unsigned_t;
  using typename nlohmann::json_sax<Tree>::number_float_t;
  using typename nlohmann::json_sax<Tree>::string_t;
  using typename nlohmann::json_sax<Tree>::binary_t;

  // `text`: the whole, in which errors are placed. `cut`: the lists that are packed, if there are any.
  TreeBuilder(Tree& root, std::string_view text, std::string_view what, int max_depth,
              const TextWithoutIds* cut = nullptr)
      : root_(root), text_(text), what_(what), max_depth_(max_depth), cut_(cut) {}

  bool null() override { return put(Tree(nullptr)) != nullptr; }
  bool boolean(bool value) override { return put(Tree(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(Tree(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(Tree(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return put(Tree(value)) != nullptr; }
  bool string(string_t& value) override { return put(Tree(std::move(value))) != nullptr; }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Tree::object()); }
  bool start_array(std::size_t) override {
    const size_t array = num_arrays_++;
    if (!cut_ || next_list_ == cut_->lists.size() || cut_->lists[next_list_].array != array)
      return open(Tree::array());
    const std::vector<int32_t>& ids = cut_->lists[next_list_++].ids;
    std::vector<uint8_t> bytes(ids.size() * sizeof(int32_t));
    std::memcpy(bytes.data(), ids.data(), bytes.size());
    return open(Tree::binary(std::move(bytes)));
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& members = stack_.back()->template get_ref<typename Tree::object_t&>();
    bool is_new = false;
    if constexpr (std::is_same_v<Tree, OrderedJson>) {  // a list of members, which knows no quick search
      is_new = names_.back().insert(name).second;
      members.push_back({name, nullptr});
      member_ = &members.back().second;
    } else {
      const auto [position, inserted] = members.emplace(name, nullptr);
      is_new = inserted;
      member_ = &position->second;
    }
    LADDER_CHECK(is_new, "{}: the key {} occurs twice in one object", what_, json_brief(name));
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (cut_) position = cut_->position_in_text(position);
    const std::string_view before = text_.substr(0, position == 0 ? 0 : std::min(position - 1, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t newline = before.rfind('\n');
    const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
    std::string_view reason = error.what();
    // Off with "[json.exception.parse_error.101] parse error at line 1, column 2: ".
    if (const size_t tag = reason.find("] "); tag != std::string_view::npos) reason.remove_prefix(tag + 2);
    if (const size_t place = reason.find(": "); place != std::string_view::npos)
      reason.remove_prefix(place + 2);
    // What was read last can be a megabyte of string; the position says where it is.
    reason = reason.substr(0, reason.find("; last read"));
    // `what` may be one line of a file: then a line number of our own would contradict it.
    const bool one_line = text_.find('\n') == std::string_view::npos;
    fail("{}: not valid JSON at {}column {}: {}", what_, one_line ? "" : fmt::format("line {}, ", line),
         column, reason.substr(0, 120));
  }

 private:
  Tree* put(Tree&& value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& array = stack_.back()->template get_ref<typename Tree::array_t&>();
    array.push_back(std::move(value));
    return &array.back();
  }

  bool open(Tree&& container) {
    LADDER_CHECK(static_cast<int>(stack_.size()) < max_depth_,
                 "{}: more than {} objects and arrays within each other", what_, max_depth_);
    stack_.push_back(put(std::move(container)));
    names_.emplace_back();
    return true;
  }

  bool close() {
    stack_.pop_back();
    names_.pop_back();
    return true;
  }

  Tree& root_;
  std::string_view text_;
  std::string_view what_;
  int max_depth_;
  std::vector<Tree*> stack_;  // the containers still open; a parent does not change while a child is open
  std::vector<std::unordered_set<std::string>> names_;  // of the containers still open, for OrderedJson
  Tree* member_ = nullptr;                              // where the value of the key just read goes
  const TextWithoutIds* cut_;
  size_t num_arrays_ = 0, next_list_ = 0;  // of cut_->lists
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, int max_depth) {
  Json root;
  TreeBuilder<Json> builder(root, text, what, max_depth);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return root;
}

Json parse_json_with_packed_ids(std::string_view text, std::string_view what, int max_depth) {
  const TextWithoutIds cut = cut_out_ids(text);
  if (cut.lists.empty()) return parse_json(text, what, max_depth);
  Json root;
  TreeBuilder<Json> builder(root, text, what, max_depth, &cut);
  Json::sax_parse(cut.rest.begin(), cut.rest.end(), &builder);
  return root;
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view what, int max_depth) {
  OrderedJson root;
  TreeBuilder<OrderedJson> builder(root, text, what, max_depth);
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return root;
}

std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  LADDER_CHECK(std::filesystem::exists(status), "{}: there is no such file", path.string());
  LADDER_CHECK(std::filesystem::is_regular_file(status), "{}: not a regular file", path.string());
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  LADDER_CHECK(file.good(), "{}: cannot be opened for reading", path.string());
  const int64_t size = static_cast<int64_t>(file.tellg());
  LADDER_CHECK(size >= 0 && size <= max_bytes, "{}: {} bytes, at most {} are read", path.string(), size,
               max_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  file.read(text.data(), size);
  LADDER_CHECK(file.gcount() == size, "{}: read {} of {} bytes", path.string(), file.gcount(), size);
  return text;
}

Json load_json(const std::filesystem::path& path, int max_depth) {
  return parse_json(read_text_file(path), path.string(), max_depth);
}

const Json* json_find(const Json& object, const std::string& key, std::string_view what) {
  LADDER_CHECK(object.is_object(), "{}: expected an object, found {}", what, json_brief(object));
  const auto member = object.find(key);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

const Json& json_at(const Json& object, const std::string& key, std::string_view what) {
  const Json* member = json_find(object, key, what);
  LADDER_CHECK(member != nullptr, "{}: \"{}\" is missing", what, key);
  return *member;
}

int64_t json_int(const Json& value, std::string_view what, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  LADDER_CHECK(fits, "{}: expected an integer, found {}", what, json_brief(value));
  const int64_t number = value.get<int64_t>();
  LADDER_CHECK(number >= min && number <= max, "{}: expected an integer in [{}, {}], found {}", what, min,
               max, number);
  return number;
}

double json_number(const Json& value, std::string_view what) {
  LADDER_CHECK(value.is_number() && std::isfinite(value.get<double>()), "{}: expected a number, found {}",
               what, json_brief(value));
  return value.get<double>();
}

bool json_bool(const Json& value, std::string_view what) {
  LADDER_CHECK(value.is_boolean(), "{}: expected true or false, found {}", what, json_brief(value));
  return value.get<bool>();
}

const std::string& json_string(const Json& value, std::string_view what) {
  LADDER_CHECK(value.is_string(), "{}: expected a string, found {}", what, json_brief(value));
  return value.get_ref<const std::string&>();
}

std::string json_brief(const Json& value) {
  if (value.is_object()) return fmt::format("an object of {} members", value.size());
  if (value.is_array()) return fmt::format("an array of {} values", value.size());
  if (const auto ids = packed_ids(value)) return fmt::format("an array of {} values", ids->size());
  std::string text = value.is_string() ? value.get_ref<const std::string&>().substr(0, 80) : std::string();
  text =
      (value.is_string() ? Json(std::move(text)) : value).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 64) text = text.substr(0, 60) + "...";
  return text;
}

}  // namespace ladder
