#include "step2_model/chat/jinja/json_value.h"

#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

Value outside_text(Interpreter& in, const std::string& bytes) {
  if (utf8_valid_prefix(bytes) == static_cast<int64_t>(bytes.size())) return in.text(bytes, Origin::outside);
  std::string valid;
  utf8_append_replaced(valid, bytes);
  return in.text(valid, Origin::outside);
}

Value value_at(Interpreter& in, const OrderedJson& json, int depth) {
  if (depth > 90) refuse("the request nests more than 90 lists and dicts");
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::of(json.get<bool>());
    case OrderedJson::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        refuse("an integer needs more than 64 bits");
      [[fallthrough]];
    case OrderedJson::value_t::number_integer:
      return Value::of(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value::of(json.get<double>());
    case OrderedJson::value_t::string:
      return outside_text(in, json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(value_at(in, item, depth + 1));
      return in.list(std::move(items), Sequence::list, Origin::outside);
    }
    case OrderedJson::value_t::object: {
      Dict::Items items;
      items.reserve(json.size());
      for (const auto& [key, item] : json.get_ref<const OrderedJson::object_t&>())
        items.emplace_back(outside_text(in, key), value_at(in, item, depth + 1));
      return in.dict(std::move(items), Origin::outside);
    }
    default:
      return Value();
  }
}

}  // namespace

Value value_of_json(Interpreter& interpreter, const OrderedJson& json) {
  return value_at(interpreter, json, 0);
}

}  // namespace ladder::jinja
