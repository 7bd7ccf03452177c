#include "step6_engine/kv_transfer_json.h"

#include "step1_layers/core/error.h"

namespace ladder {

KvTransferParams parse_kv_transfer(const Json& value, const std::string& what) {
  LADDER_CHECK(value.is_object(), "{}: expected an object, found {}", what, json_brief(value));
  KvTransferParams params;
  for (const auto& [key, field] : value.items()) {
    const std::string name = what + "." + key;
    if (key == "do_remote_decode")
      params.do_remote_decode = !field.is_null() && json_bool(field, name);
    else if (key == "do_remote_prefill")
      params.do_remote_prefill = !field.is_null() && json_bool(field, name);
    else if (key == "remote_engine_id")
      params.remote_engine_id = field.is_null() ? "" : json_string(field, name);
    else if (key == "remote_request_id")
      params.remote_request_id = field.is_null() ? "" : json_string(field, name);
    else if (key == "remote_address")
      params.remote_address = field.is_null() ? "" : json_string(field, name);
    else if (key == "remote_num_tokens")
      params.remote_num_tokens = field.is_null() ? 0 : json_int(field, name, 0);
    else
      fail(
          "{}: unknown field {}; expected do_remote_decode, do_remote_prefill, remote_engine_id, "
          "remote_request_id, remote_address and remote_num_tokens",
          what, json_brief(Json(key)));
  }
  LADDER_CHECK(params.do_remote_decode || params.do_remote_prefill,
               "{}: expected do_remote_decode or do_remote_prefill to be true", what);
  return params;
}

std::string kv_transfer_text(const KvTransferParams& params) {
  return Json{{"do_remote_decode", params.do_remote_decode}, {"do_remote_prefill", params.do_remote_prefill},
              {"remote_engine_id", params.remote_engine_id}, {"remote_request_id", params.remote_request_id},
              {"remote_address", params.remote_address},     {"remote_num_tokens", params.remote_num_tokens}}
      .dump();
}

}  // namespace ladder
